package master

import (
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// offloadTask is an object that one or more clients were asked to write to their disks. Its source replica
// is busy meanwhile.
type offloadTask struct {
	source uint64 // replica id
	owners []*diskOwner
	start  int64
}

// queueOffload asks the owner of a memory replica to write the object to its disk.
func (s *Service) queueOffload(sh *shard, o *object, r *replica) (*diskOwner, wire.ErrorCode) {
	d := s.disks.mountedOwner(s.seg(r).client)
	if d == nil {
		return nil, wire.ErrUnableOffloading
	}
	t := s.tenantOf(o)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.enabled:
		return nil, wire.ErrUnableOffloading
	case d.offloads.len() >= s.cfg.OffloadQueue:
		return nil, wire.ErrKeysUltraLimit
	case !d.offloads.add(t.number, wire.OffloadTask{Tenant: t.name, Key: sh.keyString(o), Size: int64(o.size)}):
		return nil, wire.ErrObjectAlreadyExists
	}
	return d, wire.OK
}

// offloadAtEnd queues all finished memory replicas of an object; called with the shard locked.
func (s *Service) offloadAtEnd(sh *shard, _, n uint32, o *object) bool {
	if o.is(fOffload) {
		return false
	}
	var task *offloadTask
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.kind != wire.KindMemory || !s.readable(it.replica) {
			continue
		}
		d, code := s.queueOffload(sh, o, it.replica)
		if code != wire.OK {
			continue
		}
		if task == nil {
			it.busy++
			task = &offloadTask{source: it.id, start: s.now()}
		}
		task.owners = append(task.owners, d)
	}
	if task == nil {
		return false
	}
	o.flags |= fOffload
	if sh.offloads == nil {
		sh.offloads = map[uint32]*offloadTask{}
	}
	sh.offloads[n] = task
	return true
}

// offloadFirst reports whether an object's memory may be dropped now: it is on a disk, or it cannot get
// there and the config says that it goes anyway. Else it was queued, or stays.
func (s *Service) offloadFirst(sh *shard, r ref, o *object, t *tally, _ int64) bool {
	if has(sh, o, func(r *replica) bool { return isLocalDisk(r) && s.readable(r) }) {
		return true
	}
	if float64(t.offloads) < float64(s.cfg.OffloadQueue)*s.cfg.OffloadCap && s.offloadAtEnd(sh, r.shard(), r.index(), o) {
		t.offloads++
		return false
	}
	return s.cfg.OffloadForce
}

// endOffload removes the task of an object; called with the shard locked.
func (s *Service) endOffload(sh *shard, n uint32, o *object) *offloadTask {
	task := sh.offloads[n]
	if task == nil {
		return nil
	}
	delete(sh.offloads, n)
	o.flags &^= fOffload
	if r := sh.byID(o, task.source); r != nil {
		r.busy--
	}
	return task
}

// cancelQueuedOffload takes back an offload that no client has fetched. It reports false if one has: it is
// reading the source.
func (s *Service) cancelQueuedOffload(sh *shard, n uint32, o *object) bool {
	task := sh.offloads[n]
	if task == nil {
		return true
	}
	t := s.tenantOf(o)
	key := sh.keyString(o)
	s.disks.mu.Lock() // so that no other cancellation locks the same mailboxes in another order
	defer s.disks.mu.Unlock()
	held := map[*diskOwner]bool{}
	all := true
	for _, d := range task.owners {
		if !held[d] {
			d.mu.Lock()
			held[d] = true
			all = all && d.offloads.has(t.number, key)
		}
	}
	for d := range held {
		if all {
			d.offloads.drop(t.number, key)
		}
		d.mu.Unlock()
	}
	if all {
		s.endOffload(sh, n, o)
	}
	return all
}

// dropOffload ends the task of an object that goes away.
func (s *Service) dropOffload(sh *shard, n uint32, o *object) {
	task := s.endOffload(sh, n, o)
	if task == nil {
		return
	}
	t := s.tenantOf(o)
	key := sh.keyString(o)
	for _, d := range task.owners {
		d.mu.Lock()
		d.offloads.drop(t.number, key)
		d.mu.Unlock()
	}
}

// OffloadObjectHeartbeat hands a client what it is to write to its disk. Switching offloading off takes
// the tasks back.
func (s *Service) OffloadObjectHeartbeat(req *wire.LocalDiskRequest, resp *wire.Result[[]wire.OffloadTask]) {
	resp.Value = resp.Value[:0]
	d := s.disks.mountedOwner(req.Client)
	if d == nil {
		resp.Code = wire.ErrSegmentNotFound
		return
	}
	d.mu.Lock()
	d.enabled = req.Enable
	tasks := d.offloads.take(resp.Value, d.offloads.len(), s.numberOf)
	d.mu.Unlock()
	resp.Code = wire.OK
	if req.Enable {
		resp.Value = tasks
		return
	}
	for _, task := range tasks {
		if t := s.knownTenant(task.Tenant); t != nil {
			s.withObject(t, task.Key, func(sh *shard, n uint32, o *object) { s.endOffload(sh, n, o) })
		}
	}
}

