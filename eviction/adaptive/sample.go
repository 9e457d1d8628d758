package adaptive

import (
	"math"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

// The shadow caches over the sampled keys.
const (
	lru     = iota // least recently used: what the policy is measured against
	index          // lowest index always: what the policy could win
	self           // as the policy does it
	shadows = 3
)

// sample follows a part of the keys, chosen by hash, whether they are resident or not: it feeds the estimate
// with uses that the cache missed and runs the shadow caches. Keys that were not used for the longest time
// are dropped when it is full. All its work is per sampled use, so that it costs little in large caches.
type sample struct {
	limit  uint64 // keys below it are sampled
	keys   order.Ghosts
	class  []uint8           // by slot
	last   []uint64          // ms of the last use by slot
	bin    []uint8           // youngest age bin not yet counted in hazard.risk
	in     []uint8           // by slot: bit i tells whether it is in shadow i
	left   [shadows][]uint32 // by slot: the request during which it was thrown out of shadow i
	hazard *hazard           // apart, so that the garbage collector need not look at it
	table  *table
	coarse *table
	queues [shadows]queue // that of lru is not used: its members are the newest keys
	n      [shadows]int   // members
	oldest uint32         // of the members of lru, 0 if there is none
	room   int            // members that each shadow may have
	uses   int            // sampled uses since the last estimate
	period int
	hedge  hedge
	// changed: there is a new table since somebody last looked.
	changed bool
}

const (
	sampleRoom   = 4096 // blocks in a shadow cache, if that many fit into the real one
	sampleMemory = 8    // sampled keys for each of them
)

func newSample(maxHandles uint32) *sample {
	slots := uint32(min(sampleRoom, uint64(maxHandles))) * sampleMemory
	s := &sample{
		hazard: new(hazard), table: new(table), coarse: new(table), keys: order.NewGhosts(slots, 1),
		class: make([]uint8, slots+1), last: make([]uint64, slots+1), bin: make([]uint8, slots+1), in: make([]uint8, slots+1),
		period: max(int(slots)/8, 1024),
	}
	for i := range shadows {
		s.left[i] = make([]uint32, slots+1)
		if i != lru {
			s.queues[i] = newQueue(slots)
		}
	}
	return s
}

// resize sets the share of keys that is sampled, for a cache that holds so many blocks.
func (s *sample) resize(blocks uint64) {
	s.limit, s.room = ^uint64(0), int(blocks)
	if blocks > sampleRoom {
		s.limit, s.room = ^uint64(0)/blocks*sampleRoom, sampleRoom
	}
}

// chosen spreads the hash again, in its own way: bits that are alike in all chosen keys must not be those that
// tables elsewhere look at.
func (s *sample) chosen(key uint64) bool { return (key^key>>32)*0xbf58476d1ce4e5b9 <= s.limit }

// use records that a sampled key was put or read by a request as a member of class, and returns its slot.
func (s *sample) use(key uint64, req uint32, class uint8, now uint64) uint32 {
	slot := s.keys.Find(key)
	if slot == 0 {
		if old := s.keys.Oldest(0); old != 0 && s.full() {
			s.drop(old, now)
		}
	} else {
		s.age(slot, now)
		s.hazard.used[s.class[slot]][ageBin(now-s.last[slot])]++
		if slot == s.oldest {
			s.oldest = s.keys.Newer(slot)
		}
	}
	slot = s.keys.Add(0, key)
	s.hedge.judge(s, slot, req)
	if class == partial {
		s.hedge.endUses++
		s.hedge.endHits += float64(s.in[slot] >> lru & 1)
	}
	n := s.missing(slot)
	s.count(slot, -n)
	s.class[slot], s.last[slot], s.bin[slot] = class, now, 0
	s.count(slot, n)
	s.enterLRU(slot)
	s.enter(index, slot, now, math.MaxUint64)
	s.enter(self, slot, now, s.horizon())
	s.hedge.weigh(s)
	if s.uses++; s.uses >= s.period {
		s.uses = 0
		s.estimate(now)
	}
	return slot
}

// enter makes a slot the newest member of its class in a shadow other than lru.
func (s *sample) enter(i int, slot uint32, now, horizon uint64) {
	q := &s.queues[i]
	if s.in[slot]>>i&1 != 0 {
		q.touch(eviction.Handle(slot), s.class[slot], now)
		return
	}
	for s.n[i] > 0 && s.n[i] >= s.room {
		s.leave(i, uint32(q.victim(s.table, now, horizon)))
	}
	s.mark(i, slot)
	q.push(eviction.Handle(slot), s.class[slot], now)
}

func (s *sample) leave(i int, slot uint32) {
	if s.in[slot]>>i&1 != 0 {
		s.unmark(i, slot)
		s.queues[i].remove(eviction.Handle(slot))
	}
}

// enterLRU makes the newest key a member of the lru shadow.
func (s *sample) enterLRU(slot uint32) {
	if s.in[slot]>>lru&1 == 0 {
		s.mark(lru, slot)
	}
	if s.oldest == 0 {
		s.oldest = slot
	}
	for s.n[lru] > max(1, s.room) {
		s.leaveLRU()
	}
}

func (s *sample) leaveLRU() {
	old := s.oldest
	s.oldest = s.keys.Newer(old)
	s.unmark(lru, old)
}

func (s *sample) mark(i int, slot uint32) {
	before := s.missing(slot)
	s.in[slot] |= 1 << i
	s.n[i]++
	s.count(slot, s.missing(slot)-before)
}

func (s *sample) unmark(i int, slot uint32) {
	before := s.missing(slot)
	s.in[slot] &^= 1 << i
	s.left[i][slot] = s.hedge.req
	s.n[i]--
	s.count(slot, s.missing(slot)-before)
}

// count tells the hedge that a slot is missing, or is no more.
func (s *sample) count(slot uint32, n int) {
	s.hedge.missing += n
	if s.class[slot] == partial {
		s.hedge.ends += n
	}
}

// missing is 1 if lru holds what self has given up.
func (s *sample) missing(slot uint32) int {
	if s.in[slot]&(1<<lru|1<<self) == 1<<lru {
		return 1
	}
	return 0
}

// horizon tells which blocks may go by index: those last used before it. When the policy may follow the index
// that is all of them; else those that lru would not have any more, if there are such.
func (s *sample) horizon() uint64 {
	switch {
	case s.hedge.free:
		return math.MaxUint64
	case s.n[lru] < s.room:
		return 0
	}
	return s.last[s.oldest]
}

func (s *sample) full() bool { return s.keys.Len() == len(s.class)-1 }

// since is how far back all sampled keys are remembered.
func (s *sample) since() uint64 {
	if !s.full() {
		return 0
	}
	return s.last[s.keys.Oldest(0)]
}

// age counts the bins that a slot has reached since it was counted last.
func (s *sample) age(slot uint32, now uint64) {
	end := ageBin(now - s.last[slot])
	for b := int(s.bin[slot]); b <= end; b++ {
		s.hazard.risk[s.class[slot]][b]++
	}
	s.bin[slot] = uint8(end + 1)
}

// drop forgets the oldest key.
func (s *sample) drop(slot uint32, now uint64) {
	s.age(slot, now)
	if s.in[slot]>>lru&1 != 0 {
		s.leaveLRU()
	}
	s.leave(index, slot)
	s.leave(self, slot)
	s.keys.Remove(slot)
}

// reclass corrects the class of a slot that was used by the present request.
func (s *sample) reclass(slot uint32, class uint8) {
	s.class[slot] = class
	for _, i := range [...]int{index, self} {
		if s.in[slot]>>i&1 != 0 {
			s.queues[i].touch(eviction.Handle(slot), class, s.last[slot])
		}
	}
}

// keep is what is left of old evidence at each estimate: half of it after some 14 of them, when every sampled
// key has been used about twice.
const keep = 0.95

// estimate brings the table up to date.
func (s *sample) estimate(now uint64) {
	for slot := s.keys.Oldest(0); slot != 0; slot = s.keys.Newer(slot) {
		s.age(slot, now)
	}
	s.tabulate()
	s.hazard.decay(keep)
}

// tabulate makes the table of the evidence: the mean of two estimates, with and without added told apart.
func (s *sample) tabulate() {
	s.hazard.index(s.table, false)
	s.hazard.index(s.coarse, true)
	for c := range s.table {
		for b := range s.table[c] {
			s.table[c][b] = (s.table[c][b] + s.coarse[c][b]) / 2
		}
	}
	s.table.keepHeads()
	s.queues[index].tableChanged()
	s.queues[self].tableChanged()
	s.changed = true
}

// keepHeads lets no block have a lower index than one below it in its chain, which is of no use without it. That one
// was used no more often and no later, so it is of a class with fewer uses, at the same or a greater age.
func (t *table) keepHeads() {
	for c := range partial {
		if _, _, reuse := features(c); reuse == 0 {
			continue
		}
		below := float32(0)
		for b := ageBins - 1; b >= 0; b-- {
			below = max(below, t[c-1][b])
			t[c][b] = max(t[c][b], below)
		}
	}
}

func (s *sample) memoryBytes() uint64 {
	n := s.keys.MemoryBytes() + uint64(cap(s.class)) + uint64(cap(s.last))*8 + uint64(cap(s.bin)+cap(s.in))
	for i := range s.queues {
		n += s.queues[i].memoryBytes() + uint64(cap(s.left[i]))*4
	}
	return n + classes*ageBins*4*(4+2)
}
