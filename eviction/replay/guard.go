package replay

import "github.com/mooncake-agent/mooncake/eviction"

// guard compares the policy with what a tail-first LRU of the same room would have done, as the store does: a
// shadow cache of a sample of the keys, by hash; minute by minute, over the last ten that had traffic.
type guard struct {
	mask   uint64 // keys with hash&mask == 0 are in the sample
	keys   []uint64
	lru    hostLRU // of ids plus 1
	in     []bool
	bytes  uint64
	minute uint64
	now    guardMinute
	last   [guardMinutes]guardMinute
	worse  uint64 // since when the policy has been worse, in ms plus 1
	over   bool
}

// guardMinute counts the sampled blocks of one minute that were asked for.
type guardMinute struct{ asked, store, shadow uint64 }

const (
	guardMinutes = 10
	guardMargin  = 0.01
	guardLeast   = 1000 // sampled blocks, below which nothing is concluded
	guardSample  = 4096 // resident blocks of a sample from which on it may be halved
	guardMask    = 15
)

func newGuard(t *Trace) *guard {
	n := t.Unique()
	return &guard{keys: t.keys, in: make([]bool, n), lru: hostLRU{older: make([]eviction.Handle, n+1), newer: make([]eviction.Handle, n+1)}}
}

// wanted follows one request before its blocks are visited.
func (g *guard) wanted(s *sim, chain []uint32, matched uint32) {
	g.judge(s)
	if g.over {
		return
	}
	share := s.cap / (g.mask + 1)
	whole := true
	for k, id := range chain {
		if g.keys[id]&g.mask != 0 {
			continue
		}
		g.now.asked++
		if uint32(k) < matched {
			g.now.store++
		}
		if whole = whole && g.in[id]; whole {
			g.now.shadow++
		}
	}
	n := 0
	for k := len(chain) - 1; k >= 0; k-- {
		id := chain[k]
		if g.keys[id]&g.mask != 0 {
			continue
		}
		n++
		h := eviction.Handle(id + 1)
		if g.in[id] {
			g.lru.touch(h)
			continue
		}
		g.in[id] = true
		g.lru.push(h)
		g.bytes += s.t.Size(id)
		for g.bytes > share && g.lru.back != h {
			g.remove(s, g.lru.back)
		}
	}
	if g.mask < guardMask && s.count/(g.mask+1) > guardSample {
		g.thin(s)
	}
}

func (g *guard) remove(s *sim, h eviction.Handle) {
	g.lru.remove(h)
	g.in[h-1] = false
	g.bytes -= s.t.Size(uint32(h - 1))
}

// thin halves the sample.
func (g *guard) thin(s *sim) {
	g.mask = g.mask<<1 | 1
	for h := g.lru.back; h != 0; {
		next := g.lru.newer[h]
		if g.keys[h-1]&g.mask != 0 {
			g.remove(s, h)
		}
		h = next
	}
}

// judge closes the minute when it is over.
func (g *guard) judge(s *sim) {
	const minuteMS = 60_000
	m := s.now / minuteMS
	if g.over || m == g.minute {
		return
	}
	if g.now.asked > 0 {
		copy(g.last[1:], g.last[:])
		g.last[0] = g.now
		var sum guardMinute
		for _, b := range g.last {
			sum.asked += b.asked
			sum.store += b.store
			sum.shadow += b.shadow
		}
		switch {
		case sum.asked < guardLeast:
		case s.p == nil || float64(sum.shadow)-float64(sum.store) <= guardMargin*float64(sum.asked):
			g.worse = 0
		case g.worse == 0:
			g.worse = g.minute*minuteMS + 1
		}
	}
	g.minute, g.now = m, guardMinute{}
	if g.worse != 0 && s.now+1-g.worse >= guardMinutes*minuteMS {
		s.res.Alarms++
		g.over = true
		s.flush()
		s.drop()
		s.host.retryAt = 0
	}
}
