package handshake

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/units"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden holds frames that the wheel 0.3.13.post1 received and sent.
type golden struct {
	Raw []struct {
		Name, Then string
		Request    string `json:"request_hex"`
		Reply      string `json:"reply_hex"`
		ReplyText  string `json:"reply_text"`
	}
	Fatal []struct {
		Name    string
		Type    byte
		Nested  int
		Request string `json:"request_text"`
		Reply   string `json:"reply_text"`
		Exit    *int   `json:"wheel_process_exit"`
	}
	Engine []struct {
		Name    string
		Request string `json:"request_hex"`
		Reply   string `json:"reply_hex"`
	}
	NotifyWire struct{ Hex string } `json:"notify_wire"`
}

func loadGolden(t *testing.T) (g golden) {
	t.Helper()
	b, err := os.ReadFile("testdata/frames.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Raw) < 22 || len(g.Fatal) < 24 || len(g.Engine) < 4 {
		t.Fatal("golden file is incomplete")
	}
	return g
}

func start(t *testing.T, cfg ServerConfig, prepare func(*Server)) (addr string) {
	t.Helper()
	s := NewServer(cfg)
	s.HandleNotify(func(net.Addr, Message) {})
	if prepare != nil {
		prepare(s)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

func fixed(doc string) func(context.Context, net.Addr, []byte) []byte {
	return func(context.Context, net.Addr, []byte) []byte { return []byte(doc) }
}

// rawCall sends bytes and returns everything that comes back until the server closes.
func rawCall(t *testing.T, addr string, req []byte) []byte {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write(req); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	return got
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustProbe(t *testing.T, addr string) {
	t.Helper()
	if _, err := Call(t.Context(), addr, TypeProbe, []byte("{}")); err != nil {
		t.Fatalf("the server does not answer any more: %v", err)
	}
}

func TestGoldenFrames(t *testing.T) {
	var doc string
	addr := start(t, ServerConfig{}, func(s *Server) {
		s.Handle(TypeMetadata, func(context.Context, net.Addr, []byte) []byte { return []byte(doc) })
	})
	for _, g := range loadGolden(t).Raw {
		t.Run(g.Name, func(t *testing.T) {
			var req []byte
			if g.Name == "daemon_len_exact_1MiB" {
				req = AppendFrame(nil, Frame{Type: TypeProbe, Body: []byte("{}" + strings.Repeat(" ", 1<<20-4))})
				if len(req) != 1<<20+8 {
					t.Fatalf("frame of %d bytes", len(req))
				}
			} else {
				req = unhex(t, g.Request)
			}
			doc = g.ReplyText
			got := rawCall(t, addr, req)
			if diff := cmp.Diff(g.Reply, hex.EncodeToString(got)); diff != "" {
				t.Fatalf("%s\n%q", diff, got)
			}
		})
	}
	mustProbe(t, addr)
}

// The requests of this test kill the wheel's process where Exit is set.
func TestFatalInputs(t *testing.T) {
	addr := start(t, ServerConfig{}, func(s *Server) { s.Handle(TypeMetadata, fixed("DOC")) })
	for _, g := range loadGolden(t).Fatal {
		t.Run(g.Name, func(t *testing.T) {
			req, want := g.Request, g.Reply
			if g.Nested > 0 {
				req = strings.Repeat("[", g.Nested) + strings.Repeat("]", g.Nested)
			}
			if g.Type == TypeMetadata {
				want = "DOC\n"
			}
			got := rawCall(t, addr, AppendFrame(nil, Frame{Type: g.Type, Body: []byte(req)}))
			if g.Exit != nil { // the wheel dies: no reply, and we live
				if len(got) != 0 {
					t.Fatalf("reply %q", got)
				}
			} else if diff := cmp.Diff(string(AppendFrame(nil, Frame{Type: g.Type, Body: []byte(want)})), string(got)); diff != "" {
				t.Fatal(diff)
			}
			mustProbe(t, addr)
		})
	}
}

// What our client writes is what the wheel's writes, and the wheel's replies are understood.
func TestClientAgainstGolden(t *testing.T) {
	g := loadGolden(t)
	replay := func(t *testing.T, wantReq, reply string) string {
		t.Helper()
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			req := make([]byte, len(wantReq)/2)
			if _, err := io.ReadFull(c, req); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(wantReq, hex.EncodeToString(req)); diff != "" {
				t.Error(diff)
			}
			raw, _ := hex.DecodeString(reply)
			c.Write(raw)
			if n, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the client did not close after the reply: %d, %v", n, err)
			}
		}()
		t.Cleanup(func() { ln.Close(); <-done })
		return ln.Addr().String()
	}
	c := &Client{}
	for _, e := range g.Engine {
		t.Run(e.Name, func(t *testing.T) {
			f, err := ReadFrame(bytes.NewReader(unhex(t, e.Request)), 0)
			if err != nil {
				t.Fatal(err)
			}
			addr := replay(t, e.Request, e.Reply)
			switch f.Type {
			case TypeProbe:
				host, port, _, err := SplitName(addr)
				if err != nil {
					t.Fatal(err)
				}
				err = c.Probe(t.Context(), host, port)
				if err != nil {
					t.Fatal(err)
				}
			case TypeNotify:
				m, err := ParseMessage(f.Body)
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Notify(t.Context(), addr, m); err != nil {
					t.Fatal(err)
				}
			case TypeMetadata:
				doc, err := c.Metadata(t.Context(), addr, f.Body)
				if err != nil || !json.Valid(doc) || bytes.HasSuffix(doc, []byte("\n")) {
					t.Fatalf("%q, %v", doc, err)
				}
			}
		})
	}
	t.Run("notify with every kind of character", func(t *testing.T) {
		m := Message{Name: "né", Text: "hé 中 😀 \"q\" \\ / \n\t\x01 <&>"}
		if got := hex.EncodeToString(AppendFrame(nil, Frame{Type: TypeNotify, Body: m.Encode()})); got != g.NotifyWire.Hex {
			t.Fatalf("got  %s\nwant %s", got, g.NotifyWire.Hex)
		}
		back, err := ParseMessage(m.Encode())
		if err != nil || back != m {
			t.Fatalf("%+v, %v", back, err)
		}
	})
}

func TestSecondRequestIsNotAnswered(t *testing.T) {
	addr := start(t, ServerConfig{}, nil)
	probe := AppendFrame(nil, Frame{Type: TypeProbe, Body: []byte("{}")})
	if got := rawCall(t, addr, append(bytes.Clone(probe), probe...)); len(got) != 30 {
		t.Fatalf("%d bytes: %q", len(got), got)
	}
}

func TestRequestInPieces(t *testing.T) {
	addr := start(t, ServerConfig{}, nil)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, b := range AppendFrame(nil, Frame{Type: TypeProbe, Body: []byte("{}")}) {
		if _, err := c.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if got, err := io.ReadAll(c); err != nil || len(got) != 30 {
		t.Fatalf("%q, %v", got, err)
	}
}

// Clients that say nothing, or stop in the middle, are dropped after the silence limit and hold up
// nobody meanwhile.
func TestSilentClients(t *testing.T) {
	const silence = 700 * time.Millisecond
	addr := start(t, ServerConfig{SilentTimeout: silence}, nil)
	began := time.Now()
	var conns []net.Conn
	for i := range 40 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 1 {
			c.Write([]byte{9, 0, 0, 0, 0, 0, 0, 0, 3, '{'})
		}
		conns = append(conns, c)
	}
	mustProbe(t, addr)
	if d := time.Since(began); d > silence {
		t.Fatalf("a probe took %v with silent clients around", d)
	}
	for _, c := range conns {
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if d := time.Since(began); d < silence {
		t.Fatalf("dropped after %v, before the limit", d)
	}
}

func TestRequestTimeout(t *testing.T) {
	addr := start(t, ServerConfig{SilentTimeout: 10 * time.Second, RequestTimeout: 300 * time.Millisecond}, nil)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte{200, 0, 0, 0, 0, 0, 0, 0, 3})
	began := time.Now()
	for { // never silent, never done
		if _, err := c.Write([]byte(" ")); err != nil {
			return
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal("a dripping client was never dropped")
		}
		time.Sleep(5 * time.Millisecond) // pace of the dripping client, not synchronisation
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  ServerConfig
	}{
		{"per address", ServerConfig{MaxConnsPerAddr: 4}},
		{"in total", ServerConfig{MaxConns: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			m, err := NewMetrics(reg)
			if err != nil {
				t.Fatal(err)
			}
			c.cfg.Metrics, c.cfg.SilentTimeout = m, time.Minute
			hold, held := make(chan struct{}), make(chan struct{}, 16)
			var srv *Server
			addr := start(t, c.cfg, func(s *Server) {
				srv = s
				s.Handle(TypeMetadata, func(ctx context.Context, _ net.Addr, _ []byte) []byte {
					held <- struct{}{}
					select {
					case <-hold:
					case <-ctx.Done():
					}
					return []byte("null")
				})
			})
			// Idle connections give way to new ones.
			for range 12 {
				k, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer k.Close()
			}
			mustProbe(t, addr)
			if n := testutil.ToFloat64(m.limited.WithLabelValues("dropped")); n < 8 {
				t.Fatalf("%v connections were dropped", n)
			}
			srv.awaitIdle(t)
			// Requests being answered are not dropped: the new connection is refused.
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if _, err := Call(t.Context(), addr, TypeMetadata, []byte("{}")); err != nil {
						t.Error(err)
					}
				})
				<-held
			}
			if _, err := Call(t.Context(), addr, TypeProbe, []byte("{}")); !errors.Is(err, ErrNoReply) {
				t.Errorf("got %v", err)
			}
			if n := testutil.ToFloat64(m.limited.WithLabelValues("refused")); n != 1 {
				t.Errorf("%v connections were refused", n)
			}
			close(hold)
			wg.Wait()
			srv.awaitIdle(t)
			mustProbe(t, addr)
		})
	}
}

