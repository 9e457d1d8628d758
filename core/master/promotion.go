package master

import (
	"math"
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// promotionTask is an object that the holder of its disk replica is to bring back to memory. The disk
// replica is busy meanwhile.
type promotionTask struct {
	source, target uint64 // replica ids; target 0 until memory is allocated
	size           uint64
	holder         *diskOwner
	start          int64
}

// promoter decides which objects are worth bringing back.
type promoter struct {
	mu         sync.Mutex // a leaf
	sketch     sketch
	candidates map[ref]*candidate // turned down for want of room; tried again
}

type candidate struct {
	hash       uint64
	seen, next int64
	tries      int
}

const (
	maxCandidates     = 50000
	candidateTries    = 8
	candidateLife     = 60_000
	candidateBackOff  = 500
	candidatesPerPoll = 64
)

// sketch estimates how often keys were asked for (count-min, halved now and then so that it forgets).
type sketch struct {
	rows  [4][]uint8
	added int
}

const sketchWidth = 1 << 16

func (k *sketch) add(hash uint64) int {
	if k.rows[0] == nil {
		for i := range k.rows {
			k.rows[i] = make([]uint8, sketchWidth)
		}
	}
	low := uint8(math.MaxUint8)
	var at [4]uint64
	for i := range k.rows {
		at[i] = (hash >> (i * 16)) % sketchWidth
		low = min(low, k.rows[i][at[i]])
	}
	if low < math.MaxUint8 {
		for i := range k.rows {
			if k.rows[i][at[i]] == low {
				k.rows[i][at[i]]++
			}
		}
		low++
	}
	if k.added++; k.added == 10*sketchWidth {
		k.added = 0
		for i := range k.rows {
			for j := range k.rows[i] {
				k.rows[i][j] /= 2
			}
		}
	}
	return int(low)
}

// promoteOnHit considers an object that was read and has no memory replica; called with the shard locked.
func (s *Service) promoteOnHit(sh *shard, si, n uint32, o *object, t *tenant, now int64) {
	if !has(sh, o, isLocalDisk) || has(sh, o, isMemory) {
		return
	}
	p := &s.promoter
	p.mu.Lock()
	times := p.sketch.add(o.hash)
	p.mu.Unlock()
	if times < s.cfg.PromoteAfter {
		s.counters.PromotionRejectedFrequency.Add(1)
		return
	}
	if !s.tryPromote(sh, n, o, t, now) {
		p.mu.Lock()
		r := makeRef(si, n)
		if c := p.candidates[r]; c != nil && c.hash == o.hash {
			c.seen, c.next, c.tries = now, now, 0
		} else if len(p.candidates) >= maxCandidates {
			s.counters.PromotionCandidateDropped.Add(1)
		} else {
			if p.candidates == nil {
				p.candidates = map[ref]*candidate{}
			}
			p.candidates[r] = &candidate{hash: o.hash, seen: now, next: now + candidateBackOff}
			s.counters.PromotionCandidateRecorded.Add(1)
		}
		p.mu.Unlock()
	}
}

// tryPromote queues an object for its holder. It reports false when it should be tried again later.
func (s *Service) tryPromote(sh *shard, n uint32, o *object, t *tenant, now int64) bool {
	capacity := s.counters.CapacityBytes.Load()
	if float64(s.counters.AllocatedBytes.Load()) >= s.cfg.Watermark*float64(max(1, capacity)) {
		s.counters.PromotionRejectedWatermark.Add(1)
		return false
	}
	if o.is(fProcessing | fPromotion) {
		return true
	}
	if s.counters.PromotionInFlight.Load() >= int64(s.cfg.PromoteQueue) {
		s.counters.PromotionRejectedCap.Add(1)
		return false
	}
	var source *replica
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if isLocalDisk(it.replica) && s.readable(it.replica) {
			source = it.replica
			break
		}
	}
	if source == nil {
		return true
	}
	d := s.disks.owner(source.seg)
	d.mu.Lock()
	ok := d.mounted && d.promotions.add(t.number, wire.OffloadTask{Tenant: t.name, Key: sh.keyString(o), Size: int64(source.place)})
	d.mu.Unlock()
	if !ok {
		return true
	}
	source.busy++
	o.flags |= fPromotion
	if sh.promotions == nil {
		sh.promotions = map[uint32]*promotionTask{}
	}
	sh.promotions[n] = &promotionTask{source: source.id, size: source.place, holder: d, start: now}
	s.counters.PromotionInFlight.Add(1)
	s.counters.PromotionAdmitted.Add(1)
	return true
}

