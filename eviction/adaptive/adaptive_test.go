package adaptive

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
)

func TestAgeBins(t *testing.T) {
	for b := range ageBins - 1 {
		end := binEnd(b)
		if ageBin(end-1) != b || ageBin(end) != b+1 {
			t.Errorf("bin %d ends at %d, but ages %d and %d are in bins %d and %d", b, end, end-1, end, ageBin(end-1), ageBin(end))
		}
		if b > 0 && float64(end-binEnd(b-1)) != binWidth[b] && binWidth[b] >= 1 {
			t.Errorf("bin %d reaches from %d to %d, but its width is %v", b, binEnd(b-1), end, binWidth[b])
		}
	}
	if ageBin(math.MaxUint64) != ageBins-1 {
		t.Error("the last bin has an end")
	}
}

// TestIndexOf checks the backward joining against the definition.
func TestIndexOf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for round := range 200 {
		var q [ageBins]float64
		for b := range q {
			if r.IntN(3) > 0 {
				q[b] = r.Float64() * r.Float64()
			}
		}
		var got [ageBins]float32
		indexOf(&got, &q)
		for b := range got {
			alive, hits, time, best := 1.0, 0.0, 0.0, 0.0
			for j := b; j < ageBins; j++ {
				hits += alive * q[j]
				time += alive * (1 - q[j]/2) * binWidth[j]
				alive *= 1 - q[j]
				best = max(best, hits/time)
			}
			if math.Abs(float64(got[b])-best) > 1e-6*best {
				t.Fatalf("round %d, bin %d: index %v, by definition %v", round, b, got[b], best)
			}
		}
	}
}

// TestFit checks that the main effects find what the data was made of.
func TestFit(t *testing.T) {
	z := new(hazard)
	for c := range partial {
		turn, _, reuse := features(c)
		for b := range 20 {
			z.risk[c][b] = 10_000
			z.used[c][b] = 10_000 * 0.01 * float32(1+turn) * float32(1+3*reuse)
		}
	}
	_, f := fit(&z.used, &z.risk, false)
	near := func(got, want float64) bool { return math.Abs(got/want-1) < 0.02 }
	if !near(f.turn[2]/f.turn[0], 3) || !near(f.reuse[3]/f.reuse[0], 10) || !near(f.added[7]/f.added[0], 1) {
		t.Errorf("effects %+v, want turn 1:2:3, reuse 1:4:7:10, added alike", f)
	}
}

// TestQueueAgainstScan checks the remembered oldest members against looking at everything.
func TestQueueAgainstScan(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	const n = 60
	q := newQueue(n)
	var tab table
	used := func(h eviction.Handle) uint64 { return q.lists.Of(h).used() }
	shuffle := func() {
		for c := range tab {
			for b := range tab[c] {
				tab[c][b] = float32(r.IntN(5))
			}
		}
		q.tableChanged()
	}
	shuffle()
	in := map[eviction.Handle]bool{}
	now := uint64(0)
	for step := range 100_000 {
		now += uint64(r.IntN(30))
		h := eviction.Handle(1 + r.IntN(n))
		class := uint8(r.IntN(6) * 17)
		switch {
		case !in[h]:
			q.push(h, class, now)
			in[h] = true
		case r.IntN(3) == 0:
			q.remove(h)
			delete(in, h)
		default:
			q.touch(h, class, now)
		}
		if r.IntN(500) == 0 {
			shuffle()
		}
		horizon := uint64(math.MaxUint64)
		if r.IntN(2) == 0 {
			horizon = now - min(now, uint64(r.IntN(2000)))
		}
		w := q.worst(&tab, now, horizon)
		if (w == 0) != (len(in) == 0) {
			t.Fatalf("step %d: worst of %d members is %d", step, len(in), w)
		}
		if w == 0 {
			continue
		}
		index := func(h eviction.Handle) float32 { return tab.at(int(q.classOf(h)), now-used(h)) }
		some := false
		for c := range classes {
			h := q.lists.Back(c)
			some = some || h != 0 && used(h) < horizon
		}
		for c := range classes {
			h := q.lists.Back(c)
			switch {
			case h != 0 && !some && used(h) < used(w):
				t.Fatalf("step %d: worst is %d (used %d), but %d was used at %d, and none before the horizon", step, w, used(w), h, used(h))
			case h == 0 || !some || used(h) >= horizon:
				continue
			case used(w) >= horizon:
				t.Fatalf("step %d: worst was used at %d, after the horizon %d; %d before", step, used(w), horizon, h)
			}
			if index(h) < index(w) || index(h) == index(w) && used(h) < used(w) {
				t.Fatalf("step %d: worst is %d (index %v, used %d), but %d has index %v, used %d", step, w, index(w), used(w), h, index(h), used(h))
			}
		}
	}
}

func TestMember(t *testing.T) {
	for _, used := range []uint64{0, 1, 1 << 41, maxTime} {
		for _, class := range []uint8{0, partial, gone} {
			if m := newMember(class, 0xa5, used); m.class() != class || m.past() != 0xa5 || m.used() != used {
				t.Errorf("class %d, past %x, used %d; want %d, a5, %d", m.class(), m.past(), m.used(), class, used)
			}
		}
	}
}

// TestTheEndOfTime checks that a clock beyond what a member can hold stands still, and no more.
func TestTheEndOfTime(t *testing.T) {
	p, err := factory(t).New(eviction.Spec{Capacity: 100, MaxHandles: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		e := eviction.Event{Kind: eviction.Insert, Handle: eviction.Handle(i + 1), KeyHash: uint64(i) << 32, Size: 1, NowMS: math.MaxUint64 - 100 + uint64(i)}
		if err := p.Apply([]eviction.Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := p.Victims(nil, eviction.Need{Max: 100, Tenant: eviction.AnyTenant}); err != nil || len(v) != 100 || v[0] != 1 {
		t.Errorf("victims %v, error %v; want all, the oldest first", v, err)
	}
}

func TestKnown(t *testing.T) {
	k := newKnown(1 << 12)
	r := rand.New(rand.NewPCG(3, 3))
	keys := make([]uint64, 1<<11)
	for i := range keys {
		keys[i] = r.Uint64()
		k.set(keys[i], uint8(i%20), uint8(i%7))
	}
	found := 0
	for i, key := range keys {
		turn, reuse, ok := k.get(key)
		if !ok {
			continue
		}
		found++
		if turn != uint8(min(i%20, 15)) || reuse != uint8(i%7) {
			t.Fatalf("key %d: turn %d, reuse %d", i, turn, reuse)
		}
	}
	if found < len(keys)*98/100 {
		t.Errorf("%d of %d keys are remembered in a half full table", found, len(keys))
	}
	wrong := 0
	for range 100_000 {
		if _, _, ok := k.get(r.Uint64()); ok {
			wrong++
		}
	}
	if wrong > 20 {
		t.Errorf("%d of 100,000 unknown keys are taken for known", wrong)
	}
}
