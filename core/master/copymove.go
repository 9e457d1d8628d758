package master

import (
	"slices"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// copyTask is a copy or move that a client is carrying out. Its source is busy meanwhile.
type copyTask struct {
	client  wire.UUID
	move    bool
	source  uint64 // replica id
	targets []uint64
	there   uint64 // move: the replica that the target held already, 0 none; busy, too
	lease   wire.UUID
	epoch   uint64
	start   int64
}

// targetsReady checks that segments exist and take objects.
func (s *Service) targetsReady(names ...string) wire.ErrorCode {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		switch known, takes := r.allocatable(name); {
		case !known:
			return wire.ErrSegmentNotFound
		case !takes:
			return wire.ErrUnavailableInCurrentStatus
		}
	}
	return wire.OK
}

// on returns the memory replica of an object in a named segment.
func (s *Service) on(sh *shard, o *object, name string) *replica {
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.kind == wire.KindMemory && s.alive(it.replica) && s.seg(it.replica).Name == name {
			return it.replica
		}
	}
	return nil
}

// startCopy finds the source, allocates in the targets that do not hold the object, and notes the task;
// called with the shard locked.
func (s *Service) startCopy(sh *shard, si, n uint32, o *object, t *tenant, source string, targets []string, task *copyTask, now int64, sourceOut *wire.Replica, out *[]wire.Replica) wire.ErrorCode {
	src := s.on(sh, o, source)
	if src == nil || src.state != complete {
		return wire.ErrReplicaNotFound
	}
	var fresh []string
	for _, name := range targets {
		if s.on(sh, o, name) == nil && !slices.Contains(fresh, name) {
			fresh = append(fresh, name)
		}
	}
	if s.cfg.MultiTenants && t.closed.Load() {
		return wire.ErrTenantNotRegistered
	}
	if int(o.count)+len(fresh) > maxReplicas {
		return wire.ErrInvalidParams
	}
	charge := roundUp(o.size) * uint64(len(fresh))
	if !s.charge(t, charge) {
		t.rejects.Add(1)
		s.counters.QuotaRejects.Add(1)
		return wire.ErrTenantQuotaExceeded
	}
	var placed []placement
	for _, name := range fresh {
		p, code := s.placeOn(name, o.size, makeRef(si, n))
		if code != wire.OK {
			s.uncharge(t, charge)
			s.cancelAll(placed, o.size)
			return code
		}
		placed = append(placed, p)
	}
	s.uncharge(t, charge)
	task.source, task.start = src.id, now
	src.busy++
	if task.move && len(fresh) == 0 {
		// The source will be dropped for this one, so it must not go meanwhile.
		r := s.on(sh, o, targets[0])
		r.busy++
		task.there = r.id
	}
	s.describe(sh, o, src, sourceOut)
	for _, p := range placed {
		t.used.Add(int64(p.rounded))
		r := s.attach(sh, o, p)
		task.targets = append(task.targets, r.id)
		s.describe(sh, o, r, grow(out))
	}
	o.flags |= fCopyTask
	if sh.copies == nil {
		sh.copies = map[uint32]*copyTask{}
	}
	sh.copies[n] = task
	return wire.OK
}

// CopyStart allocates the targets of a copy.
func (s *Service) CopyStart(req *wire.CopyStartRequest, resp *wire.Result[wire.CopyTargets]) {
	s.copyStart(req, resp)
}

// DynamicReplicaCopyStart is CopyStart for a copy that the master ordered by itself. This master orders
// none, so there is nothing that it could belong to.
func (s *Service) DynamicReplicaCopyStart(req *wire.CopyStartRequest, resp *wire.Result[wire.CopyTargets]) {
	s.copyStart(req, resp)
}

func (s *Service) copyStart(req *wire.CopyStartRequest, resp *wire.Result[wire.CopyTargets]) {
	s.counters.CopyStart.Requests.Add(1)
	resp.Value.Targets = resp.Value.Targets[:0]
	resp.Value.Source = wire.Replica{Slices: resp.Value.Source.Slices[:0]}
	t, code := s.writeTenant(req.Tenant)
	dynamic := !req.LeaseID.IsZero()
	if code == wire.OK && !dynamic {
		code = s.targetsReady(req.Targets...)
	}
	if code == wire.OK {
		code = wire.ErrObjectNotFound
		now := s.now()
		s.withObject(t, req.Key, func(sh *shard, n uint32, o *object) {
			switch {
			case !s.freshen(sh, n, o, now):
			case o.is(fCopyTask):
				code = wire.ErrObjectHasReplicationTask
			case dynamic:
				code = wire.ErrUnavailableInCurrentStatus
			default:
				task := &copyTask{client: req.Client}
				code = s.startCopy(sh, uint32(o.hash>>(64-shardBits)), n, o, t, req.Source, req.Targets, task, now, &resp.Value.Source, &resp.Value.Targets)
			}
		})
	}
	if resp.Code = code; code != wire.OK {
		s.counters.CopyStart.Failures.Add(1)
	}
}

