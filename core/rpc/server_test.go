package rpc

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestErrorFramesAreThoseOfTheHeaders(t *testing.T) {
	b, err := os.ReadFile("testdata/errors.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Code          Code
		Message       string
		Bare, Literal string
	}
	if err := json.Unmarshal(b, &list); err != nil || len(list) != 4 {
		t.Fatal(len(list), err)
	}
	for _, e := range list {
		if got := hex.EncodeToString(appendError(nil, 7, e.Code, e.Message)); e.Literal != "" && got != e.Literal {
			t.Errorf("code %d: %s, want %s", e.Code, got, e.Literal)
		}
		for _, frame := range []string{e.Bare, e.Literal, hex.EncodeToString(appendError(nil, 7, e.Code, e.Message))} {
			if frame == "" { // the headers have no application error with literal
				continue
			}
			b, err := hex.DecodeString(frame)
			if err != nil {
				t.Fatal(err)
			}
			h, ok := parseResponse(b)
			remote, err := decodeError(h.code, b[ResponseHeaderSize:])
			if !ok || err != nil || remote.Code != e.Code || remote.Message != e.Message {
				t.Errorf("%s reads as %+v, %v", frame, remote, err)
			}
		}
	}
}

func TestPipelining(t *testing.T) {
	s := serve(t, nil)
	for _, c := range []struct {
		name  string
		write func(p *peerConn, frames []byte)
	}{
		{"all at once", func(p *peerConn, b []byte) { p.send(b) }},
		{"byte by byte", func(p *peerConn, b []byte) {
			for i := range b {
				p.send(b[i : i+1])
			}
		}},
		{"in uneven pieces", func(p *peerConn, b []byte) {
			for n := 1; len(b) > 0; n = n*3 + 1 {
				n = min(n, len(b))
				p.send(b[:n])
				b = b[n:]
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := s.dial()
			p.t = t
			var frames []byte
			const n = 50
			for i := range uint32(n) {
				frames = AppendRequest(frames, i, fnEcho.ID, fmt.Appendf(nil, "body %d", i))
			}
			c.write(p, frames)
			for i := range uint32(n) {
				p.expect(i, fmt.Sprintf("body %d", i))
			}
		})
	}
	if n := s.metric("requests_total", "echo"); n != 150 {
		t.Errorf("%v requests counted, want 150", n)
	}
}

// TestAnswersBeforeAnError: what was asked before a broken request is answered, to the right peer.
func TestAnswersBeforeAnError(t *testing.T) {
	s := serve(t, func(c *ServerConfig, _ *Options) { c.Loops = 1; c.MaxBody = 100 })
	tooLarge := AppendRequest(nil, 2, fnEcho.ID, make([]byte, 101))
	for name, bad := range map[string][]byte{"garbage": []byte("garbage behind a request"), "body cap": tooLarge} {
		t.Run(name, func(t *testing.T) {
			p := s.dial()
			p.t = t
			p.send(append(AppendRequest(nil, 1, fnEcho.ID, []byte("first")), bad...))
			p.expect(1, "first")
			if _, err := p.Read(make([]byte, 1)); err == nil {
				t.Error("the connection stays open")
			}
			q := s.dial()
			q.t = t
			q.request(fnEcho, 7, "other peer")
			q.expect(7, "other peer")
		})
	}
}

func TestLargeBodies(t *testing.T) {
	s := serve(t, nil)
	p := s.dial()
	// A body larger than the read buffer and than slow_body, between two small requests.
	big := repeat("0123456789abcdef", 200<<10)
	go func() {
		p.Write(AppendRequest(AppendRequest(AppendRequest(nil, 1, fnEcho.ID, []byte("a")), 2, fnEcho.ID, []byte(big)), 3, fnEcho.ID, []byte("b")))
	}()
	got := map[uint32]string{}
	for range 3 {
		h, body := p.answer()
		got[h.seq] = string(body)
	}
	if got[1] != "a" || got[3] != "b" || got[2] != big {
		t.Errorf("wrong bodies: %q, %d bytes, %q", got[1], len(got[2]), got[3])
	}
	eventually(t, "buffers are given back", func() bool { return s.metric("buffered_bytes", "") == 0 })
}

func TestSlowRequestsDoNotBlockOthers(t *testing.T) {
	s := serve(t, nil)
	p, q := s.dial(), s.dial()
	p.request(fnSlow, 1, "s1")
	p.request(fnLater, 2, "s2")
	p.request(fnEcho, 3, "fast")
	p.expect(3, "fast")
	q.request(fnEcho, 1, "other")
	q.expect(1, "other")
	for range 2 {
		<-s.gate.entered
	}
	if n := s.metric("slow_requests", ""); n != 2 {
		t.Errorf("%v slow requests, want 2", n)
	}
	close(s.gate.open)
	got := map[uint32]string{}
	for range 2 {
		h, body := p.answer()
		got[h.seq] = string(body)
	}
	if got[1] != "s1" || got[2] != "s2" {
		t.Errorf("slow answers %v: the body must survive the event loop", got)
	}
	eventually(t, "no slow request is left", func() bool { return s.metric("slow_requests", "") == 0 })
}

func TestHandlerMistakes(t *testing.T) {
	s := serve(t, nil)
	p := s.dial()
	p.request(fnPanic, 1, "")
	p.expectError(1, CodeHandlerFailed, "panic: internal error")
	p.request(fnMute, 2, "")
	p.expectError(2, CodeHandlerFailed, "mute: no answer")
	p.request(fnTwice, 3, "")
	p.expect(3, "one")
	p.request(fnFail, 4, "")
	p.expectError(4, 1004, "user")
	p.request(fnEcho, 5, "alive")
	p.expect(5, "alive")
	if a, b := s.metric("error_answers_total", "10"), s.metric("error_answers_total", "application"); a != 2 || b != 1 {
		t.Errorf("error answers: %v with code 10, %v of the application", a, b)
	}
}

func TestRegistrationMistakes(t *testing.T) {
	s := serve(t, nil)
	for name, f := range map[string]func(){
		"after Listen": func() { s.Handle(Function{99, "x"}, nil) },
		"same id": func() {
			x, err := NewServer(DefaultServerConfig(), Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close(context.Background())
			x.Handle(Function{1, "a"}, nil)
			x.HandleSlow(Function{1, "b"}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("accepted")
				}
			}()
			f()
		})
	}
}

