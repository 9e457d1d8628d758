package rpc

import (
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	t.Run("body", func(t *testing.T) {
		s := serve(t, func(c *ServerConfig, _ *Options) { c.MaxBody = 1000 })
		p := s.dial()
		p.request(fnEcho, 1, repeat("x", 1000))
		p.expect(1, repeat("x", 1000))
		p.send(AppendRequest(nil, 2, fnEcho.ID, make([]byte, 1001))[:RequestHeaderSize])
		p.expectClosed()
		eventually(t, "the metric", func() bool { return s.metric("connections_closed_total", "body_cap") == 1 })
	})
	t.Run("attachment counts", func(t *testing.T) {
		s := serve(t, func(c *ServerConfig, _ *Options) { c.MaxBody = 1000 })
		p := s.dial()
		f := AppendRequest(nil, 1, fnEcho.ID, nil)
		binary.LittleEndian.PutUint32(f[16:], 0xffffffff)
		p.send(f)
		p.expectClosed()
	})
	t.Run("single answer", func(t *testing.T) {
		s := serve(t, func(c *ServerConfig, _ *Options) { c.MaxOutput = 1000 })
		p := s.dial()
		p.request(fnLarge, 1, string(binary.LittleEndian.AppendUint32(nil, 1000)))
		p.expect(1, repeat("\x00", 1000))
		p.request(fnLarge, 2, string(binary.LittleEndian.AppendUint32(nil, 1001)))
		p.expectError(2, CodeTooLarge, "the answer has 1001 bytes, more than max_output")
	})
	t.Run("connections", func(t *testing.T) {
		s := serve(t, func(c *ServerConfig, _ *Options) { c.MaxConnections, c.MaxConnectionsPerIP = 3, 2 })
		a, b := s.dial(), s.dial()
		alive := func(p *peerConn) {
			t.Helper()
			p.request(fnEcho, 1, "x")
			p.expect(1, "x")
		}
		alive(a)
		alive(b)
		s.dial().expectClosed()
		c := s.dialFrom("127.0.0.2")
		alive(c)
		s.dialFrom("127.0.0.3").expectClosed()
		if x, y := s.metric("connections_refused_total", "address"), s.metric("connections_refused_total", "total"); x != 1 || y != 1 {
			t.Errorf("refused: %v for the address, %v in all", x, y)
		}
		a.Close()
		eventually(t, "the place of a closed connection is free", func() bool { return s.Connections() == 2 })
		alive(s.dial())
	})
	t.Run("buffered bytes", func(t *testing.T) {
		s := serve(t, func(c *ServerConfig, _ *Options) { c.MaxBody, c.MaxBuffered = 1<<20, 2<<20 })
		var open []*peerConn
		for i := range 4 { // each leaves a request of 1 MiB unfinished
			p := s.dialFrom(fmt.Sprintf("127.0.0.%d", 10+i))
			open = append(open, p)
			p.send(AppendRequest(nil, 1, fnEcho.ID, make([]byte, 1<<20))[:1<<20])
		}
		eventually(t, "a connection is closed", func() bool { return s.metric("connections_closed_total", "buffered_cap") > 0 })
		if n := s.metric("buffered_bytes", ""); n > 2<<20 {
			t.Errorf("%v bytes buffered", n)
		}
		for _, p := range open {
			p.Close()
		}
		eventually(t, "everything is given back", func() bool { return s.metric("buffered_bytes", "") == 0 })
	})
	t.Run("a header claims no memory", func(t *testing.T) {
		s := serve(t, nil)
		for range 20 {
			p := s.dial()
			head := AppendRequest(nil, 1, fnEcho.ID, make([]byte, 10))
			binary.LittleEndian.PutUint32(head[12:], 200<<20)
			p.send(head)
		}
		eventually(t, "the requests are there", func() bool { return s.metric("received_bytes_total", "") == 20*(RequestHeaderSize+10) })
		if n := s.metric("buffered_bytes", ""); n > 20*(8<<10) {
			t.Errorf("%v bytes buffered for 20 headers", n)
		}
	})
}

