package master

import (
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// What happens to objects and replicas, whoever asked for it. All functions here are called with the
// object's shard locked.

// cancelPlacement gives back a range that did not become a replica. A segment that left meanwhile has
// taken the range off the accounts, where attach has not put it.
func (s *Service) cancelPlacement(p placement, size uint64) {
	if rounded, alive := p.seg.give(p.node, size); !alive {
		s.counters.AllocatedBytes.Add(int64(rounded))
		s.counters.RequestedBytes.Add(int64(size))
	}
}

// attach makes a memory replica of a range, for which the tenant has been charged.
func (s *Service) attach(sh *shard, o *object, p placement) *replica {
	s.counters.AllocatedBytes.Add(int64(p.rounded))
	s.counters.RequestedBytes.Add(int64(o.size))
	return sh.addReplica(o, replica{
		id: s.nextReplica(), place: p.offset, seg: p.seg.number, node: uint32(p.node), kind: wire.KindMemory, state: processing,
	})
}

func (s *Service) nextReplica() uint64 { return s.replicaID.Add(1) }

// alive reports whether what a replica lies in is still there.
func (s *Service) alive(r *replica) bool {
	switch r.kind {
	case wire.KindMemory:
		return !s.seg(r).gone.Load()
	case wire.KindLocalDisk:
		return !s.disks.owner(r.seg).gone.Load()
	}
	return true
}

// readable is a finished replica that a client can get at.
func (s *Service) readable(r *replica) bool { return r.state == complete && s.alive(r) }

// hasReadable reports whether an object can be read.
func (s *Service) hasReadable(sh *shard, o *object) bool {
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if s.readable(it.replica) {
			return true
		}
	}
	return false
}

// hasAlive reports whether anything of an object is left.
func (s *Service) hasAlive(sh *shard, o *object) bool {
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if s.alive(it.replica) {
			return true
		}
	}
	return false
}

func has(sh *shard, o *object, f func(*replica) bool) bool {
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if f(it.replica) {
			return true
		}
	}
	return false
}

func isMemory(r *replica) bool         { return r.kind == wire.KindMemory }
func isLocalDisk(r *replica) bool      { return r.kind == wire.KindLocalDisk }
func isComplete(r *replica) bool       { return r.state == complete }
func isCompleteMemory(r *replica) bool { return r.kind == wire.KindMemory && r.state == complete }
func isBusy(r *replica) bool           { return r.busy > 0 }
func notComplete(r *replica) bool      { return r.state != complete }

// fate is what becomes of a replica's space.
type fate uint8

const (
	freeNow     fate = iota // at once, or when running reads must have ended
	freeLater               // a finished value: when reads have ended; kept as long as upstream does while there is room
	freeWritten             // its writer may still be writing: not before the release timeout
)

// dropSpace takes a memory replica's range away from it; start is when its write began.
// It returns the bytes that were taken away from the object, after rounding.
func (s *Service) dropSpace(o *object, r *replica, t *tenant, f fate, start, now int64) uint64 {
	if r.kind != wire.KindMemory {
		return 0
	}
	g := s.seg(r)
	safe := max(now, s.leaseEnd(o))
	due := safe
	switch f {
	case freeLater:
		due = max(due, now+s.cfg.PutRelease.Milliseconds())
	case freeWritten:
		safe = max(safe, start+s.cfg.PutRelease.Milliseconds())
		due = safe
	}
	if due > now {
		rounded := g.rangeSize(r.range_())
		t.used.Add(-int64(rounded))
		s.quarantine(hold{safe: safe, due: due, seg: g, node: r.range_(), size: o.size, counted: f != freeNow})
		return rounded
	}
	rounded, alive := g.give(r.range_(), o.size)
	t.used.Add(-int64(rounded))
	if alive {
		s.counters.AllocatedBytes.Add(-int64(rounded))
		s.counters.RequestedBytes.Add(-int64(o.size))
	}
	return rounded
}

// discard removes one replica and its space; it returns the bytes, after rounding.
func (s *Service) discard(sh *shard, o *object, r *replica, f fate, start, now int64) uint64 {
	bytes := s.dropSpace(o, r, s.tenantOf(o), f, start, now)
	if r.kind == wire.KindLocalDisk {
		s.disks.dropped(r)
	}
	sh.dropReplica(o, r.id)
	return bytes
}

