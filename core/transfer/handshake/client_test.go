package handshake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func TestClientErrors(t *testing.T) {
	silent := testenv.Blackhole(t)
	refused := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	once := func(reply string) string {
		ln := mustListen(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := ln.Accept()
			if err != nil {
				return
			}
			ReadFrame(c, 0)
			c.Write([]byte(reply))
			c.Close()
		}()
		t.Cleanup(func() { ln.Close(); <-done })
		return ln.Addr().String()
	}
	c := &Client{ConnectTimeout: 200 * time.Millisecond, ReplyTimeout: 5 * time.Second}
	for _, k := range []struct {
		name, addr string
		want       error
	}{
		{"refused", refused, ErrConnect},
		{"blackhole", silent, ErrConnect},
		{"no host", ":15000", ErrResolve},
		{"bad port", "127.0.0.1:99999", ErrResolve},
		{"unknown host", "no-such-host.invalid:15000", ErrResolve},
		{"closed without reply", once(""), ErrNoReply},
		{"cut reply", once("\x16\x00\x00\x00\x00\x00\x00\x00\x03{"), ErrNoReply},
		{"wrong type", once("\x04\x00\x00\x00\x00\x00\x00\x00\x02{}\n"), ErrType},
		{"too long", once("\x01\x00\x10\x00\x00\x00\x00\x00\x03"), ErrLength},
		{"no JSON", once("\x04\x00\x00\x00\x00\x00\x00\x00\x03{x\n"), ErrMalformed},
	} {
		t.Run(k.name, func(t *testing.T) {
			host, port, _, err := SplitName(k.addr)
			if err != nil {
				_, err = c.Call(t.Context(), k.addr, TypeProbe, []byte("{}"))
			} else {
				err = c.Probe(t.Context(), host, port)
			}
			if !errors.Is(err, k.want) || !strings.Contains(err.Error(), k.addr) {
				t.Fatalf("got %v, want %v", err, k.want)
			}
		})
	}
	t.Run("notify refused", func(t *testing.T) {
		err := c.Notify(t.Context(), once("\x1c\x00\x00\x00\x00\x00\x00\x00\x02{\"name\":\"\",\"notify_msg\":\"\"}"), Message{})
		if !errors.Is(err, ErrRefused) {
			t.Fatal(err)
		}
	})
	t.Run("cancelled while waiting", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		ln := mustListen(t) // accepts in the kernel, never answers
		defer ln.Close()
		began := time.Now()
		_, err := c.Call(ctx, ln.Addr().String(), TypeProbe, []byte("{}"))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 4*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
	})
}
