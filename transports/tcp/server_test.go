package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

func headerBytes(op byte, addr, size uint64) []byte {
	b := make([]byte, headerLen)
	header{size: size, addr: addr, op: op}.put(b)
	return b
}

// mustAnswer reads exactly want.
func mustAnswer(t testing.TB, c net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("answered %x (%v), want %x", got[:n], err, want)
	}
}

func statusBytes(code uint32) []byte {
	b := make([]byte, statusLen)
	putStatus(b, code)
	return b
}

// mustEnd reads until the server ends the connection, without one more byte.
func mustEnd(t testing.TB, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("connection not ended: %d bytes, %v", n, err)
	}
}

// TestHostileFrames is scenario S1: hand-made requests in both directions and both framings. Each is
// answered with a status (v2) or a close (v1), touches nothing and is counted; the server goes on.
func TestHostileFrames(t *testing.T) {
	const addr = goldenAddr
	for _, c := range []struct {
		name       string
		addr, size uint64
		reason     string
	}{
		{"outside any region", addr - 1<<30, 64, "unregistered"},
		{"one byte past the end", addr + 1<<20 - 63, 64, "unregistered"},
		{"one byte past the end, large", addr + 1, 1 << 20, "unregistered"},
		{"address and length wrap", math.MaxUint64 - 7, 64, "overflow"},
		{"length 0", addr, 0, "zero"},
		{"length 2^63", addr, 1 << 63, "unregistered"},
		{"length 2^64-1", addr, math.MaxUint64, "overflow"},
		{"address 0", 0, 64, "unregistered"},
		{"across two adjacent regions", addr + 1<<20 - 32, 64, "unregistered"},
	} {
		for _, op := range []byte{opRead, opWrite, opRead | flagV2, opWrite | flagV2} {
			t.Run(fmt.Sprintf("%s, opcode %#x", c.name, op), func(t *testing.T) {
				tr, n, mem := rawServer(t, 1<<20, nil)
				transporttest.Set(mem.Bytes(), 0x5a)
				conn := rawDial(t, n)
				req := headerBytes(op, c.addr, c.size)
				if op&0x7f == opWrite {
					req = append(req, bytes.Repeat([]byte{0xbb}, 64)...)
				}
				if _, err := conn.Write(req); err != nil {
					t.Fatal(err)
				}
				if op&flagV2 != 0 {
					mustAnswer(t, conn, statusBytes(statusRejected))
				}
				mustEnd(t, conn)
				transporttest.CheckAll(t, "memory", mem.Bytes(), 0x5a)
				if v := testutil.ToFloat64(tr.m.rejected.WithLabelValues(c.reason)); v != 1 {
					t.Errorf("rejected_total{reason=%q} = %v", c.reason, v)
				}
				again := rawDial(t, n)
				again.Write(headerBytes(opRead|flagV2, addr, 4))
				mustAnswer(t, again, append(statusBytes(statusOK), 0x5a, 0x5a, 0x5a, 0x5a))
			})
		}
	}
	t.Run("opcode 0xff is a read", func(t *testing.T) {
		_, n, mem := rawServer(t, 1<<20, nil)
		transporttest.Set(mem.Bytes(), 1)
		conn := rawDial(t, n)
		conn.Write(headerBytes(0xff, addr, 4))
		mustAnswer(t, conn, append(statusBytes(statusOK), 1, 1, 1, 1))
	})
	t.Run("header cut after 7 bytes", func(t *testing.T) {
		_, n, _ := rawServer(t, 1<<20, nil)
		conn := rawDial(t, n)
		conn.Write(headerBytes(opWrite, addr, 64)[:7])
		conn.(*net.TCPConn).CloseWrite()
		mustEnd(t, conn)
	})
}

