package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/master/admin"
	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// exchange is one request and the answer of the wheel's mooncake_master 0.3.13.post1, recorded by package admin.
type exchange struct {
	Method, Path, Body string
	Status             int
	Type               string
	Answer             string
}

type recording struct {
	Empty, Filled, Tenants []exchange
	Metrics                string
}

func recorded(t testing.TB) recording {
	t.Helper()
	b, err := os.ReadFile("../admin/testdata/upstream.json")
	if err != nil {
		t.Fatal(err)
	}
	var r recording
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// intended are the answers that differ from upstream's on purpose, by method and path; "" = not compared here.
var intended = map[string]exchange{
	"GET /query_key?key=k%203": {Status: 200, Type: "application/json; charset=utf-8",
		Answer: `{"success":true,"data":[{"size_":1000,"buffer_address_":"ANY","protocol_":"tcp","transport_endpoint_":"127.0.0.1:15001"}]}`}, // decoded
	"GET /metrics/summary": {Answer: "summary"},
	// The texts of the JSON parser are its own.
	"POST /api/v1/drain_jobs garbage":                 {Status: 400, Type: "application/json; charset=utf-8", Answer: "Invalid JSON body: "},
	"POST /api/v1/drain_jobs":                         {Status: 400, Type: "application/json; charset=utf-8", Answer: "Invalid JSON body: "},
	"PUT /api/v1/tenant_quotas?tenant_id=t1 x":        {Status: 400, Type: "application/json; charset=utf-8", Answer: "Invalid JSON body: "},
	"PUT /api/v1/tenant_quotas?tenant_id=t1 " + minus: {Status: 400, Type: "application/json; charset=utf-8", Answer: "Invalid JSON body: "},
	// ANY, because reads grant no lease here: upstream's /query_key kept k1 from being removed.
	"POST /api/v1/remove_all":            {Status: 200, Type: "application/json; charset=utf-8", Answer: `{"success":true,"removed_count":3}`},
	"POST /api/v1/remove_all?force=true": {Status: 200, Type: "application/json; charset=utf-8", Answer: `{"success":true,"removed_count":0}`},
}

const minus = `{"requested_quota_bytes":-1}`

// replay sends recorded requests and compares status, content type and body.
func replay(t *testing.T, base string, xs []exchange) {
	t.Helper()
	job := ""
	for _, x := range xs {
		name := x.Method + " " + x.Path
		if x.Body != "" {
			name += " " + x.Body
		}
		want := x
		if w, ok := intended[name]; ok {
			want = w
		}
		status, contentType, body := request(t, x.Method, base+strings.ReplaceAll(x.Path, "{job}", job), x.Body)
		var created struct {
			JobID string `json:"job_id"`
		}
		if x.Path == "/api/v1/drain_jobs" && json.Unmarshal([]byte(body), &created) == nil && created.JobID != "" {
			job = created.JobID
		}
		if job != "" {
			body = strings.ReplaceAll(body, job, "{job}")
		}
		if want.Answer == "summary" {
			continue
		}
		if status != want.Status || contentType != want.Type {
			t.Errorf("%s: %d %q %s, want %d %q", name, status, contentType, body, want.Status, want.Type)
		}
		if strings.HasPrefix(want.Answer, "Invalid JSON body: ") {
			if !strings.Contains(body, `"error_code":-600,"error_message":"`+want.Answer) {
				t.Errorf("%s: %s", name, body)
			}
			continue
		}
		if diff := cmp.Diff(comparable(x.Path, want.Answer), comparable(x.Path, body)); diff != "" {
			t.Errorf("%s (-upstream +ours):\n%s", name, diff)
		}
	}
}

// comparable drops what differs from run to run: places, ids, times, the order of lines and our own fields.
func comparable(path, body string) any {
	if !strings.HasPrefix(body, "{") {
		lines := strings.Split(body, "\n")
		slices.Sort(lines)
		return lines
	}
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		return body
	}
	scrub(v)
	return v
}

var volatile = map[string]bool{"buffer_address_": true, "created_at_ms_epoch": true, "last_updated_at_ms_epoch": true}

