package wasm

import (
	"context"
	"hash/fnv"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
	_ "github.com/mooncake-agent/mooncake/eviction/lru"
	"github.com/mooncake-agent/mooncake/eviction/replay"
)

func TestSuite(t *testing.T) {
	for name, o := range map[string]evictiontest.Options{
		"lru":       {Foreign: true, ExactRestore: true},
		"abilities": {Foreign: true, ExactRestore: true},
		"score_lru": {Foreign: true},
		// The host's own order must keep the contract when the guest does not.
		"none":    {Foreign: true, ExactRestore: true},
		"unknown": {Foreign: true, ExactRestore: true},
	} {
		t.Run(name, func(t *testing.T) { evictiontest.Run(t, guest(t, name), o) })
	}
}

func native(tb testing.TB) eviction.Factory {
	tb.Helper()
	f, err := eviction.Kind.Build(context.Background(), "lru", module.Env{}, module.NoConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// witness notes every answer of the policies of a factory.
type witness struct {
	eviction.Factory
	answers int
	sum     uint64
}

type witnessed struct {
	eviction.Policy
	w *witness
}

func (w *witness) New(s eviction.Spec) (eviction.Policy, error) {
	p, err := w.Factory.New(s)
	return &witnessed{p, w}, err
}

func (p *witnessed) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	n := len(dst)
	dst, err := p.Policy.Victims(dst, need)
	h := fnv.New64a()
	for _, v := range append([]eviction.Handle{eviction.Handle(p.w.sum), eviction.Handle(p.w.sum >> 32)}, dst[n:]...) {
		h.Write([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
	}
	p.w.sum = h.Sum64()
	p.w.answers++
	return dst, err
}

// The conversation trace through the simulator: the same victims in the same order.
func TestSameVictimsAsNativeLRU(t *testing.T) {
	trace, err := replay.Open(filepath.Join("..", "..", "eviction", "replay", "testdata", "conversation.trace"))
	if err != nil {
		t.Fatal(err)
	}
	run := func(f eviction.Factory) (*witness, replay.Result) {
		w := &witness{Factory: f}
		r, err := replay.Run(trace, w, 5000, replay.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return w, r
	}
	want, wantResult := run(native(t))
	if want.answers < 10_000 {
		t.Fatalf("only %d questions", want.answers)
	}
	// Guests that never answer well show that the host's own order is the same one.
	for _, name := range []string{"lru", "none"} {
		got, result := run(guest(t, name))
		if got.answers != want.answers || got.sum != want.sum || result.Hits != wantResult.Hits {
			t.Errorf("%s: %d answers with hash %x and %d hits, want %d, %x, %d", name, got.answers, got.sum, result.Hits, want.answers, want.sum, wantResult.Hits)
		}
	}
}

// Pins, tenants, segments, refusals and swaps, at random: two policies side by side.
func TestSameVictimsAsNativeLRUWithPins(t *testing.T) {
	for _, name := range []string{"lru", "none"} {
		t.Run(name, func(t *testing.T) { sideBySide(t, guest(t, name), native(t)) })
	}
}

func sideBySide(t *testing.T, f, g eviction.Factory) {
	const handles = 300
	spec := eviction.Spec{Capacity: handles * 512, MaxHandles: handles, Seed: 1, Tenant: eviction.AnyTenant}
	a, b := instanceOf(t, f, spec), instanceOf(t, g, spec)
	chance := uint64(7)
	next := func(n int) int { chance++; return int(scatter(chance) % uint64(n)) }
	live := map[eviction.Handle]eviction.Event{}
	var order, free []eviction.Handle
	for h := eviction.Handle(1); h <= handles; h++ {
		free = append(free, h)
	}
	now := uint64(0)
	tell := func(events ...eviction.Event) {
		for i := range events {
			now++
			events[i].NowMS = now
		}
		if err := a.Apply(events); err != nil {
			t.Fatal(err)
		}
		if err := b.Apply(events); err != nil {
			t.Fatal(err)
		}
	}
	about := func(k eviction.EventKind, flags eviction.Flags, code eviction.Code, h eviction.Handle) eviction.Event {
		e := live[h]
		e.Kind, e.Flags, e.Code = k, flags, code
		return e
	}
	evicted := 0
	for step := range 20_000 {
		switch what := next(10); {
		case what < 3 && len(free) > 0:
			h := free[next(len(free))]
			free = slices.DeleteFunc(free, func(x eviction.Handle) bool { return x == h })
			e := eviction.Event{Kind: eviction.Insert, Handle: h, Size: 512, Tenant: uint32(1 + next(2)), Segment: uint32(next(3)),
				Flags: []eviction.Flags{0, 0, 0, 0, 0, eviction.FlagSoftPin, eviction.FlagHardPin}[next(7)]}
			live[h] = e
			order = append(order, h)
			tell(e)
		case len(order) == 0:
		case what < 5:
			tell(about(eviction.Access, 0, 0, order[next(len(order))]))
		case what == 5 && next(4) == 0:
			tell(about(eviction.Pin, []eviction.Flags{eviction.FlagSoftPin, eviction.FlagHardPin}[next(2)], 0, order[next(len(order))]))
		case what == 6:
			tell(about(eviction.Unpin, 0, 0, order[next(len(order))]))
		case what == 7:
			h := order[next(len(order))]
			e := live[h]
			e.Segment = uint32(next(3))
			live[h] = e
			tell(about(eviction.Moved, 0, 0, h))
		default:
			need := eviction.Need{Max: 1 + next(5), Tenant: eviction.AnyTenant, Segment: uint32(next(3)), Flags: eviction.NeedFlags(next(2))}
			if next(3) == 0 {
				need.Tenant = uint32(1 + next(2))
			}
			got, err1 := a.Victims(nil, need)
			want, err2 := b.Victims(nil, need)
			if err1 != nil || err2 != nil || !slices.Equal(got, want) {
				t.Fatalf("step %d, %+v: %v, %v; native: %v, %v", step, need, got, err1, want, err2)
			}
			for _, h := range got {
				if next(6) == 0 {
					tell(about(eviction.Reject, 0, eviction.CodeLeased, h))
					continue
				}
				tell(about(eviction.Remove, 0, eviction.CodeEvicted, h))
				evicted++
				delete(live, h)
				order = slices.DeleteFunc(order, func(x eviction.Handle) bool { return x == h })
				free = append(free, h)
			}
		}
	}
	if evicted < 1000 {
		t.Errorf("only %d evictions", evicted)
	}
}