func TestInFlightLimits(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		edit         func(*ServerConfig)
	}{
		{"of an address", "address", func(c *ServerConfig) { c.MaxInFlightPerIP = 2 }},
		{"in all", "workers", func(c *ServerConfig) { c.MaxQueued = 2 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, func(cfg *ServerConfig, _ *Options) { c.edit(cfg) })
			p := s.dial()
			var frames []byte
			const n = 20
			for i := range uint32(n) {
				frames = AppendRequest(frames, i, fnSlow.ID, fmt.Appendf(nil, "%d", i))
			}
			p.send(AppendRequest(frames, n, fnEcho.ID, []byte("last")))
			<-s.gate.entered
			<-s.gate.entered
			// The third must not start; other connections go on, at least with one slow request each.
			q := s.dialFrom("127.0.0.2")
			q.request(fnEcho, 1, "q")
			q.expect(1, "q")
			q.request(fnSlow, 2, "from q")
			if got := <-s.gate.entered; got != "from q" {
				t.Errorf("request %q started above the limit", got)
			}
			if got := s.metric("paused_total", c.reason); got != 1 {
				t.Errorf("paused %v times", got)
			}
			if got := s.metric("slow_requests", ""); got != 3 {
				t.Errorf("%v slow requests", got)
			}
			close(s.gate.open)
			seen := map[uint32]bool{}
			for range n + 1 {
				h, body := p.answer()
				want := fmt.Sprint(h.seq)
				if h.seq == n {
					want = "last"
				}
				if seen[h.seq] || string(body) != want {
					t.Fatalf("answer %d: %q", h.seq, body)
				}
				seen[h.seq] = true
			}
			q.expect(2, "from q")
		})
	}
}

func TestPeerThatDoesNotRead(t *testing.T) {
	t.Run("backpressure", func(t *testing.T) {
		s := serve(t, nil)
		p := s.dial()
		const n, size = 64, 1 << 20
		var frames []byte
		for i := range uint32(n) {
			frames = AppendRequest(frames, i, fnLarge.ID, binary.LittleEndian.AppendUint32(nil, size))
		}
		p.send(frames)
		eventually(t, "the connection is paused", func() bool { return s.metric("paused_total", "output") > 0 })
		if b := s.metric("buffered_bytes", ""); b > 8<<20 {
			t.Errorf("%v bytes buffered: requests behind an unread answer must wait", b)
		}
		for i := range uint32(n) {
			h, body := p.answer()
			if h.seq != i || len(body) != size {
				t.Fatalf("answer %d with %d bytes, want %d", h.seq, len(body), i)
			}
		}
		p.request(fnEcho, n, "again")
		p.expect(n, "again")
		eventually(t, "everything is given back", func() bool { return s.metric("buffered_bytes", "") == 0 })
	})
	t.Run("write timeout", func(t *testing.T) {
		s := serve(t, func(c *ServerConfig, _ *Options) { c.WriteTimeout = 200 * time.Millisecond })
		p := s.dial()
		if err := p.Conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		for i := range uint32(16) {
			p.request(fnLarge, i, string(binary.LittleEndian.AppendUint32(nil, 900<<10)))
		}
		eventually(t, "the connection is closed", func() bool { return s.metric("connections_closed_total", "write_timeout") == 1 })
		if s.Connections() != 0 || s.metric("buffered_bytes", "") != 0 {
			t.Error("something is left")
		}
	})
	t.Run("output cap", func(t *testing.T) {
		const n, size = 60, 300 << 10
		s := serve(t, func(c *ServerConfig, _ *Options) { c.MaxOutput, c.Workers = 1<<20, n })
		p := s.dial()
		// Slow answers come whether or not the peer reads: 18 MB are more than the sockets hold.
		for i := range uint32(n) {
			p.request(fnSlow, i, repeat("x", size))
		}
		for range n {
			<-s.gate.entered
		}
		close(s.gate.open)
		eventually(t, "the connection is closed", func() bool { return s.metric("connections_closed_total", "output_cap") == 1 })
	})
}

func TestReadTimeout(t *testing.T) {
	s := serve(t, func(c *ServerConfig, _ *Options) { c.ReadTimeout = 150 * time.Millisecond })
	idle, slow, head := s.dial(), s.dial(), s.dial()
	frame := AppendRequest(nil, 1, fnEcho.ID, []byte("body"))
	slow.send(frame[:len(frame)-1])
	head.send(frame[:3])
	slow.expectClosed()
	head.expectClosed()
	if n := s.metric("connections_closed_total", "read_timeout"); n != 2 {
		t.Errorf("%v connections closed", n)
	}
	idle.request(fnEcho, 1, "still here")
	idle.expect(1, "still here")
}

func TestIdleTimeout(t *testing.T) {
	s := serve(t, func(c *ServerConfig, _ *Options) { c.IdleTimeout = 500 * time.Millisecond })
	start := time.Now()
	idle, busy, waiting := s.dial(), s.dial(), s.dial()
	waiting.request(fnSlow, 1, "w")
	<-s.gate.entered
	for i := uint32(0); s.metric("connections_closed_total", "idle_timeout") == 0; i++ {
		if time.Since(start) > patience {
			t.Fatal("no connection was closed")
		}
		busy.request(fnEcho, i, "b")
		busy.expect(i, "b")
		time.Sleep(10 * time.Millisecond)
	}
	idle.expectClosed()
	if d := time.Since(start); d < 450*time.Millisecond {
		t.Errorf("closed after %s", d)
	}
	close(s.gate.open)
	waiting.expect(1, "w")
	waiting.expectClosed()
	busy.expectClosed()
}
