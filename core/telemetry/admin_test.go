package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// lockedBuffer is a log that a server's goroutines write while the test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newAdmin(t *testing.T, cfg AdminConfig) (*Admin, *lockedBuffer) {
	t.Helper()
	log := &lockedBuffer{}
	a, err := NewAdmin(cfg, newLogging(t, DefaultLog(), log), NewRegistry(BuildVersion()), BuildVersion())
	if err != nil {
		t.Fatal(err)
	}
	return a, log
}

func start(t *testing.T, a *Admin) {
	t.Helper()
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

var loopback = AdminConfig{Listen: "127.0.0.1:0"}

// call sends a request with a client of its own, so that no idle connection outlives it.
func call(t *testing.T, c *http.Client, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if c == nil {
		c = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestAdminEndpoints(t *testing.T) {
	a, _ := newAdmin(t, loopback)
	a.Handle("GET /api/v1/segments", "the node's segments", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, http.StatusOK, []string{"node-A"})
	}))
	start(t, a)
	if a.URL() != "http://"+a.Addr() || !strings.HasPrefix(a.Addr(), "127.0.0.1:") {
		t.Errorf("URL %q, address %q", a.URL(), a.Addr())
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		text               string
	}{
		{"GET", "/healthz", "", 200, "ok\n"},
		{"HEAD", "/healthz", "", 200, ""},
		{"GET", "/readyz", "", 200, `{"ready":true}`},
		{"GET", "/metrics", "", 200, "mooncake_build_info{"},
		{"GET", "/metrics", "", 200, `mooncake_admin_requests_total{code="200",endpoint="/healthz"} 2`},
		{"GET", "/metrics", "", 200, "go_goroutines "},
		{"GET", "/metrics", "", 200, "process_open_fds "},
		{"GET", "/version", "", 200, `"go":"go1.`},
		{"GET", "/", "", 200, "GET   /api/v1/segments             the node's segments"},
		{"GET", "/", "", 200, "PUT   /api/v1/loglevel             change the log level; same body (loopback or socket only)"},
		{"GET", "/api/v1/segments", "", 200, `["node-A"]`},
		{"GET", "/nosuch", "", 404, "no such endpoint"},
		{"POST", "/healthz", "", 404, ""},
		{"GET", "/debug/pprof/", "", 404, "profiles are off; set admin.pprof"},
		{"GET", "/api/v1/loglevel", "", 200, `{"level":"info"}`},
		{"PUT", "/api/v1/loglevel", `{"level":"debug"}`, 200, `{"level":"debug"}`},
		{"GET", "/api/v1/loglevel", "", 200, `{"level":"debug"}`},
		{"PUT", "/api/v1/loglevel", `{"level":"loud"}`, 400, `"loud" is not a level`},
		{"PUT", "/api/v1/loglevel", `{"lvl":"info"}`, 400, `must be like {"level":"debug"}`},
		{"PUT", "/api/v1/loglevel", strings.Repeat("[", 5000), 400, "must be like"},
		{"PUT", "/api/v1/loglevel", ``, 400, "must be like"},
	} {
		code, body := call(t, nil, c.method, a.URL()+c.path, c.body)
		if code != c.code || !strings.Contains(body, c.text) {
			t.Errorf("%s %s %.40s = %d %.300q, want %d with %q", c.method, c.path, c.body, code, body, c.code, c.text)
		}
	}
	a.SetPprof(true)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=1"} {
		if code, body := call(t, nil, "GET", a.URL()+path, ""); code != 200 || body == "" {
			t.Errorf("GET %s = %d %.100q", path, code, body)
		}
	}
}

