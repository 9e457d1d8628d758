package adaptive

import (
	"encoding/json"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
)

func factory(tb testing.TB) eviction.Factory {
	tb.Helper()
	f, err := eviction.Kind.Build(tb.Context(), "adaptive", module.Env{}, module.NoConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func TestSuite(t *testing.T) {
	evictiontest.Run(t, factory(t), evictiontest.Options{BytesPerKey: 100})
}

// TestStats checks that status names what is followed.
func TestStats(t *testing.T) {
	p, err := factory(t).New(eviction.Spec{Capacity: 1000, MaxHandles: 1000})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := p.(eviction.Statser).Stats()
	if err != nil {
		t.Fatal(err)
	}
	var s struct{ Following string }
	if err := json.Unmarshal(raw, &s); err != nil || s.Following != "lru" {
		t.Errorf("Stats() = %s, error %v; want following lru at the start", raw, err)
	}
}

func BenchmarkAdaptive(b *testing.B) { evictiontest.Bench(b, factory(b), 10_000_000) }
