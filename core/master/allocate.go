package master

import (
	"hash/maphash"
	"slices"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// request is what a put wants placed. Strings may be the connection's: they are only compared.
type request struct {
	size      uint64
	count     int    // replicas, on distinct names
	preferred string // replaces the list if not empty
	list      []string
	unit      *unit   // preferred before all others: where the first key of the batch went
	host      string  // local_first: the writer's host
	hash      uint64  // of the key, spreads keys over other hosts
	tenant    *tenant // who puts; nil: the store itself, for a copy
	not       []string
	told      bool // full segments that it prefers know of it
}

// strategies of placement.
const (
	strategyRandom = iota
	strategyFreeRatio
	strategyLocal
	strategySSD
)

func strategyOf(name string) int {
	return map[string]int{"free_ratio_first": strategyFreeRatio, "local_first": strategyLocal, "ssd_free_ratio_first": strategySSD}[name]
}

// maxTries bounds the names that one put looks at when most are full, as upstream does.
const maxTries = 100

// random is a small counter-based generator, so that a seed makes a service repeatable.
func (s *Service) random() uint64 {
	x := s.rng.Add(0x9e3779b97f4a7c15)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func randomSeed() uint64 { return maphash.Comparable(maphash.MakeSeed(), 0) }

// chooser collects the placements of one put.
type chooser struct {
	s   *Service
	q   *request
	v   *view
	r   ref
	now int64
	dst []placement
	end int // len(dst) when complete
}

// place takes ranges for q and appends them to dst: as many as asked if possible, else fewer. It never
// evicts.
func (s *Service) place(dst []placement, q *request, r ref, now int64) []placement {
	v := s.registry.view.Load()
	if len(v.units) == 0 || q.size > v.largest {
		return dst
	}
	c := chooser{s, q, v, r, now, dst, len(dst) + min(q.count, len(v.units))}
	switch {
	case q.unit != nil:
		c.prefer(v.unit(q.unit.name))
	case q.preferred != "":
		c.prefer(v.unit(q.preferred))
	default:
		for _, name := range q.list {
			c.prefer(v.unit(name))
		}
	}
	if q.host != "" {
		c.local()
	}
	q.told = true
	if !c.done() && (s.strategy == strategyFreeRatio || s.strategy == strategySSD) {
		c.byScore()
	}
	if !c.done() {
		c.walk()
	}
	return c.dst
}

func (c *chooser) done() bool { return len(c.dst) >= c.end }

// used reports whether a unit has a replica of this object or is excluded.
func (c *chooser) used(u *unit) bool {
	for i := range c.dst {
		if c.dst[i].seg.Name == u.name {
			return true
		}
	}
	return slices.Contains(c.q.not, u.name)
}

// try takes a range in a unit: its segments from a random one on, the healthy ones first.
func (c *chooser) try(u *unit, sick bool) bool {
	start := 0
	if len(u.segs) > 1 {
		start = int(c.s.random() % uint64(len(u.segs)))
	}
	for i := range u.segs {
		g := u.segs[(start+i)%len(u.segs)]
		if g.isSuspect(c.now) != sick || !g.takes() {
			continue
		}
		if p, ok := g.take(c.q.size, c.r); ok {
			c.dst = append(c.dst, p)
			return true
		}
	}
	return false
}

// prefer tries a unit that the writer asked for. A preference is soft: sick or full ones are passed by.
func (c *chooser) prefer(u *unit) {
	if u == nil || c.done() || c.used(u) || c.try(u, false) || c.q.told {
		return
	}
	for _, g := range u.segs {
		if g.takes() && c.q.size <= g.Size {
			g.wanted.Add(int64(c.q.size))
			if !c.s.wanted.Swap(true) {
				c.s.kickEviction()
			}
			break
		}
	}
}

// local tries the units on the writer's host, then those on other hosts in an order that differs by key.
func (c *chooser) local() {
	hosts := c.v.hosts()
	for _, u := range hosts.byName[c.q.host] {
		c.prefer(u)
	}
	tries := 0
	for i := range hosts.names {
		h := hosts.names[(uint64(i)+c.q.hash)%uint64(len(hosts.names))]
		if h == c.q.host {
			continue
		}
		for _, u := range hosts.byName[h] {
			if c.done() || tries == maxTries {
				return
			}
			if tries++; !c.used(u) {
				c.try(u, false)
			}
		}
	}
}

// byScore samples units and takes those with the greatest free share.
func (c *chooser) byScore() {
	n := len(c.v.units)
	k := min(6*(c.end-len(c.dst)), n, maxTries)
	type scored struct {
		u *unit
		v float64
	}
	var buf [24]scored
	list := buf[:0]
	start := int(c.s.random() % uint64(n))
	for i := range k {
		u := c.v.units[(start+i)%n]
		if !c.used(u) {
			list = append(list, scored{u, c.score(u)})
		}
	}
	slices.SortStableFunc(list, func(a, b scored) int {
		switch {
		case a.v > b.v:
			return -1
		case a.v < b.v:
			return 1
		}
		return 0
	})
	for _, x := range list {
		if c.done() {
			return
		}
		c.try(x.u, false)
	}
}

// score is the free share of a unit, or of its owner's disk, damped while the segment is fresh so that an
// empty newcomer is not crushed by all new writes.
func (c *chooser) score(u *unit) float64 {
	if c.s.strategy == strategySSD {
		return c.s.diskFree(u.segs[0].client) * u.segs[0].warmth(c.now)
	}
	var free, size uint64
	warm := 1.0
	for _, g := range u.segs {
		free += g.free.Load()
		size += g.Size
		warm = min(warm, g.warmth(c.now))
	}
	return float64(free) / float64(max(1, size)) * warm
}

// walk goes once through the units from a random one on. A fresh unit is passed by more often than not at
// first; units that were passed by and sick ones come last.
func (c *chooser) walk() {
	n := len(c.v.units)
	start := int(c.s.random() % uint64(n))
	tries := min(n, maxTries)
	cold := false
	for i := range tries {
		u := c.v.units[(start+i)%n]
		if c.used(u) {
			continue
		}
		if w := u.segs[0].warmth(c.now); w < 1 && n > 1 && float64(c.s.random()>>11)/(1<<53) > w {
			cold = true
			continue
		}
		if c.try(u, false); c.done() {
			return
		}
	}
	for pass := range 2 { // 0: fresh units that were passed by; 1: sick ones
		if pass == 0 && !cold {
			continue
		}
		for i := range tries {
			u := c.v.units[(start+i)%n]
			if c.used(u) {
				continue
			}
			if c.try(u, pass == 1); c.done() {
				return
			}
		}
	}
}

// placeOn takes one range in a named unit, healthy or not: copies and moves name their targets.
func (s *Service) placeOn(name string, size uint64, r ref) (placement, wire.ErrorCode) {
	u := s.registry.view.Load().unit(name)
	if u == nil {
		return placement{}, wire.ErrSegmentNotFound
	}
	q := request{size: size, count: 1}
	c := chooser{s: s, q: &q, r: r, now: s.now()}
	if c.try(u, false) || c.try(u, true) {
		return c.dst[0], wire.OK
	}
	return placement{}, wire.ErrNoAvailableHandle
}