func TestAccessIsEnforcedOnTheWire(t *testing.T) {
	tr := newTestTransport(t, nil)
	n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
	ro := n.Register(t, 4096, transports.RemoteRead)
	conn := rawDial(t, n)
	conn.Write(append(headerBytes(opWrite|flagV2, ro.Addr(), 4), "abcd"...))
	mustAnswer(t, conn, statusBytes(statusRejected))
	mustEnd(t, conn)
	transporttest.CheckAll(t, "read-only memory", ro.Bytes(), 0)
	if v := testutil.ToFloat64(tr.m.rejected.WithLabelValues("access")); v != 1 {
		t.Errorf("rejected_total{reason=access} = %v", v)
	}
}

// TestUnmappedRegion: memory that its owner has unmapped ends the connection with a status, never the
// process.
func TestUnmappedRegion(t *testing.T) {
	for _, size := range []int{16, 4096, 1 << 20} {
		for _, op := range []byte{opRead, opWrite, opRead | flagV2, opWrite | flagV2} {
			t.Run(fmt.Sprintf("opcode %#x, %d bytes", op, size), func(t *testing.T) {
				tr := newTestTransport(t, nil)
				n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
				r := n.Register(t, 1<<20, transports.ReadWrite)
				ok := n.Register(t, 4096, transports.ReadWrite)
				r.Revoke(t)
				conn := rawDial(t, n)
				req := headerBytes(op, r.Addr(), uint64(size))
				if op&0x7f == opWrite {
					req = append(req, make([]byte, size)...)
				}
				conn.Write(req)
				if op&flagV2 != 0 {
					mustAnswer(t, conn, statusBytes(statusRejected))
				}
				mustEnd(t, conn)
				if v := testutil.ToFloat64(tr.m.rejected.WithLabelValues("fault")); v != 1 {
					t.Errorf("rejected_total{reason=fault} = %v", v)
				}
				if refs := n.Refs(); refs != 0 {
					t.Errorf("%d Refs left", refs)
				}
				again := rawDial(t, n)
				again.Write(headerBytes(opRead|flagV2, ok.Addr(), 4))
				mustAnswer(t, again, append(statusBytes(statusOK), 0, 0, 0, 0))
			})
		}
	}
	t.Run("only the middle of a read is unmapped", func(t *testing.T) {
		tr := newTestTransport(t, nil)
		n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
		r := n.Register(t, 1<<20, transports.ReadWrite)
		if err := syscall.Mprotect(r.Bytes()[512<<10:516<<10], syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		conn := rawDial(t, n)
		conn.Write(headerBytes(opRead|flagV2, r.Addr(), 1<<20))
		mustAnswer(t, conn, statusBytes(statusOK))
		got, err := io.ReadAll(conn)
		if len(got) >= 1<<20 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v; want fewer than asked for, then the end", len(got), err)
		}
	})
}

// TestBrokenAnswerIsNotSentTwice: an answer that fails half way, while the next request is being read,
// ends the connection there.
func TestBrokenAnswerIsNotSentTwice(t *testing.T) {
	tr := newTestTransport(t, nil)
	n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
	r := n.Register(t, 64<<10, transports.ReadWrite)
	transporttest.Set(r.Bytes(), 7)
	if err := syscall.Mprotect(r.Bytes()[32<<10:36<<10], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		conn := rawDial(t, n)
		req := headerBytes(opRead|flagV2, r.Addr(), 100)
		req = append(req, headerBytes(opRead|flagV2, r.Addr()+28<<10, 12<<10)...) // its middle page faults
		req = append(req, headerBytes(opWrite|flagV2, r.Addr()+60<<10, 1000)...)  // without its payload
		conn.Write(req)
		got, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) || len(got) > 2*statusLen+100+4<<10 {
			t.Fatalf("%d bytes, %v; want at most the first answer and the mapped part of the second", len(got), err)
		}
		if first := append(statusBytes(statusOK), bytes.Repeat([]byte{7}, 100)...); !bytes.HasPrefix(append(got, first[min(len(got), len(first)):]...), first) {
			t.Fatalf("the first answer begins with %x", got[:min(len(got), 16)])
		}
	}
	waitUntil(t, func() string {
		if refs := n.Refs(); refs != 0 {
			return fmt.Sprintf("%d Refs left", refs)
		}
		return ""
	})
}

