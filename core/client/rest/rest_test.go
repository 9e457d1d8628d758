package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/serve"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
	_ "github.com/mooncake-agent/mooncake/transports/tcp"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { checkOpenAPI(code) }))
}

const mib = 1 << 20

// must is for set-up.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// store starts a master and a client that lends it size bytes, all in this process.
func store(t testing.TB, size uint64, checksum bool, lease time.Duration) *client.Client {
	t.Helper()
	ctx := t.Context()
	cfg := serve.DefaultConfig()
	cfg.Listen.Addr, cfg.Admin.Addr = "127.0.0.1:0", ""
	mc := master.DefaultConfig()
	mc.LeaseTTL = lease
	s := must(serve.New(serve.Options{Config: cfg, Master: mc}))(t)
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	tcp := must(transports.Kind.Build(ctx, "tcp", module.Env{}, module.NoConfig{}))(t)
	e := must(transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1",
		Transports: []transfer.NamedTransport{{Name: "tcp", Transport: tcp}}}))(t)
	region := must(segment.Wrap(make([]byte, size), "", transports.ReadWrite))(t)
	if err := e.Register(ctx, region); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	cc := client.DefaultConfig()
	cc.Checksum, cc.UnmountGrace = checksum, 0
	c := must(client.New(client.Options{Config: cc, Master: []string{s.Addr()}, Engine: e}))(t)
	m := must(c.Mount(client.SegmentSpec{Region: region}))(t)
	if err := m.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, f := range []func(context.Context) error{c.Close, e.Close, s.Close} {
			if err := f(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	return c
}

// api is a server with the handler and a client that notes what was answered.
type api struct {
	t   testing.TB
	url string
}

func newAPI(t testing.TB, c func() *client.Client, change func(*Options)) *api {
	t.Helper()
	o := Options{Config: DefaultConfig(), Client: c, Budget: 64 * units.MiB}
	if change != nil {
		change(&o)
	}
	h := must(New(o))(t)
	mux := http.NewServeMux()
	for _, r := range h.Routes() {
		mux.Handle(r.Pattern, r.Handler)
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return &api{t, s.URL}
}

// answered are the statuses that tests have seen, by method and path of the description.
var answered = struct {
	sync.Mutex
	m map[string]map[int]bool
}{m: map[string]map[int]bool{}}

// describedPath is the path template of the description for a request.
func describedPath(path string) string {
	for _, p := range []string{"/api/v1/objects/", "/api/get/", "/api/exist/", "/api/remove/"} {
		if strings.HasPrefix(path, p) {
			return p + "{key}"
		}
	}
	return path
}

type reply struct {
	status int
	body   string
	header http.Header
}

// do sends one request; body may be a string or an io.Reader, header is "Name: value".
func (a *api) do(method, path string, body any, header ...string) reply {
	a.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case string:
		r = strings.NewReader(b)
	case io.Reader:
		r = b
	}
	req := must(http.NewRequestWithContext(a.t.Context(), method, a.url+path, r))(a.t)
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp := must(http.DefaultClient.Do(req))(a.t)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		b = append(b, fmt.Sprintf(" (cut off: %v)", err)...)
	}
	answered.Lock()
	defer answered.Unlock()
	k := strings.ToLower(method) + " " + describedPath(req.URL.Path)
	if answered.m[k] == nil {
		answered.m[k] = map[int]bool{}
	}
	answered.m[k][resp.StatusCode] = true
	return reply{resp.StatusCode, string(b), resp.Header}
}

// checkOpenAPI compares the description with the routes and with everything that was answered in the tests.
func checkOpenAPI(code int) {
	exit := func(format string, args ...any) {
		fmt.Printf("FAIL: openapi.json: "+format+"\n", args...)
		code = max(code, 1)
	}
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		exit("%v", err)
	}
	described := map[string]map[int]bool{}
	for path, methods := range doc.Paths {
		for method, raw := range methods {
			if method == "parameters" {
				continue
			}
			var op struct{ Responses map[string]json.RawMessage }
			if err := json.Unmarshal(raw, &op); err != nil {
				exit("%s %s: %v", method, path, err)
			}
			set := map[int]bool{}
			for s := range op.Responses {
				n, err := strconv.Atoi(s)
				if err != nil {
					exit("%s %s: status %q", method, path, s)
				}
				set[n] = true
			}
			described[method+" "+path] = set
		}
	}
	h, err := New(Options{Config: DefaultConfig()})
	if err != nil {
		exit("%v", err)
	} else {
		served := []string{"head /api/v1/objects/{key}"}
		for _, r := range h.Routes() {
			method, path, _ := strings.Cut(r.Pattern, " ")
			served = append(served, strings.ToLower(method)+" "+strings.Replace(path, "...", "", 1))
		}
		for k := range described {
			if !slices.Contains(served, k) {
				exit("%s is not served", k)
			}
		}
		for _, k := range served {
			if described[k] == nil {
				exit("%s is not described", k)
			}
		}
	}
	for k, statuses := range answered.m {
		for s := range statuses {
			if s != http.StatusMethodNotAllowed && !described[k][s] {
				exit("%s answered %d, which is not described", k, s)
			}
		}
	}
	os.Exit(code)
}