// MoveStart allocates the target of a move; without one when it holds the object already.
func (s *Service) MoveStart(req *wire.MoveStartRequest, resp *wire.Result[wire.MoveTarget]) {
	s.counters.MoveStart.Requests.Add(1)
	resp.Value = wire.MoveTarget{}
	t, code := s.writeTenant(req.Tenant)
	if code == wire.OK && req.Source == req.Target {
		code = wire.ErrInvalidParams
	}
	if code == wire.OK {
		code = s.targetsReady(req.Target)
	}
	if code == wire.OK {
		code = wire.ErrObjectNotFound
		now := s.now()
		s.withObject(t, req.Key, func(sh *shard, n uint32, o *object) {
			switch {
			case !s.freshen(sh, n, o, now):
			case o.is(fCopyTask):
				code = wire.ErrObjectHasReplicationTask
			default:
				task := &copyTask{client: req.Client, move: true}
				var targets []wire.Replica
				code = s.startCopy(sh, uint32(o.hash>>(64-shardBits)), n, o, t, req.Source, []string{req.Target}, task, now, &resp.Value.Source, &targets)
				if len(targets) > 0 {
					resp.Value.Target = wire.Opt[wire.Replica]{Value: targets[0], OK: true}
				}
			}
		})
	}
	if resp.Code = code; code != wire.OK {
		s.counters.MoveStart.Failures.Add(1)
	}
}

// taskOf checks that a call belongs to the running task of an object.
func (sh *shard) taskOf(n uint32, req *wire.ObjectTaskRequest, move bool) (*copyTask, wire.ErrorCode) {
	task := sh.copies[n]
	switch {
	case task == nil:
		return nil, wire.ErrObjectNoReplicationTask
	case task.client != req.Client:
		return nil, wire.ErrIllegalClient
	case task.move != move:
		return nil, wire.ErrInvalidParams
	case task.lease != req.LeaseID || task.epoch != req.Epoch:
		return nil, wire.ErrInvalidVersion
	}
	return task, wire.OK
}

// endTask removes the task and lets its source go. Every way out of a copy leads here, so no source stays
// busy.
func (sh *shard) endTask(n uint32, o *object) {
	task := sh.copies[n]
	if task == nil {
		return
	}
	delete(sh.copies, n)
	o.flags &^= fCopyTask
	for _, id := range [...]uint64{task.source, task.there} {
		if r := sh.byID(o, id); r != nil {
			r.busy--
		}
	}
}

// abortCopy ends a task and drops what was copied.
func (s *Service) abortCopy(sh *shard, n uint32, o *object, f fate, now int64) {
	task := sh.copies[n]
	sh.endTask(n, o)
	s.discardAll(sh, o, f, task.start, now, func(r *replica) bool { return r.state == processing && slices.Contains(task.targets, r.id) })
	if s.settle(sh, n, o, eviction.CodeReplaced, now) {
		s.emitMoved(sh, o, now)
	}
}

// objectTask serves the calls that end a copy or move.
func (s *Service) objectTask(calls *Calls, req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void], move bool, f func(sh *shard, n uint32, o *object, task *copyTask, now int64) wire.ErrorCode) {
	calls.Requests.Add(1)
	t, code := s.readTenant(req.Tenant)
	if code == wire.OK {
		code = wire.ErrObjectNotFound
		if now := s.now(); t != nil {
			s.withObject(t, req.Key, func(sh *shard, n uint32, o *object) {
				var task *copyTask
				if task, code = sh.taskOf(n, req, move); code == wire.OK {
					code = f(sh, n, o, task, now)
				}
			})
		}
	}
	if resp.Code = code; code != wire.OK {
		calls.Failures.Add(1)
	}
}

// finish completes the targets that are still there. The source must be, too.
func (s *Service) finish(sh *shard, n uint32, o *object, task *copyTask, now int64) (all bool, code wire.ErrorCode) {
	src := sh.byID(o, task.source)
	if src == nil || src.state != complete || !s.alive(src) {
		s.abortCopy(sh, n, o, freeNow, now)
		return false, wire.ErrReplicaIsGone
	}
	all = true
	if task.there != 0 {
		r := sh.byID(o, task.there)
		all = r != nil && s.readable(r)
	}
	for _, id := range task.targets {
		if r := sh.byID(o, id); r != nil && s.alive(r) {
			r.state = complete
		} else {
			all = false
		}
	}
	return all, wire.OK
}

