package store

import (
	"encoding/json"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/bench"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// TestBench runs "mooncake bench store" against the master, every operation of it.
func TestBench(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest)
	run := func(args ...string) []byte {
		t.Helper()
		cmd := exec.Command(testenv.Mooncake(t), append([]string{"bench", "store", "--master", s.Addr, "--keys", "3000", "--duration", "300ms", "--json"}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v: %s", cmd.Args, err, out)
		}
		return out
	}
	for _, op := range bench.StoreOps {
		for _, shape := range [][]string{{"--connections", "1"}, {"--connections", "8", "--depth", "4"}} {
			var got map[string]any
			if err := json.Unmarshal(run(append(shape, "--op", op)...), &got); err != nil {
				t.Fatal(err)
			}
			want := []string{"connections", "errors", "keys", "latency_us", "op", "ops_per_second", "seconds"}
			if d := cmp.Diff(want, slices.Sorted(maps.Keys(got))); d != "" {
				t.Errorf("keys of the result: %s", d)
			}
			latency, _ := got["latency_us"].(map[string]any)
			if d := cmp.Diff([]string{"p50", "p99", "p999"}, slices.Sorted(maps.Keys(latency))); d != "" {
				t.Errorf("keys of latency_us: %s", d)
			}
			if got["op"] != op || got["errors"] != 0.0 || got["ops_per_second"].(float64) <= 0 || got["keys"] != 3000.0 {
				t.Errorf("%s: %v", op, got)
			}
		}
	}
	// Nothing is left behind.
	s.waitSegments(t, soon, 0)
	testenv.Eventually(t, soon, func() error {
		_, body, err := s.Get("/get_all_keys")
		if err == nil && strings.TrimSpace(body) != "" {
			t.Errorf("%d keys are left", strings.Count(body, "\n"))
		}
		return err
	})
}