// retryPromotions tries candidates again whose time has come.
func (s *Service) retryPromotions(now int64) {
	p := &s.promoter
	type due struct {
		r ref
		c candidate
	}
	var list []due
	p.mu.Lock()
	for r, c := range p.candidates {
		switch {
		case c.seen+candidateLife < now || c.tries >= candidateTries:
			delete(p.candidates, r)
			if c.tries == 0 {
				s.counters.PromotionCandidateExpiredUnevaluated.Add(1)
			} else {
				s.counters.PromotionCandidateExpiredEvaluated.Add(1)
			}
		case c.next <= now && len(list) < candidatesPerPoll:
			list = append(list, due{r, *c})
		}
	}
	p.mu.Unlock()
	for _, x := range list {
		sh := &s.shards[x.r.shard()]
		done := true
		sh.mu.Lock()
		if o := sh.live(x.r.index()); o != nil && o.hash == x.c.hash && !has(sh, o, isMemory) {
			if done = s.tryPromote(sh, x.r.index(), o, s.tenantOf(o), now); done && o.is(fPromotion) {
				s.counters.PromotionCandidateAdmitted.Add(1)
			}
		}
		sh.mu.Unlock()
		p.mu.Lock()
		if done {
			delete(p.candidates, x.r)
		} else if c := p.candidates[x.r]; c != nil {
			s.counters.PromotionCandidateRejected.Add(1)
			c.tries++
			c.next = now + candidateBackOff<<min(c.tries, 6)
		}
		p.mu.Unlock()
	}
}

// PromotionObjectHeartbeat hands a client what it is to bring back to memory.
func (s *Service) PromotionObjectHeartbeat(req *wire.ClientRequest, resp *wire.Result[[]wire.OffloadTask]) {
	resp.Value = resp.Value[:0]
	d := s.disks.mountedOwner(req.Client)
	if d == nil {
		resp.Code = wire.ErrSegmentNotFound
		return
	}
	resp.Code = wire.OK
	d.mu.Lock()
	defer d.mu.Unlock()
	resp.Value = d.promotions.take(resp.Value, s.cfg.PromotePerHB, s.numberOf)
}

// PromotionAllocStart allocates the memory that an object is brought back to.
func (s *Service) PromotionAllocStart(req *wire.PromotionAllocRequest, resp *wire.Result[wire.Replica]) {
	*resp = wire.Result[wire.Replica]{Value: wire.Replica{Slices: resp.Value.Slices[:0]}}
	t, code := s.readTenant(req.Tenant)
	if resp.Code = code; code != wire.OK {
		return
	}
	if resp.Code = wire.ErrObjectNotFound; t == nil {
		return
	}
	now := s.now()
	s.withObject(t, req.Key, func(sh *shard, n uint32, o *object) {
		if !s.freshen(sh, n, o, now) {
			return
		}
		task := sh.promotions[n]
		switch {
		case o.is(fProcessing), task == nil:
			resp.Code = wire.ErrReplicaIsNotReady
			return
		case task.holder.id != req.Client, task.size != req.Size:
			resp.Code = wire.ErrInvalidParams
			return
		case has(sh, o, isMemory), task.target != 0:
			resp.Code = wire.ErrReplicaIsNotReady
			return
		case !s.charge(t, roundUp(req.Size)):
			resp.Code = wire.ErrTenantQuotaExceeded
			return
		}
		defer s.uncharge(t, roundUp(req.Size))
		q := request{size: o.size, count: 1, list: req.PreferredSegments, hash: o.hash}
		var buf [1]placement
		placed := s.place(buf[:0], &q, makeRef(uint32(o.hash>>(64-shardBits)), n), now)
		if len(placed) == 0 {
			resp.Code = wire.ErrNoAvailableHandle
			return
		}
		t.used.Add(int64(placed[0].rounded))
		r := s.attach(sh, o, placed[0])
		task.target, task.start = r.id, now
		s.describe(sh, o, r, &resp.Value)
		resp.Code = wire.OK
	})
}

