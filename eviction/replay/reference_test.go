package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	_ "github.com/mooncake-agent/mooncake/eviction/all"
)

// The traces that Mooncake published with the FAST'25 paper, in the compact form.
const (
	conversation = "testdata/conversation.trace"
	synthetic    = "testdata/synthetic.trace"
)

func open(tb testing.TB, path string) *Trace {
	tb.Helper()
	t, err := Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func policy(tb testing.TB, name string) eviction.Factory {
	tb.Helper()
	f, err := eviction.Kind.Build(context.Background(), name, module.Env{}, module.NoConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func TestTracesAreWhole(t *testing.T) {
	for path, want := range map[string][4]float64{
		conversation: {12031, 288500, 182790, 36.64},
		synthetic:    {3993, 121877, 43924, 63.96},
	} {
		tr := open(t, path)
		inf := Infinite(tr, Options{})
		got := [4]float64{float64(len(tr.Requests)), float64(tr.Accesses()), float64(tr.Unique()), math.Round(1e4*inf.BlockHit()) / 100}
		if got != want {
			t.Errorf("%s: requests, accesses, unique blocks, infinite hit %% = %v, want %v", path, got, want)
		}
		if inf.PrefixHit() != inf.BlockHit() {
			t.Errorf("%s: an infinite cache has prefix hit %v and block hit %v", path, inf.PrefixHit(), inf.BlockHit())
		}
	}
}

// TestReferenceFigures checks block and prefix hit in percent against published simulators (all but lru+tail
// and lru-k were checked against libCacheSim).
func TestReferenceFigures(t *testing.T) {
	long(t)
	const tolerance = 0.05 + 0.005 // of figures rounded to two digits
	traces := []*Trace{open(t, conversation), open(t, synthetic)}
	sizes := []uint64{1000, 5000}
	for _, c := range []struct {
		policy string
		tail   bool
		want   [8]float64 // conversation 1k block, prefix, 5k block, prefix, synthetic the same
	}{
		{"fifo", false, [8]float64{4.35, 4.34, 10.67, 10.53, 7.87, 7.87, 26.57, 26.57}},
		{"lru", false, [8]float64{4.45, 4.45, 11.04, 11.04, 8.25, 8.25, 27.91, 27.91}},
		{"lru", true, [8]float64{4.45, 4.45, 11.04, 11.18, 8.25, 8.41, 27.91, 27.93}},
		{"clock", false, [8]float64{4.47, 4.47, 11.27, 11.27, 8.67, 8.67, 28.08, 28.07}},
		{"sieve", false, [8]float64{4.81, 4.81, 9.23, 9.23, 4.01, 4.01, 19.73, 19.73}},
		{"s3fifo", false, [8]float64{5.56, 5.56, 13.83, 13.82, 8.64, 8.30, 28.50, 28.37}},
		{"arc", false, [8]float64{5.29, 5.29, 11.36, 11.24, 9.33, 9.11, 28.76, 28.40}},
		{"lfu", false, [8]float64{4.81, 4.81, 9.23, 9.23, 4.01, 4.01, 19.73, 19.73}},
		{"min", false, [8]float64{19.06, 19.06, 34.12, 34.12, 27.66, 27.66, 52.62, 52.62}},
	} {
		t.Run(fmt.Sprintf("%s tail=%v", c.policy, c.tail), func(t *testing.T) {
			for i, tr := range traces {
				for j, size := range sizes {
					var r Result
					if c.policy == "min" {
						r = Min(tr, size, Options{})
					} else {
						var err error
						if r, err = Run(tr, policy(t, c.policy), size, Options{HeadFirst: !c.tail}); err != nil {
							t.Fatal(err)
						}
					}
					for k, got := range []float64{100 * r.BlockHit(), 100 * r.PrefixHit()} {
						if want := c.want[4*i+2*j+k]; math.Abs(got-want) > tolerance {
							t.Errorf("%s at %d blocks: %s hit %.3f %%, want %.2f", tr.Name, size, []string{"block", "prefix"}[k], got, want)
						}
					}
				}
			}
		})
	}
}

// TestGoals checks what the store promises with lru and with its default: prefix hit in percent.
func TestGoals(t *testing.T) {
	long(t)
	for path, rows := range map[string]map[string]map[uint64]float64{
		conversation: {
			"lru":      {5000: 11.1, 10000: 21.1, 20000: 28.7, 50000: 35.4},
			"adaptive": {5000: 17.0, 10000: 23.0, 20000: 30.0, 50000: 35.4},
		},
		synthetic: {
			"lru":      {1000: 8.4, 5000: 27.9, 10000: 42.3, 20000: 57.1},
			"adaptive": {1000: 9.0, 5000: 28.5, 10000: 44.0, 20000: 58.5},
		},
	} {
		tr := open(t, path)
		for name, sizes := range rows {
			for size, least := range sizes {
				r, err := Run(tr, policy(t, name), size, Options{})
				if err != nil {
					t.Fatal(err)
				}
				if got := 100 * r.PrefixHit(); got < least-0.05 {
					t.Errorf("%s, %s at %d blocks: %.2f %%, want %.1f", path, name, size, got, least)
				}
			}
		}
	}
}

// TestMinIsNeverBeaten also checks that results do not depend on the run.
func TestMinIsNeverBeaten(t *testing.T) {
	long(t)
	tr := open(t, synthetic)
	for _, info := range eviction.Kind.List() {
		for _, size := range []uint64{50, 700, 10_000} {
			a, err := Run(tr, policy(t, info.Name), size, Options{Seed: 3})
			if err != nil {
				t.Fatal(err)
			}
			if best := Min(tr, size, Options{}); a.Hits > best.Hits {
				t.Errorf("%s at %d blocks hits %d times, MIN %d", info.Name, size, a.Hits, best.Hits)
			}
			if a.Inserts-a.Evictions > size || a.Inserts+a.Hits != a.Accesses {
				t.Errorf("%s at %d blocks: %d inserts, %d evictions, %d hits, %d accesses do not add up", info.Name, size, a.Inserts, a.Evictions, a.Hits, a.Accesses)
			}
			if size != 700 {
				continue
			}
			b, err := Run(tr, policy(t, info.Name), size, Options{Seed: 3})
			if err != nil {
				t.Fatal(err)
			}
			a.Elapsed, b.Elapsed = 0, 0
			if a != b {
				t.Errorf("%s at %d blocks: two runs differ: %+v and %+v", info.Name, size, a, b)
			}
		}
	}
}

func TestResultIsJSON(t *testing.T) {
	tr := open(t, synthetic)
	r, err := Run(tr, policy(t, "lru"), 1000, Options{WarmUp: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 2993 {
		t.Errorf("%d requests counted after a warm-up of 1000 of 3993", r.Requests)
	}
	if b, err := json.Marshal(r); err != nil || len(b) == 0 {
		t.Errorf("Marshal: %v", err)
	}
}