func TestAdminLocalCallsOnly(t *testing.T) {
	a, _ := newAdmin(t, AdminConfig{Listen: "127.0.0.1:0", Pprof: true})
	for _, c := range []struct {
		name   string
		remote string
		host   string
		header [2]string
		code   int
	}{
		{"loopback", "127.0.0.1:5", "127.0.0.1:9004", [2]string{}, 200},
		{"other loopback", "127.9.9.9:5", "localhost", [2]string{}, 200},
		{"IPv6 loopback", "[::1]:5", "[::1]:9004", [2]string{}, 200},
		{"mapped loopback", "[::ffff:127.0.0.1]:5", "localhost:9004", [2]string{}, 200},
		{"same origin", "127.0.0.1:5", "127.0.0.1:9004", [2]string{"Origin", "http://127.0.0.1:9004"}, 200},
		{"other host", "10.0.0.9:5", "127.0.0.1:9004", [2]string{}, 403},
		{"other host, IPv6", "[2001:db8::1]:5", "localhost", [2]string{}, 403},
		{"no address", "@", "localhost", [2]string{}, 403},
		{"through a proxy", "127.0.0.1:5", "127.0.0.1:9004", [2]string{"X-Forwarded-For", "10.0.0.9"}, 403},
		{"rebound name", "127.0.0.1:5", "evil.example:9004", [2]string{}, 403},
		{"foreign page", "127.0.0.1:5", "127.0.0.1:9004", [2]string{"Origin", "http://evil.example"}, 403},
		{"foreign page, new browser", "127.0.0.1:5", "127.0.0.1:9004", [2]string{"Sec-Fetch-Site", "cross-site"}, 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("PUT", "/api/v1/loglevel", strings.NewReader(`{"level":"info"}`))
			r.RemoteAddr, r.Host = c.remote, c.host
			if c.header[0] != "" {
				r.Header.Set(c.header[0], c.header[1])
			}
			w := httptest.NewRecorder()
			a.mux.ServeHTTP(w, r)
			if w.Code != c.code {
				t.Errorf("%d %q, want %d", w.Code, w.Body, c.code)
			}
		})
	}
	for path, want := range map[string]int{"/debug/pprof/cmdline": 403, "/api/v1/loglevel": 403, "/metrics": 200, "/healthz": 200} {
		r := httptest.NewRequest("GET", path, nil)
		r.RemoteAddr = "10.0.0.9:5"
		w := httptest.NewRecorder()
		a.mux.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("GET %s from another host = %d, want %d", path, w.Code, want)
		}
	}
}

func TestAdminSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "admin.sock")
	cfg := AdminConfig{Socket: path}
	a, _ := newAdmin(t, cfg)
	start(t, a)
	if a.Addr() != "" || a.URL() != "" {
		t.Errorf("without listen: address %q, URL %q", a.Addr(), a.URL())
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: %v, %v", st.Mode(), err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}, Timeout: 10 * time.Second}
	if code, body := call(t, c, "PUT", "http://node/api/v1/loglevel", `{"level":"warn"}`); code != 200 || !strings.Contains(body, "warn") {
		t.Errorf("PUT over the socket = %d %q", code, body)
	}
	second, _ := newAdmin(t, cfg)
	if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "admin.socket: "+path+": another process serves this socket") {
		t.Errorf("a second server on the same socket: %v", err)
	}
	if code, _ := call(t, c, "GET", "http://node/healthz", ""); code != 200 {
		t.Errorf("the first server after the second's attempt: %d", code)
	}
}

func TestAdminSocketLeftByAKilledProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	a, _ := newAdmin(t, AdminConfig{Socket: path})
	start(t, a)

	file := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, _ := newAdmin(t, AdminConfig{Socket: file})
	if err := b.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "exists and is not a socket") {
		t.Errorf("a file in the socket's place: %v", err)
	}
	if got, _ := os.ReadFile(file); string(got) != "mine" {
		t.Error("the file was deleted")
	}
}

func TestAdminPortInUse(t *testing.T) {
	a, _ := newAdmin(t, loopback)
	start(t, a)
	b, _ := newAdmin(t, AdminConfig{Listen: a.Addr(), Socket: filepath.Join(t.TempDir(), "b.sock")})
	err := b.Start(t.Context())
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "admin.listen: "+a.Addr()+" is in use by another process") {
		t.Errorf("Start on a taken port = %v", err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Errorf("Close after a failed start: %v", err)
	}
	if _, err := NewAdmin(AdminConfig{Listen: "nonsense"}, newLogging(t, DefaultLog(), io.Discard), NewRegistry(Version{}), Version{}); err == nil || !strings.Contains(err.Error(), "admin: listen: ") {
		t.Errorf("NewAdmin with a bad address = %v", err)
	}
}

