package admin

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

var record = flag.Bool("record", false, "record the answers of the wheel's mooncake_master in testdata/upstream.json")

// exchange is one HTTP request and its answer.
type exchange struct {
	Method  string `json:"method"`
	Path    string `json:"path"` // {job} stands for the id of the drain job
	Body    string `json:"body,omitempty"`
	Status  int    `json:"status"`
	Type    string `json:"type,omitempty"`
	Answer  string `json:"answer"`
	Comment string `json:"comment,omitempty"`
}

// empty are the requests to a master without objects, filled those to one that [fill] has filled.
var empty = []exchange{
	{Method: "GET", Path: "/health"}, {Method: "GET", Path: "/role"}, {Method: "GET", Path: "/ha_status"}, {Method: "GET", Path: "/leader"},
	{Method: "GET", Path: "/get_all_keys"}, {Method: "GET", Path: "/get_all_segments"}, {Method: "GET", Path: "/get_segments_detail"},
	{Method: "GET", Path: "/metrics/summary"},
}

var filled = []exchange{
	{Method: "GET", Path: "/health"}, {Method: "GET", Path: "/role"}, {Method: "GET", Path: "/ha_status"}, {Method: "GET", Path: "/kv_events/status"},
	{Method: "GET", Path: "/leader"}, {Method: "GET", Path: "/query_key?key=k1"}, {Method: "GET", Path: "/query_key?key=nope"},
	{Method: "GET", Path: "/query_key?key=proc"}, {Method: "GET", Path: "/query_key?key=k%203"}, {Method: "GET", Path: "/query_key?key=k+3"},
	{Method: "GET", Path: "/query_key"}, {Method: "GET", Path: "/query_key?key="}, {Method: "GET", Path: "/get_all_keys"},
	{Method: "GET", Path: "/get_all_segments"}, {Method: "GET", Path: "/get_segments_detail"},
	{Method: "GET", Path: "/query_segment?segment=127.0.0.1:12345"}, {Method: "GET", Path: "/query_segment?segment=nope"}, {Method: "GET", Path: "/query_segment"},
	{Method: "GET", Path: "/batch_query_keys?keys=k1,nope"}, {Method: "GET", Path: "/batch_query_keys?keys=k1,k1,,proc,k2"},
	{Method: "GET", Path: "/batch_query_keys?keys="}, {Method: "GET", Path: "/batch_query_keys?keys=,"}, {Method: "GET", Path: "/batch_query_keys"},
	{Method: "GET", Path: "/api/v1/segments/status?segment=127.0.0.1:12345"}, {Method: "GET", Path: "/api/v1/segments/status?segment=nope"},
	{Method: "GET", Path: "/api/v1/segments/status"}, {Method: "GET", Path: "/api/v1/tenant_quotas"}, {Method: "GET", Path: "/api/v1/tenant_quotas?tenant_id=t"},
	{Method: "GET", Path: "/api/v1/drain_jobs/query?job_id=1-2"}, {Method: "GET", Path: "/api/v1/drain_jobs/query?job_id=x"}, {Method: "GET", Path: "/api/v1/drain_jobs/query"},
	{Method: "GET", Path: "/nope"}, {Method: "GET", Path: "/"}, {Method: "GET", Path: "/metrics/summary"}, {Method: "GET", Path: "/api/v1/drain_jobs"},
	{Method: "POST", Path: "/api/v1/drain_jobs", Body: `{"segments":["nope"],"target_segments":[],"max_concurrency":1}`},
	{Method: "POST", Path: "/api/v1/drain_jobs", Body: `garbage`}, {Method: "POST", Path: "/api/v1/drain_jobs", Body: `{}`}, {Method: "POST", Path: "/api/v1/drain_jobs"},
	{Method: "POST", Path: "/api/v1/drain_jobs", Body: `{"segments":["127.0.0.1:12345"],"target_segments":["nope"],"max_concurrency":1}`},
	{Method: "POST", Path: "/api/v1/drain_jobs", Body: `{"segments":["127.0.0.1:12345"],"target_segments":[],"max_concurrency":1}`},
	{Method: "GET", Path: "/api/v1/drain_jobs/query?job_id={job}"}, {Method: "POST", Path: "/api/v1/drain_jobs/cancel?job_id={job}"},
	{Method: "GET", Path: "/api/v1/drain_jobs/query?job_id={job}"}, {Method: "GET", Path: "/api/v1/segments/status?segment=127.0.0.1:12345"},
	{Method: "POST", Path: "/api/v1/drain_jobs/cancel?job_id={job}"},
	{Method: "POST", Path: "/api/v1/drain_jobs/cancel?job_id=1-2"}, {Method: "POST", Path: "/api/v1/drain_jobs/cancel"},
	{Method: "PUT", Path: "/api/v1/tenant_quotas?tenant_id=t1", Body: `{"requested_quota_bytes":1000}`}, {Method: "DELETE", Path: "/api/v1/tenant_quotas?tenant_id=t1"},
	{Method: "PUT", Path: "/api/v1/tenant_quotas", Body: `x`},
	{Method: "GET", Path: "/api/v1/remove_all"}, {Method: "POST", Path: "/health"}, {Method: "HEAD", Path: "/health"},
	{Method: "POST", Path: "/api/v1/remove_all"}, {Method: "POST", Path: "/api/v1/remove_all?force=maybe"},
	{Method: "POST", Path: "/api/v1/remove_all?force=true"}, {Method: "POST", Path: "/api/v1/remove_all?force=true&tenant_id=nosuch"},
}

