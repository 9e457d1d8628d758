package store

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// Recordings of upstream: two sessions with a master of 0.3.13 that visit its corners (session-1, -2), and
// what real clients of each release said to the master of their own release.

// recording is one of them.
type recording struct {
	Name    string
	Release string   // of client and master
	Flags   []string // of the master
	Frames  []frame
}

// frame is one request and its answer, or an event.
type frame struct {
	AtMS  int    `json:"at_ms"` // since the start; the replay is never ahead of it
	Event string // close (of a connection by the client), kill, start (of the master)
	Conn  int    // TCP connection
	RPC   string
	Note  string

	Request  hexBytes
	Response hexBytes // empty: the connection is closed instead of an answer
	Closed   bool
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(b []byte) (err error) {
	*h, err = hex.DecodeString(string(b))
	return err
}

func (f *frame) String() string {
	s := f.RPC
	if f.Note != "" {
		s += " (" + f.Note + ")"
	}
	return s
}

func recordings(t testing.TB) []recording {
	t.Helper()
	b, err := os.ReadFile("testdata/recordings.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var rs []recording
	if err := json.NewDecoder(z).Decode(&rs); err != nil {
		t.Fatal(err)
	}
	return rs
}

// player replays a recording against a master.
type player struct {
	addr  string
	kill  func() // of the master; start serves again on the same address
	start func()
	m     *matcher
	conns map[int]*playerConn
}

type playerConn struct {
	net.Conn
	in *bufio.Reader
}

// answerWithin is the deadline of one answer.
const answerWithin = 30 * time.Second

// patience is how long a reading call is repeated whose answer differs: what a master does on a timer may
// come a little later on a busy machine.
const patience = 5 * time.Second

// play replays r and returns a line for each frame that differs.
func (p *player) play(t testing.TB, r *recording) []difference {
	p.m, p.conns = newMatcher(r), map[int]*playerConn{}
	defer func() {
		for _, c := range p.conns {
			c.Close()
		}
	}()
	var diffs []difference
	begin := time.Now()
	for i := range r.Frames {
		f := &r.Frames[i]
		// The distance in time belongs to what was recorded: leases and clients expire in between.
		time.Sleep(time.Until(begin.Add(time.Duration(f.AtMS) * time.Millisecond)))
		switch f.Event {
		case "close":
			if c := p.conns[f.Conn]; c != nil {
				c.Close()
				delete(p.conns, f.Conn)
			}
		case "kill":
			p.kill()
			for n, c := range p.conns {
				c.Close()
				delete(p.conns, n)
			}
		case "start":
			p.start()
		case "":
			why := p.exchange(f)
			for until := time.Now().Add(patience); why != nil && p.m.repeatable(f) && time.Now().Before(until); why = p.exchange(f) {
				time.Sleep(20 * time.Millisecond)
			}
			if why != nil {
				diffs = append(diffs, difference{recording: r.Name, frame: f, why: why})
			}
			if errors.Is(why, errBroken) {
				return diffs
			}
		default:
			t.Fatalf("%s: unknown event %q", r.Name, f.Event)
		}
	}
	return diffs
}

// difference is a frame whose answer is not the recorded one.
type difference struct {
	recording string
	frame     *frame
	why       error
}

func (d difference) String() string {
	return fmt.Sprintf("%s at %d ms: %s: %v", d.recording, d.frame.AtMS, d.frame, d.why)
}

var errBroken = errors.New("connection broken")

// exchange sends a request and compares the answer.
func (p *player) exchange(f *frame) error {
	c := p.conns[f.Conn]
	if c == nil {
		n, err := net.DialTimeout("tcp", p.addr, answerWithin)
		if err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		c = &playerConn{n, bufio.NewReader(n)}
		p.conns[f.Conn] = c
	}
	c.SetDeadline(time.Now().Add(answerWithin))
	if _, err := c.Write(p.m.request(f)); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	got, err := readAnswer(c.in)
	if len(f.Response) == 0 {
		if !errors.Is(err, io.EOF) && !errors.Is(err, errReset) {
			return fmt.Errorf("answered %x (%v), want the connection closed", got, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	return p.m.compare(f, got)
}

var errReset = errors.New("connection reset")

// Layout of an answer's header.
const (
	headerSize = 16
	maxAnswer  = 64 << 20
)

// readAnswer reads a whole answer.
func readAnswer(r io.Reader) ([]byte, error) {
	h := make([]byte, headerSize)
	if _, err := io.ReadFull(r, h); err != nil {
		if ne := new(net.OpError); errors.As(err, &ne) && !ne.Timeout() {
			return nil, errReset
		}
		return nil, err
	}
	n := uint64(binary.LittleEndian.Uint32(h[8:])) + uint64(binary.LittleEndian.Uint32(h[12:]))
	if n > maxAnswer {
		return h, fmt.Errorf("an answer of %d bytes", n)
	}
	b := append(h, make([]byte, n)...)
	_, err := io.ReadFull(r, b[headerSize:])
	return b, err
}

// literal is the type literal that a body carries, or "".
func literal(body []byte) string {
	h, err := structpack.ParseHeader(body)
	if err != nil || !h.HasLiteral {
		return ""
	}
	return string(h.Literal)
}
