package aside

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/lru"
)

// A host that uses handles again at once, with a real policy: no victim that it gets is gone, and it gets some.
func TestOnlyResidentVictims(t *testing.T) {
	const handles = 500
	f, err := lru.New(t.Context(), module.Env{}, lru.Config{})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := f.New(eviction.Spec{Capacity: handles * 10, MaxHandles: handles})
	if err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	p := New(inner, 0, Options{Ahead: 8}, g.Go)
	r := rand.New(rand.NewPCG(1, 1))
	var free []eviction.Handle
	there := map[eviction.Handle]bool{}
	for h := range eviction.Handle(handles) {
		free = append(free, h+1)
	}
	var events []eviction.Event
	event := func(k eviction.EventKind, h eviction.Handle) {
		events = append(events, eviction.Event{Kind: k, Handle: h, Size: 10, Code: eviction.CodeEvicted, KeyHash: uint64(h)})
	}
	gone := func(h eviction.Handle) {
		delete(there, h)
		free = append(free, h)
		event(eviction.Remove, h)
	}
	found := 0
	for round := range 20_000 {
		events = events[:0]
		for range 1 + r.IntN(8) {
			h := eviction.Handle(1 + r.IntN(handles))
			switch {
			case there[h] && r.IntN(8) == 0:
				gone(h)
			case there[h]:
				event(eviction.Access, h)
			case len(free) > 20:
				h = free[len(free)-1] // the last one gone
				free = free[:len(free)-1]
				there[h] = true
				event(eviction.Insert, h)
			}
		}
		if err := p.Apply(events); err != nil {
			t.Fatal(err)
		}
		if len(free) > 40 {
			continue
		}
		need := anyone
		if round%10 == 0 && !p.Await(soon(t), need) {
			t.Fatal("nobody is named")
		}
		v, err := p.Victims(nil, need)
		if err != nil {
			t.Fatal(err)
		}
		events = events[:0]
		seen := map[eviction.Handle]bool{}
		for _, h := range v {
			if !there[h] || seen[h] {
				t.Fatalf("round %d: %d is named, resident %v, twice %v", round, h, there[h], seen[h])
			}
			seen[h] = true
		}
		found += len(v)
		for _, h := range v[:min(len(v), 10)] {
			gone(h)
		}
		if err := p.Apply(events); err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Error("nobody was ever named")
	}
	_ = p.Close()
	g.Wait()
}