// TestSimpleClientReadsRejection: a client that sends its whole payload before it looks for an answer
// still gets the status frame.
func TestSimpleClientReadsRejection(t *testing.T) {
	_, n, _ := rawServer(t, 1<<20, nil)
	conn := rawDial(t, n)
	conn.Write(append(headerBytes(opWrite|flagV2, goldenAddr, 4), "abcd"...))
	if _, err := conn.Write(append(headerBytes(opWrite|flagV2, 4096, 32<<20), make([]byte, 32<<20)...)); err != nil {
		t.Fatalf("sending the payload: %v", err)
	}
	mustAnswer(t, conn, append(statusBytes(statusOK), statusBytes(statusRejected)...))
	mustEnd(t, conn)
}

// TestRejectedPeerCannotHoldTheConnection: a rejected peer that neither reads nor closes is cut off.
func TestRejectedPeerCannotHoldTheConnection(t *testing.T) {
	tr, n, _ := rawServer(t, 1<<20, func(c *Config) { c.DrainTimeout = 50 * time.Millisecond })
	conn := rawDial(t, n)
	conn.Write(headerBytes(opWrite|flagV2, 4096, 1<<40))
	waitUntil(t, func() string {
		if v := testutil.ToFloat64(tr.m.accepted); v != 1 {
			return fmt.Sprintf("%v accepted", v)
		}
		if v := testutil.ToFloat64(tr.m.connections); v != 0 {
			return fmt.Sprintf("%v connections still open", v)
		}
		return ""
	})
}

// TestIdleConnectionsStay and stalled ones go: only a peer that stops in the middle of a request is
// dropped, whatever it has sent of it.
func TestIdleConnectionsStay(t *testing.T) {
	tr, n, _ := rawServer(t, 1<<20, func(c *Config) { c.StallTimeout = 60 * time.Millisecond })
	idle, fresh := rawDial(t, n), rawDial(t, n)
	idle.Write(headerBytes(opRead|flagV2, goldenAddr, 4))
	mustAnswer(t, idle, append(statusBytes(statusOK), 0, 0, 0, 0))
	stalled := map[string]net.Conn{"in the header": rawDial(t, n), "in the payload": rawDial(t, n), "not reading": rawDial(t, n)}
	stalled["in the header"].Write(headerBytes(opWrite|flagV2, goldenAddr, 64)[:7])
	stalled["in the payload"].Write(append(headerBytes(opWrite|flagV2, goldenAddr, 1<<20), make([]byte, 1000)...))
	for range 64 {
		stalled["not reading"].Write(headerBytes(opRead|flagV2, goldenAddr, 1<<20))
	}
	waitUntil(t, func() string {
		if v := testutil.ToFloat64(tr.m.stalled[roleServer]); v != 3 {
			return fmt.Sprintf("%v stalled connections dropped, want 3", v)
		}
		return ""
	})
	for what, c := range stalled {
		if what != "not reading" {
			t.Run(what, func(t *testing.T) { mustEnd(t, c) })
		}
	}
	for _, c := range []net.Conn{idle, fresh} {
		c.Write(headerBytes(opRead|flagV2, goldenAddr, 4))
		mustAnswer(t, c, append(statusBytes(statusOK), 0, 0, 0, 0))
	}
	waitUntil(t, func() string {
		if refs := n.Refs(); refs != 0 {
			return fmt.Sprintf("%d Refs left", refs)
		}
		return ""
	})
}

