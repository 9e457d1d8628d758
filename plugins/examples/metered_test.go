package examples

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/wasm"
)

// metered opens an example as a master does, with the default limits or those that its README line gives.
func metered(tb testing.TB, name string) *wasm.Factory {
	tb.Helper()
	c := wasm.DefaultConfig()
	c.Module, c.CacheDir = wasmFile(tb, name), filepath.Join(tb.TempDir(), "cache")
	if name == "classes-go" {
		c.FuelPerEvent = 10_000 // jumps in Go are dear, see docs/wasm-policies.md
	}
	f, err := wasm.Open(context.Background(), c, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	return f
}

// In a master's sandbox the examples stay within the default budgets and need no help; the LRUs decide as before.
func TestInTheSandbox(t *testing.T) {
	want, _ := run(t, native(t, "lru"), 5000)
	for _, name := range []string{"lru-c", "lru-go", "lru-rust", "lru-as", "s3fifo-c", "classes-go", "score-c", "score-wat"} {
		t.Run(name, func(t *testing.T) {
			f := metered(t, name)
			if raceDetector {
				return // it loads
			}
			var guest eviction.Policy
			got, _ := run(t, eviction.FactoryFunc(func(s eviction.Spec) (eviction.Policy, error) {
				p, err := f.New(s)
				guest = p
				return p, err
			}), 5000)
			if strings.HasPrefix(name, "lru") {
				sameVictims(t, name, got, want)
			}
			s := guest.(eviction.Supervised).Supervision()
			if s.Fault != "" || s.Instances != 1 {
				t.Fatalf("%d instances, the last fault: %s", s.Instances, s.Fault)
			}
			if s.Fallbacks+s.Protected+s.Strikes["unknown"]+s.Strikes["duplicate"] > 0 {
				t.Errorf("the host had to help: %+v", s)
			}
			t.Logf("%d events, %d units each; %d questions, %d units each", s.Events, s.EventFuel/max(1, s.Events), s.Questions, (s.Fuel-s.EventFuel)/s.Questions)

			// The most expensive mix of events, in full batches.
			worst := uint64(0)
			p, err := f.New(eviction.Spec{Capacity: 1 << 20, MaxHandles: 4096, Tenant: eviction.AnyTenant})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			told := p.(eviction.Supervised).Supervision
			for _, kind := range []eviction.EventKind{eviction.Insert, eviction.Access, eviction.Probe, eviction.Ghost, eviction.Remove, eviction.Restore} {
				var events []eviction.Event
				for i := range 256 {
					events = append(events, eviction.Event{Kind: kind, Handle: eviction.Handle(i + 1), Size: 512, KeyHash: uint64(i), Added: 8, Code: eviction.CodeEvicted})
				}
				before := told()
				if err := p.Apply(events); err != nil {
					t.Fatal(err)
				}
				if after := told(); after.Events > before.Events {
					worst = max(worst, (after.EventFuel-before.EventFuel)/(after.Events-before.Events))
				}
			}
			before := told()
			if _, err := p.Victims(nil, eviction.Need{Max: 64, Tenant: eviction.AnyTenant}); err != nil {
				t.Fatal(err)
			}
			after := told()
			asked := (after.Fuel - before.Fuel - (after.EventFuel - before.EventFuel)) / 64
			t.Logf("at most %d units an event, %d a victim of 64, fault %q", worst, asked, after.Fault)
			if after.Fault != "" {
				t.Errorf("a mix of events that is more expensive than the budget: %s", after.Fault)
			}
		})
	}
}
