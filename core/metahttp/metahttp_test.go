package metahttp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newServer(t testing.TB, b metadata.Backend, probe Prober, edit func(*Config)) *Server {
	t.Helper()
	cfg := DefaultConfig()
	if edit != nil {
		edit(&cfg)
	}
	s, err := New(cfg, b, probe, module.Env{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newBackend(t testing.TB) metadata.Backend {
	t.Helper()
	b := memory.NewStore().Open()
	t.Cleanup(func() { b.Close() })
	return b
}

// do calls the handler without a network.
func do(h http.Handler, method, target, body string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func want(t testing.TB, h http.Handler, method, target, body string, code int, prefix string) {
	t.Helper()
	if gotCode, got := do(h, method, target, body); gotCode != code || !strings.HasPrefix(got, prefix) {
		t.Fatalf("%s %s: %d %q, want %d %q", method, target, gotCode, got, code, prefix)
	}
}

type exchange struct {
	Method, Target string
	Body           *string
	Status         int
	Response       string
}

type engineExchange struct {
	Head   string `json:"request_head"`
	Body   string `json:"request_body"`
	Status int
	Answer string `json:"response_body"`
}

func upstream(t *testing.T) (out struct {
	Python, CPP []exchange
	Engine      []engineExchange
}) {
	t.Helper()
	doc, err := os.ReadFile("testdata/upstream.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(doc, &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Python) < 20 || len(out.CPP) < 20 || len(out.Engine) < 8 {
		t.Fatalf("testdata is incomplete: %d, %d, %d", len(out.Python), len(out.CPP), len(out.Engine))
	}
	return out
}

// The sessions recorded on two servers of upstream get the same answers here, but where doc.go says why not.
func TestAnswersAsUpstreamDoes(t *testing.T) {
	type row struct{ server, method, target, body string }
	differs := map[row]struct {
		status   int
		response string
	}{
		// The text of the C++ server.
		{"python", "GET", "/metadata", ""}:      {400, noKey},
		{"python", "GET", "/metadata?key=", ""}: {400, noKey},
		// The Python server refuses the same value too.
		{"python", "PUT", "/metadata?key=mooncake%2Frpc_meta%2Fx", `{"p":1}`}: {200, "metadata unchanged"},
		// Only the C++ server has /health.
		{"python", "GET", "/health", ""}: {200, "OK"},
		{"python", "GET", "/", ""}:       {404, "404 Not Found"},
		// The C++ server does not decode keys.
		{"cpp", "GET", "/metadata?key=mooncake/ram/x", ""}: {200, `{"a":1}`},
		// The Python server knows 405.
		{"cpp", "POST", "/metadata?key=mooncake%2Fram%2Fx", "{}"}:  {405, "Method not allowed"},
		{"cpp", "PATCH", "/metadata?key=mooncake%2Fram%2Fx", "{}"}: {405, "Method not allowed"},
		{"cpp", "HEAD", "/metadata?key=mooncake%2Fram%2Fx", ""}:    {405, "Method not allowed"},
		// net/http drops the body of an answer to HEAD, the recorder of this test does not.
		{"python", "HEAD", "/metadata?key=mooncake%2Fram%2Fx", ""}: {405, "Method not allowed"},
	}
	rec := upstream(t)
	for server, session := range map[string][]exchange{"python": rec.Python, "cpp": rec.CPP} {
		s := newServer(t, newBackend(t), nil, nil)
		seen := map[row]bool{}
		for i, e := range session {
			body := ""
			if e.Body != nil {
				body = *e.Body
			}
			r := row{server, e.Method, e.Target, body}
			status, response := e.Status, e.Response
			if d, ok := differs[r]; ok && (seen[r] || e.Status != 200) {
				status, response = d.status, d.response
			}
			seen[r] = true
			got, text := do(s, e.Method, e.Target, body)
			refused := strings.HasPrefix(text, duplicate+": ") && response == duplicate // more is told here
			if got != status || text != response && !refused {
				t.Errorf("%s %d: %s %s %q: %d %q, want %d %q", server, i, e.Method, e.Target, body, got, text, status, response)
			}
		}
	}
}

// The requests of a wheel engine's life, byte for byte over a socket, on one connection.
func TestEngineSession(t *testing.T) {
	s := newServer(t, newBackend(t), nil, func(c *Config) { c.Listen = "127.0.0.1:0" })
	start(t, s)
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(conn)
	for i, e := range upstream(t).Engine {
		if _, err := io.WriteString(conn, e.Head+"\r\n\r\n"+e.Body); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != e.Status || string(text) != e.Answer {
			t.Errorf("%d: %.60s: %d %q, %v; want %d %q", i, e.Head, resp.StatusCode, text, err, e.Status, e.Answer)
		}
	}
}

func start(t testing.TB, s *Server) {
	t.Helper()
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestKeys(t *testing.T) {
	b := newBackend(t)
	s := newServer(t, b, nil, func(c *Config) { c.MaxKey = 100 })
	for target, key := range map[string]string{
		"?key=mooncake%2Fmy%2Fseg":                "mooncake/my/seg",
		"?key=a%20b%40c%2Bd~e_f.%C3%A9%25":        "a b@c+d~e_f.é%",
		"?x=1&key=plain&key=second":               "plain",
		"?key=semi;colon":                         "semi;colon",
		"?key=%FF%00":                             "\xff\x00",
		"?key=" + strings.Repeat("%41", 100):      strings.Repeat("A", 100),
		"?keys=no&Key=no&key=case":                "case",
		"?key=a=b":                                "a=b",
		"?key=" + strings.Repeat("x", 99) + "%2f": strings.Repeat("x", 99) + "/",
	} {
		want(t, s, "PUT", "/metadata"+target, "v", 200, "metadata updated")
		if e, err := b.Get(context.Background(), key); err != nil || string(e.Value) != "v" {
			t.Errorf("%s: %q, %v", target, e.Value, err)
		}
		want(t, s, "GET", "/metadata"+target, "", 200, "v")
		want(t, s, "DELETE", "/metadata"+target, "", 200, "metadata deleted")
	}
	for target, text := range map[string]string{
		"": noKey, "?": noKey, "?key": noKey, "?key=": noKey, "?key=&key=x": noKey, "?Key=x": noKey,
		"?key=%zz": "malformed key", "?key=%4": "malformed key",
		"?key=" + strings.Repeat("x", 101): "the key has 101 bytes, the limit (max_key) is 100",
	} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			want(t, s, method, "/metadata"+target, "", 400, text)
		}
	}
	for _, path := range []string{"/", "/metadata/", "//metadata", "/metadata/x?key=a", "/METADATA?key=a"} {
		want(t, s, "GET", "http://h"+path, "", 404, "404")
	}
}

func TestBodyLimit(t *testing.T) {
	s := newServer(t, newBackend(t), nil, func(c *Config) {
		c.Listen, c.MaxBody, c.MaxInFlight = "127.0.0.1:0", 2*units.MiB, 2*units.MiB
	})
	start(t, s)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: 5 * time.Second}}
	put := func(body io.Reader, expect bool) (int, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPut, "http://"+s.Addr()+"/metadata?key=k", body)
		if err != nil {
			t.Fatal(err)
		}
		if expect {
			req.Header.Set("Expect", "100-continue")
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	just, over := bytes.Repeat([]byte("x"), 2<<20), bytes.Repeat([]byte("x"), 2<<20+1)
	for _, expect := range []bool{false, true} {
		if code, text := put(bytes.NewReader(just), expect); code != 200 {
			t.Errorf("at the limit: %d %q", code, text)
		}
		if code, text := put(bytes.NewReader(over), expect); code != 413 || text != "Maximum request body size 2097152 exceeded." {
			t.Errorf("over the limit: %d %q", code, text)
		}
		if code, text := put(io.MultiReader(bytes.NewReader(over)), expect); code != 413 { // chunked
			t.Errorf("over the limit, chunked: %d %q", code, text)
		}
	}
	var wg sync.WaitGroup
	for range 8 { // more than max_in_flight at once: they wait for each other
		wg.Go(func() {
			if code, text := put(bytes.NewReader(just), true); code != 200 {
				t.Errorf("%d %q", code, text)
			}
		})
	}
	wg.Wait()
}

// A client that sends nothing, or half a body, loses its connection and holds up nobody.
func TestSlowClients(t *testing.T) {
	s := newServer(t, newBackend(t), nil, func(c *Config) {
		c.Listen = "127.0.0.1:0"
		c.ReadHeaderTimeout, c.ReadTimeout, c.IdleTimeout = 100*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond
		c.MaxBody, c.MaxInFlight = units.MiB, units.MiB
	})
	start(t, s)
	var conns []net.Conn
	for _, begin := range []string{
		"", "PUT /metadata?key=", "PUT /metadata?key=k HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\nhalf",
		"GET /health HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, begin)
		conns = append(conns, conn)
	}
	want(t, s, "PUT", "/metadata?key=other", "v", 200, "metadata updated")
	for i, conn := range conns {
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("connection %d was not closed: %v", i, err)
		}
	}
	want(t, s, "GET", "/metadata?key=k", "", 404, "metadata not found")
	want(t, s, "PUT", "/metadata?key=k", strings.Repeat("x", 1<<20), 200, "metadata updated") // its memory is free again
}

type broken struct {
	metadata.Backend
	err error
}

func (b broken) Get(context.Context, string) (metadata.Entry, error) { return metadata.Entry{}, b.err }
func (b broken) Put(context.Context, string, []byte) error           { return b.err }

func TestBackendErrors(t *testing.T) {
	for err, code := range map[error]int{
		metadata.ErrUnavailable: 503, metadata.ErrClosed: 503, metadata.ErrTooLarge: 413, metadata.ErrRefused: 502, io.EOF: 500,
	} {
		s := newServer(t, broken{err: fmt.Errorf("etcd h:1: get: %w", err)}, nil, nil)
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			want(t, s, method, "/metadata?key=k", "", code, "etcd h:1: get: ")
			want(t, s, method, "/metadata?key=rpc_meta/k", "", code, "etcd h:1: get: ")
		}
	}
}