func TestObjects(t *testing.T) {
	c := store(t, 64*mib, true, time.Minute)
	a := newAPI(t, func() *client.Client { return c }, func(o *Options) { o.MaxValue, o.MaxKey = 20*units.MiB, 100 })
	big := strings.Repeat("0123456789abcdef", 10*mib/16)
	for _, x := range []struct {
		name         string
		method, path string
		body         any
		header       string
		status       int
		want         string // in the body, or all of it
	}{
		{"put", "PUT", "/api/v1/objects/k", "hello", "", 201, ""},
		{"put again", "PUT", "/api/v1/objects/k", "other", "", 409, `"code":"exists","status":-705`},
		{"put again, fine", "PUT", "/api/v1/objects/k?exists_ok=true", "other", "", 201, ""},
		{"get", "GET", "/api/v1/objects/k", nil, "", 200, "hello"},
		{"head", "HEAD", "/api/v1/objects/k", nil, "", 200, ""},
		{"head of a missing one", "HEAD", "/api/v1/objects/missing", nil, "", 404, ""},
		{"range", "GET", "/api/v1/objects/k", nil, "Range: bytes=1-3", 206, "ell"},
		{"range to the end", "GET", "/api/v1/objects/k", nil, "Range: bytes=3-", 206, "lo"},
		{"range from the end", "GET", "/api/v1/objects/k", nil, "Range: bytes=-2", 206, "lo"},
		{"range outside", "GET", "/api/v1/objects/k", nil, "Range: bytes=5-", 416, ""},
		{"several ranges", "GET", "/api/v1/objects/k", nil, "Range: bytes=0-0,4-4", 206, "multipart"},
		{"upsert", "PUT", "/api/v1/objects/k?upsert=1&hard_pin=1", "welcome", "", 201, ""},
		{"get the new one", "GET", "/api/v1/objects/k", nil, "", 200, "welcome"},
		{"missing", "GET", "/api/v1/objects/missing", nil, "", 404, `"code":"not_found","status":-704`},
		{"put with everything", "PUT", "/api/v1/objects/all?replicas=1&soft_pin=1m&hard_pin=true&group=g&prefer=x&prefer=y&wait=1s", "v", "", 201, ""},
		{"key with slashes", "PUT", "/api/v1/objects/a/b%2F%2Fc%20d", "slashes", "", 201, ""},
		{"and back", "GET", "/api/v1/objects/a/b%2F%2Fc%20d", nil, "", 200, "slashes"},
		{"list", "GET", "/api/v1/objects?prefix=a", nil, "", 200, `{"objects":[{"key":"a/b//c d","bytes":7,"replicas":1},{"key":"all","bytes":1,"replicas":1}],"more":false}`},
		{"list by pattern", "GET", "/api/v1/objects?regex=^k$", nil, "", 200, `{"objects":[{"key":"k","bytes":7,"replicas":1}],"more":false}`},
		{"list some", "GET", "/api/v1/objects?limit=1", nil, "", 200, `"more":true`},
		{"list nothing", "GET", "/api/v1/objects?prefix=zzz", nil, "", 200, `{"objects":[],"more":false}`},
		{"list with a bad limit", "GET", "/api/v1/objects?limit=0", nil, "", 400, "limit=0"},
		{"list with both", "GET", "/api/v1/objects?prefix=a&regex=b", nil, "", 400, "not both"},
		{"list with a bad pattern", "GET", "/api/v1/objects?regex=[", nil, "", 400, "invalid"},
		{"no key", "GET", "/api/v1/objects/", nil, "", 400, "the key is empty"},
		{"long key", "PUT", "/api/v1/objects/" + strings.Repeat("x", 101), "v", "", 400, "store.rest.max_key is 100"},
		{"empty value", "PUT", "/api/v1/objects/empty", "", "", 400, "the value is empty"},
		{"unknown parameter", "PUT", "/api/v1/objects/p?replica=2", "v", "", 400, "unknown parameter"},
		{"bad number", "PUT", "/api/v1/objects/p?replicas=two", "v", "", 400, "replicas=two"},
		{"bad time", "PUT", "/api/v1/objects/p?soft_pin=1x", "v", "", 400, "soft_pin=1x"},
		{"bad switch", "PUT", "/api/v1/objects/p?hard_pin=maybe", "v", "", 400, "hard_pin=maybe"},
		{"large", "PUT", "/api/v1/objects/big", big, "", 201, ""},
		{"large, read", "GET", "/api/v1/objects/big", nil, "", 200, big},
		{"the middle of it", "GET", "/api/v1/objects/big", nil, "Range: bytes=5000000-9999999", 206, big[5000000:10000000]},
		{"unknown length", "PUT", "/api/v1/objects/chunked", io.MultiReader(strings.NewReader(big), strings.NewReader("end")), "", 201, ""},
		{"unknown length, read", "GET", "/api/v1/objects/chunked", nil, "", 200, big + "end"},
		{"too large", "PUT", "/api/v1/objects/huge", strings.Repeat("x", 20*mib+1), "", 413, "store.rest.max_value, 20MB"},
		{"too large, unknown length", "PUT", "/api/v1/objects/huge", io.MultiReader(strings.NewReader(big), strings.NewReader(big), strings.NewReader(big)), "", 413, "store.rest.max_value"},
		{"in use", "DELETE", "/api/v1/objects/big", nil, "", 423, `"code":"in_use","status":-706`},
		{"bad force", "DELETE", "/api/v1/objects/big?force=yes", nil, "", 400, "force=yes"},
		{"delete by force", "DELETE", "/api/v1/objects/big?force=true", nil, "", 204, ""},
		{"delete a missing one", "DELETE", "/api/v1/objects/big", nil, "", 404, "not_found"},
		{"no room", "PUT", "/api/v1/objects/full?hard_pin=1", strings.Repeat("x", 20*mib), "", 201, ""},
		{"no room", "PUT", "/api/v1/objects/full2?hard_pin=1", strings.Repeat("x", 20*mib), "", 201, ""},
		{"no room", "PUT", "/api/v1/objects/full3?hard_pin=1", strings.Repeat("x", 20*mib), "", 507, `"code":"no_space","status":-200`},
		{"description", "GET", "/api/v1/openapi.json", nil, "", 200, `"openapi"`},
		{"no such method", "POST", "/api/v1/objects/k", "x", "", 405, ""},
	} {
		var header []string
		if x.header != "" {
			header = append(header, x.header)
		}
		r := a.do(x.method, x.path, x.body, header...)
		if r.status != x.status {
			t.Errorf("%s: status %d, want %d: %.200s", x.name, r.status, x.status, r.body)
			continue
		}
		switch {
		case x.want == "":
		case x.want == "multipart":
			if !strings.HasPrefix(r.header.Get("Content-Type"), "multipart/byteranges") {
				t.Errorf("%s: %s", x.name, r.header)
			}
		case strings.HasPrefix(r.header.Get("Content-Type"), "application/octet-stream"):
			if r.body != x.want {
				t.Errorf("%s: %d bytes %.50q, want %d bytes %.50q", x.name, len(r.body), r.body, len(x.want), x.want)
			}
		case !strings.Contains(r.body, x.want):
			t.Errorf("%s: %s, want %s", x.name, r.body, x.want)
		}
	}
	r := a.do("HEAD", "/api/v1/objects/k", nil)
	if r.header.Get("Content-Length") != "7" || r.header.Get("ETag") != fmt.Sprintf(`"crc64-%016x"`, client.Checksum(0, []byte("welcome"))) {
		t.Errorf("HEAD: %v", r.header)
	}
	if r := a.do("GET", "/api/v1/objects/k", nil, "If-None-Match: "+r.header.Get("ETag")); r.status != 304 {
		t.Errorf("If-None-Match: %d", r.status)
	}
	if r := a.do("GET", "/api/v1/objects/k", nil, `If-Match: "other"`); r.status != 412 {
		t.Errorf("If-Match: %d", r.status)
	}
}