func TestConnectionHooks(t *testing.T) {
	type event struct {
		id     uint64
		data   any
		label  any
		closed bool
		info   CloseInfo
	}
	var mu sync.Mutex
	var events []event
	list := func() []event {
		mu.Lock()
		defer mu.Unlock()
		return append([]event(nil), events...)
	}
	s := serve(t, func(_ *ServerConfig, o *Options) {
		o.OnOpen = func(c *Conn) {
			c.SetData("data of " + c.RemoteAddr().Addr().String())
			mu.Lock()
			defer mu.Unlock()
			events = append(events, event{id: c.ID(), data: c.Data(), label: c.Label()})
		}
		o.OnClose = func(c *Conn, i CloseInfo) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, event{id: c.ID(), data: c.Data(), label: c.Label(), closed: true, info: i})
		}
	})
	s.addr = s.listen("127.0.0.1:0", "pinned")
	p := s.dialFrom("127.0.0.9")
	p.request(fnEcho, 1, "x")
	p.expect(1, "x")
	p.Close()
	eventually(t, "both events", func() bool { return len(list()) == 2 })
	q := s.dial()
	q.send([]byte("garbage that is no RPC"))
	q.expectClosed()
	eventually(t, "all events", func() bool { return len(list()) == 4 })
	got := list()
	if e := got[0]; e.closed || e.data != "data of 127.0.0.9" || e.label != "pinned" {
		t.Errorf("opened: %+v", e)
	}
	if e := got[1]; !e.closed || e.id != got[0].id || e.data != "data of 127.0.0.9" || e.info.Reason != ClosedByPeer || !e.info.Answered ||
		e.info.LastFunction != fnEcho.ID || e.info.SinceAnswer <= 0 || e.info.SinceAnswer > patience {
		t.Errorf("closed: %+v", e)
	}
	if e := got[3]; e.info.Reason != ClosedProtocol || e.info.Answered || e.data != "data of 127.0.0.1" {
		t.Errorf("garbage: %+v", e)
	}
}

func TestHandlerClosesConnection(t *testing.T) {
	s := serve(t, nil)
	var conn *Conn
	x := serve(t, func(_ *ServerConfig, o *Options) { o.OnOpen = func(c *Conn) { conn = c; c.Close() } })
	x.dial().expectClosed()
	eventually(t, "the reason", func() bool { return x.metric("connections_closed_total", "handler") == 1 })
	conn.Close() // again, on a closed connection
	p := s.dial()
	p.request(fnEcho, 1, "other server")
	p.expect(1, "other server")
}

func TestContextEndsWithConnection(t *testing.T) {
	s := serve(t, nil)
	p := s.dial()
	p.request(fnSlow, 1, "left alone")
	<-s.gate.entered
	p.Close()
	// Nobody opens the gate: only the end of the context lets the handler return.
	eventually(t, "the handler has ended", func() bool { return s.metric("slow_requests", "") == 0 })
}

