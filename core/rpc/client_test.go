package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// newTestClient makes a client that is closed at the end of the test.
func newTestClient(t *testing.T, addr string, edit func(*ClientConfig, *ClientOptions)) *Client {
	t.Helper()
	cfg, opts := DefaultClientConfig(), ClientOptions{}
	cfg.DialPause = time.Millisecond
	cfg.Timeout = patience
	if edit != nil {
		edit(&cfg, &opts)
	}
	c, err := NewClient(addr, cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *Client) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}

func TestClientCalls(t *testing.T) {
	s := serve(t, nil)
	c := newTestClient(t, s.addr, nil)
	ctx := context.Background()
	for _, body := range []string{"", "a", repeat("xy", 3<<20)} {
		if got, err := c.Call(ctx, fnEcho, []byte(body)); err != nil || string(got) != body {
			t.Errorf("%d bytes: %d bytes, %v", len(body), len(got), err)
		}
	}
	var remote *RemoteError
	if _, err := c.Call(ctx, fnFail, nil); !errors.As(err, &remote) || remote.Code != 1004 || remote.Message != "user" {
		t.Errorf("application error: %v", err)
	}
	_, err := c.Call(ctx, Function{ID: 0xabcdef01}, nil)
	if !errors.As(err, &remote) || remote.Code != CodeUnknownFunction || remote.Message != textUnknownFunction {
		t.Errorf("unknown function: %v", err)
	}
	if want := "rpc: function abcdef01 at " + s.addr + ": function_not_registered (code 11): " + textUnknownFunction; fmt.Sprint(err) != want {
		t.Errorf("message %q, want %q", err, want)
	}
	if n := c.open(); n != 1 {
		t.Errorf("%d connections for one caller", n)
	}
}

func TestClientIsConcurrent(t *testing.T) {
	s := serve(t, nil)
	for _, raw := range []bool{true, false} { // false: connections without a descriptor to try writes on
		t.Run(fmt.Sprintf("raw=%v", raw), func(t *testing.T) {
			c := newTestClient(t, s.addr, func(cfg *ClientConfig, o *ClientOptions) {
				cfg.MaxConnections = 3
				if !raw {
					o.Dial = func(ctx context.Context, a string) (net.Conn, error) {
						conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a)
						return struct{ net.Conn }{conn}, err
					}
				}
			})
			var wg sync.WaitGroup
			for g := range 64 {
				wg.Go(func() {
					for i := range 100 {
						body := fmt.Sprintf("%d/%d %s", g, i, repeat("z", i*10))
						if got, err := c.Call(context.Background(), fnEcho, []byte(body)); err != nil || string(got) != body {
							t.Errorf("%q: %q, %v", body, got, err)
							return
						}
					}
				})
			}
			wg.Wait()
			if n := c.open(); n < 1 || n > 3 {
				t.Errorf("%d connections, want 1 to 3", n)
			}
		})
	}
}

func TestClientPools(t *testing.T) {
	s := serve(t, nil)
	c := newTestClient(t, s.addr, func(cfg *ClientConfig, _ *ClientOptions) { cfg.MaxConnections, cfg.Pipeline = 2, 10 })
	var wg sync.WaitGroup
	var failed atomic.Int32
	for i := range 30 {
		wg.Go(func() {
			if got, err := c.Call(context.Background(), fnSlow, fmt.Appendf(nil, "%d", i)); err != nil || string(got) != fmt.Sprint(i) {
				failed.Add(1)
			}
		})
	}
	eventually(t, "the pool is full", func() bool { return s.metric("slow_requests", "") == 20 })
	if s.Connections() != 2 {
		t.Errorf("%d connections, want 2", s.Connections())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Call(ctx, fnEcho, nil); !errors.Is(err, ErrBusy) && !errors.Is(err, ErrTimeout) {
		t.Errorf("a call without room: %v", err)
	}
	close(s.gate.open)
	wg.Wait()
	if failed.Load() != 0 {
		t.Errorf("%d calls failed", failed.Load())
	}
}

func TestClientCancel(t *testing.T) {
	s := serve(t, nil)
	c := newTestClient(t, s.addr, func(cfg *ClientConfig, _ *ClientOptions) { cfg.MaxConnections = 1 })
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, fnSlow, []byte("x"))
		result <- err
	}()
	<-s.gate.entered
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := c.Call(ctx, fnEcho, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	// The connection goes on, and the late answer is dropped.
	if got, err := c.Call(context.Background(), fnEcho, []byte("y")); err != nil || string(got) != "y" {
		t.Errorf("%q, %v", got, err)
	}
	close(s.gate.open)
	if got, err := c.Call(context.Background(), fnSlow, []byte("z")); err != nil || string(got) != "z" {
		t.Errorf("%q, %v", got, err)
	}
	if n := s.metric("connections_accepted_total", ""); n != 1 {
		t.Errorf("%v connections were made, want 1", n)
	}
}