// NotifyPromotionSuccess makes the memory replica readable.
func (s *Service) NotifyPromotionSuccess(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	t, code := s.readTenant(req.Tenant)
	if resp.Code = code; code != wire.OK {
		return
	}
	if resp.Code = wire.ErrObjectNotFound; t == nil {
		return
	}
	now := s.now()
	s.withObject(t, req.Key, func(sh *shard, n uint32, o *object) {
		if !s.freshen(sh, n, o, now) {
			return
		}
		task := sh.promotions[n]
		if task == nil || task.target == 0 {
			resp.Code = wire.ErrReplicaIsNotReady
			return
		}
		if task.holder.id != req.Client {
			resp.Code = wire.ErrInvalidParams
			return
		}
		s.endPromotion(sh, n, o)
		r := sh.byID(o, task.target)
		if r == nil || r.state != processing {
			s.counters.PromotionCancelled.Add(1)
			resp.Code = wire.ErrReplicaIsNotReady
			return
		}
		r.state = complete
		s.recount(sh, o)
		s.counters.PromotionCompleted.Add(1)
		s.counters.PromotionCompletedBytes.Add(task.size)
		if o.handle == 0 {
			s.emitInsert(sh, makeRef(uint32(o.hash>>(64-shardBits)), n), o, t.dom(), &chain{}, now)
		}
		resp.Code = wire.OK
	})
}

// NotifyPromotionFailure gives a promotion up; doing it again is fine.
func (s *Service) NotifyPromotionFailure(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	t, code := s.readTenant(req.Tenant)
	if resp.Code = code; code != wire.OK {
		return
	}
	if resp.Code = wire.ErrObjectNotFound; t == nil {
		return
	}
	now := s.now()
	s.withObject(t, req.Key, func(sh *shard, n uint32, o *object) {
		resp.Code = wire.OK
		task := sh.promotions[n]
		switch {
		case task == nil:
		case task.holder.id != req.Client:
			resp.Code = wire.ErrInvalidParams
		default:
			s.counters.PromotionFailed.Add(1)
			s.abortPromotion(sh, n, o, now)
		}
	})
}

// endPromotion removes the task of an object.
func (s *Service) endPromotion(sh *shard, n uint32, o *object) *promotionTask {
	task := sh.promotions[n]
	if task == nil {
		return nil
	}
	delete(sh.promotions, n)
	o.flags &^= fPromotion
	if r := sh.byID(o, task.source); r != nil {
		r.busy--
	}
	t := s.tenantOf(o)
	key := sh.keyString(o)
	task.holder.mu.Lock()
	task.holder.promotions.drop(t.number, key)
	task.holder.mu.Unlock()
	s.counters.PromotionInFlight.Add(-1)
	return task
}

// abortPromotion ends a task and drops the memory that was allocated for it: its holder may still be
// writing there.
func (s *Service) abortPromotion(sh *shard, n uint32, o *object, now int64) {
	task := s.endPromotion(sh, n, o)
	if task != nil && task.target != 0 {
		if r := sh.byID(o, task.target); r != nil && r.state == processing {
			s.discard(sh, o, r, freeWritten, task.start, now)
			s.settle(sh, n, o, eviction.CodeReplaced, now)
		}
	}
}