// tenants are the requests to a master with --enable_multi_tenants.
var tenants = []exchange{
	{Method: "GET", Path: "/api/v1/tenant_quotas"}, {Method: "GET", Path: "/api/v1/tenant_quotas?tenant_id=t1"},
	{Method: "PUT", Path: "/api/v1/tenant_quotas?tenant_id=t1", Body: `{"requested_quota_bytes":1000}`},
	{Method: "PUT", Path: "/api/v1/tenant_quotas?tenant_id=t1", Body: `{"requested_quota_bytes":2000}`},
	{Method: "PUT", Path: "/api/v1/tenant_quotas?tenant_id=t1", Body: `{"requested_quota_bytes":-1}`},
	{Method: "PUT", Path: "/api/v1/tenant_quotas?tenant_id=t1", Body: `{}`},
	{Method: "PUT", Path: "/api/v1/tenant_quotas?tenant_id=t1", Body: `x`},
	{Method: "PUT", Path: "/api/v1/tenant_quotas", Body: `{"requested_quota_bytes":1000}`},
	{Method: "PUT", Path: "/api/v1/tenant_quotas?tenant_id=_x", Body: `{"requested_quota_bytes":1000}`},
	{Method: "GET", Path: "/api/v1/tenant_quotas"}, {Method: "GET", Path: "/api/v1/tenant_quotas?tenant_id=t1"},
	{Method: "DELETE", Path: "/api/v1/tenant_quotas?tenant_id=t1"}, {Method: "DELETE", Path: "/api/v1/tenant_quotas?tenant_id=t1"},
	{Method: "DELETE", Path: "/api/v1/tenant_quotas"}, {Method: "GET", Path: "/api/v1/tenant_quotas?tenant_id=t1"},
}

var client = wire.UUID{4369, 8738}

