package rpc

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// FuzzStream sends arbitrary bytes to a server: it must survive, and still serve others.
func FuzzStream(f *testing.F) {
	cfg := DefaultServerConfig()
	cfg.MaxBody = 1 << 20
	s, err := NewServer(cfg, Options{Scribble: true})
	if err != nil {
		f.Fatal(err)
	}
	s.Handle(fnEcho, func(c *Call) { c.Reply(c.Body()) })
	s.HandleSlow(fnSlow, func(c *Call) { c.Reply(c.Body()) })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Listen(ln, nil); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close(context.Background()) })
	f.Add(AppendRequest(nil, 1, fnEcho.ID, []byte("abc")), uint8(3))
	f.Add(AppendRequest(AppendRequest(nil, 1, fnSlow.ID, []byte("abc")), 2, 77, nil), uint8(30))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		for _, stream := range [][]byte{b, AppendRequest(b, 9, fnEcho.ID, []byte("end"))} {
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(patience))
			first := min(int(cut), len(stream))
			c.Write(stream[:first])
			c.Write(stream[first:])
			c.(*net.TCPConn).CloseWrite()
			if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("reading to the end: %v", err)
			}
			c.Close()
		}
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		p := &peerConn{c, t}
		c.SetDeadline(time.Now().Add(patience))
		p.request(fnEcho, 4, "others")
		p.expect(4, "others")
	})
}
