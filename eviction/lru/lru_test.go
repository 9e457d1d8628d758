package lru

import (
	"context"
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
)

func factory(tb testing.TB) eviction.Factory {
	f, err := eviction.Kind.Build(context.Background(), "lru", module.Env{}, module.NoConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func TestSuite(t *testing.T) {
	evictiontest.Run(t, factory(t), evictiontest.Options{BytesPerKey: 12, ExactRestore: true})
}

func TestOrder(t *testing.T) {
	h := evictiontest.NewHost(t, factory(t), eviction.Spec{Capacity: 100, MaxHandles: 100})
	h.Put([]uint64{1, 2, 3}, 1, 0, 0, 0) // handles 3, 2, 1 by depth 0, 1, 2
	h.Put([]uint64{4, 5}, 1, 0, 0, 0)
	chain := h.Residents()
	if got := h.Victims(evictiontest.Any(10)); !slices.Equal(got, chain) {
		t.Fatalf("victims %v, want the tails of the chains first: %v", got, chain)
	}
	h.Get(chain[0])
	want := append(slices.Clone(chain[1:]), chain[0])
	if got := h.Victims(evictiontest.Any(10)); !slices.Equal(got, want) {
		t.Fatalf("victims after a read %v, want %v", got, want)
	}
	h.Reject(want[0], eviction.CodeLeased)
	want = append(want[1:], want[0])
	if got := h.Victims(evictiontest.Any(10)); !slices.Equal(got, want) {
		t.Fatalf("victims after a refusal %v, want %v", got, want)
	}
}

func BenchmarkLRU(b *testing.B) { evictiontest.Bench(b, factory(b), 10_000_000) }