// discardAll removes the replicas that match; it reports how many and their bytes after rounding.
func (s *Service) discardAll(sh *shard, o *object, f fate, start, now int64, match func(*replica) bool) (total int, bytes uint64) {
	var ids [8]uint64
	for {
		n := 0
		for it := sh.begin(o); it.ok() && n < len(ids); it.advance(sh) {
			if match(it.replica) {
				ids[n] = it.id
				n++
			}
		}
		for _, id := range ids[:n] {
			bytes += s.discard(sh, o, sh.byID(o, id), f, start, now)
		}
		if total += n; n < len(ids) {
			return total, bytes
		}
	}
}

// settle brings counters, the policy and the table in line after replicas changed: an object without any
// is erased. code is the reason told to the policy. It reports whether the object is still there.
func (s *Service) settle(sh *shard, n uint32, o *object, code eviction.Code, now int64) bool {
	if o.count == 0 {
		s.eraseObject(sh, n, o, code, now)
		return false
	}
	if o.handle != 0 && !has(sh, o, isMemory) {
		s.emitRemove(sh, o, code, now)
	}
	s.recount(sh, o)
	return true
}

// recount keeps the gauges of objects that are cached in memory and on disk.
func (s *Service) recount(sh *shard, o *object) {
	var mem, file bool
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.state == complete {
			switch it.kind {
			case wire.KindMemory:
				mem = true
			case wire.KindDisk, wire.KindLocalDisk:
				file = true
			}
		}
	}
	s.setCounted(o, fMemCounted, mem)
	s.setCounted(o, fFileCounted, file)
}

func (s *Service) setCounted(o *object, f objectFlags, on bool) {
	if on == o.is(f) {
		return
	}
	o.flags ^= f
	gauge, by := &s.counters.MemReplicas, int64(1)
	if !on {
		by = -1
	}
	if f == fFileCounted {
		gauge = &s.counters.FileReplicas
		s.counters.FileBytes.Add(by * int64(o.size))
	}
	gauge.Add(by)
}

// eraseObject removes an object with all it has; running reads and writes keep their space from being
// used again too early.
func (s *Service) eraseObject(sh *shard, n uint32, o *object, code eviction.Code, now int64) {
	t := s.tenantOf(o)
	s.dropTasks(sh, n, o)
	s.emitRemove(sh, o, code, now)
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		f := freeNow
		if it.state == processing && code != eviction.CodeRemoved {
			f = freeWritten
		}
		s.dropSpace(o, it.replica, t, f, o.putStart, now)
		if it.kind == wire.KindLocalDisk {
			s.disks.dropped(it.replica)
		}
	}
	s.setCounted(o, fMemCounted, false)
	s.setCounted(o, fFileCounted, false)
	if o.is(fProcessing) {
		sh.endWrite(o)
		s.counters.ProcessingKeys.Add(-1)
	}
	if o.is(fHardPin) {
		s.counters.HardPinnedKeys.Add(-1)
	}
	s.endSoftPin(sh, n, o)
	delete(sh.pins, n)
	if o.group != 0 {
		s.groups.leave(o.group, makeRef(uint32(o.hash>>(64-shardBits)), n))
	}
	for x := o.more; x != 0; {
		next := sh.extra.at(x).next
		sh.extra.release(x)
		x = next
	}
	t.objects.Add(-1)
	s.counters.Keys.Add(-1)
	sh.erase(n, o)
}

// newObject puts an empty object into the table.
func (s *Service) newObject(sh *shard, hash uint64, t *tenant, key string, size uint64) (uint32, *object) {
	n, o, ok := sh.insert(hash, t.number, key)
	if !ok {
		return 0, nil
	}
	o.size = size
	t.objects.Add(1)
	s.counters.Keys.Add(1)
	return n, o
}

// freshen drops the replicas of an object whose segment or disk is gone, before it is changed. It reports
// whether the object is still there.
func (s *Service) freshen(sh *shard, n uint32, o *object, now int64) bool {
	dead := false
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		dead = dead || !s.alive(it.replica)
	}
	if !dead {
		return true
	}
	s.discardAll(sh, o, freeNow, 0, now, func(r *replica) bool { return !s.alive(r) })
	if !s.settle(sh, n, o, eviction.CodeSegmentLost, now) {
		return false
	}
	if o.is(fProcessing) && !s.unfinished(sh, n, o) {
		s.finishWrite(sh, o)
	}
	return true
}

