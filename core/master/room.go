package master

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

var errTooMany = errors.New("victims: named more handles than were asked for")

// pressure remembers how short of room the store was.
type pressure struct {
	mu     sync.Mutex // a leaf
	report EvictionReport
	logged int64
}

// makeRoom evicts until q can be placed, and places it: the ranges belong to nobody yet. Without room it
// returns none. No shard may be locked.
// wanted is asked before something is evicted for it; with its no the put has no room.
func (s *Service) makeRoom(q *request, now int64, wanted func() bool) []placement {
	if v := s.registry.view.Load(); len(v.units) == 0 || q.size > v.largest {
		return nil // nothing that is thrown away could help
	}
	var dst []placement
	if s.releaseDue(now, true) > 0 {
		if dst = s.place(nil, q, 0, now); len(dst) > 0 {
			return dst
		}
	}
	if s.watermark {
		s.need.Store(true) // as upstream: the next round makes room, this put fails
		s.kickEviction()
		return dst
	}
	if !wanted() {
		return nil
	}
	s.demand.Store(now)
	s.counters.EvictionAttempts.Add(1)
	var seen tally
	s.squeeze(&seen, now, s.cfg.EvictionMaxBatch, func() bool {
		if len(dst) == 0 {
			dst = s.place(dst, q, 0, now)
		}
		return len(dst) > 0
	}, q)
	if len(dst) > 0 {
		if seen.evicted > 0 {
			s.counters.EvictionSuccesses.Add(1)
		}
		return dst
	}
	s.noRoom(q, &seen, now)
	return dst
}

// squeeze evicts until enough, from the domain and tenant that is furthest above its share first. When what
// was freed would be enough but lies scattered, it goes on in one segment.
func (s *Service) squeeze(seen *tally, now int64, most int, enough func() bool, q *request) bool {
	if !s.cfg.MultiTenants {
		d := s.defaultTenant.dom()
		d.mu.Lock()
		defer d.mu.Unlock()
		k := query{tenant: eviction.AnyTenant, probed: true, most: most, now: now, enough: enough, patient: q == nil}
		if q == nil || q.count > 1 {
			return d.evict(&k, seen)
		}
		scattered := false
		k.enough = func() bool {
			scattered = seen.bytes > 2*q.size+uint64(len(s.registry.view.Load().units))*q.size
			return enough() || scattered
		}
		if d.evict(&k, seen) && !scattered || enough() {
			return true
		}
		if !scattered {
			return false
		}
		// Or others took what was freed; without a segment to look at it goes on everywhere.
		k.segment, k.enough = s.roomiest(q.size, now), enough
		return d.evict(&k, seen)
	}
	var own *tenant
	if q != nil {
		own = q.tenant
	}
	return s.squeezeTenants(seen, now, most, enough, own, false) || own != nil && s.squeezeTenants(seen, now, most, enough, own, true)
}

// squeezeTenants takes from the tenant furthest above its share until the next one is as far above. From tenants
// that are not above their share, or would be below it without the next victim, it takes nothing, but for own, who
// wants the room. Lenient, who is above pays although less than one object: shares are no multiples of objects.
func (s *Service) squeezeTenants(seen *tally, now int64, most int, enough func() bool, own *tenant, lenient bool) bool {
	exhausted := map[uint16]bool{}
	for {
		var top *tenant
		next := int64(math.MinInt64)
		for _, t := range s.tenantTable().list {
			switch {
			case exhausted[t.number] || t.used.Load() <= 0 || t != own && t.excess() <= 0:
			case top == nil || t.excess() > top.excess():
				if top != nil {
					next = max(next, top.excess())
				}
				top = t
			default:
				next = max(next, t.excess())
			}
		}
		if top == nil || seen.evicted >= most {
			return enough()
		}
		k := query{tenant: eviction.AnyTenant, probed: true, most: most, now: now, patient: own == nil}
		if top != own {
			k.floor, k.lenient = top, lenient
		}
		d := top.dom()
		if d.name == anyTenant {
			k.tenant = uint32(top.number)
		}
		fair := false
		k.enough = func() bool {
			if enough() {
				return true
			}
			fair = top.excess() < next || top != own && top.excess() <= 0
			return fair
		}
		d.mu.Lock()
		done := d.evict(&k, seen)
		d.mu.Unlock()
		switch {
		case done && !fair:
			return true
		case !done:
			exhausted[top.number] = true
		}
	}
}