// TestConnectionLimit: at the limit the longest idle connection of the address with most of them goes;
// a busy one never does, and a newcomer is served.
func TestConnectionLimit(t *testing.T) {
	tr, n, _ := rawServer(t, 1<<20, func(c *Config) { c.MaxConnections = 6 })
	d := n.Descriptor()
	from := func(ip string) net.Conn {
		t.Helper()
		c, err := net.DialTCP("tcp", &net.TCPAddr{IP: net.ParseIP(ip)}, &net.TCPAddr{IP: net.ParseIP(d.TCPDataHost), Port: d.TCPDataPort})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		return c
	}
	settle := func(busy int) { // waits until the server's goroutines have noted who is idle since when
		t.Helper()
		waitUntil(t, func() string {
			tr.srv.mu.Lock()
			defer tr.srv.mu.Unlock()
			n := 0
			for c := range tr.srv.conns {
				if c.busy.Load() {
					n++
				}
			}
			if n != busy {
				return fmt.Sprintf("%d busy connections, want %d", n, busy)
			}
			return ""
		})
	}
	busyNow := 0
	use := func(c net.Conn) {
		t.Helper()
		c.Write(headerBytes(opRead|flagV2, goldenAddr, 4))
		mustAnswer(t, c, append(statusBytes(statusOK), 0, 0, 0, 0))
		settle(busyNow)
	}
	crowd := []net.Conn{from("127.0.0.2"), from("127.0.0.2"), from("127.0.0.2"), from("127.0.0.2")}
	lone := from("127.0.0.3")
	use(lone) // idle for longer than any of the crowd
	for _, c := range crowd {
		use(c)
	}
	busy := crowd[0]
	busy.Write(headerBytes(opWrite|flagV2, goldenAddr+4096, 8))
	busy.Write([]byte("half"))
	busyNow = 1
	settle(busyNow)
	use(crowd[1]) // now crowd[2] is the longest idle one
	use(from("127.0.0.4"))
	use(from("127.0.0.4")) // the seventh
	mustEnd(t, crowd[2])
	if v := testutil.ToFloat64(tr.m.evicted); v != 1 {
		t.Errorf("connections_evicted_total = %v, want 1", v)
	}
	for _, c := range []net.Conn{lone, crowd[1], crowd[3]} {
		use(c)
	}
	busy.Write([]byte("done"))
	mustAnswer(t, busy, statusBytes(statusOK))
	busyNow = 0
	for range 10 { // idle clients cannot lock out new ones
		use(from("127.0.0.5"))
	}
	if v := testutil.ToFloat64(tr.m.connections); v > 6 {
		t.Errorf("%v connections open", v)
	}
}

// TestAllBusyRefusesNewcomer: when nothing idle can make room the newcomer is closed, not queued.
func TestAllBusyRefusesNewcomer(t *testing.T) {
	tr, n, mem := rawServer(t, 1<<20, func(c *Config) { c.MaxConnections = 1 })
	busy := rawDial(t, n)
	busy.Write(headerBytes(opWrite|flagV2, goldenAddr, 8))
	busy.Write([]byte("half"))
	waitUntil(t, func() string {
		if got := mem.Bytes()[:4]; string(got) != "half" {
			return fmt.Sprintf("%q received", got)
		}
		return ""
	})
	mustEnd(t, rawDial(t, n))
	if v := testutil.ToFloat64(tr.m.refused); v != 1 {
		t.Errorf("connections_refused_total = %v", v)
	}
	busy.Write([]byte("done"))
	mustAnswer(t, busy, statusBytes(statusOK))
}

