package tcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

type goldenUnit struct {
	Dir, Unit, Hex, SHA256 string
	Head                   string `json:"head64_hex"`
	Len                    int
}

// goldenAddr is where the recorded wheel targets had their buffer.
const goldenAddr = 0x7e0000000000

type goldenTranscript struct {
	Name string
	Ops  []struct {
		Op         string
		Size, Seed int
		RemoteAddr uint64 `json:"remote_addr"`
	}
	Connections []struct{ Units []goldenUnit }
}

// image is the initiator's buffer, which mirrors the target's.
func (tr *goldenTranscript) image() []byte {
	b := make([]byte, 2<<20)
	for _, o := range tr.Ops {
		off := o.RemoteAddr - goldenAddr
		transporttest.Fill(b[off:off+uint64(o.Size)], o.Seed)
	}
	return b
}

type golden struct {
	Transcripts []goldenTranscript
	Server      []struct {
		Case    string
		Request string `json:"request_head"`
		Reply   string `json:"reply_hex"`
		Then    string
	}
}

func loadGolden(t testing.TB) (g golden) {
	t.Helper()
	b, err := os.ReadFile("testdata/golden.json")
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// bytes is the unit's content. Payloads longer than 64 bytes are recorded by their digest: they are the
// pattern, or a block of the initiator's buffer after its single operations.
func (u *goldenUnit) bytes(t testing.TB, image []byte) []byte {
	t.Helper()
	if u.Hex != "" {
		return unhex(t, u.Hex)
	}
	match := func(b []byte) bool {
		sum := sha256.Sum256(b)
		return hex.EncodeToString(sum[:]) == u.SHA256
	}
	b := make([]byte, u.Len)
	for seed := range 256 {
		transporttest.Fill(b[:64], seed)
		if hex.EncodeToString(b[:64]) == u.Head {
			transporttest.Fill(b, seed)
			if match(b) {
				return b
			}
		}
	}
	for off := 0; off+u.Len <= len(image); off += u.Len {
		if b := image[off : off+u.Len]; hex.EncodeToString(b[:64]) == u.Head && match(b) {
			return b
		}
	}
	t.Fatalf("nothing known gives the payload %s...", u.Head)
	return nil
}

// rawServer starts a server with 6 MiB at the recorded address, in regions of the given size.
func rawServer(t testing.TB, region int, change func(*Config)) (*Transport, *transporttest.Node, *transporttest.Region) {
	t.Helper()
	tr := newTestTransport(t, change)
	n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
	mem := transporttest.NewRegion(t, 6<<20, transports.ReadWrite)
	for off := 0; off < 6<<20; off += region {
		n.Add(t, slice{placed{mem, goldenAddr}, off, region})
	}
	return tr, n, mem
}

// slice is a piece of a placed region.
type slice struct {
	placed
	off, n int
}

func (s slice) Addr() uint64  { return s.addr + uint64(s.off) }
func (s slice) Len() uint64   { return uint64(s.n) }
func (s slice) Bytes() []byte { return s.Region.Bytes()[s.off : s.off+s.n] }

func rawDial(t testing.TB, n *transporttest.Node) net.Conn {
	t.Helper()
	d := n.Descriptor()
	c, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.ParseIP(d.TCPDataHost), Port: d.TCPDataPort})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

// TestGoldenServer replays the wheel's clients against our server, byte for byte.
func TestGoldenServer(t *testing.T) {
	g := loadGolden(t)
	for _, tr := range g.Transcripts {
		t.Run(tr.Name, func(t *testing.T) {
			_, n, mem := rawServer(t, 6<<20, nil)
			image := tr.image()
			// Reads of one recorded connection see writes of another: put their bytes in place first.
			for _, conn := range tr.Connections {
				for i, u := range conn.Units {
					if u.Unit == "header" && i+1 < len(conn.Units) && conn.Units[i+1].Dir == "c2s" && conn.Units[i+1].Unit == "payload" {
						h := parseHeader(unhex(t, u.Hex))
						copy(mem.Bytes()[h.addr-goldenAddr:], conn.Units[i+1].bytes(t, image))
					}
				}
			}
			requests := 0
			for i, conn := range tr.Connections {
				c := rawDial(t, n)
				for k, u := range conn.Units {
					want := u.bytes(t, image)
					if u.Dir == "c2s" {
						if _, err := c.Write(want); err != nil {
							t.Fatal(err)
						}
						requests++
						continue
					}
					got := make([]byte, len(want))
					if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
						t.Fatalf("connection %d, unit %d (%s of %d bytes): differs (%v)", i, k, u.Unit, len(want), err)
					}
				}
				c.Close()
			}
			if requests < 10 {
				t.Fatalf("only %d units were sent", requests)
			}
		})
	}
}

