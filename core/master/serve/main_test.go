package serve

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second // for a busy machine

// start runs a server on free ports of loopback, with a pinned listener for each version given.
func start(t testing.TB, change func(*Options), pinned ...wire.Version) *Server {
	t.Helper()
	o := Options{Config: DefaultConfig(), Master: master.DefaultConfig(), Log: slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	o.Config.Listen.Addr, o.Config.Admin.Addr = "127.0.0.1:0", "127.0.0.1:0"
	for _, v := range pinned {
		o.Config.Compat = append(o.Config.Compat, Compat{Listener{"rpc_compat", "127.0.0.1:0"}, v})
	}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

// peer is a raw connection.
type peer struct {
	t testing.TB
	net.Conn
}

func dial(t testing.TB, addr string) *peer {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &peer{t, c}
}

// dialFrom dials from another loopback address.
func dialFrom(t testing.TB, local, addr string) *peer {
	t.Helper()
	d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &peer{t, c}
}

const responseHeader = 16

// call sends one frame and returns the frame of the answer.
func (p *peer) call(frame []byte) []byte {
	p.t.Helper()
	p.SetDeadline(time.Now().Add(patience))
	if _, err := p.Write(frame); err != nil {
		p.t.Fatal(err)
	}
	head := make([]byte, responseHeader)
	if _, err := io.ReadFull(p, head); err != nil {
		p.t.Fatalf("no answer: %v", err)
	}
	rest := make([]byte, binary.LittleEndian.Uint32(head[8:])+binary.LittleEndian.Uint32(head[12:]))
	if _, err := io.ReadFull(p, rest); err != nil {
		p.t.Fatal(err)
	}
	return append(head, rest...)
}

// frame is a request with a body.
func frame(id uint32, body []byte) []byte {
	f := make([]byte, 20, 20+len(body))
	f[0] = 0x15
	binary.LittleEndian.PutUint32(f[4:], 7)
	binary.LittleEndian.PutUint32(f[8:], id)
	binary.LittleEndian.PutUint32(f[12:], uint32(len(body)))
	return append(f, body...)
}

// form is what of an answer depends on the version only: error code and type, with the literal.
func form(answer []byte) string {
	code := answer[2]
	if len(answer) < responseHeader+4 {
		return fmt.Sprintf("error %d", code)
	}
	body := answer[responseHeader:]
	hash := binary.LittleEndian.Uint32(body)
	literal := ""
	if hash&1 == 1 && body[4]&4 != 0 {
		for _, b := range body[5:] {
			if b == 0 {
				break
			}
			literal += fmt.Sprintf("%02x", b)
		}
	}
	return fmt.Sprintf("error %d type %08x literal %s", code, hash&^1, literal)
}

// nopRegisterer takes metrics that no test reads.
type nopRegisterer struct{}

func (nopRegisterer) Register(prometheus.Collector) error  { return nil }
func (nopRegisterer) MustRegister(...prometheus.Collector) {}
func (nopRegisterer) Unregister(prometheus.Collector) bool { return true }