func TestLifeCycle(t *testing.T) {
	ctx := context.Background()
	b := newBackend(t)
	off := newServer(t, b, nil, nil)
	if err := off.Start(ctx); err != nil || off.Addr() != "" {
		t.Fatalf("a server without an address: %q, %v", off.Addr(), err)
	}
	if err := off.Close(ctx); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, b, nil, func(c *Config) { c.Listen = "127.0.0.1:0" })
	start(t, s)
	taken := newServer(t, b, nil, func(c *Config) { c.Listen = s.Addr() })
	if err := taken.Start(ctx); err == nil || !strings.Contains(err.Error(), s.Addr()) {
		t.Fatalf("a taken port: %v", err)
	}
	if err := s.Start(ctx); err == nil {
		t.Fatal("started twice")
	}
	if err := s.Close(ctx); err != nil || s.Addr() != "" {
		t.Fatal(err)
	}
	if err := s.Close(ctx); err != nil {
		t.Fatalf("second close: %v", err)
	}
	if err := s.Start(ctx); err == nil {
		t.Fatal("started after close")
	}
}

// Close waits for a request that is being served, and cuts it off when it may wait no longer.
func TestGracefulClose(t *testing.T) {
	for name, patient := range map[string]bool{"waits": true, "cuts off": false} {
		t.Run(name, func(t *testing.T) {
			entered, release := make(chan struct{}), make(chan struct{})
			probe := func(ctx context.Context, _ string, _ int) error {
				close(entered)
				select {
				case <-release:
				case <-ctx.Done():
				}
				return nil
			}
			b := newBackend(t)
			s := newServer(t, b, probe, func(c *Config) { c.Listen, c.ProbeTimeout = "127.0.0.1:0", 2*time.Second })
			if err := s.Start(context.Background()); err != nil {
				t.Fatal(err)
			}
			b.Put(context.Background(), "rpc_meta/a", rpcMeta("127.0.0.1", 1))
			answered := make(chan int, 1)
			go func() {
				req, _ := http.NewRequest(http.MethodPut, "http://"+s.Addr()+"/metadata?key=rpc_meta/a", bytes.NewReader(rpcMeta("127.0.0.1", 2)))
				resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
				if err != nil {
					answered <- 0
					return
				}
				resp.Body.Close()
				answered <- resp.StatusCode
			}()
			<-entered
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if patient {
				time.AfterFunc(50*time.Millisecond, func() { close(release) })
			} else {
				time.AfterFunc(50*time.Millisecond, cancel)
			}
			err := s.Close(ctx)
			code := <-answered
			if patient && (err != nil || code != 400) || !patient && (err == nil || code != 0) {
				t.Fatalf("close: %v, the request got %d", err, code)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	s, err := New(DefaultConfig(), newBackend(t), nil, module.Env{Metrics: reg})
	if err != nil {
		t.Fatal(err)
	}
	do(s, "GET", "/metadata?key=x", "")
	do(s, "PUT", "/metadata?key=x", "v")
	do(s, "BREW", "/metadata?key=x", "v")
	err = testutil.GatherAndCompare(reg, strings.NewReader(`# HELP mooncake_metadata_http_requests_total Requests to the HTTP metadata server.
# TYPE mooncake_metadata_http_requests_total counter
mooncake_metadata_http_requests_total{code="200",method="PUT"} 1
mooncake_metadata_http_requests_total{code="404",method="GET"} 1
mooncake_metadata_http_requests_total{code="405",method="other"} 1
`), "mooncake_metadata_http_requests_total")
	if err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if _, err := New(DefaultConfig(), newBackend(t), nil, module.Env{Metrics: reg}); err == nil {
		t.Error("the same metrics twice")
	}
}

func TestConfig(t *testing.T) {
	d := DefaultConfig()
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	for text, edit := range map[string]func(*Config){
		"listen":         func(c *Config) { c.Listen = "8080" },
		"listen: \":x\"": func(c *Config) { c.Listen = ":x" },
		"max_in_flight":  func(c *Config) { c.MaxInFlight = units.MiB },
	} {
		c := DefaultConfig()
		edit(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzDecodeKey(f *testing.F) {
	for _, q := range []string{"key=a", "key=%2F&x", "a=b&key=%zz", "key", "&&key=%41%", "key=é"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		key, problem := decodeKey(query, 64)
		if (key == "") == (problem == "") || len(key) > 64 {
			t.Fatalf("decodeKey(%q) = %q, %q", query, key, problem)
		}
		var escaped strings.Builder
		for i := range len(key) {
			fmt.Fprintf(&escaped, "%%%02X", key[i])
		}
		if again, _ := decodeKey("key="+escaped.String(), 64); again != key {
			t.Fatalf("decodeKey(%q) = %q, escaped again %q", query, key, again)
		}
	})
}

// 64 clients at once on real connections.
func TestConcurrentClients(t *testing.T) {
	s := newServer(t, newBackend(t), nil, func(c *Config) { c.Listen = "127.0.0.1:0" })
	start(t, s)
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	defer tr.CloseIdleConnections()
	var failed atomic.Int32
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for i := range 20 {
				url := fmt.Sprintf("http://%s/metadata?key=k%d", s.Addr(), g)
				for _, method := range []string{"PUT", "GET", "DELETE"} {
					req, _ := http.NewRequest(method, url, strings.NewReader(fmt.Sprint(i)))
					resp, err := tr.RoundTrip(req)
					if err != nil || resp.StatusCode != 200 {
						failed.Add(1)
						return
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
		})
	}
	wg.Wait()
	if n := failed.Load(); n != 0 {
		t.Fatalf("%d clients failed", n)
	}
}