var ourFields = map[string]bool{"allocator_rounded_bytes": true, "largest_free_bytes": true, "objects": true, "suspect": true, "warm_up_share": true, "host_id": true}

func scrub(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			switch {
			case volatile[k]:
				v[k] = "ANY"
			case ourFields[k]:
				delete(v, k)
			default:
				scrub(x)
			}
		}
	case []any:
		for _, x := range v {
			scrub(x)
		}
	}
}

func request(t testing.TB, method, url, body string) (status int, contentType, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	r, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header.Get("Content-Type"), string(b)
}

var clientID = wire.UUID{4369, 8738}

func newClient(t testing.TB, addr string) *rpc.Client {
	t.Helper()
	c, err := rpc.NewClient(addr, rpc.DefaultClientConfig(), rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func invoke[Req, Resp any](t testing.TB, c *rpc.Client, m *wire.Method[Req, Resp], req *Req) Resp {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := wire.Invoke(ctx, c, m, wire.Newest, req)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fill is the state in which the recording was made: a segment, three objects, one unfinished put.
func fill(t testing.TB, addr string) {
	t.Helper()
	c := newClient(t, addr)
	seg := wire.Segment{ID: wire.UUID{161, 162}, Name: "127.0.0.1:12345", Base: 0x100000000, Size: 64 << 20, TEEndpoint: "127.0.0.1:15001", Protocol: "tcp"}
	if r := invoke(t, c, wire.MountSegment, &wire.MountSegmentRequest{Segment: seg, Client: clientID}); r.Code != wire.OK {
		t.Fatal(r.Code)
	}
	for _, key := range []string{"k1", "k2", "k 3", "proc"} {
		put := wire.PutStartRequest{Client: clientID, Key: key, Length: 1000, Config: wire.ReplicateConfig{Replicas: 1}, Tenant: wire.DefaultTenant}
		if r := invoke(t, c, wire.PutStart, &put); r.Code != wire.OK {
			t.Fatal(key, r.Code)
		}
		if key == "proc" {
			break
		}
		end := wire.PutEndRequest{Client: clientID, Meta: wire.ObjectMeta{Key: key}, Type: wire.ReplicaAll, Tenant: wire.DefaultTenant}
		if r := invoke(t, c, wire.PutEnd, &end); r.Code != wire.OK {
			t.Fatal(key, r.Code)
		}
	}
}

// Every recorded request gets upstream's status, content type and body, but for the intended differences.
func TestAdminIsUpstreams(t *testing.T) {
	rec := recorded(t)
	s := start(t, nil)
	replay(t, s.AdminURL(), rec.Empty)
	fill(t, s.Addr())
	replay(t, s.AdminURL(), rec.Filled)
}

func TestTenantQuotasAreUpstreams(t *testing.T) {
	s := start(t, func(o *Options) { o.Master.MultiTenants = true })
	replay(t, s.AdminURL(), recorded(t).Tenants)
}

// Quotas that are set over HTTP survive a restart in the file.
func TestQuotaFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "quotas.yaml")
	if err := os.WriteFile(path, []byte("version: 1\ntenants: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	change := func(o *Options) { o.Master.MultiTenants, o.Config.QuotaFile = true, path }
	s := start(t, change)
	if status, _, body := request(t, "PUT", s.AdminURL()+"/api/v1/tenant_quotas?tenant_id=t1", `{"requested_quota_bytes":1000}`); status != 200 {
		t.Fatal(status, body)
	}
	if _, _, body := request(t, "GET", start(t, change).AdminURL()+"/api/v1/tenant_quotas", ""); !strings.Contains(body, `"tenant_id":"t1","requested_quota_bytes":1000`) {
		t.Error(body)
	}
	os.Remove(path)
	o := Options{Config: DefaultConfig(), Master: s.Service().Config()}
	o.Config.QuotaFile = path
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "tenant_quota_connector_uri: "+path+": no such file") {
		t.Error(err)
	}
}

// All of upstream's families are there with their types, in upstream's order, and with upstream's values after the
// same calls; ours follow and the whole is well formed.
func TestMetricsAreUpstreams(t *testing.T) {
	s := start(t, nil)
	fill(t, s.Addr())
	_, contentType, text := request(t, "GET", s.AdminURL()+"/metrics", "")
	if contentType != "text/plain; version=0.0.4" {
		t.Error(contentType)
	}
	want, order := families(t, recorded(t).Metrics)
	got, gotOrder := families(t, text)
	if len(want) != 136 {
		t.Fatalf("%d families were recorded", len(want))
	}
	at := 0
	for _, name := range order {
		if i := slices.Index(gotOrder[at:], name); i < 0 {
			t.Errorf("%s is missing or out of order", name)
		} else {
			at += i
		}
		if diff := cmp.Diff(want[name], got[name]); diff != "" && !slices.Contains([]string{"master_value_size_bytes"}, name) {
			t.Errorf("%s (-upstream +ours):\n%s", name, diff)
		}
	}
	sizes := got["master_value_size_bytes"] // upstream counts 5 for these 4 puts
	if !slices.Contains(sizes, `master_value_size_bytes_bucket{le="4096.000000"} 4`) || !slices.Contains(sizes, "master_value_size_bytes_sum 4000") {
		t.Error(sizes)
	}
	for _, name := range []string{"mooncake_master_allocated_bytes", "mooncake_master_version_connections", "mooncake_rpc_requests_total", "master_nof_heartbeat_success_total",
		"master_successful_evictions_mem", "master_evicted_size_bytes_nof", "master_promotion_execution_gave_up_total", "master_snapshot_success",
		"master_mount_nof_segment_requests_total"} {
		if got[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	// The RPC port answers the same.
	_, _, onRPC := request(t, "GET", "http://"+s.Addr()+"/metrics", "")
	if !strings.Contains(onRPC, "\nmaster_key_count 4\n") {
		t.Error("not on the RPC port")
	}
}

// families splits an exposition into type and sample lines by family, and checks its form.
func families(t testing.TB, text string) (out map[string][]string, order []string) {
	t.Helper()
	out = map[string][]string{}
	name := ""
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, "# HELP "):
		case strings.HasPrefix(line, "# TYPE "):
			name = strings.Fields(line)[2]
			if out[name] != nil {
				t.Errorf("%s appears twice", name)
			}
			out[name] = []string{line}
			order = append(order, name)
		case !strings.HasPrefix(line, name):
			t.Errorf("%q is under %s", line, name)
		default:
			out[name] = append(out[name], line)
		}
	}
	return out, order
}

func TestSummary(t *testing.T) {
	s := start(t, nil)
	var want string
	for _, x := range recorded(t).Filled {
		if x.Path == "/metrics/summary" {
			want = x.Answer
		}
	}
	fill(t, s.Addr())
	_, _, got := request(t, "GET", s.AdminURL()+"/metrics/summary", "")
	shape := func(s string) string { // names, without numbers and without upstream's HA part
		s, _, _ = strings.Cut(s, ", ha={")
		return strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' || r == '.' {
				return -1
			}
			return r
		}, s)
	}
	if diff := cmp.Diff(shape(want), shape(got)); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(got, "Mem Storage: 3.91 KB / 64.00 MB (0.0%)") || !strings.Contains(got, "Keys: 4 (soft-pinned: 0)") {
		t.Error(got)
	}
}