func (s *Service) copyEnd(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	s.objectTask(&s.counters.CopyEnd, req, resp, false, func(sh *shard, n uint32, o *object, task *copyTask, now int64) wire.ErrorCode {
		all, code := s.finish(sh, n, o, task, now)
		if code != wire.OK {
			return code
		}
		sh.endTask(n, o)
		if s.freshen(sh, n, o, now) {
			s.recount(sh, o)
			s.emitMoved(sh, o, now)
		}
		if !all {
			return wire.ErrReplicaIsGone
		}
		return wire.OK
	})
}

// CopyEnd makes the copies readable; with REPLICA_IS_GONE some of them, or all, are lost.
func (s *Service) CopyEnd(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	s.copyEnd(req, resp)
}

// DynamicReplicaCopyEnd is CopyEnd.
func (s *Service) DynamicReplicaCopyEnd(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	s.copyEnd(req, resp)
}

func (s *Service) copyRevoke(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	s.objectTask(&s.counters.CopyRevoke, req, resp, false, func(sh *shard, n uint32, o *object, _ *copyTask, now int64) wire.ErrorCode {
		s.abortCopy(sh, n, o, freeNow, now)
		return wire.OK
	})
}

// CopyRevoke gives a copy up.
func (s *Service) CopyRevoke(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	s.copyRevoke(req, resp)
}

// DynamicReplicaCopyRevoke is CopyRevoke.
func (s *Service) DynamicReplicaCopyRevoke(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	s.copyRevoke(req, resp)
}

// MoveEnd makes the target readable and takes the source away.
func (s *Service) MoveEnd(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	s.objectTask(&s.counters.MoveEnd, req, resp, true, func(sh *shard, n uint32, o *object, task *copyTask, now int64) wire.ErrorCode {
		all, code := s.finish(sh, n, o, task, now)
		if code != wire.OK {
			return code
		}
		if !all {
			s.abortCopy(sh, n, o, freeNow, now)
			s.freshen(sh, n, o, now)
			return wire.ErrReplicaIsGone
		}
		sh.endTask(n, o)
		if src := sh.byID(o, task.source); src != nil {
			s.discard(sh, o, src, freeLater, 0, now)
		}
		if s.settle(sh, n, o, eviction.CodeReplaced, now) {
			s.emitMoved(sh, o, now)
		}
		return wire.OK
	})
}

// MoveRevoke gives a move up.
func (s *Service) MoveRevoke(req *wire.ObjectTaskRequest, resp *wire.Result[wire.Void]) {
	s.objectTask(&s.counters.MoveRevoke, req, resp, true, func(sh *shard, n uint32, o *object, _ *copyTask, now int64) wire.ErrorCode {
		s.abortCopy(sh, n, o, freeNow, now)
		return wire.OK
	})
}

// ownedByTask reports whether a replica is the target of a copy or promotion rather than of a put.
func (s *Service) ownedByTask(sh *shard, n uint32, o *object, id uint64) bool {
	if o.is(fCopyTask) && slices.Contains(sh.copies[n].targets, id) {
		return true
	}
	return o.is(fPromotion) && sh.promotions[n].target == id
}

// unfinished reports whether a replica is processing that belongs to a put, not to a copy or promotion.
func (s *Service) unfinished(sh *shard, n uint32, o *object) bool {
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.state != complete && !s.ownedByTask(sh, n, o, it.id) {
			return true
		}
	}
	return false
}

// dropTasks ends everything that runs for an object that goes away.
func (s *Service) dropTasks(sh *shard, n uint32, o *object) {
	if !o.is(fCopyTask | fOffload | fPromotion) {
		return
	}
	sh.endTask(n, o)
	s.dropOffload(sh, n, o)
	if s.endPromotion(sh, n, o) != nil {
		s.counters.PromotionCancelled.Add(1)
	}
}

// reapTasks gives up the tasks of a shard whose clients have not been heard of for the release timeout.
func (s *Service) reapTasks(sh *shard, now int64) {
	limit := now - s.cfg.PutRelease.Milliseconds()
	for n, task := range sh.copies {
		if task.start < limit {
			s.abortCopy(sh, n, sh.objects.at(n), freeNow, now)
		}
	}
	for n, task := range sh.offloads {
		if task.start < limit {
			s.dropOffload(sh, n, sh.objects.at(n))
		}
	}
	for n, task := range sh.promotions {
		if task.start < limit {
			s.counters.PromotionExpired.Add(1)
			s.abortPromotion(sh, n, sh.objects.at(n), now)
		}
	}
}
