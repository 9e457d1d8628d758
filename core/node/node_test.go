package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	_ "github.com/mooncake-agent/mooncake/eviction/lru"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	_ "github.com/mooncake-agent/mooncake/metadata/etcd"
	_ "github.com/mooncake-agent/mooncake/metadata/http"
	_ "github.com/mooncake-agent/mooncake/metadata/memory"
	_ "github.com/mooncake-agent/mooncake/transports/shm"
	_ "github.com/mooncake-agent/mooncake/transports/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logBuffer is a stderr that tests read while the node writes.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// testNode is a node running inside the test.
type testNode struct {
	Status
	log  *logBuffer
	path string
	stop func() error
}

func write(t *testing.T, path string, c map[string]any) {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func load(path string) (*config.Loaded, error) {
	return config.Load(config.Options{Schema: Schema(), Path: path})
}

func base() map[string]any {
	return map[string]any{
		"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp", "global_segment_size": "1MB",
		"admin": map[string]any{"listen": "127.0.0.1:0"},
	}
}

// run starts a node and waits until it is ready; startErr gets the error of one that does not become so.
func run(t *testing.T, c map[string]any) (*testNode, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mooncake.json")
	write(t, path, c)
	l, err := load(path)
	if err != nil {
		return nil, err
	}
	n := &testNode{log: &logBuffer{}, path: path}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan Status, 1), make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Config: l, Reload: func() (*config.Loaded, error) { return load(path) }, Stderr: n.log,
			Ready: func(_ context.Context, s Status) { ready <- s }})
	}()
	n.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = n.stop() })
	select {
	case n.Status = <-ready:
		return n, nil
	case err := <-done:
		done <- err
		return nil, err
	case <-time.After(time.Minute):
		t.Fatalf("not ready after a minute:\n%s", n.log)
		return nil, nil
	}
}

func mustRun(t *testing.T, c map[string]any) *testNode {
	t.Helper()
	n, err := run(t, c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func get(t *testing.T, url string) string {
	t.Helper()
	c := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r.Body); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestNodeServesItsSegmentAndStops(t *testing.T) {
	n := mustRun(t, base())
	if n.Segment != n.Daemon || !strings.HasPrefix(n.Segment, "127.0.0.1:") {
		t.Errorf("segment %q, daemon %q: in P2P mode they are one address", n.Segment, n.Daemon)
	}
	reply, err := handshake.Call(t.Context(), n.Segment, handshake.TypeMetadata, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Buffers []struct{ Length uint64 }
	}
	if err := json.Unmarshal(reply, &doc); err != nil || len(doc.Buffers) != 1 || doc.Buffers[0].Length != 1<<20 {
		t.Fatalf("published %s (%v), want one buffer of 1 MiB", reply, err)
	}
	if got := get(t, n.Admin+"/readyz"); !strings.Contains(got, `"ready":true`) {
		t.Errorf("/readyz: %s", got)
	}
	if err := n.stop(); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if _, err := handshake.Call(t.Context(), n.Segment, handshake.TypeProbe, []byte("{}")); err == nil {
		t.Error("the daemon answers after the stop")
	}
}

func TestEmbeddedMetadataOverHTTP(t *testing.T) {
	c := base()
	delete(c, "metadata_server")
	c["metadata"] = map[string]any{"type": "memory"}
	c["metadata_http"] = map[string]any{"listen": "127.0.0.1:0"}
	c["local_hostname"] = "127.0.0.1"
	n := mustRun(t, c)
	if n.Segment != "127.0.0.1" || n.MetaURL == "" {
		t.Fatalf("status %+v", n.Status)
	}
	doc := get(t, n.MetaURL+"?key=mooncake%2Fram%2F127.0.0.1")
	if !strings.Contains(doc, `"protocol":"tcp"`) || strings.HasSuffix(doc, "\n") {
		t.Errorf("document over http: %q", doc)
	}
	if meta := get(t, n.MetaURL+"?key=mooncake%2Frpc_meta%2F127.0.0.1"); !strings.Contains(meta, `"ip_or_host_name":"127.0.0.1"`) {
		t.Errorf("rpc_meta: %s", meta)
	}

	// A second node that uses the first one's server as its metadata service.
	d := base()
	d["metadata_server"], d["local_hostname"] = n.MetaURL, "node-b"
	d["bind_address"] = "127.0.0.1"
	b := mustRun(t, d)
	if b.Segment != "node-b" {
		t.Errorf("segment %q", b.Segment)
	}
	if doc := get(t, n.MetaURL+"?key=mooncake%2Fram%2Fnode-b"); !strings.Contains(doc, `"name":"node-b"`) {
		t.Errorf("document of the second node: %q", doc)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ram", "rpc_meta"} {
		if doc := get(t, n.MetaURL+"?key=mooncake%2F"+key+"%2Fnode-b"); doc != "metadata not found" {
			t.Errorf("%s after the stop: %q", key, doc)
		}
	}
}

func TestFailedStartRollsBackAndSaysWhy(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	addr := busy.Addr().String()
	for _, tc := range []struct {
		name   string
		change func(map[string]any)
		want   string
	}{
		{"admin port", func(c map[string]any) { c["admin"] = map[string]any{"listen": addr} },
			"admin.listen: " + addr + " is in use by another process"},
		{"metadata_http port", func(c map[string]any) {
			delete(c, "metadata_server")
			c["metadata"], c["metadata_http"] = map[string]any{"type": "memory"}, map[string]any{"listen": addr}
		}, "metadata_http.listen: " + addr + " is in use by another process"},
		{"too much memory", func(c map[string]any) { c["global_segment_size"] = "900TB" }, "global_segment_size: "},
		{"no metadata to serve", func(c map[string]any) { c["metadata_http"] = map[string]any{"listen": "127.0.0.1:0"} },
			"metadata_http.listen: there is no metadata backend to serve"},
		{"no port left", func(c map[string]any) {
			c["transfer"] = map[string]any{"rpc_port_min": 16001, "rpc_port_max": 16001}
		}, "16001"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := base()
			tc.change(c)
			n, err := run(t, c)
			if err == nil {
				_ = n.stop()
				t.Fatal("the node started")
			}
			if !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "received non-nil error") {
				t.Fatalf("error: %v\nwant: %s", err, tc.want)
			}
		})
	}
}

