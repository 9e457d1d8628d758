package client_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// slowPeer makes an engine reachable a second time, under the returned endpoint, by a data connection through a tap.
func slowPeer(t testing.TB, e *transfer.Engine) (endpoint string, tap *testenv.Tap) {
	t.Helper()
	d := e.Descriptor()
	tap = testenv.NewTap(t, net.JoinHostPort("127.0.0.1", itoa(d.TCPDataPort)))
	_, port, err := net.SplitHostPort(tap.Addr)
	if err != nil {
		t.Fatal(err)
	}
	s := handshake.NewServer(handshake.ServerConfig{MaxLength: handshake.DefaultMaxLength})
	s.Handle(handshake.TypeMetadata, func(context.Context, net.Addr, []byte) []byte {
		d := e.Descriptor()
		d.TCPDataHost, d.TCPDataPort = "127.0.0.1", atoi(t, port)
		d.Agent.Paths = nil
		return d.Encode(time.Now())
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ln)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return ln.Addr().String(), tap
}
