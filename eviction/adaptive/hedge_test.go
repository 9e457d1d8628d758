package adaptive

import (
	"math/rand/v2"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
)

// TestKeepHeads checks that what is used more often is worth no less, at its age and at all that are younger.
func TestKeepHeads(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	was := new(table)
	for c := range was {
		for b := range was[c] {
			was[c][b] = r.Float32()
		}
	}
	got := new(table)
	*got = *was
	got.keepHeads()
	for c := range classes {
		for b := range ageBins {
			want := was[c][b]
			if c != partial {
				_, _, reuse := features(c)
				for fewer := range reuse {
					for older := b; older < ageBins; older++ {
						want = max(want, was[c-reuse+fewer][older])
					}
				}
			}
			if got[c][b] != want {
				t.Fatalf("class %d, bin %d: index %v, want %v", c, b, got[c][b], want)
			}
		}
	}
}

// TestEndGoesFirst checks that of one request the partial block goes first, whatever the index says.
func TestEndGoesFirst(t *testing.T) {
	q := newQueue(4)
	var tab table
	for b := range ageBins {
		tab[partial][b] = 1
	}
	q.push(1, partial, 10)
	q.push(2, 3, 10)
	q.push(3, 2, 10)
	q.push(4, partial, 11)
	for _, want := range []eviction.Handle{1, 3, 2, 4} {
		got := q.victim(&tab, 20, 0)
		if got != want {
			t.Fatalf("handle %d goes first, want %d", got, want)
		}
		q.remove(got)
	}
}

// traffic asks a sample for chains.
type traffic struct {
	s    *sample
	uses map[uint64]uint8
	req  uint32
	now  uint64
}

// ask uses the blocks of a chain, the deepest first; the deepest is not full if end is set.
func (f *traffic) ask(chain []uint64, end bool) {
	f.req++
	f.now += 100
	added := uint32(0)
	for _, key := range chain {
		if f.uses[key] == 0 {
			added++
		}
	}
	for i := len(chain) - 1; i >= 0; i-- {
		key := chain[i]
		class := classOf(0, added, f.uses[key])
		if end && i == len(chain)-1 {
			class = partial
		}
		f.s.use(key, f.req, class, f.now)
		f.uses[key]++
	}
}

func (f *traffic) isMissing(key uint64) bool {
	slot := f.s.keys.Find(key)
	return slot != 0 && f.s.missing(slot) == 1
}

// TestHedgeWhenTrafficTurns lets the index win for a while, and then asks for nothing but what the policy has given up
// before LRU would: little more is lost than that, for little is given up meanwhile.
func TestHedgeWhenTrafficTurns(t *testing.T) {
	const room = 300
	s := newSample(room)
	s.resize(room)
	f := &traffic{s: s, uses: map[uint64]uint8{}}
	r := rand.New(rand.NewPCG(5, 5))
	chain := func(n int) []uint64 {
		c := make([]uint64, n)
		for i := range c {
			c[i] = r.Uint64()
		}
		return c
	}
	often := make([][]uint64, 20)
	for i := range often {
		often[i] = chain(10)
	}
	var once [][]uint64 // lru has none that are older
	h := &s.hedge
	for i := range 8000 {
		if i%2 == 0 {
			f.ask(often[r.IntN(len(often))], false)
		} else {
			c := chain(5 + r.IntN(20))
			f.ask(c, i%3 == 0)
			once = append(once[max(0, len(once)-room/5):], c)
		}
		if i%100 != 0 {
			continue
		}
		missing, ends := 0, 0
		for slot := range s.class {
			if slot > 0 && s.missing(uint32(slot)) == 1 {
				missing++
				if s.class[slot] == partial {
					ends++
				}
			}
		}
		if missing != h.missing || ends != h.ends {
			t.Fatalf("after %d requests %d blocks are missing, %d of them partial; the hedge counts %d and %d", i, missing, ends, h.missing, h.ends)
		}
	}
	if h.balance < 0.1*h.total || h.missing < room/4 {
		t.Fatalf("of %v uses the policy has won %v, and %d blocks are missing: nothing to lose", h.total, h.balance, h.missing)
	}
	won, missing, least := h.balance, h.missing, h.balance
	for range 300 {
		worst, most := []uint64(nil), 0
		for _, c := range once {
			n := 0
			for _, key := range c {
				if f.isMissing(key) {
					n++
				}
			}
			if n > most {
				worst, most = c, n
			}
		}
		if worst == nil {
			worst = chain(20)
			once = append(once[max(0, len(once)-room/5):], worst)
		}
		f.ask(worst, false)
		least = min(least, h.balance)
	}
	if lost := won - least; lost < float64(missing)/2 || lost > 3*float64(missing) {
		t.Errorf("%d blocks were missing when the traffic turned, and %v hits were lost", missing, lost)
	}
}
