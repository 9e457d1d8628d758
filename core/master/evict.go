package master

import (
	"slices"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// query is one round of eviction in a domain.
type query struct {
	tenant  uint32   // eviction.AnyTenant or a tenant's number
	segment *segment // nil: any
	probed  bool     // objects that were only asked for may go when nothing else is left
	final   bool     // nothing else is left
	floor   *tenant  // must not fall below its share
	floored bool     // the next victim would make it
	lenient bool     // one object may
	helped  bool     // the victims are the LRU's although a policy is configured
	noSoft  bool     // leave soft pins alone
	patient bool     // it waits for policies that work aside: no put does
	asked   uint16   // the domain's round when these victims were named
	most    int      // objects to evict
	now     int64
	enough  func() bool // asked after each object
}

// tally is what a round saw.
type tally struct {
	looked, evicted int
	bytes           uint64 // freed, after rounding
	requested       uint64 // freed, as puts asked for
	leased, probed  int
	soft, hard      int
	busy, used      int
	elsewhere       int
	offloads        int
	base            int // refusals that do not count any more
}

func (t *tally) add(o *tally) {
	t.looked += o.looked
	t.evicted += o.evicted
	t.leased += o.leased
	t.probed += o.probed
	t.soft += o.soft
	t.hard += o.hard
	t.busy += o.busy
}

// maxRefused bounds the refusals of one round, so that a put does not wait for long even when a great part
// of the store is leased. Refused objects are set aside, so the next round goes on behind them.
const maxRefused = 1 << 14

// evict removes objects until enough, in the order of the policy: first the unpinned, then soft-pinned ones
// if the config allows it, then those that are protected by nothing but a probe. Called with d.mu held.
func (d *domain) evict(q *query, t *tally) (done bool) {
	if q.enough() {
		return true
	}
	if d.rule.Factory != nil && d.policy == nil {
		d.drain(q.now) // makes the first instance, or tries a failed policy again
	}
	d.lru.unpark(q.now)
	if d.policy != nil && d.byPolicy(q, t, 0) {
		return true
	}
	if d.byLRU(q, t, lruMain) {
		return true
	}
	if d.s.cfg.EvictSoftPinned && !q.noSoft && !d.over(q, t) {
		if d.policy != nil && d.lru.lists[lruSoft].back != 0 && d.byPolicy(q, t, eviction.NeedSoftPins) {
			return true
		}
		if d.byLRU(q, t, lruSoft) {
			return true
		}
	}
	if q.probed && t.evicted < q.most && d.lru.lists[lruProbed].back != 0 {
		last := *q
		last.final = true
		t.base = t.looked - t.evicted
		return d.byLRU(&last, t, lruProbed)
	}
	return false
}

// over reports that a round has done all it may.
func (d *domain) over(q *query, t *tally) bool {
	return q.floored || t.evicted >= q.most || t.looked-t.evicted-t.base >= maxRefused
}

// plain is a question that any object may answer: only those use the reserve.
func (q *query) plain() bool { return q.segment == nil && q.tenant == eviction.AnyTenant }

// byPolicy asks the policy and takes what it names. It stops when the policy has nothing new to say: it
// names nothing, or only what was refused and is still protected.
func (d *domain) byPolicy(q *query, t *tally, flags eviction.NeedFlags) bool {
	q.helped = false
	if flags == 0 && q.plain() && !d.backUp {
		if done, _ := d.takeReserve(q, t); done {
			return true
		}
	}
	need := eviction.Need{Max: d.most(), Tenant: q.tenant, Flags: flags}
	if q.segment != nil {
		need.Segment = q.segment.number
	}
	for d.policy != nil && !d.over(q, t) {
		d.drain(q.now)
		if d.policy == nil {
			return false
		}
		// Only answers that are kept for later need to know what was used meanwhile; and the round must not
		// change while they are kept.
		d.dropReserve()
		if d.asked = 0; flags == 0 && q.plain() {
			d.asked = d.nextRound()
		}
		victims, err := d.policy.Victims(d.reserve[:0], need)
		if err == nil && len(victims) > need.Max {
			err = errTooMany
		}
		if err != nil {
			d.failed(q.now, err)
			return false
		}
		if d.reserve, d.taken, d.backUp = d.vet(victims, q.now), 0, false; d.policy == nil {
			return false
		}
		done, progress := d.takeReserve(q, t)
		if flags != 0 || !q.plain() {
			d.dropReserve()
		}
		if len(victims) == 0 && q.patient && d.await(need) {
			continue
		}
		if done || !progress {
			return done
		}
	}
	return false
}

// takeReserve takes victims of the last answer. progress: one of them was taken, or refused for the first
// time.
func (d *domain) takeReserve(q *query, t *tally) (done, progress bool) {
	for d.taken < len(d.reserve) && !d.over(q, t) {
		h := d.reserve[d.taken]
		d.taken++
		q.asked = d.asked
		if d.lru.isParked(h) {
			d.again(h, q.now)
			continue
		}
		if d.take(h, q, t) {
			progress = true
			if q.enough() {
				return true, true
			}
		} else if d.lru.isParked(h) {
			progress = true
		}
	}
	return false, progress
}

// byLRU takes the oldest handles of one place in the service's own order.
func (d *domain) byLRU(q *query, t *tally, place uint8) bool {
	q.helped = d.rule.Factory != nil
	if place == lruMain && q.plain() && d.policy == nil {
		return d.byReserve(q, t)
	}
	batch := make([]eviction.Handle, 0, 64)
	for !d.over(q, t) {
		d.drain(q.now)
		q.asked = 0
		batch = d.lru.victims(batch[:0], place, cap(batch))
		if place == lruMain && !q.plain() {
			batch = d.lru.victims(batch[:0], place, maxRefused)
		}
		before := t.evicted
		moved := false
		for _, h := range batch {
			if d.over(q, t) {
				return false
			}
			was := d.lru.at(h)
			if d.take(h, q, t) {
				if q.enough() {
					return true
				}
			} else if d.lru.at(h) != was {
				moved = true
			}
		}
		if t.evicted == before && !moved {
			return false
		}
	}
	return false
}

// byReserve is byLRU for the common case: answers are kept for the next round.
func (d *domain) byReserve(q *query, t *tally) bool {
	if !d.backUp {
		d.dropReserve()
	}
	for {
		if done, _ := d.takeReserve(q, t); done {
			return true
		}
		if d.over(q, t) {
			return false
		}
		d.drain(q.now)
		d.asked = d.nextRound()
		d.reserve = d.lru.victims(d.reserve[:0], lruMain, d.most())
		if d.taken, d.backUp = 0, true; len(d.reserve) == 0 {
			return false
		}
	}
}

// most is the number of victims to ask for at a time.
func (d *domain) most() int { return max(1, int(d.count.reserve.Load())) }

// vet takes out of an answer what the policy must not have named, and counts that against it: by the events that
// it was told the handle is not resident, or hard-pinned, or it is there twice. Everything has been told when the
// question is asked, so the LRU knows exactly what the policy knows.
func (d *domain) vet(victims []eviction.Handle, now int64) []eviction.Handle {
	ok := victims[:0]
	var seen map[eviction.Handle]bool
	if len(victims) > 64 {
		seen = make(map[eviction.Handle]bool, len(victims))
	}
	for _, h := range victims {
		code := eviction.Code(0)
		place := uint8(lruNone)
		if h != 0 && d.lru.knows(h) {
			place = d.lru.at(h)
		}
		switch {
		case place == lruNone:
			code = eviction.CodeUnknown
			d.refuse(refusedUnknown)
		case seen != nil && seen[h], seen == nil && slices.Contains(ok, h):
			code = eviction.CodeDuplicate
			d.refuse(refusedDuplicate)
		case place == lruHard:
			code = eviction.CodePinned
			d.refuse(refusedPinned)
		default:
			if seen != nil {
				seen[h] = true
			}
			ok = append(ok, h)
			continue
		}
		if h != 0 && uint32(h) <= d.handles {
			d.rejectHandle(h, code, now)
		}
		if d.strike(now); d.policy == nil {
			return nil
		}
	}
	return ok
}

// rejectHandle tells that a handle was refused, with what is known of it.
func (d *domain) rejectHandle(h eviction.Handle, code eviction.Code, now int64) {
	r := d.ring.object(h)
	sh := &d.s.shards[r.shard()]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	o := sh.live(r.index())
	if o == nil || o.handle != h {
		o = nil
	}
	d.reject(sh, o, h, code, now)
}

// nextRound is a new number for answers that are kept; never 0, which no answer has.
func (d *domain) nextRound() uint16 {
	n := uint16(d.round.Add(1))
	if n == 0 {
		n = uint16(d.round.Add(1))
	}
	return n
}

func (d *domain) dropReserve() { d.reserve, d.taken = d.reserve[:0], 0 }

// again refuses a handle that the policy names although its last refusal still holds.
func (d *domain) again(h eviction.Handle, now int64) {
	if !d.told.Load() {
		return
	}
	d.rejectHandle(h, eviction.CodeLeased, now)
}

// take checks a victim against the object as it is now and removes it, with its whole group, or refuses it.
func (d *domain) take(h eviction.Handle, q *query, t *tally) bool {
	t.looked++
	r := d.ring.object(h)
	if r == 0 {
		return false // it went after it was named
	}
	sh := &d.s.shards[r.shard()]
	sh.mu.Lock()
	o := sh.live(r.index())
	if o == nil || o.handle != h || d.s.tenantOf(o).dom() != d {
		// Its REMOVE is on the way.
		sh.mu.Unlock()
		return false
	}
	code, until := d.refusal(sh, r.index(), o, q, t)
	if code != 0 {
		d.reject(sh, o, h, code, q.now)
		sh.mu.Unlock()
		d.refused(h, code, until, q)
		return false
	}
	group := o.group
	if group == 0 {
		ok := d.remove(sh, r, o, q, t)
		sh.mu.Unlock()
		return ok
	}
	members := d.s.groups.at(group).copyMembers(nil)
	sh.mu.Unlock()
	return d.takeGroup(members, q, t)
}

// takeGroup removes all members of a group that may go.
func (d *domain) takeGroup(members []ref, q *query, t *tally) bool {
	if q.floor != nil {
		sum := int64(0)
		for _, r := range members {
			sh := &d.s.shards[r.shard()]
			sh.mu.Lock()
			if o := sh.live(r.index()); o != nil {
				sum += int64(roundUp(o.size)) * int64(o.count)
			}
			sh.mu.Unlock()
		}
		if q.floor.excess() < sum {
			q.floored = true
			return false
		}
	}
	any := false
	for _, r := range members {
		sh := &d.s.shards[r.shard()]
		sh.mu.Lock()
		if o := sh.live(r.index()); o != nil && o.handle != 0 && d.s.tenantOf(o).dom() == d {
			var ignore tally
			all := *q
			all.tenant, all.segment, all.floor = eviction.AnyTenant, nil, nil // a group goes as a whole
			if code, _ := d.refusal(sh, r.index(), o, &all, &ignore); code == 0 && d.remove(sh, r, o, &all, t) {
				any = true
			}
		}
		sh.mu.Unlock()
	}
	return any
}

// refusal says why an object cannot go now, and until when.
func (d *domain) refusal(sh *shard, n uint32, o *object, q *query, t *tally) (code eviction.Code, until int64) {
	switch {
	case o.is(fHardPin):
		t.hard++
		d.refuse(refusedPinned)
		return eviction.CodePinned, 0
	case q.tenant != eviction.AnyTenant && uint32(o.tenant) != q.tenant:
		t.elsewhere++
		d.refuse(refusedElsewhere)
		return eviction.CodeOtherTenant, 0
	}
	if q.floor != nil && !q.lenient && q.floor.excess() < int64(roundUp(o.size))*int64(o.count) {
		q.floored = true
		return eviction.CodeOtherTenant, 0
	}
	lease, probe := o.lease, o.probe
	if o.group != 0 {
		g := d.s.groups.at(o.group)
		lease, probe = max(lease, g.anyLease.Load()), max(probe, g.anyProbe.Load())
	}
	if lease > q.now {
		t.leased++
		d.refuse(refusedLeased)
		return eviction.CodeLeased, lease
	}
	if (q.noSoft || !d.s.cfg.EvictSoftPinned) && sh.softPinned(n, o, q.now) {
		t.soft++
		d.refuse(refusedPinned)
		return eviction.CodePinned, 0
	}
	if q.asked != 0 && o.touched == q.asked {
		t.used++
		if !d.outside {
			d.refuse(refusedUsed) // else it is counted and told when the policy hears of the read
		}
		return eviction.CodeUsed, 0
	}
	there, free := false, false
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.kind != wire.KindMemory || q.segment != nil && it.seg != q.segment.number {
			continue
		}
		there = true
		free = free || it.state == complete && it.busy == 0 && d.s.alive(it.replica)
	}
	switch {
	case !there:
		t.elsewhere++
		d.refuse(refusedElsewhere)
		return eviction.CodeNotThere, 0
	case !free || o.is(fUpsert):
		t.busy++
		d.refuse(refusedBusy)
		return eviction.CodeBusy, q.now + 1000
	case probe > q.now && !q.final:
		t.probed++
		d.refuse(refusedProbed)
		return codeProbed, probe
	}
	return 0, 0
}