// fill mounts a segment and puts k1, k2 and "k 3", 1000 bytes each, and begins to put "proc".
func fill(t *testing.T, addr string) {
	t.Helper()
	cfg := rpc.DefaultClientConfig()
	c, err := rpc.NewClient(addr, cfg, rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	seg := wire.Segment{ID: wire.UUID{161, 162}, Name: "127.0.0.1:12345", Base: 0x100000000, Size: 64 << 20, TEEndpoint: "127.0.0.1:15001", Protocol: "tcp"}
	if r, err := wire.Invoke(ctx, c, wire.MountSegment, wire.Newest, &wire.MountSegmentRequest{Segment: seg, Client: client}); err != nil || r.Code != 0 {
		t.Fatal(r, err)
	}
	for _, key := range []string{"k1", "k2", "k 3", "proc"} {
		r, err := wire.Invoke(ctx, c, wire.PutStart, wire.Newest, &wire.PutStartRequest{Client: client, Key: key, Length: 1000, Config: wire.ReplicateConfig{Replicas: 1}, Tenant: "default"})
		if err != nil || r.Code != 0 {
			t.Fatal(r, err)
		}
		if key == "proc" {
			break
		}
		if r, err := wire.Invoke(ctx, c, wire.PutEnd, wire.Newest, &wire.PutEndRequest{Client: client, Meta: wire.ObjectMeta{Key: key}, Type: wire.ReplicaAll, Tenant: "default"}); err != nil || r.Code != 0 {
			t.Fatal(r, err)
		}
	}
}

// ask sends the requests in order and fills in the answers.
func ask(t *testing.T, base string, xs []exchange) []exchange {
	t.Helper()
	hc := http.Client{Timeout: 30 * time.Second}
	defer hc.CloseIdleConnections()
	var out []exchange
	job := ""
	for _, x := range xs {
		req, err := http.NewRequestWithContext(t.Context(), x.Method, base+strings.ReplaceAll(x.Path, "{job}", job), strings.NewReader(x.Body))
		if err != nil {
			t.Fatal(err)
		}
		r, err := hc.Do(req)
		if err != nil {
			t.Fatalf("%s %s: %v", x.Method, x.Path, err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		x.Status, x.Type, x.Answer = r.StatusCode, r.Header.Get("Content-Type"), string(b)
		var created struct {
			JobID string `json:"job_id"`
		}
		if x.Path == "/api/v1/drain_jobs" && json.Unmarshal(b, &created) == nil && created.JobID != "" {
			job = created.JobID
		}
		if job != "" {
			x.Answer = strings.ReplaceAll(x.Answer, job, "{job}")
		}
		out = append(out, x)
	}
	return out
}

type recording struct {
	Empty, Filled, Tenants []exchange
	Metrics                string // without HELP lines
}

func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("skipped: only with -record")
	}
	w := testenv.Wheel(t)
	var rec recording
	for _, multi := range []bool{false, true} {
		rpcPort, httpPort := testenv.FreePort(t), testenv.FreePort(t)
		args := []string{w.Bin("mooncake_master"), "--rpc_address=127.0.0.1", fmt.Sprintf("--rpc_port=%d", rpcPort), "--metrics_host=127.0.0.1", fmt.Sprintf("--metrics_port=%d", httpPort)}
		if multi {
			quotas := filepath.Join(t.TempDir(), "quotas.yaml")
			if err := os.WriteFile(quotas, []byte("version: 1\ntenants: []\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--enable_multi_tenants", "--tenant_quota_connector_uri="+quotas)
		}
		testenv.Start(t, args...)
		base := fmt.Sprintf("http://127.0.0.1:%d", httpPort)
		testenv.Eventually(t, 30*time.Second, func() error { _, err := http.Get(base + "/health"); return err })
		if multi {
			rec.Tenants = ask(t, base, tenants)
			b, _ := os.ReadFile(args[len(args)-1][len("--tenant_quota_connector_uri="):])
			t.Logf("quota file: %s", b)
			continue
		}
		rec.Empty = ask(t, base, empty)
		fill(t, fmt.Sprintf("127.0.0.1:%d", rpcPort))
		rec.Metrics = withoutHelp(ask(t, base, []exchange{{Method: "GET", Path: "/metrics"}})[0].Answer)
		rec.Filled = ask(t, base, filled)
	}
	b, err := json.MarshalIndent(rec, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("testdata/upstream.json", b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func withoutHelp(text string) string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.HasPrefix(line, "# HELP") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}