// quotaRoom evicts objects of a tenant until it may take bytes more.
func (s *Service) quotaRoom(t *tenant, bytes uint64, now int64) bool {
	if s.watermark {
		s.counters.EvictionAttempts.Add(1)
	}
	var seen tally
	k := query{tenant: eviction.AnyTenant, probed: true, most: s.cfg.EvictionMaxBatch, now: now, enough: func() bool { return s.overQuota(t, bytes) == 0 }}
	d := t.dom()
	if d.name == anyTenant {
		k.tenant = uint32(t.number)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.evict(&k, &seen)
}

// roomiest is the healthy segment with the most free space that could hold size bytes.
func (s *Service) roomiest(size uint64, now int64) *segment {
	var best *segment
	for _, u := range s.registry.view.Load().units {
		for _, g := range u.segs {
			if g.takes() && g.Size >= size && !g.isSuspect(now) && (best == nil || g.free.Load() > best.free.Load()) {
				best = g
			}
		}
	}
	return best
}

// freeSpace is the free space of all segments that take objects, and the largest put that would fit.
func (s *Service) freeSpace() (total, largest uint64) {
	for _, u := range s.registry.view.Load().units {
		for _, g := range u.segs {
			if g.takes() {
				total += g.free.Load()
				largest = max(largest, g.largest.Load())
			}
		}
	}
	return total, largest
}

// noRoom reports why a put failed, for the log (at most once a second), metrics and the administrator.
func (s *Service) noRoom(q *request, seen *tally, now int64) {
	total, largest := s.freeSpace()
	r := EvictionReport{
		AtMS: now, Need: q.size, Looked: seen.looked, Evicted: seen.evicted, Leased: seen.leased, Probed: seen.probed,
		SoftPinned: seen.soft, HardPinned: seen.hard, Busy: seen.busy, TotalFree: total, LargestFree: largest,
		Objects: int(s.counters.Keys.Load()),
	}
	// Refused objects stay aside until their leases end, so count them from there.
	for _, d := range s.allDomains() {
		if d.mu.TryLock() {
			r.Leased = max(r.Leased, d.lru.size[lruParked])
			r.HardPinned = max(r.HardPinned, d.lru.size[lruHard])
			d.mu.Unlock()
		}
	}
	s.pressure.mu.Lock()
	s.pressure.report = r
	log := now-s.pressure.logged >= 1000
	if log {
		s.pressure.logged = now
	}
	s.pressure.mu.Unlock()
	if log {
		s.log.Warn("eviction made no room: "+r.String(), "put_bytes", q.size, "error", wire.ErrNoAvailableHandle)
	}
}

// String says what stood in the way.
func (r EvictionReport) String() string {
	return fmt.Sprintf("%d of %d objects evicted: %d leased, %d hard-pinned, %d soft-pinned, %d in use; %d bytes free, the largest free block holds %d",
		r.Evicted, r.Objects, r.Leased, r.HardPinned, r.SoftPinned, r.Busy, r.TotalFree, r.LargestFree)
}

// Background work of eviction.

// kickEviction wakes the background.
func (s *Service) kickEviction() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// maintainSpace is one pass of the background: it tells the policies what has happened, keeps the reserve,
// makes room in segments that were asked for, and runs upstream's rounds in watermark mode.
func (s *Service) maintainSpace(now int64) {
	for _, d := range s.allDomains() {
		if d.ring.backlog() > 0 {
			d.mu.Lock()
			d.drain(now)
			d.mu.Unlock()
		}
		d.tend(now)
	}
	s.releaseDue(now, false)
	if s.watermark {
		s.watermarkRound(now)
		return
	}
	s.keepReserve(now)
	s.serveWanted(now)
}

// demandWindow is how long after a put found no room the store counts as short of it.
const demandWindow = 5000

// short reports whether puts need eviction these days.
func (s *Service) short(now int64) bool {
	at := s.demand.Load()
	return at != 0 && now-at <= demandWindow
}

// backgroundStep is the number of objects that the background evicts before it lets others in.
const backgroundStep = 64

// keepReserve evicts ahead of demand while puts need eviction, so that most of them find room at once. A
// store that is merely full loses nothing.
func (s *Service) keepReserve(now int64) {
	target := min(uint64(s.cfg.FreeReserve), uint64(max(0, s.counters.CapacityBytes.Load()))/50)
	if target == 0 || !s.short(now) {
		return
	}
	enough := func() bool { return s.counters.CapacityBytes.Load()-s.counters.AllocatedBytes.Load() >= int64(target) }
	for {
		var seen tally
		if s.squeeze(&seen, now, backgroundStep, enough, nil) || seen.evicted == 0 {
			return
		}
	}
}

// wantedPeriod is how often the background looks for such segments, in milliseconds.
const wantedPeriod = 20

// serveWanted makes room in segments that writers prefer but found full. Puts that may spill lose nothing while
// there is room elsewhere; once the store must evict anyway, it does so where they want to be.
func (s *Service) serveWanted(now int64) {
	if s.cfg.MultiTenants || now-s.lastWanted < wantedPeriod || !s.wanted.Swap(false) {
		return // who of the tenants is to pay for a preference of another?
	}
	s.lastWanted = now
	idle := !s.evictPreferred && !s.short(now)
	for _, u := range s.registry.view.Load().units {
		for _, g := range u.segs {
			want := uint64(max(0, g.wanted.Swap(0)))
			want = min(want, g.Size/10)
			if idle || want == 0 || !g.takes() || g.isSuspect(now) || g.free.Load() >= want {
				continue
			}
			var seen tally
			for _, d := range s.allDomains() {
				k := query{tenant: eviction.AnyTenant, segment: g, most: 4096, now: now, patient: true, enough: func() bool { return g.free.Load() >= want }}
				d.mu.Lock()
				done := d.evict(&k, &seen)
				d.mu.Unlock()
				if done {
					break
				}
			}
		}
	}
}

// watermarkRound is upstream's: above the watermark, or after a put that found no room, evict a share of
// the objects.
func (s *Service) watermarkRound(now int64) {
	capacity := s.counters.CapacityBytes.Load()
	if capacity <= 0 {
		return
	}
	used := float64(s.counters.AllocatedBytes.Load()) / float64(capacity)
	need := s.need.Load() && s.cfg.EvictionRatio > 0
	if used <= s.cfg.Watermark && !need {
		return
	}
	target := max(s.cfg.EvictionRatio, used-s.cfg.Watermark+s.cfg.EvictionRatio)
	low := max(target/2, used-s.cfg.Watermark)
	evicted := 0
	base := 0
	var all tally
	for _, d := range s.allDomains() {
		n := int(d.known.Load() - d.hard.Load())
		base += n
		want, least := int(math.Ceil(float64(n)*target)), int(math.Ceil(float64(n)*low))
		var seen tally
		evict := func(want int, soft bool) {
			k := query{tenant: eviction.AnyTenant, most: want, now: now, noSoft: !soft, patient: true, enough: func() bool { return seen.evicted >= want }}
			d.mu.Lock()
			d.evict(&k, &seen)
			d.mu.Unlock()
		}
		evict(want, false)
		if seen.evicted < least {
			evict(least, true)
		}
		evicted += seen.evicted
		all.add(&seen)
	}
	if base == 0 {
		s.need.Store(false)
		return
	}
	s.counters.EvictionAttempts.Add(1)
	if evicted > 0 {
		s.counters.EvictionSuccesses.Add(1)
		s.need.Store(false)
	} else {
		s.noRoom(&request{}, &all, now)
	}
}
