package rpc

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func webHandler(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s from %s", r.Method, r.URL.Path, body, strings.Split(r.RemoteAddr, ":")[0])
}

func withHTTP(_ *ServerConfig, o *Options) { o.HTTP = http.HandlerFunc(webHandler) }

func TestHTTPOnTheSamePort(t *testing.T) {
	s := serve(t, withHTTP)
	for _, c := range []struct {
		name  string
		parts []string
		want  string
	}{
		{"get", []string{"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"}, "GET /metrics  from 127.0.0.1"},
		{"letter by letter", strings.Split("GET /a HTTP/1.1\r\nHost: x\r\n\r\n", ""), "GET /a  from 127.0.0.1"},
		{"post", []string{"PO", "ST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n", "\r\nbody"}, "POST /b body from 127.0.0.1"},
		{"put", []string{"PUT /c HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nz"}, "PUT /c z from 127.0.0.1"},
		{"delete", []string{"DELETE /d HTTP/1.1\r\nHost: x\r\n\r\n"}, "DELETE /d  from 127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := s.dial()
			p.t = t
			for _, part := range c.parts {
				p.send([]byte(part))
			}
			resp, err := http.ReadResponse(bufio.NewReader(p), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != c.want {
				t.Errorf("%q, %v, want %q", body, err, c.want)
			}
		})
	}
	t.Run("a real client, with keep-alive", func(t *testing.T) {
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		client := http.Client{Transport: tr, Timeout: patience}
		for range 3 {
			resp, err := client.Get("http://" + s.addr + "/x")
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		resp, err := client.Head("http://" + s.addr + "/x")
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
	})
	p := s.dial()
	p.request(fnEcho, 1, "rpc as ever")
	p.expect(1, "rpc as ever")
	if n := s.metric("connections_closed_total", "http"); n != 6 {
		t.Errorf("%v connections were handed over, want 6", n)
	}
}

func TestNeitherRPCNorHTTP(t *testing.T) {
	for name, edit := range map[string]func(*ServerConfig, *Options){"with HTTP": withHTTP, "without HTTP": nil} {
		s := serve(t, edit)
		for _, first := range []string{"X", "GETX", "get / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "HELLO", "P\x15", "\x00"} {
			t.Run(fmt.Sprintf("%s/%q", name, first), func(t *testing.T) {
				p := s.dial()
				p.t = t
				p.send([]byte(first))
				p.expectClosed()
			})
		}
	}
	t.Run("HTTP where it is not served", func(t *testing.T) {
		p := serve(t, nil).dial()
		p.send([]byte("GET / HTTP/1.1\r\n\r\n"))
		p.expectClosed()
	})
}

func TestHTTPLimits(t *testing.T) {
	s := serve(t, func(c *ServerConfig, o *Options) {
		withHTTP(c, o)
		c.HTTPConnectionsLimit, c.HTTPReadTimeout, c.MaxConnectionsPerIP = 2, patience, 3
	})
	half := func() *peerConn {
		p := s.dial()
		p.send([]byte("GET /unfinished"))
		return p
	}
	a, b := half(), half()
	eventually(t, "both are handed over", func() bool { return s.metric("connections_closed_total", "http") == 2 })
	half().expectClosed() // the third is more than http_connections
	// The address is at its limit of three only while the HTTP connections live.
	c := s.dial()
	c.request(fnEcho, 1, "x")
	c.expect(1, "x")
	s.dial().expectClosed()
	a.Close()
	b.Close()
	eventually(t, "their places are free", func() bool { return s.peers.open() == 1 })
}

func TestHTTPHeaderTimeout(t *testing.T) {
	s := serve(t, func(c *ServerConfig, o *Options) {
		withHTTP(c, o)
		c.HTTPReadTimeout = 100 * time.Millisecond
	})
	p := s.dial()
	p.send([]byte("GET /unfinished"))
	readAll(t, p)
	eventually(t, "its place is free", func() bool { return s.peers.open() == 0 })
}

func readAll(t *testing.T, p *peerConn) {
	t.Helper()
	if _, err := io.ReadAll(p); err != nil {
		t.Fatal(err)
	}
}

func TestCloseEndsHTTP(t *testing.T) {
	entered := make(chan struct{})
	s := serve(t, func(_ *ServerConfig, o *Options) {
		o.HTTP = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(entered)
			<-r.Context().Done() // a hanging page
		})
	})
	p := s.dial()
	p.send([]byte("GET /hang HTTP/1.1\r\nHost: x\r\n\r\n"))
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	readAll(t, p)
}