// TestIdleConnectionsHoldNoBuffer: memory for idle connections stays small.
func TestIdleConnectionsHoldNoBuffer(t *testing.T) {
	tr, _, _ := rawServer(t, 1<<20, nil)
	ours, theirs := socketPair(t)
	defer ours.Close()
	defer theirs.Close()
	sk, err := newSock(ours, &tr.cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{srv: tr.srv, sock: sk}
	c.init()
	try := func() (done bool) {
		sk.rc.Control(func(fd uintptr) { done = c.readSome(fd) })
		return done
	}
	if try() || c.s != nil || c.busy.Load() {
		t.Fatal("a connection that waits for its first request holds a buffer or is busy")
	}
	theirs.Write(headerBytes(opRead|flagV2, goldenAddr, 4))
	if !try() || c.s == nil || !c.busy.Load() {
		t.Fatal("a request has arrived, and the connection holds no buffer or is idle")
	}
	c.w += c.n
	if h, err := c.next(); err != nil || c.handle(h) != nil || c.w-c.r != 0 {
		t.Fatalf("request %+v not handled: %v", h, err)
	}
	c.r, c.w = 0, 0
	if try() || c.s != nil || c.busy.Load() {
		t.Fatal("an idle connection holds a buffer or is busy")
	}
	mustAnswer(t, theirs, append(statusBytes(statusOK), 0, 0, 0, 0))
}

// TestManyPipelinedRequests: answers leave in order, also when they are more than one system call takes.
func TestManyPipelinedRequests(t *testing.T) {
	_, n, mem := rawServer(t, 1<<20, nil)
	transporttest.Fill(mem.Bytes(), 1)
	conn := rawDial(t, n)
	var req, want []byte
	for i := range 3000 {
		off, size := uint64(i*37%100_000), uint64(1+i%300)
		req = append(req, headerBytes(opRead|flagV2, goldenAddr+off, size)...)
		want = append(want, statusBytes(statusOK)...)
		want = append(want, mem.Bytes()[off:off+size]...)
		if i%3 == 0 {
			req = append(req, headerBytes(opWrite|flagV2, goldenAddr+512<<10+uint64(i), 3)...)
			req = append(req, "abc"...)
			want = append(want, statusBytes(statusOK)...)
		}
		if i%5 == 0 {
			req = append(req, headerBytes(opRead, goldenAddr+off, size)...)
			want = append(want, mem.Bytes()[off:off+size]...)
		}
	}
	go conn.Write(req)
	mustAnswer(t, conn, want)
}

// TestPipelinedReadSeesEarlierWritesOnly: answers that wait for the next system call must not show what a
// later request of the same connection has written.
func TestPipelinedReadSeesEarlierWritesOnly(t *testing.T) {
	_, n, _ := rawServer(t, 1<<20, nil)
	conn := rawDial(t, n)
	var req, want []byte
	for i := range 2000 {
		v := []byte(fmt.Sprintf("%04d", i))
		req = append(req, append(headerBytes(opWrite|flagV2, goldenAddr+2, 4), v...)...)
		req = append(req, headerBytes(opRead|flagV2, goldenAddr, 8)...)
		want = append(want, statusBytes(statusOK)...)
		want = append(want, statusBytes(statusOK)...)
		want = append(want, 0, 0)
		want = append(want, v...)
		want = append(want, 0, 0)
	}
	go conn.Write(req)
	mustAnswer(t, conn, want)
}

// TestPeerDisappears: the server forgets connections whose peer resets them in mid-request, and gives
// the region back.
func TestPeerDisappears(t *testing.T) {
	tr, n, _ := rawServer(t, 1<<20, nil)
	for i := range 30 {
		conn := rawDial(t, n).(*net.TCPConn)
		if i%2 == 0 {
			conn.Write(append(headerBytes(opWrite|flagV2, goldenAddr, 1<<20), make([]byte, 100_000)...))
		} else {
			conn.Write(headerBytes(opRead|flagV2, goldenAddr, 1<<20))
		}
		conn.SetLinger(0)
		conn.Close()
	}
	waitUntil(t, func() string {
		if v := testutil.ToFloat64(tr.m.accepted); v != 30 {
			return fmt.Sprintf("%v accepted", v)
		}
		if v := testutil.ToFloat64(tr.m.connections); v != 0 {
			return fmt.Sprintf("%v connections left", v)
		}
		return ""
	})
	if refs := n.Refs(); refs != 0 {
		t.Errorf("%d Refs left", refs)
	}
}