// awaitIdle waits until no request is being answered: a client can have its reply before the server's
// goroutine has noted that.
func (s *Server) awaitIdle(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		idle := 0
		for _, c := range s.addrs {
			idle += c.idle.Len()
		}
		busy := s.total - idle
		s.mu.Unlock()
		if busy == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests are still being answered", busy)
		}
	}
}

func TestManyClients(t *testing.T) {
	addr := start(t, ServerConfig{}, nil)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if err := (&Client{}).Notify(t.Context(), addr, Message{Name: "n", Text: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Close ends connections and running handlers.
func TestCloseInMidRequest(t *testing.T) {
	s := NewServer(ServerConfig{SilentTimeout: time.Minute})
	in := make(chan struct{})
	s.Handle(TypeMetadata, func(ctx context.Context, _ net.Addr, _ []byte) []byte {
		close(in)
		<-ctx.Done()
		return nil
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	silent, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	called := make(chan error, 1)
	go func() {
		_, err := Call(context.Background(), ln.Addr().String(), TypeMetadata, []byte("{}"))
		called <- err
	}()
	<-in
	s.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := <-called; !errors.Is(err, ErrNoReply) {
		t.Errorf("got %v", err)
	}
	if err := s.Serve(mustListen(t)); err != nil {
		t.Errorf("Serve after Close: %v", err)
	}
}

func mustListen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func TestReadFrame(t *testing.T) {
	whole := AppendFrame(nil, Frame{Type: TypeMetadata, Body: bytes.Repeat([]byte("x"), 300_000)})
	for cut := range 12 {
		if _, err := ReadFrame(bytes.NewReader(whole[:cut]), 0); err == nil || cut > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", cut, err)
		}
	}
	f, err := ReadFrame(bytes.NewReader(whole), 0)
	if err != nil || f.Type != TypeMetadata || len(f.Body) != 300_001 {
		t.Fatalf("%d bytes, %v", len(f.Body), err)
	}
	// An announced length takes no memory by itself.
	huge := append([]byte{0, 0, 0, 8, 0, 0, 0, 0}, 1)
	n := testing.AllocsPerRun(1, func() {
		if _, err := ReadFrame(bytes.NewReader(huge), MaxMaxLength); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	})
	if n > 10 {
		t.Errorf("%v allocations", n)
	}
	if _, err := ReadFrame(bytes.NewReader(whole), units.Size(len(whole)-9)); !errors.Is(err, ErrLength) {
		t.Errorf("got %v", err)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x04\x00\x00\x00\x00\x00\x00\x00\x03{}\n"))
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := ReadFrame(bytes.NewReader(b), 0)
		if err != nil {
			return
		}
		if len(fr.Body) > 0 && fr.Body[len(fr.Body)-1] == '\n' {
			if again := AppendFrame(nil, fr); !bytes.HasPrefix(b, again) {
				t.Fatalf("%q was read from %q", again, b)
			}
		}
	})
}

func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"name":1,"notify_msg":"x","qp_num":{"a":1},"local_lid":"x","ready_ack":true,"notify_rq_depth":70000}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := ParseMessage(b); err == nil {
			if again, err := ParseMessage(m.Encode()); err != nil || again != m && strings.ToValidUTF8(m.Name+m.Text, "") == m.Name+m.Text {
				t.Fatalf("%q, %q, %v", m, again, err)
			}
		}
		refuseConnection(b)
	})
}