// TestGoldenClient runs the recorded operations with our client and compares what it sends.
func TestGoldenClient(t *testing.T) {
	g := loadGolden(t)
	for _, tr := range g.Transcripts[:2] {
		t.Run(tr.Name, func(t *testing.T) {
			proto := 2
			if tr.Name == "tcp_data_v1_pool_default" {
				proto = 1
			}
			f := newFakeTarget(t, 6<<20, nil)
			c := newClient(t, f.descriptor(proto), func(c *Config) { c.LanesPerPeer = 1 })
			c.peer.(*Peer).multi = true // as the recorded peer is known to be
			var want []byte
			units := tr.Connections[0].Units
			for i, o := range tr.Ops {
				local := c.local.Bytes()[:o.Size]
				transporttest.Fill(local, o.Seed)
				if o.Op == "read" {
					transporttest.Set(local, 0)
				}
				if err := transporttest.Move(t, c.peer, c.op(o.Op == "write", o.RemoteAddr, o.Size, uint64(i))); err != nil {
					t.Fatalf("%s of %d: %v", o.Op, o.Size, err)
				}
				transporttest.CheckFill(t, o.Op, local, o.Seed)
				n := 0
				for ; len(units) > 0 && (n == 0 || units[0].Unit != "header"); units = units[1:] {
					if units[0].Dir == "c2s" {
						want = append(want, units[0].bytes(t, nil)...)
					}
					n++
				}
			}
			c.peer.Close()
			f.close()
			if len(f.conns) != 1 {
				t.Fatalf("%d connections, want 1", len(f.conns))
			}
			if got := f.conns[0].got; !bytes.Equal(got, want) {
				t.Errorf("sent %d bytes that differ from the recorded %d", len(got), len(want))
			}
		})
	}
}

// TestGoldenAnswers sends the recorded hand-made requests, also those of a half-finished client.
func TestGoldenAnswers(t *testing.T) {
	// What follows the first header in the recorded requests.
	more := map[string][]string{
		"v2 WRITE unregistered + 16 B payload":  {"00000000000000000000000000000000"},
		"v1 WRITE unregistered + 16 B payload":  {"00000000000000000000000000000000"},
		"v2 WRITE unregistered + 4 MiB payload": {hex.EncodeToString(make([]byte, 4<<20))},
		"pipelined 3 v2 READs": {"100000000000000000000000007e00008000000000000000",
			"100000000000000000000000007e00008000000000000000"},
		"pipelined v2 WRITE+READ+WRITE": {"61626364", "040000000000000000000000007e00008000000000000000",
			"040000000000000000000000007e00008100000000000000", "7778797a"},
		"pipelined: reject in the middle, v2": {"040000000000000000f0ffffff7d00008100000000000000", "7a7a7a7a",
			"040000000000000000000000007e00008000000000000000"},
		"mixed v1 and v2 on one connection": {"040000000000000000000000007e00008000000000000000",
			"040000000000000000000000007e00008100000000000000", "7778797a", "040000000000000000000000007e00000000000000000000"},
		"WRITE half payload then half-close": {hex.EncodeToString(bytes.Repeat([]byte{0x71}, 50))},
	}
	// The memory at the buffer's start as it was when the case was recorded.
	before := map[string]string{
		"pipelined: reject in the middle, v2": "61626364",
		"mixed v1 and v2 on one connection":   "61626364",
		"header split over 3 sends (7+9+8)":   "7778797a",
		"READ then client half-closes":        "7778797a65666768",
	}
	halfClose := map[string]bool{"half header then close": true, "WRITE half payload then half-close": true, "READ then client half-closes": true}
	for _, c := range loadGolden(t).Server {
		t.Run(c.Case, func(t *testing.T) {
			_, n, mem := rawServer(t, 1<<20, nil)
			copy(mem.Bytes(), unhex(t, before[c.Case]))
			conn := rawDial(t, n)
			req := unhex(t, c.Request)
			parts := [][]byte{req}
			if c.Case == "header split over 3 sends (7+9+8)" {
				parts = [][]byte{req[:7], req[7:16], req[16:]}
			}
			for _, p := range more[c.Case] {
				parts = append(parts, unhex(t, p))
			}
			for _, p := range parts {
				if _, err := conn.Write(p); err != nil && c.Then != "reset" {
					t.Fatal(err)
				}
			}
			if halfClose[c.Case] {
				conn.(*net.TCPConn).CloseWrite()
			}
			want := unhex(t, c.Reply)
			if c.Case == "pipelined 3 v2 READs" {
				want = append(want, make([]byte, 72-len(want))...) // recorded up to byte 64
			}
			if c.Case == "v2 WRITE unregistered + 4 MiB payload" {
				// A client that sends everything before it reads: the wheel's server loses the frame in a reset.
				want = unhex(t, "010000005654434d")
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("answered %x (%v), want %x", got, err, want)
			}
			wantOpen := c.Then == "still open"
			conn.SetReadDeadline(time.Now().Add(map[bool]time.Duration{true: 30 * time.Millisecond, false: 10 * time.Second}[wantOpen]))
			k, err := conn.Read(make([]byte, 1))
			ne, timeout := err.(net.Error)
			if open := k == 0 && timeout && ne.Timeout(); open != wantOpen || k > 0 {
				t.Errorf("after the answer: %d bytes, %v; the wheel: %s", k, err, c.Then)
			}
		})
	}
}