func TestAdminWarnsOffLoopback(t *testing.T) {
	a, log := newAdmin(t, loopback)
	a.warnIfOpen(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9004})
	a.warnIfOpen(&net.TCPAddr{IP: net.IPv6loopback, Port: 9004})
	if log.String() != "" {
		t.Errorf("a warning about loopback: %s", log)
	}
	a.warnIfOpen(&net.TCPAddr{IP: net.IPv4zero, Port: 9004})
	if s := log.String(); !strings.Contains(s, "reachable from other hosts") || !strings.Contains(s, "0.0.0.0:9004") || !strings.Contains(s, "admin.listen") {
		t.Errorf("log: %s", s)
	}
}

func TestReadiness(t *testing.T) {
	a, _ := newAdmin(t, loopback)
	start(t, a)
	var mu sync.Mutex
	state := errors.New("etcd://u:hunter2@127.0.0.1:2379: refused")
	a.Ready("metadata", func(context.Context) error { mu.Lock(); defer mu.Unlock(); return state })
	a.Ready("segment", func(context.Context) error { return nil })
	a.Ready("broken", func(context.Context) error { panic("oops") })
	get := func() (int, Readiness) {
		code, body := call(t, nil, "GET", a.URL()+"/readyz", "")
		var r Readiness
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatalf("%v in %q", err, body)
		}
		return code, r
	}
	code, r := get()
	want := Readiness{Reasons: []Reason{{"broken", "the check panicked: oops"}, {"metadata", "etcd://u:***@127.0.0.1:2379: refused"}}}
	if d := cmp.Diff(want, r); code != 503 || d != "" {
		t.Errorf("%d %s", code, d)
	}
	mu.Lock()
	state = nil
	mu.Unlock()
	a.Ready("broken", func(context.Context) error { return nil })
	if code, r = get(); code != 200 || !r.Ready || len(r.Reasons) != 0 {
		t.Errorf("after the repair: %d %+v", code, r)
	}
}

func TestReadinessOfAHangingCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r readiness
		release := make(chan struct{})
		var runs atomic.Int32
		r.set("stuck", func(context.Context) error { runs.Add(1); <-release; return nil }) // ignores its context
		r.set("fine", func(context.Context) error { return nil })
		for range 3 {
			begin := time.Now()
			got := r.ask(t.Context())
			if d := cmp.Diff(Readiness{Reasons: []Reason{{"stuck", errLate.Error()}}}, got); d != "" {
				t.Error(d)
			}
			if took := time.Since(begin); took != checkTimeout {
				t.Errorf("asking took %v", took)
			}
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("the hanging check was started %d times", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.stop(ctx); err == nil || !strings.Contains(err.Error(), "readiness check stuck still runs") {
			t.Errorf("stop = %v", err)
		}
		close(release)
		if err := r.stop(t.Context()); err != nil {
			t.Errorf("stop = %v", err)
		}
		if !r.ask(t.Context()).Ready {
			t.Error("not ready although every check passes")
		}
	})
}

func TestAdminCloseCutsOffRequests(t *testing.T) {
	a, _ := newAdmin(t, loopback)
	entered := make(chan struct{})
	a.Handle("GET /slow", "never ends by itself", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}))
	if err := a.Close(t.Context()); err != nil {
		t.Errorf("Close before Start: %v", err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if resp, err := c.Get(a.URL() + "/slow"); err == nil {
			resp.Body.Close()
			t.Errorf("the request was answered: %d", resp.StatusCode)
		}
	})
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := a.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "requests cut off") {
		t.Errorf("Close = %v", err)
	}
	wg.Wait()
	if _, err := net.DialTimeout("tcp", a.Addr(), time.Second); err == nil {
		t.Error("the port is still open")
	}
	if err := a.Start(t.Context()); err == nil {
		t.Error("started twice")
	}
}
