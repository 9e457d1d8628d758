package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test.
const patience = 10 * time.Second

// Functions of the test servers.
var (
	fnEcho  = Function{1, "echo"}  // answers the body, on the loop
	fnSlow  = Function{2, "slow"}  // answers the body on a worker when the gate opens
	fnLater = Function{3, "later"} // starts on the loop, goes on on a worker
	fnLarge = Function{4, "large"} // answers as many bytes as the body says
	fnFail  = Function{5, "fail"}  // answers an application error
	fnPanic = Function{6, "panic"}
	fnMute  = Function{7, "mute"}  // does not answer
	fnTwice = Function{8, "twice"} // answers twice
)

// gate holds slow handlers back; they announce themselves in entered.
type gate struct {
	entered chan string
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan string, 10000), open: make(chan struct{})} }

func (g *gate) pass(c *Call) {
	g.entered <- string(c.Body())
	select {
	case <-g.open:
		c.Reply(c.Body())
	case <-c.Context().Done():
		c.Fail(1000, c.Context().Err().Error())
	}
}

type testServer struct {
	*Server
	t    *testing.T
	addr string
	gate *gate
	reg  *prometheus.Registry
}

// serve starts a server on 127.0.0.1; it is closed at the end of the test.
func serve(t *testing.T, edit func(*ServerConfig, *Options)) *testServer {
	t.Helper()
	cfg := DefaultServerConfig()
	cfg.Loops = 2
	s := &testServer{t: t, gate: newGate(), reg: prometheus.NewRegistry()}
	opts := Options{Metrics: s.reg, Scribble: true}
	if edit != nil {
		edit(&cfg, &opts)
	}
	var err error
	if s.Server, err = NewServer(cfg, opts); err != nil {
		t.Fatal(err)
	}
	s.Handle(fnEcho, func(c *Call) { c.Reply(c.Body()) })
	s.HandleSlow(fnSlow, s.gate.pass)
	s.Handle(fnLater, func(c *Call) { c.Later(s.gate.pass) })
	s.Handle(fnLarge, func(c *Call) { c.Reply(make([]byte, binary.LittleEndian.Uint32(c.Body()))) })
	s.Handle(fnFail, func(c *Call) { c.Fail(1004, "user") })
	s.Handle(fnPanic, func(*Call) { panic("boom") })
	s.Handle(fnMute, func(*Call) {})
	s.Handle(fnTwice, func(c *Call) { c.Reply([]byte("one")); c.Reply([]byte("two")) })
	s.addr = s.listen("127.0.0.1:0", nil)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func (s *testServer) listen(addr string, label any) string {
	s.t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.Listen(ln, label); err != nil {
		s.t.Fatal(err)
	}
	return ln.Addr().String()
}

// metric returns the value of a counter or gauge, with one label value or none.
func (s *testServer) metric(name, label string) float64 {
	s.t.Helper()
	families, err := s.reg.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "mooncake_rpc_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// peerConn is a raw connection to a server.
type peerConn struct {
	net.Conn
	t *testing.T
}

func (s *testServer) dial() *peerConn { return s.dialFrom("127.0.0.1") }

// dialFrom connects from another loopback address.
func (s *testServer) dialFrom(ip string) *peerConn {
	s.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: patience}
	c, err := d.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	return &peerConn{c, s.t}
}

func (p *peerConn) send(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peerConn) request(fn Function, seq uint32, body string) {
	p.t.Helper()
	p.send(AppendRequest(nil, seq, fn.ID, []byte(body)))
}

// answer reads one answer.
func (p *peerConn) answer() (h responseHeader, body []byte) {
	p.t.Helper()
	var head [ResponseHeaderSize]byte
	if _, err := io.ReadFull(p, head[:]); err != nil {
		p.t.Fatalf("reading an answer: %v", err)
	}
	h, ok := parseResponse(head[:])
	if !ok {
		p.t.Fatalf("not an answer: %x", head)
	}
	body = make([]byte, h.body)
	if _, err := io.ReadFull(p, body); err != nil {
		p.t.Fatal(err)
	}
	return h, body
}

func (p *peerConn) expect(seq uint32, body string) {
	p.t.Helper()
	h, got := p.answer()
	if h.seq != seq || h.code != 0 || string(got) != body {
		p.t.Fatalf("answer %d code %d %q, want %d %q", h.seq, h.code, got, seq, body)
	}
}

// expectError reads an error answer.
func (p *peerConn) expectError(seq uint32, code Code, message string) {
	p.t.Helper()
	h, body := p.answer()
	got, err := decodeError(h.code, body)
	if err != nil || h.seq != seq || got.Code != code || got.Message != message {
		p.t.Fatalf("answer %d %+v (%v), want %d, code %d %q", h.seq, got, err, seq, code, message)
	}
}

// expectClosed waits for the end of the stream, without another byte.
func (p *peerConn) expectClosed() {
	p.t.Helper()
	b := make([]byte, 1)
	n, err := p.Read(b)
	if n != 0 || err == nil {
		p.t.Fatalf("got %x instead of the end", b[:n])
	}
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		p.t.Fatal("the connection stays open")
	}
}

func repeat(s string, n int) string { return string(bytes.Repeat([]byte(s), n)) }