// The conversation of a user of mc_store_rest_server.
func TestUpstreamPaths(t *testing.T) {
	c := store(t, 64*mib, false, 300*time.Millisecond)
	a := newAPI(t, func() *client.Client { return c }, nil)
	for _, x := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"PUT", "/api/put", `{"key": "k", "value": "v\u00e9"}`, 200, `{"status":"success"}`},
		{"PUT", "/api/put", `{"key": "k", "value": "other"}`, 200, `{"status":"success"}`},
		{"GET", "/api/get/k", "", 200, "v\u00e9"},
		{"GET", "/api/exist/k", "", 200, `{"exists":true}`},
		{"GET", "/api/exist/missing", "", 200, `{"exists":false}`},
		{"GET", "/api/get/missing", "", 404, `{"error":"Key not found"}`},
		{"PUT", "/api/put", `{"key": "k"}`, 400, `{"error":"Missing key or value"}`},
		{"PUT", "/api/put", `{"key": "", "value": "x"}`, 400, `{"error":"Missing key or value"}`},
		{"PUT", "/api/put", `{"key": "` + strings.Repeat("x", 5000) + `", "value": "x"}`, 400, "max_key"},
		{"PUT", "/api/put", `{"key": "e", "value": ""}`, 500, "PUT operation failed"},
		{"PUT", "/api/put", `{`, 500, "error"},
		{"DELETE", "/api/remove/missing", "", 500, "Remove operation failed"},
		{"DELETE", "/api/remove/k", "", 500, "in use by readers"},
		{"POST", "/api/mount", "{}", 501, "global_segment_size"},
		{"POST", "/api/reconfigure", "{}", 501, "global_segment_size"},
	} {
		r := a.do(x.method, x.path, x.body)
		if r.status != x.status || !strings.Contains(r.body, x.want) {
			t.Errorf("%s %s %s: %d %s, want %d %s", x.method, x.path, x.body, r.status, r.body, x.status, x.want)
		}
	}
	if r := a.do("GET", "/api/get/k", nil, "Range: bytes=0-0"); r.status != 206 || r.body != "v" {
		t.Errorf("range: %d %q", r.status, r.body)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		r := a.do("DELETE", "/api/remove/k", nil)
		if r.status == 200 && r.body == "{\"status\":\"success\"}\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("remove after the lease: %d %s", r.status, r.body)
		}
	}
	a.do("PUT", "/api/put", `{"key": "x", "value": "1"}`)
	if r := a.do("DELETE", "/api/remove_all", nil); r.status != 200 || r.body != "{\"status\":\"success removed 1 keys\"}\n" {
		t.Errorf("remove_all: %d %s", r.status, r.body)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	c := store(t, 64*mib, false, 300*time.Millisecond)
	a := newAPI(t, func() *client.Client { return c }, func(o *Options) { o.Budget = 6 * units.MiB })
	if r := a.do("PUT", "/api/v1/objects/k", strings.Repeat("x", 7*mib)); r.status != 507 || !strings.Contains(r.body, "local_buffer_size") {
		t.Errorf("a body larger than the budget: %d %s", r.status, r.body)
	}
	// One body waits for the other's memory.
	pr, pw := io.Pipe()
	slow := make(chan reply, 1)
	go func() { slow <- a.do("PUT", "/api/v1/objects/slow", pr) }()
	if _, err := pw.Write(bytes.Repeat([]byte("x"), mib)); err != nil { // it holds 4 MiB now
		t.Fatal(err)
	}
	quick := make(chan reply, 1)
	go func() { quick <- a.do("PUT", "/api/v1/objects/quick", strings.Repeat("y", 4*mib)) }()
	select {
	case r := <-quick:
		t.Errorf("not held back: %d", r.status)
	case <-time.After(100 * time.Millisecond):
	}
	pw.Close()
	for name, ch := range map[string]chan reply{"slow": slow, "quick": quick} {
		if r := <-ch; r.status != 201 {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	if r := a.do("GET", "/api/v1/objects/slow", nil); r.status != 200 || len(r.body) != mib {
		t.Errorf("%d, %d bytes", r.status, len(r.body))
	}
	if err := pr.Close(); err != nil {
		t.Error(err)
	}
}

func TestWithoutAStore(t *testing.T) {
	a := newAPI(t, func() *client.Client { return nil }, nil)
	for _, x := range [][2]string{{"PUT", "/api/v1/objects/k"}, {"GET", "/api/v1/objects/k"}, {"HEAD", "/api/v1/objects/k"}, {"DELETE", "/api/v1/objects/k"}, {"GET", "/api/v1/objects"},
		{"PUT", "/api/put"}, {"GET", "/api/get/k"}, {"GET", "/api/exist/k"}, {"DELETE", "/api/remove/k"}, {"DELETE", "/api/remove_all"}} {
		if r := a.do(x[0], x[1], "x"); r.status != 503 || x[0] != "HEAD" && !strings.Contains(r.body, "master_server_address") {
			t.Errorf("%s %s: %d %s", x[0], x[1], r.status, r.body)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a config of zeros is accepted")
	}
}

// A value that turns out to be damaged at its end does not arrive completely.
func TestDamagedObjectIsCutOff(t *testing.T) {
	c := store(t, 64*mib, true, 300*time.Millisecond)
	a := newAPI(t, func() *client.Client { return c }, nil)
	ctx := t.Context()
	value := bytes.Repeat([]byte("x"), 6*mib)
	if err := c.Put(ctx, "k", value); err != nil {
		t.Fatal(err)
	}
	rs := must(c.Replicas(ctx, "k"))(t)
	s := must(c.Engine().Open(ctx, rs[0].Endpoint))(t)
	if err := c.Engine().Write(ctx, s, []byte("y"), rs[0].Address+5*mib); err != nil {
		t.Fatal(err)
	}
	if r := a.do("GET", "/api/v1/objects/k", nil); !strings.Contains(r.body, "cut off") {
		t.Errorf("%d, %d bytes arrived", r.status, len(r.body))
	}
}