// Reading over HTTP grants no lease: an object that was only looked at can be removed.
func TestLookingGrantsNoLease(t *testing.T) {
	s := start(t, nil)
	fill(t, s.Addr())
	for _, path := range []string{"/query_key?key=k1", "/batch_query_keys?keys=k1,k2", "/get_all_keys", "/api/v1/object?key=k1"} {
		if status, _, body := request(t, "GET", s.AdminURL()+path, ""); status != 200 || !strings.Contains(body, "k1") && !strings.Contains(body, "1000") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	c := newClient(t, s.Addr())
	for _, key := range []string{"k1", "k2"} {
		if r := invoke(t, c, wire.Remove, &wire.RemoveRequest{Key: key, Tenant: wire.DefaultTenant}); r.Code != wire.OK {
			t.Errorf("remove %s: %s", key, r.Code)
		}
	}
}

// Keys with any characters can be asked for: escaped, or as they are where that is unambiguous.
func TestKeysInQueries(t *testing.T) {
	s := start(t, nil)
	fill(t, s.Addr())
	c := newClient(t, s.Addr())
	keys := []string{"a+b=", "m@x/y:z", "100%", "%zz", "a,b", "a&b", "é", "line\nbreak", "<html>", `"quoted"`}
	for _, key := range keys {
		put := wire.PutStartRequest{Client: clientID, Key: key, Length: 10, Config: wire.ReplicateConfig{Replicas: 1}, Tenant: wire.DefaultTenant}
		end := wire.PutEndRequest{Client: clientID, Meta: wire.ObjectMeta{Key: key}, Type: wire.ReplicaAll, Tenant: wire.DefaultTenant}
		if r := invoke(t, c, wire.PutStart, &put); r.Code != wire.OK {
			t.Fatal(r.Code)
		}
		if r := invoke(t, c, wire.PutEnd, &end); r.Code != wire.OK {
			t.Fatal(r.Code)
		}
	}
	for _, key := range keys {
		escaped := strings.ReplaceAll(url.QueryEscape(key), "+", "%20")
		if status, _, body := request(t, "GET", s.AdminURL()+"/query_key?key="+escaped, ""); status != 200 {
			t.Errorf("%q escaped: %d %s", key, status, body)
		}
		_, _, body := request(t, "GET", s.AdminURL()+"/batch_query_keys?keys=nope,"+escaped, "")
		var answer struct{ Data map[string]struct{ OK bool } }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || !answer.Data[key].OK {
			t.Errorf("%q in a batch: %v %s", key, err, body)
		}
	}
	for _, key := range []string{"a+b=", "m@x/y:z", "a,b"} {
		if status, _, body := request(t, "GET", s.AdminURL()+"/query_key?key="+key, ""); status != 200 {
			t.Errorf("%q as it is: %d %s", key, status, body)
		}
	}
}

func TestGetAllKeysInPages(t *testing.T) {
	s := start(t, nil)
	fill(t, s.Addr())
	c := newClient(t, s.Addr())
	want := map[string]bool{"k1": true, "k2": true, "k 3": true}
	const batch = 500
	for i := range 20 {
		req := wire.BatchPutStartRequest{Client: clientID, Config: wire.ReplicateConfig{Replicas: 1}, Tenant: wire.DefaultTenant}
		end := wire.BatchPutEndRequest{Client: clientID, Type: wire.ReplicaAll, Tenant: wire.DefaultTenant}
		for j := range batch {
			key := fmt.Sprintf("key-%d", i*batch+j)
			want[key] = true
			req.Keys, req.Lengths = append(req.Keys, key), append(req.Lengths, 16)
			end.Metas = append(end.Metas, wire.ObjectMeta{Key: key})
		}
		for _, r := range invoke(t, c, wire.BatchPutStart, &req) {
			if r.Code != wire.OK {
				t.Fatal(r.Code)
			}
		}
		invoke(t, c, wire.BatchPutEnd, &end)
	}
	_, _, body := request(t, "GET", s.AdminURL()+"/get_all_keys", "")
	got := map[string]bool{}
	for line := range strings.Lines(body) {
		key := strings.TrimSuffix(line, "\n")
		if got[key] {
			t.Errorf("%q is listed twice", key)
		}
		got[key] = true
	}
	if !maps.Equal(want, got) {
		t.Errorf("%d keys, want %d", len(got), len(want))
	}
}

func TestOwnPaths(t *testing.T) {
	s := start(t, func(o *Options) { o.Version = map[string]string{"version": "x"} })
	fill(t, s.Addr())
	for _, c := range []struct {
		path   string
		status int
		want   string
	}{
		{"/healthz", 200, "ok\n"}, {"/readyz", 200, `{"ready":true}`}, {"/version", 200, `{"version":"x"}`},
		{"/api/v1/object?key=k1", 200, `"key":"k1","size_bytes":1000,"writer":"4369-8738"`},
		{"/api/v1/object?key=nope", 404, `"error_code":-704`},
		{"/api/v1/object?key=k1&tenant=other", 200, `"tenant":"default"`}, // tenants are off
		{"/api/v1/stats", 200, `"TotalFree"`},
		{"/api/v1/clients", 200, `"client_id":"4369-8738","address":"127.0.0.1","version":"0.3.13","connections":1`},
	} {
		status, _, body := request(t, "GET", s.AdminURL()+c.path, "")
		if status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.path, status, body, c.status, c.want)
		}
	}
	// A foreign page in a browser changes nothing.
	req, err := http.NewRequestWithContext(t.Context(), "POST", s.AdminURL()+"/api/v1/remove_all", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	tr := &http.Transport{DisableKeepAlives: true}
	r, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusForbidden {
		t.Errorf("a cross-site POST: %s", r.Status)
	}
	// The RPC port changes nothing.
	if status, _, _ := request(t, "POST", "http://"+s.Addr()+"/api/v1/remove_all", ""); status != 404 {
		t.Errorf("POST on the RPC port: %d", status)
	}
}

