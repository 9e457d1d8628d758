package conformance

import (
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Draw chooses a number in lo..hi. The label names it in a report of failure.
type Draw func(lo, hi uint64, label string) uint64

func (d Draw) n(lo, hi int, label string) int { return int(d(uint64(lo), uint64(hi), label)) }

func (d Draw) yes(label string) bool { return d(0, 1, label) == 1 }

// Model does anything in any order to one policy and lets Host check every answer.
type Model struct {
	h    *Host
	f    eviction.Factory
	next uint64 // key
}

// NewModel starts with an empty store.
func NewModel(t T, f eviction.Factory) *Model {
	return &Model{h: NewHost(t, f, Spec(24)), f: f, next: 1}
}

// Close ends the policy.
func (m *Model) Close(t T) { closePolicy(t, m.h) }

// Actions are what can be done, by name, in any order. One that reports false could not be done now.
func (m *Model) Actions() map[string]func(Draw) bool {
	h := m.h
	about := func(do func(Draw, eviction.Handle)) func(Draw) bool {
		return func(d Draw) bool {
			if h.Len() == 0 {
				return false
			}
			do(d, h.Nth(d.n(0, 1000, "which")))
			return true
		}
	}
	always := func(do func(Draw)) func(Draw) bool {
		return func(d Draw) bool { do(d); return true }
	}
	pin := func(f eviction.Flags) func(Draw, eviction.Handle) {
		return func(_ Draw, hd eviction.Handle) {
			h.live[hd].flags = f
			h.Send(eviction.Pin, hd, func(e *eviction.Event) { e.Flags, e.Size = f, h.now+1000 })
		}
	}
	return map[string]func(Draw) bool{
		"put":   m.put,
		"get":   about(func(_ Draw, hd eviction.Handle) { h.Get(hd) }),
		"probe": about(func(_ Draw, hd eviction.Handle) { h.Send(eviction.Probe, hd, nil) }),
		"remove": about(func(d Draw, hd eviction.Handle) {
			h.Remove(hd, eviction.Code(d(1, 5, "code")))
		}),
		"soft": about(pin(eviction.FlagSoftPin)),
		"hard": about(pin(eviction.FlagHardPin)),
		"unpin": about(func(_ Draw, hd eviction.Handle) {
			h.live[hd].flags = 0
			h.Send(eviction.Unpin, hd, func(e *eviction.Event) { e.Size = 0 })
		}),
		"moved": about(func(d Draw, hd eviction.Handle) {
			h.live[hd].e.Segment = uint32(d(0, 3, "segment"))
			h.Send(eviction.Moved, hd, nil)
		}),
		"ghost": always(func(d Draw) {
			h.Send(eviction.Ghost, 0, func(e *eviction.Event) { e.KeyHash = d(1, m.next, "key") })
		}),
		"tick": always(func(d Draw) {
			h.now += d(0, 100_000, "ms")
			h.Send(eviction.Tick, 0, nil)
		}),
		"resize": always(func(d Draw) {
			h.Send(eviction.Resize, 0, func(e *eviction.Event) { e.Size = d(1, 1<<20, "bytes") })
		}),
		"ask": always(func(d Draw) { h.Victims(need(d)) }),
		"evict": always(func(d Draw) {
			for _, v := range h.Victims(need(d)) {
				if d.yes("take") {
					h.Remove(v, eviction.CodeEvicted)
				} else {
					h.Reject(v, eviction.Code(d(1, 8, "code")))
				}
			}
		}),
		"swap": always(func(Draw) { h.Swap(m.f) }),
	}
}

func (m *Model) put(d Draw) bool {
	n := d.n(1, 6, "n")
	if n > m.h.Free() {
		return false
	}
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = m.next
		m.next++
		if d(0, 3, "again") == 0 { // a key that was here before, perhaps evicted
			k := d(1, m.next-1, "key")
			if _, ok := m.h.byKey[k]; !ok && !slices.Contains(keys, k) {
				keys[i] = k
			}
		}
	}
	pin := []eviction.Flags{0, 0, 0, eviction.FlagSoftPin, eviction.FlagHardPin}[d(0, 4, "pin")]
	m.h.Put(keys, d(1, 2000, "size"), uint32(d(1, 2, "tenant")), uint32(d(0, 2, "segment")), pin)
	return true
}

func need(d Draw) eviction.Need {
	n := Any(d.n(1, 30, "max"))
	n.Bytes = d(0, 5000, "bytes")
	n.Flags = eviction.NeedFlags(d(0, 3, "flags"))
	n.Segment = uint32(d(0, 3, "segment"))
	if d.yes("one tenant") {
		n.Tenant = uint32(d(1, 3, "tenant"))
	}
	return n
}

// modelRuns drives a Model by chance, the same in each run. Under go test package evictiontest does it with
// shrinking instead.
func modelRuns(t T, f eviction.Factory, o Options) {
	const steps = 60
	runs := o.Runs
	if runs == 0 {
		runs = 60
	}
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 11))
		d := Draw(func(lo, hi uint64, _ string) uint64 { return lo + r.Uint64N(hi-lo+1) })
		m := NewModel(t, f)
		acts := m.Actions()
		names := slices.Sorted(maps.Keys(acts))
		for range steps {
			acts[names[r.IntN(len(names))]](d)
		}
		m.Close(t)
	}
}
