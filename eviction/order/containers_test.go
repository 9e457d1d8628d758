package order

import (
	"container/list"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
)

// ghostModel is lists of keys, newest in front.
type ghostModel map[int]*list.List

func (m ghostModel) find(key uint64) (int, *list.Element) {
	for i, l := range m {
		for e := l.Front(); e != nil; e = e.Next() {
			if e.Value == key {
				return i, e
			}
		}
	}
	return -1, nil
}

func TestGhostsAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	const n = 40
	g := NewGhosts(n, 2)
	m := ghostModel{0: list.New(), 1: list.New()}
	for step := range 200_000 {
		key := r.Uint64N(90) << 35 // badly spread
		at, e := m.find(key)
		if slot := g.Find(key); (slot != 0) != (e != nil) {
			t.Fatalf("step %d: Find(%x) = %d, model has it: %v", step, key, slot, e != nil)
		}
		switch l := r.IntN(2); {
		case r.IntN(3) > 0:
			if e != nil {
				m[at].Remove(e)
			} else if m[0].Len()+m[1].Len() == n {
				if m[l].Len() == 0 {
					if g.Add(l, key) != 0 {
						t.Fatalf("step %d: added to an empty list of a full table", step)
					}
					continue
				}
				m[l].Remove(m[l].Back())
			}
			m[l].PushFront(key)
			if slot := g.Add(l, key); slot != g.Find(key) || slot == 0 {
				t.Fatalf("step %d: Add = %d, Find = %d", step, slot, g.Find(key))
			}
		case e != nil:
			m[at].Remove(e)
			g.Remove(g.Find(key))
		}
		for l := range 2 {
			old := g.Oldest(l)
			if back := m[l].Back(); (old == 0) != (back == nil) || old != 0 && g.Find(back.Value.(uint64)) != old {
				t.Fatalf("step %d: oldest of list %d is wrong", step, l)
			}
		}
	}
}

func TestGhostQueueAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	const n = 30
	q := NewGhostQueue(n)
	var m []uint64 // oldest first
	for step := range 200_000 {
		key := r.Uint64N(70) << 33
		i := slices.Index(m, key)
		if q.Has(key) != (i >= 0) {
			t.Fatalf("step %d: Has(%x) = %v", step, key, q.Has(key))
		}
		switch r.IntN(6) {
		case 0:
			if q.Take(key) != (i >= 0) {
				t.Fatalf("step %d: Take is wrong", step)
			}
			if i >= 0 {
				m = slices.Delete(m, i, i+1)
			}
		case 1:
			if q.Drop(); len(m) > 0 {
				m = m[1:]
			}
		default:
			if i >= 0 {
				m = slices.Delete(m, i, i+1)
			}
			q.Add(key)
			m = append(m, key)
			for len(m) > q.Len() { // gaps may push the oldest out early, nothing else
				m = m[1:]
			}
			if len(m) > n {
				t.Fatalf("step %d: %d keys remembered, room for %d", step, len(m), n)
			}
		}
		if q.Len() != len(m) {
			t.Fatalf("step %d: Len %d, model %d", step, q.Len(), len(m))
		}
	}
	if q.Len() == 0 {
		t.Error("the queue is empty in the end: the test did not test much")
	}
}

func TestHeapAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	const n = 300
	p, err := New(eviction.Spec{Capacity: 1, MaxHandles: n}, func(s eviction.Spec, _ *Totals) (Order, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	q := NewHeap(n)
	m := map[eviction.Handle]item{}
	for step := range 20_000 {
		h := eviction.Handle(1 + r.IntN(n))
		if _, ok := m[h]; ok && r.IntN(3) == 0 {
			q.Remove(h)
			delete(m, h)
		} else {
			m[h] = item{key: float64(r.IntN(50)), seq: uint64(step), h: h}
			q.Set(h, m[h].key, uint64(step))
		}
		if step%97 != 0 {
			continue
		}
		var want []eviction.Handle
		for _, x := range slices.SortedFunc(mapValues(m), func(a, b item) int {
			if a.less(&b) {
				return -1
			}
			return 1
		}) {
			want = append(want, x.h)
		}
		w := Walk{left: noMax, any: true, p: p}
		q.Offer(&w)
		k := min(len(want), 64)
		if !slices.Equal(w.dst[:k], want[:k]) {
			t.Fatalf("step %d: first handles %v, want %v", step, w.dst[:k], want[:k])
		}
		if got := slices.Sorted(slices.Values(w.dst)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Fatalf("step %d: Offer named %d handles, there are %d", step, len(got), len(want))
		}
	}
}

const noMax = 1 << 30

func mapValues(m map[eviction.Handle]item) func(func(item) bool) {
	return func(yield func(item) bool) {
		for _, x := range m {
			if !yield(x) {
				return
			}
		}
	}
}

func TestPlacesOverflow(t *testing.T) {
	p := newPlaces()
	for i := range uint32(maxPlaces + 10) {
		id := p.find(&eviction.Event{Tenant: i % 7, Segment: i})
		if i < maxPlaces-1 && (id == crowd || p.known[id] != place{i % 7, i}) {
			t.Fatalf("pair %d got id %d, which is another's", i, id)
		}
		if i > maxPlaces && id != crowd {
			t.Fatalf("pair %d got id %d although the ids are used up", i, id)
		}
	}
	if !p.match(crowd, 3, 4) {
		t.Error("an object without a place of its own must match every question")
	}
}

func TestBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		t    Totals
		want uint64
	}{
		"empty":         {Totals{Capacity: 10, max: 100}, 10},
		"empty, capped": {Totals{Capacity: 1000, max: 100}, 100},
		"equal sizes":   {Totals{Capacity: 7 << 20, Bytes: 3 << 20, Count: 3, max: 100}, 7},
		"mean":          {Totals{Capacity: 1000, Bytes: 60, Count: 3, max: 100}, 50},
		"huge":          {Totals{Capacity: 1 << 63, Bytes: 1 << 62, Count: 1 << 31, max: 1<<32 - 1}, 1<<32 - 1},
		"never 0":       {Totals{Capacity: 1, Bytes: 60, Count: 3, max: 100}, 1},
		"overflow":      {Totals{Capacity: 1 << 63, Bytes: 1, Count: 1 << 31, max: 100}, 100},
	} {
		if got := c.t.Blocks(); got != c.want {
			t.Errorf("%s: Blocks() = %d, want %d", name, got, c.want)
		}
	}
}