// Who speaks what, as /api/v1/clients and the metric tell it.
func TestClients(t *testing.T) {
	s := start(t, nil, wire.V0_3_7)
	for v, addr := range map[wire.Version]string{wire.V0_3_7: s.CompatAddrs()[0], wire.V0_3_11: s.Addr(), wire.V0_3_12: s.Addr()} {
		p := dial(t, addr)
		c := wire.UUID{1, uint64(v)}
		for _, m := range []func(wire.Version) (uint32, []byte){mountRequest(t, c), putRequest(t, c)} {
			id, body := m(v)
			p.call(frame(id, body))
		}
	}
	reader := dial(t, s.Addr())
	reader.call(frame(wire.ExistKey.ID(), zeroRequest(t, wire.ExistKey.ID(), wire.V0_3_13, true)))
	var got admin.Clients
	deadline := time.Now().Add(patience)
	for {
		_, _, body := request(t, "GET", s.AdminURL()+"/api/v1/clients", "")
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Clients) == 4 || time.Now().After(deadline) {
			break
		}
	}
	var lines []string
	for _, c := range got.Clients {
		lines = append(lines, fmt.Sprintf("%s %s %d", c.ID, c.Version, len(c.Segments)))
	}
	slices.Sort(lines)
	want := []string{" 0.3.12 0.3.13 0", "1-0 0.3.7 1", "1-4 0.3.11 1", "1-5 0.3.12 1"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
	_, _, text := request(t, "GET", s.AdminURL()+"/metrics", "")
	for _, want := range []string{`mooncake_master_version_clients{version="0.3.12"} 1`, `mooncake_master_version_connections{version="0.3.12 0.3.13"} 1`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

func mountRequest(t testing.TB, client wire.UUID) func(wire.Version) (uint32, []byte) {
	return func(v wire.Version) (uint32, []byte) {
		seg := wire.Segment{ID: client, Name: client.String(), Base: 1 << 32, Size: 16 << 20, TEEndpoint: "127.0.0.1:1"}
		b, err := wire.MountSegment.AppendRequest(nil, v, &wire.MountSegmentRequest{Segment: seg, Client: client}, true)
		if err != nil {
			t.Fatal(err)
		}
		return wire.MountSegment.ID(), b
	}
}

func putRequest(t testing.TB, client wire.UUID) func(wire.Version) (uint32, []byte) {
	return func(v wire.Version) (uint32, []byte) {
		b, err := wire.PutStart.AppendRequest(nil, v, &wire.PutStartRequest{Client: client, Key: "k", Length: 1, Config: wire.ReplicateConfig{Replicas: 1}}, true)
		if err != nil {
			t.Fatal(err)
		}
		return wire.PutStart.ID(), b
	}
}