// codeProbed is told to policies as leased.
const codeProbed eviction.Code = 0xffff

// refused sets a refused handle aside, so that it is not proposed again for every put.
func (d *domain) refused(h eviction.Handle, code eviction.Code, until int64, q *query) {
	switch code {
	case codeProbed:
		d.lru.park(h, true, until)
	case eviction.CodeLeased, eviction.CodeBusy:
		d.lru.park(h, false, until)
	}
}

// remove takes the memory replicas of an object away; called with its shard locked.
func (d *domain) remove(sh *shard, r ref, o *object, q *query, t *tally) bool {
	s := d.s
	if s.cfg.OffloadEvict && s.cfg.Offload && !s.offloadFirst(sh, r, o, t, q.now) {
		t.busy++
		d.refuse(refusedBusy)
		d.lru.park(o.handle, false, q.now+1000)
		return false
	}
	tn := s.tenantOf(o)
	size := o.size
	// A segment that is short of room gives up its copy only, if there is another.
	only := uint32(0)
	if q.segment != nil && has(sh, o, func(r *replica) bool { return r.seg != q.segment.number && isCompleteMemory(r) && s.alive(r) }) {
		only = q.segment.number
	}
	copies, freed := s.discardAll(sh, o, freeNow, 0, q.now, func(r *replica) bool {
		return isCompleteMemory(r) && r.busy == 0 && (only == 0 || r.seg == only)
	})
	if s.settle(sh, r.index(), o, eviction.CodeEvicted, q.now) && o.handle != 0 {
		s.emitMoved(sh, o, q.now)
	}
	if q.helped {
		d.count.fallbacks.Add(1)
	}
	t.evicted++
	t.bytes += freed
	t.requested += size * uint64(copies)
	d.count.evicted.Add(1)
	tn.evicted.Add(freed)
	s.counters.EvictedKeys.Add(1)
	s.counters.EvictedBytes.Add(size * uint64(copies))
	return true
}