func TestClientTimeout(t *testing.T) {
	t.Run("of a slow call among others", func(t *testing.T) {
		s := serve(t, nil)
		c := newTestClient(t, s.addr, func(cfg *ClientConfig, _ *ClientOptions) { cfg.MaxConnections = 1 })
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := c.Call(context.Background(), fnEcho, nil); err != nil {
					t.Errorf("a quick call beside a slow one: %v", err)
				}
			}
		})
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, err := c.Call(ctx, fnSlow, nil)
		if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("slow call: %v", err)
		}
		close(stop)
		wg.Wait()
		if s.metric("connections_accepted_total", "") != 1 {
			t.Error("a connection with traffic was given up")
		}
		close(s.gate.open)
	})
	t.Run("of a silent server", func(t *testing.T) {
		ln := fakeServer(t, func(net.Conn) {})
		c := newTestClient(t, ln, func(cfg *ClientConfig, _ *ClientOptions) { cfg.MaxConnections, cfg.Timeout = 1, 50*time.Millisecond })
		if _, err := c.Call(context.Background(), fnEcho, nil); !errors.Is(err, ErrTimeout) {
			t.Errorf("%v", err)
		}
		if c.open() != 0 {
			t.Error("the client keeps a dead connection")
		}
	})
	t.Run("of the context", func(t *testing.T) {
		s := serve(t, nil)
		c := newTestClient(t, s.addr, nil)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := c.Call(ctx, fnSlow, nil); !errors.Is(err, ErrTimeout) || time.Since(start) > patience {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		close(s.gate.open)
	})
	t.Run("of a server that does not read", func(t *testing.T) {
		block := make(chan struct{})
		defer close(block)
		addr := fakeServer(t, func(net.Conn) { <-block })
		c := newTestClient(t, addr, func(cfg *ClientConfig, _ *ClientOptions) { cfg.MaxConnections = 1 })
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := c.Call(ctx, fnEcho, make([]byte, 16<<20)); !errors.Is(err, ErrTimeout) || time.Since(start) > patience {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}

// fakeServer accepts connections and lets f treat each; it returns the address.
func fakeServer(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { f(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return ln.Addr().String()
}

// readRequest reads one request frame; ok is false at the end.
func readRequest(c net.Conn) (h requestHeader, ok bool) {
	var head [RequestHeaderSize]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return h, false
	}
	h, ok = parseRequest(head[:])
	if ok {
		_, err := io.CopyN(io.Discard, c, int64(h.body))
		ok = err == nil
	}
	return h, ok
}

func TestClientReconnects(t *testing.T) {
	var calls atomic.Int32
	addr := fakeServer(t, func(c net.Conn) { // answers one call on each connection, then closes at the next
		for n := 0; ; n++ {
			h, ok := readRequest(c)
			if !ok || n == 1 {
				c.Close()
				return
			}
			calls.Add(1)
			b := appendResponseHeader(nil, 0, h.seq)
			finishResponse(b, 0)
			c.Write(b)
		}
	})
	c := newTestClient(t, addr, func(cfg *ClientConfig, _ *ClientOptions) { cfg.MaxConnections = 1 })
	for range 3 {
		if _, err := c.Call(context.Background(), fnEcho, nil); err != nil {
			t.Fatal(err)
		}
		_, err := c.Call(context.Background(), fnEcho, nil)
		if !errors.Is(err, ErrConnectionLost) {
			t.Fatalf("the connection broke, but: %v", err)
		}
	}
	if calls.Load() != 3 {
		t.Errorf("%d calls were served: a call that was sent must not be sent again", calls.Load())
	}
}

func TestClientDialFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	var dials atomic.Int32
	c := newTestClient(t, addr, func(cfg *ClientConfig, o *ClientOptions) {
		cfg.DialAttempts = 3
		o.Dial = func(ctx context.Context, a string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, "tcp", a)
		}
	})
	if _, err := c.Call(context.Background(), fnEcho, nil); !errors.Is(err, ErrDial) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
	if dials.Load() != 3 {
		t.Errorf("%d attempts, want 3", dials.Load())
	}
	t.Run("while the context ends", func(t *testing.T) {
		c := newTestClient(t, addr, func(_ *ClientConfig, o *ClientOptions) {
			o.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if _, err := c.Call(ctx, fnEcho, nil); !errors.Is(err, ErrTimeout) {
			t.Errorf("%v", err)
		}
	})
	t.Run("and works later", func(t *testing.T) {
		s := serve(t, nil)
		var broken atomic.Bool
		broken.Store(true)
		c := newTestClient(t, s.addr, func(cfg *ClientConfig, o *ClientOptions) {
			cfg.DialAttempts = 1
			o.Dial = func(ctx context.Context, a string) (net.Conn, error) {
				if broken.Load() {
					return nil, errors.New("broken")
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", a)
			}
		})
		if _, err := c.Call(context.Background(), fnEcho, nil); !errors.Is(err, ErrDial) {
			t.Errorf("%v", err)
		}
		broken.Store(false)
		if _, err := c.Call(context.Background(), fnEcho, nil); err != nil {
			t.Error(err)
		}
	})
}

func TestClientBadAnswers(t *testing.T) {
	answer := func(seq uint32, code byte, body []byte) []byte {
		b := append(appendResponseHeader(nil, code, seq), body...)
		finishResponse(b, 0)
		return b
	}
	for _, c := range []struct {
		name  string
		reply func(seq uint32) []byte
		want  error
	}{
		{"not the protocol", func(uint32) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, ErrConnectionLost},
		{"sequence of no call", func(seq uint32) []byte { return answer(seq+5, 0, nil) }, ErrConnectionLost},
		{"too large", func(seq uint32) []byte {
			b := answer(seq, 0, nil)
			binary.LittleEndian.PutUint32(b[8:], 2<<20)
			return b
		}, ErrConnectionLost},
		{"error answer without text", func(seq uint32) []byte { return answer(seq, 4, nil) }, ErrBadAnswer},
		{"end in the middle", func(seq uint32) []byte { return answer(seq, 0, []byte("body"))[:18] }, ErrConnectionLost},
		{"with attachment", func(seq uint32) []byte {
			b := answer(seq, 0, []byte("ok"))
			binary.LittleEndian.PutUint32(b[12:], 3)
			return append(b, "att"...)
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := fakeServer(t, func(conn net.Conn) {
				h, ok := readRequest(conn)
				if ok {
					conn.Write(c.reply(h.seq))
				}
				if strings.Contains(c.name, "middle") {
					conn.Close()
				}
			})
			cl := newTestClient(t, addr, func(cfg *ClientConfig, _ *ClientOptions) { cfg.MaxBody = 1 << 20 })
			got, err := cl.Call(context.Background(), fnEcho, nil)
			if !errors.Is(err, c.want) || c.want == nil && string(got) != "ok" {
				t.Errorf("%q, %v, want %v", got, err, c.want)
			}
		})
	}
	t.Run("request too large", func(t *testing.T) {
		c := newTestClient(t, "127.0.0.1:1", func(cfg *ClientConfig, _ *ClientOptions) { cfg.MaxBody = 10 })
		if _, err := c.Call(context.Background(), fnEcho, make([]byte, 11)); !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}
	})
}

func TestClientClose(t *testing.T) {
	s := serve(t, nil)
	c := newTestClient(t, s.addr, nil)
	result := make(chan error, 1)
	go func() {
		_, err := c.Call(context.Background(), fnSlow, []byte("x"))
		result <- err
	}()
	<-s.gate.entered
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("call in flight: %v", err)
	}
	if _, err := c.Call(context.Background(), fnEcho, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("call afterwards: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the server sees it", func() bool { return s.Connections() == 0 })

	t.Run("while dialling", func(t *testing.T) {
		entered := make(chan struct{})
		c := newTestClient(t, s.addr, func(_ *ClientConfig, o *ClientOptions) {
			o.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
				close(entered)
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		go func() {
			_, err := c.Call(context.Background(), fnEcho, nil)
			result <- err
		}()
		<-entered
		c.Close()
		if err := <-result; !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}

func TestClientDropsIdleConnections(t *testing.T) {
	s := serve(t, nil)
	c := newTestClient(t, s.addr, func(cfg *ClientConfig, _ *ClientOptions) { cfg.IdleTimeout = 60 * time.Millisecond })
	if _, err := c.Call(context.Background(), fnEcho, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection is closed", func() bool { return c.open() == 0 && s.Connections() == 0 })
	if _, err := c.Call(context.Background(), fnEcho, nil); err != nil {
		t.Errorf("after the idle time: %v", err)
	}
}
