package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/master/policies"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// A node that is its own master, and a second one that joins it.
func TestEmbeddedMaster(t *testing.T) {
	c := base()
	c["global_segment_size"] = "8MB"
	c["master"] = map[string]any{"listen": fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), "admin": "127.0.0.1:0", "client_ttl": "2s"}
	c["eviction"] = map[string]any{"*": map[string]any{"type": "lru"}}
	a := mustRun(t, c)
	if a.Master == "" || a.Mounted == nil || !*a.Mounted || a.MasterAdmin == "" {
		t.Fatalf("status %+v", a.Status)
	}
	d := base()
	d["global_segment_size"], d["master_server_address"] = "8MB", a.Master
	b := mustRun(t, d)
	if got := strings.Fields(get(t, a.MasterAdmin+"/get_all_segments")); len(got) != 2 {
		t.Errorf("segments %q", got)
	}
	conn := connect(t, base(), a.Master)
	value := bytes.Repeat([]byte{7}, 100_000)
	for i := range 300 { // more than fits: the oldest go
		if err := conn.Put(t.Context(), fmt.Sprint(i), value); err != nil {
			t.Fatal(i, err)
		}
	}
	if got, err := conn.Get(t.Context(), "299"); err != nil || !bytes.Equal(got, value) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if got := strings.Fields(get(t, a.MasterAdmin+"/get_all_segments")); len(got) != 1 || got[0] != a.Segment {
		t.Errorf("segments after a stop: %q", got)
	}
	if err := a.stop(); err != nil {
		t.Error(err)
	}
}

func TestEmbeddedMasterMistakes(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(map[string]any)
		want   string
	}{
		{"no port", func(c map[string]any) { c["master"] = map[string]any{"listen": "127.0.0.1"} }, "is not host:port"},
		{"admin without a master", func(c map[string]any) { c["master"] = map[string]any{"admin": "127.0.0.1:0"} }, "there is no master without listen"},
		{"a typo", func(c map[string]any) { c["master"] = map[string]any{"default_kv_lease_tl": "1s"} }, "did you mean"},
		{"unknown policy", func(c map[string]any) {
			c["master"], c["eviction"] = map[string]any{"listen": "127.0.0.1:0"}, map[string]any{"*": map[string]any{"type": "lur"}}
		}, "did you mean lru?"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := base()
			tc.change(c)
			n, err := run(t, c)
			if err == nil {
				_ = n.stop()
				t.Fatal("the node started")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error: %v\nwant: %s", err, tc.want)
			}
		})
	}
	c := base()
	c["eviction"] = map[string]any{"*": map[string]any{"type": "lru"}}
	n := mustRun(t, c)
	if log := n.log.String(); !strings.Contains(log, "this node is no master") {
		t.Errorf("no warning about a policy without a master in\n%s", log)
	}
}

// The file changes the policies of a running master; the node's own admin server shows them.
func TestPoliciesReload(t *testing.T) {
	c := base()
	c["admin"] = map[string]any{"listen": "127.0.0.1:0"}
	c["master"] = map[string]any{"listen": fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), "enable_multi_tenants": true}
	n := mustRun(t, c)
	inForce := func() string {
		var p struct {
			Policies []struct{ Domain, Policy string }
		}
		if err := json.Unmarshal([]byte(get(t, n.Admin+"/api/v1/policies")), &p); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(p.Policies)
	}
	for _, step := range []struct {
		eviction map[string]any
		want     string
	}{
		{map[string]any{"*": map[string]any{"type": "lru"}, "team.a": map[string]any{"type": "lru"}}, "[{* lru} {team.a lru}]"},
		{nil, "[{* " + policies.Default() + "}]"},
	} {
		if c["eviction"] = step.eviction; step.eviction == nil {
			delete(c, "eviction")
		}
		write(t, n.path, c)
		testenv.Eventually(t, 30*time.Second, func() error {
			if got := inForce(); got != step.want {
				return fmt.Errorf("in force %s, want %s\n%s", got, step.want, n.log.String())
			}
			return nil
		})
	}
}