func TestSlowTimeout(t *testing.T) {
	s := serve(t, func(c *ServerConfig, _ *Options) { c.SlowTimeout = 50 * time.Millisecond })
	p := s.dial()
	p.request(fnSlow, 1, "x")
	p.expectError(1, 1000, "context deadline exceeded")
}

func TestUnixSocket(t *testing.T) {
	s := serve(t, nil)
	path := filepath.Join(t.TempDir(), "rpc.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(ln, nil); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := &peerConn{c, t}
	p.request(fnEcho, 1, "over a unix socket")
	p.expect(1, "over a unix socket")
}

func TestIPv6(t *testing.T) {
	s := serve(t, nil)
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 loopback here: %v", err)
	}
	if err := s.Listen(ln, nil); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := &peerConn{c, t}
	p.request(fnEcho, 1, "six")
	p.expect(1, "six")
}

type plainListener struct{ net.Listener }

func TestListenErrors(t *testing.T) {
	s := serve(t, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(plainListener{ln}, nil); err == nil || !strings.Contains(err.Error(), "no descriptor") {
		t.Errorf("a listener without descriptor: %v", err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener stays open: %v", err)
	}
	x, err := NewServer(DefaultServerConfig(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	ln, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Listen(ln, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("listen after close: %v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	for name, edit := range map[string]func(*ServerConfig){
		"max_buffered":    func(c *ServerConfig) { c.MaxBuffered = 1 },
		"max_connections": func(c *ServerConfig) { c.MaxConnections = 0 },
		"max_body":        func(c *ServerConfig) { c.MaxBody = 0 },
		"read_timeout":    func(c *ServerConfig) { c.ReadTimeout = 0 },
	} {
		cfg := DefaultServerConfig()
		edit(&cfg)
		if _, err := NewServer(cfg, Options{}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg := DefaultServerConfig()
	if err := cfg.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	client := DefaultClientConfig()
	if err := client.Validate(); err != nil {
		t.Errorf("client defaults: %v", err)
	}
	client.Pipeline = 0
	if _, err := NewClient("127.0.0.1:1", client, ClientOptions{}); err == nil {
		t.Error("a client without pipeline was accepted")
	}
}

func TestClose(t *testing.T) {
	t.Run("waits for slow requests and delivers their answers", func(t *testing.T) {
		s := serve(t, nil)
		p, idle := s.dial(), s.dial()
		idle.request(fnEcho, 1, "x")
		idle.expect(1, "x")
		p.request(fnSlow, 1, "late")
		<-s.gate.entered
		done := make(chan error, 1)
		go func() { done <- s.Close(context.Background()) }()
		idle.expectClosed()
		if c, err := net.DialTimeout("tcp", s.addr, patience); err == nil {
			// The listener's queue may still take a connection that nobody accepts.
			c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a closing server answers new connections")
			}
			c.Close()
		}
		select {
		case err := <-done:
			t.Fatalf("closed with a request in flight: %v", err)
		default:
		}
		close(s.gate.open)
		p.expect(1, "late")
		p.expectClosed()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if s.Connections() != 0 {
			t.Errorf("%d connections left", s.Connections())
		}
	})
	t.Run("cuts what takes too long", func(t *testing.T) {
		s := serve(t, nil)
		p := s.dial()
		p.request(fnSlow, 1, "never")
		<-s.gate.entered
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := s.Close(ctx); err != nil { // the handler notices the end of its context
			t.Error(err)
		}
		p.expectClosed()
	})
	t.Run("names handlers that ignore their context", func(t *testing.T) {
		x, err := NewServer(DefaultServerConfig(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		block := make(chan struct{})
		entered := make(chan struct{})
		ended := make(chan struct{})
		x.HandleSlow(fnSlow, func(c *Call) {
			defer close(ended)
			close(entered)
			<-block
			c.Reply(nil)
		})
		s := &testServer{Server: x, t: t}
		s.addr = s.listen("127.0.0.1:0", nil)
		p := s.dial()
		p.request(fnSlow, 1, "")
		<-entered
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := x.Close(ctx); err == nil || !strings.Contains(err.Error(), "1 slow handlers") {
			t.Errorf("close: %v", err)
		}
		close(block)
		<-ended
	})
	t.Run("under load", func(t *testing.T) {
		s := serve(t, nil)
		var wg sync.WaitGroup
		for range 8 {
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(patience))
				frame := AppendRequest(nil, 1, fnEcho.ID, bytes.Repeat([]byte("x"), 1000))
				buf := make([]byte, ResponseHeaderSize+1000)
				for {
					if _, err := c.Write(frame); err != nil {
						return
					}
					if _, err := c.Read(buf); err != nil {
						return
					}
				}
			})
		}
		eventually(t, "traffic", func() bool { return s.metric("requests_total", "echo") > 100 })
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}