func TestReload(t *testing.T) {
	c := base()
	n := mustRun(t, c)
	level := func() string { return get(t, n.Admin+"/api/v1/loglevel") }
	if got := level(); !strings.Contains(got, "info") {
		t.Fatalf("level at start: %s", got)
	}

	c["log"] = map[string]any{"level": "debug"}
	write(t, n.path, c)
	testenv.Eventually(t, 30*time.Second, func() error {
		if got := level(); !strings.Contains(got, "debug") {
			return fmt.Errorf("level %s", got)
		}
		return nil
	})

	c["global_segment_size"] = "2MB"
	write(t, n.path, c)
	testenv.Eventually(t, 30*time.Second, func() error {
		if log := n.log.String(); !strings.Contains(log, "needs a restart") || !strings.Contains(log, "global_segment_size") {
			return fmt.Errorf("log does not name the key that needs a restart:\n%s", log)
		}
		return nil
	})

	if err := os.WriteFile(n.path, []byte(`{"log": {"level": "error"}, "nonsense": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() error {
		if log := n.log.String(); !strings.Contains(log, "reload refused, nothing was changed") {
			return fmt.Errorf("the bad file was not refused:\n%s", log)
		}
		return nil
	})
	if got := level(); !strings.Contains(got, "debug") {
		t.Errorf("a refused file changed the level to %s", got)
	}
}

func TestTransportsFollowPrefer(t *testing.T) {
	insts := []config.Instance{{Name: "shm", Type: "shm"}, {Name: "slow", Type: "tcp"}, {Name: "tcp", Type: "tcp"}, {Name: "verbs", Type: "verbs"}}
	var got []string
	for _, i := range inOrder(insts, []string{"verbs", "tcp"}) {
		got = append(got, i.Name)
	}
	if want := "verbs slow tcp shm"; strings.Join(got, " ") != want {
		t.Errorf("order %v, want %s", got, want)
	}
}

func TestMetricsCatalogueNamesTheTransport(t *testing.T) {
	ms, err := Metrics()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, m := range ms {
		have[m.Name] = true
		if m.Type == "unknown" || m.Help == "" {
			t.Errorf("%+v has no type or help", m)
		}
	}
	for _, want := range []string{"mooncake_build_info", "mooncake_tcp_bytes_total", "mooncake_transfer_tasks_total", "mooncake_metadata_http_requests_total"} {
		if !have[want] {
			t.Errorf("%s is missing", want)
		}
	}
}
