package http

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/metahttp"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/memory"
	"github.com/mooncake-agent/mooncake/metadata/metadatatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open builds a backend from the defaults and what edit changes.
func open(t testing.TB, edit func(*Config)) *Backend {
	t.Helper()
	c := defaultConfig()
	edit(&c)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	b, err := newBackend(module.Env{}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func at(url string) func(*Config) { return func(c *Config) { c.URL = url } }

func timeout(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestConformance runs against our own server on a memory store.
func TestConformance(t *testing.T) {
	metadatatest.Run(t, func(t testing.TB) metadatatest.Service {
		store := memory.NewStore()
		addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
		var server *metahttp.Server
		var backend metadata.Backend
		stop := func(testing.TB) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel() // at once
			server.Close(ctx)
			backend.Close()
		}
		start := func(t testing.TB) {
			cfg := metahttp.DefaultConfig()
			cfg.Listen, cfg.MaxKey = addr, 8192
			backend = store.Open()
			var err error
			if server, err = metahttp.New(cfg, backend, nil, module.Env{}); err == nil {
				err = server.Start(context.Background())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		start(t)
		t.Cleanup(func() { stop(t) })
		return metadatatest.Service{
			Open:     func(t testing.TB) metadata.Backend { return open(t, at("http://"+addr+"/metadata")) },
			Timeout:  3 * time.Second,
			MaxValue: 32 << 20,
			Stop:     stop, Start: start, Keeps: true,
			Wipe: func(testing.TB) { store.Reset() },
		}
	}, metadatatest.Declared{})
}

// The recorded requests of a wheel engine: the same calls here send the same bytes.
func TestRequestsAreUpstreams(t *testing.T) {
	doc, err := os.ReadFile("testdata/requests.json")
	if err != nil {
		t.Fatal(err)
	}
	var rec []struct {
		Head   string `json:"request_head"`
		Body   string `json:"request_body"`
		Answer string `json:"response_head"`
		Text   string `json:"response_body"`
	}
	if err := json.Unmarshal(doc, &rec); err != nil || len(rec) < 15 {
		t.Fatalf("%d records, %v", len(rec), err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	got := make(chan string, 1)
	next := make(chan string, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close() // one connection for all of them
		in := bufio.NewReader(conn)
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(req.Body)
			lines := []string{fmt.Sprintf("%s %s %s", req.Method, req.RequestURI, req.Proto), "Host: " + req.Host}
			if req.Method == http.MethodPut {
				lines = append(lines, fmt.Sprintf("Content-Length: %d", req.ContentLength))
			}
			for k, v := range req.Header {
				if k != "Content-Length" {
					lines = append(lines, k+": "+strings.Join(v, ","))
				}
			}
			slices.Sort(lines)
			got <- strings.Join(lines, "\n") + "\n\n" + string(body)
			io.WriteString(conn, <-next)
		}
	}()
	b := open(t, at("http://"+ln.Addr().String()+"/metadata"))
	ctx := timeout(t, 30*time.Second)
	for i, r := range rec {
		lines := strings.Split(r.Head, "\r\n")
		method, rest, _ := strings.Cut(lines[0], " ")
		target, _, _ := strings.Cut(rest, " ")
		key, err := url.QueryUnescape(strings.TrimPrefix(target, "/metadata?key="))
		if err != nil {
			t.Fatal(err)
		}
		for j, l := range lines {
			if strings.HasPrefix(l, "Host: ") {
				lines[j] = "Host: " + ln.Addr().String()
			}
		}
		slices.Sort(lines)
		next <- r.Answer + "\r\n\r\n" + r.Text
		var errCall error
		switch method {
		case "GET":
			var e metadata.Entry
			if e, errCall = b.Get(ctx, key); errCall == nil && string(e.Value) != r.Text {
				t.Errorf("%d: value %q", i, e.Value)
			}
			if strings.Contains(r.Answer, " 404 ") != errors.Is(errCall, metadata.ErrNotFound) {
				t.Errorf("%d: %v", i, errCall)
			} else {
				errCall = nil
			}
		case "PUT":
			errCall = b.Put(ctx, key, []byte(r.Body))
		case "DELETE":
			errCall = b.Delete(ctx, key)
		}
		if errCall != nil {
			t.Fatalf("%d: %s %s: %v", i, method, key, errCall)
		}
		if want, have := strings.Join(lines, "\n")+"\n\n"+r.Body, <-got; have != want {
			t.Errorf("%d: sent\n%s\nwant\n%s", i, have, want)
		}
	}
}

// handler serves every request with one function and returns its URL.
func handler(t testing.TB, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL + "/metadata"
}

func TestStatuses(t *testing.T) {
	for _, c := range []struct {
		status           int
		text             string
		get, put, delete error
	}{
		{200, "v", nil, nil, nil},
		{201, "", metadata.ErrRefused, metadata.ErrRefused, metadata.ErrRefused},
		{204, "", metadata.ErrRefused, metadata.ErrRefused, metadata.ErrRefused},
		{301, "moved", metadata.ErrRefused, metadata.ErrRefused, metadata.ErrRefused},
		{400, "bad", metadata.ErrRefused, metadata.ErrRefused, metadata.ErrRefused},
		{401, "who", metadata.ErrRefused, metadata.ErrRefused, metadata.ErrRefused},
		{404, "metadata not found", metadata.ErrNotFound, metadata.ErrRefused, nil},
		{413, "Maximum request body size 1048576 exceeded.", metadata.ErrTooLarge, metadata.ErrTooLarge, metadata.ErrTooLarge},
		{429, "slow down", metadata.ErrUnavailable, metadata.ErrUnavailable, metadata.ErrUnavailable},
		{500, "oops", metadata.ErrUnavailable, metadata.ErrUnavailable, metadata.ErrUnavailable},
		{503, "later", metadata.ErrUnavailable, metadata.ErrUnavailable, metadata.ErrUnavailable},
	} {
		url := handler(t, func(w http.ResponseWriter, r *http.Request) {
			if c.status == 301 {
				w.Header().Set("Location", "/elsewhere?key=k")
			}
			w.WriteHeader(c.status)
			if c.status != 204 {
				io.WriteString(w, c.text)
			}
		})
		b := open(t, at(url))
		ctx := timeout(t, 10*time.Second)
		_, errGet := b.Get(ctx, "k")
		for call, err := range map[string][2]error{
			"get": {errGet, c.get}, "put": {b.Put(ctx, "k", []byte("12345")), c.put}, "delete": {b.Delete(ctx, "k"), c.delete},
		} {
			if !errors.Is(err[0], err[1]) || err[1] == nil && err[0] != nil {
				t.Errorf("%d to %s: %v, want %v", c.status, call, err[0], err[1])
			}
			if err[0] != nil && c.status != 404 && (!strings.Contains(err[0].Error(), fmt.Sprint(c.status)) || !strings.Contains(err[0].Error(), c.text)) {
				t.Errorf("%d to %s: %v does not tell status and text", c.status, call, err[0])
			}
		}
	}
}

func TestTooLargeNamesSizeAndLimit(t *testing.T) {
	url := handler(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPut:
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			io.WriteString(w, "Maximum request body size 1048576 exceeded.")
		default:
			w.Write(make([]byte, 5000))
		}
	})
	b := open(t, func(c *Config) { c.URL, c.MaxValue = url, 4096 })
	ctx := timeout(t, 10*time.Second)
	_, errGet := b.Get(ctx, "k")
	for want, err := range map[string]error{
		"4000 bytes; the server says: HTTP 413 Request Entity Too Large: Maximum request body size 1048576": b.Put(ctx, "k", make([]byte, 4000)),
		"4097 bytes, max_value allows 4096":     b.Put(ctx, "k", make([]byte, 4097)),
		"more than the 4096 bytes of max_value": errGet,
	} {
		if !errors.Is(err, metadata.ErrTooLarge) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// The Python server refuses to replace an rpc_meta entry even by the same value.
func TestRefusedRPCMeta(t *testing.T) {
	url := handler(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, "Duplicate rpc_meta key not allowed")
			return
		}
		io.WriteString(w, "there")
	})
	b := open(t, at(url))
	ctx := timeout(t, 10*time.Second)
	if err := b.Put(ctx, "mooncake/rpc_meta/a", []byte("there")); err != nil {
		t.Errorf("the same value: %v", err)
	}
	for key, value := range map[string]string{"mooncake/rpc_meta/a": "other", "mooncake/ram/a": "there"} {
		err := b.Put(ctx, key, []byte(value))
		if !errors.Is(err, metadata.ErrRefused) || !strings.Contains(err.Error(), "Duplicate rpc_meta key not allowed") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// A server that closed an idle connection is no failure, for no call.
func TestStaleConnections(t *testing.T) {
	var n atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "v")
	}))
	defer s.Close()
	b := open(t, at(s.URL+"/metadata"))
	ctx := timeout(t, 30*time.Second)
	for range 20 {
		s.CloseClientConnections()
		if err := b.Put(ctx, "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		s.CloseClientConnections()
		if err := b.Delete(ctx, "k"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTimeouts(t *testing.T) {
	hang := make(chan struct{})
	url := handler(t, func(http.ResponseWriter, *http.Request) { <-hang })
	defer close(hang)
	for name, c := range map[string]struct {
		edit    func(*Config)
		atLeast time.Duration
	}{
		"connect": {func(c *Config) {
			c.URL, c.ConnectTimeout = "http://"+testenv.Blackhole(t)+"/metadata", 200*time.Millisecond
		}, 200 * time.Millisecond},
		"total": {func(c *Config) { c.URL, c.Timeout = url, 300*time.Millisecond }, 300 * time.Millisecond},
		"refused": {func(c *Config) {
			c.URL = fmt.Sprintf("http://127.0.0.1:%d/metadata", testenv.FreePort(t))
		}, 0},
	} {
		b := open(t, c.edit)
		begin := time.Now()
		_, err := b.Get(context.Background(), "k")
		took := time.Since(begin)
		if !errors.Is(err, metadata.ErrUnavailable) || took < c.atLeast || took > c.atLeast+2*time.Second {
			t.Errorf("%s: %v after %v", name, err, took)
		}
		if strings.Contains(err.Error(), "?key=") {
			t.Errorf("%s: the error repeats the URL: %v", name, err)
		}
	}
	if d := defaultConfig(); d.ConnectTimeout != 1500*time.Millisecond || d.Timeout != 3*time.Second {
		t.Errorf("not upstream's timeouts: %+v", d)
	}
}

func TestTLS(t *testing.T) {
	f := testenv.NewTLSFiles(t, "node")
	b := memory.NewStore().Open()
	defer b.Close()
	plain, err := metahttp.New(metahttp.DefaultConfig(), b, nil, module.Env{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: plain, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	done := make(chan struct{})
	go func() { defer close(done); srv.ServeTLS(ln, f.Cert, f.Key) }()
	defer func() { srv.Close(); <-done }()
	url := "https://" + ln.Addr().String() + "/metadata"
	ctx := timeout(t, 30*time.Second)
	for name, edit := range map[string]func(*Config){
		"ca":          func(c *Config) { c.URL, c.TLS.CA = url, f.CA },
		"server name": func(c *Config) { c.URL, c.TLS.CA, c.TLS.ServerName = url, f.CA, "localhost" },
		"skip verify": func(c *Config) { c.URL, c.TLS.InsecureSkipVerify = url, true },
	} {
		if err := open(t, edit).Put(ctx, "k", []byte(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]func(*Config){
		"unknown authority": func(c *Config) { c.URL = url },
		"another name":      func(c *Config) { c.URL, c.TLS.CA, c.TLS.ServerName = url, f.CA, "example.org" },
	} {
		if err := open(t, edit).Put(ctx, "k", nil); !errors.Is(err, metadata.ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfig(t *testing.T) {
	for in, want := range map[string]base{
		"http://h:8080/metadata":      {url: "http://h:8080/metadata", shown: "http://h:8080/metadata"},
		"http://[::1]:8082/metadata":  {url: "http://[::1]:8082/metadata", shown: "http://[::1]:8082/metadata"},
		" https://h/some%2Fpath ":     {url: "https://h/some%2Fpath", shown: "https://h/some%2Fpath"},
		"http://h:8999":               {url: "http://h:8999/metadata", shown: "http://h:8999/metadata", defaulted: true},
		"http://h:8999/":              {url: "http://h:8999/metadata", shown: "http://h:8999/metadata", defaulted: true},
		"HTTP://h/x/":                 {url: "HTTP://h/x/", shown: "http://h/x/"},
		"http://u:hunter2@h/metadata": {url: "http://u:hunter2@h/metadata", shown: "http://u:xxxxx@h/metadata", password: "hunter2"},
	} {
		if got, err := parseURL(in); err != nil || got != want {
			t.Errorf("parseURL(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"": "none given", "h:8080": "http://", "ftp://h/metadata": "neither http:// nor https://", "http://": "no host",
		"http:///metadata": "no host", "http://h:99999/metadata": "99999", "http://h:/metadata": "port", "http:h": "no host",
		"http://h/metadata?key=x": "cannot be part", "http://h/metadata#x": "cannot be part", "http://h/metadata?": "cannot be part",
		"http://{{ IP }}:1/metadata": "http://10.0.0.1", "http://u:hunter2%zz@h/metadata": "%XX", "http://h:x/metadata": "port",
	} {
		c := defaultConfig()
		c.URL = in
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v; want %s", in, err, want)
		}
	}
	c := defaultConfig()
	c.URL, c.TLS.CA = "http://h/metadata", "ca.pem"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "tls") {
		t.Errorf("tls without https: %v", err)
	}
}

func TestPathlessURLWarns(t *testing.T) {
	var log bytes.Buffer
	env := module.Env{Log: slog.New(slog.NewTextHandler(&log, nil))}
	c := defaultConfig()
	c.URL = "http://u:hunter2@127.0.0.1:8999"
	b, err := newBackend(env, c)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if !strings.Contains(log.String(), "/metadata") || strings.Contains(log.String(), "hunter2") {
		t.Fatalf("log: %s", log.String())
	}
}

func TestPasswordStaysInside(t *testing.T) {
	b := open(t, at(fmt.Sprintf("http://u:hunter2@127.0.0.1:%d/metadata", testenv.FreePort(t))))
	if _, err := b.Get(context.Background(), "k"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Fatal(err)
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"mooncake/ram/a", "a b@c+d~e_f.é%", "\x00\xff", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		e := escape(key)
		if back, err := url.QueryUnescape(e); err != nil || back != key {
			t.Fatalf("escape(%q) = %q, which is read as %q, %v", key, e, back, err)
		}
		if strings.Trim(e, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%") != "" {
			t.Fatalf("escape(%q) = %q", key, e)
		}
	})
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"http://h:8080/metadata", "https://[::1]", "http://u:p@h", "http://%zz", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := parseURL(s)
		if err != nil {
			return
		}
		if u, err := url.Parse(b.url); err != nil || u.Host == "" || u.RawQuery != "" || u.Path == "" {
			t.Fatalf("parseURL(%q) = %+v", s, b)
		}
	})
}