func (s *Service) numberOf(tenant string) uint16 {
	if t := s.knownTenant(tenant); t != nil {
		return t.number
	}
	return 0
}

// withObject calls f for an object that exists, with its shard locked.
func (s *Service) withObject(t *tenant, key string, f func(*shard, uint32, *object)) bool {
	hash := eviction.KeyHash(t.name, key)
	sh, _ := s.shardOf(hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := sh.find(hash, t.number, key)
	if n != 0 {
		f(sh, n, sh.objects.at(n))
	}
	return n != 0
}

// NotifyOffloadSuccess notes what a client has on its disk. A key that is not known is created with that
// replica alone: so a client announces its files after a restart.
func (s *Service) NotifyOffloadSuccess(req *wire.NotifyOffloadRequest, resp *wire.Result[wire.Void]) {
	if len(req.Tasks) != len(req.Metas) {
		resp.Code = wire.ErrInvalidParams
		return
	}
	refused := false
	for i := range req.Tasks {
		code := s.offloaded(req.Client, &req.Tasks[i], &req.Metas[i])
		switch code {
		case wire.OK:
		case wire.ErrSegmentNotFound:
			refused = true // finish the others, then say so
		default:
			resp.Code = code
			return
		}
	}
	resp.Code = wire.OK
	if refused {
		resp.Code = wire.ErrSegmentNotFound
	}
}

func (s *Service) offloaded(client wire.UUID, task *wire.OffloadTask, meta *wire.StorageMeta) wire.ErrorCode {
	t, code := s.readTenant(task.Tenant)
	if code != wire.OK {
		return code
	}
	if meta.DataSize < 0 { // it could not be written
		if t != nil {
			s.withObject(t, task.Key, func(sh *shard, n uint32, o *object) { s.endOffload(sh, n, o) })
		}
		return wire.OK
	}
	now := s.now()
	done := false
	if t != nil {
		s.withObject(t, task.Key, func(sh *shard, n uint32, o *object) {
			if s.endOffload(sh, n, o) != nil {
				done = true
				code = s.putOnDisk(sh, o, client, meta)
			}
		})
	}
	if done {
		return code
	}
	if t, code = s.writeTenant(task.Tenant); code != wire.OK {
		return code
	}
	hash := eviction.KeyHash(t.name, task.Key)
	sh, _ := s.shardOf(hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := sh.find(hash, t.number, task.Key)
	if n != 0 && !s.freshen(sh, n, sh.objects.at(n), now) {
		n = 0
	}
	if s.cfg.Offload && s.disks.mountedOwner(client) == nil {
		return wire.ErrSegmentNotFound
	}
	if n != 0 {
		return s.putOnDisk(sh, sh.objects.at(n), client, meta)
	}
	n, o := s.newObject(sh, hash, t, task.Key, uint64(meta.DataSize))
	if o == nil {
		return wire.ErrInternalError
	}
	o.writer, o.putStart = client, now
	if code := s.putOnDisk(sh, o, client, meta); code != wire.OK {
		s.eraseObject(sh, n, o, eviction.CodeRemoved, now)
		return code
	}
	return wire.OK
}

// putOnDisk adds the replica on a client's disk, or renews what is known of it.
func (s *Service) putOnDisk(sh *shard, o *object, client wire.UUID, meta *wire.StorageMeta) wire.ErrorCode {
	if s.cfg.Offload && s.disks.mountedOwner(client) == nil {
		return wire.ErrSegmentNotFound
	}
	d := s.disks.get(client, true)
	if d.gone.Load() {
		return wire.ErrSegmentNotFound
	}
	name := d.nameOf(meta.TEEndpoint)
	other := false
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.kind != wire.KindLocalDisk {
			continue
		}
		if it.seg == d.number {
			d.used.Add(meta.DataSize - int64(it.place))
			it.place, it.node = uint64(meta.DataSize), name
			return wire.OK
		}
		other = true
	}
	if other {
		return wire.OK // as upstream: one copy on disks is enough
	}
	sh.addReplica(o, replica{id: s.nextReplica(), kind: wire.KindLocalDisk, state: complete, seg: d.number, node: name, place: uint64(meta.DataSize)})
	d.replicas.Add(1)
	d.used.Add(meta.DataSize)
	s.recount(sh, o)
	return wire.OK
}