// finishWrite takes the object out of the running writes.
func (s *Service) finishWrite(sh *shard, o *object) {
	if o.is(fProcessing) {
		sh.endWrite(o)
		s.counters.ProcessingKeys.Add(-1)
	}
}

// startWrite makes the object a running write.
func (s *Service) startWrite(sh *shard, n uint32, o *object, writer wire.UUID, now int64) {
	if !o.is(fProcessing) {
		s.counters.ProcessingKeys.Add(1)
	}
	o.writer, o.putStart = writer, now
	sh.pushWrite(n, o)
}

// abandonWrite gives up a write whose writer has not been heard of for the release timeout.
func (s *Service) abandonWrite(sh *shard, n uint32, now int64) {
	o := sh.objects.at(n)
	dropped, _ := s.discardAll(sh, o, freeNow, 0, now, func(r *replica) bool {
		return r.state == processing && !s.ownedByTask(sh, n, o, r.id)
	})
	s.counters.Discarded.Add(uint64(dropped))
	s.counters.Released.Add(uint64(dropped))
	s.clearPendingPin(sh, n, o)
	if s.settle(sh, n, o, eviction.CodeExpired, now) {
		s.finishWrite(sh, o)
	}
}

// Soft pins.

// beginPin notes what a write will do to the soft pin when it first completes.
func (sh *shard) beginPin(n uint32, o *object, action wire.SoftPinAction, ttl int64) {
	if action == wire.SoftPinPreserve {
		if o.is(fPinPending) {
			p := sh.pins[n]
			p.pending = action
			sh.setPin(n, o, p)
		}
		return
	}
	p := sh.pins[n]
	p.pending, p.ttl = action, ttl
	sh.setPin(n, o, p)
}

func (sh *shard) setPin(n uint32, o *object, p softPin) {
	o.flags &^= fPinPending
	if p.pending != wire.SoftPinPreserve {
		o.flags |= fPinPending
	}
	if p == (softPin{}) {
		delete(sh.pins, n)
		return
	}
	if sh.pins == nil {
		sh.pins = map[uint32]softPin{}
	}
	sh.pins[n] = p
}

func (s *Service) clearPendingPin(sh *shard, n uint32, o *object) {
	if o.is(fPinPending) {
		p := sh.pins[n]
		p.pending, p.ttl = wire.SoftPinPreserve, 0
		sh.setPin(n, o, p)
	}
}

// commitPin does at the end of a write what its start asked for. It reports whether pins changed.
func (s *Service) commitPin(sh *shard, n uint32, o *object, now int64) bool {
	if !o.is(fPinPending) {
		return false
	}
	p := sh.pins[n]
	action, ttl := p.pending, p.ttl
	s.clearPendingPin(sh, n, o)
	switch action {
	case wire.SoftPinEnable:
		s.setSoftPin(sh, n, o, now+ttl)
	case wire.SoftPinDisable:
		s.endSoftPin(sh, n, o)
	}
	return true
}

func (s *Service) setSoftPin(sh *shard, n uint32, o *object, until int64) {
	if !o.is(fSoftPin) {
		o.flags |= fSoftPin
		s.counters.SoftPinnedKeys.Add(1)
	}
	p := sh.pins[n]
	p.until = until
	sh.setPin(n, o, p)
	s.pinEnds(until, makeRef(uint32(o.hash>>(64-shardBits)), n))
}

func (s *Service) endSoftPin(sh *shard, n uint32, o *object) {
	if !o.is(fSoftPin) {
		return
	}
	o.flags &^= fSoftPin
	s.counters.SoftPinnedKeys.Add(-1)
	p := sh.pins[n]
	p.until = 0
	sh.setPin(n, o, p)
}

// softPinned reports whether a soft pin is in force now.
func (sh *shard) softPinned(n uint32, o *object, now int64) bool {
	return o.is(fSoftPin) && sh.pins[n].until > now
}
