package master

import (
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// The RPCs of writers.

// PutStart begins to write a new object: it answers where the replicas are to be written.
func (s *Service) PutStart(req *wire.PutStartRequest, resp *wire.Result[[]wire.Replica]) {
	s.putStart(req, resp, false)
}

func (s *Service) putStart(req *wire.PutStartRequest, resp *wire.Result[[]wire.Replica], upsert bool) {
	s.counters.PutStart.Requests.Add(1)
	resp.Value = resp.Value[:0]
	t, code := s.writeTenant(req.Tenant)
	if code == wire.OK {
		w := write{
			client: req.Client, key: req.Key, size: req.Length, slices: req.Slices, cfg: &req.Config, t: t, upsert: upsert, now: s.now(), batch: 1,
		}
		code = s.startOne(&w, 0, 1, &resp.Value)
	}
	if resp.Code = code; code != wire.OK {
		s.counters.PutStart.Failures.Add(1)
	}
}

// startOne checks and serves key i of n.
func (s *Service) startOne(w *write, i, n int, out *[]wire.Replica) (code wire.ErrorCode) {
	if w.pinTTL, code = s.checkConfig(w.cfg, w.key, w.size, w.t); code != wire.OK {
		return code
	}
	var ok bool
	if w.group, ok = groupOf(w.cfg, i, n); !ok {
		return wire.ErrInvalidParams
	}
	return s.start(w, out)
}

// BatchPutStart is PutStart for several keys, in order.
func (s *Service) BatchPutStart(req *wire.BatchPutStartRequest, resp *[]wire.Result[[]wire.Replica]) {
	s.batchStart(req, resp, false)
}

func (s *Service) batchStart(req *wire.BatchPutStartRequest, resp *[]wire.Result[[]wire.Replica], upsert bool) {
	out := results(resp, len(req.Keys))
	t, code := s.writeTenant(req.Tenant)
	if code == wire.OK && (len(req.Lengths) != len(req.Keys) || req.Config.GroupIDs.OK && len(req.Config.GroupIDs.Value) != len(req.Keys)) {
		code = wire.ErrInvalidParams
	}
	w := write{client: req.Client, cfg: &req.Config, t: t, upsert: upsert, batch: uint32(len(req.Keys))}
	for i := range out {
		r := &out[i]
		r.Value = r.Value[:0]
		if r.Code = code; code != wire.OK {
			continue
		}
		w.key, w.size, w.slices, w.now = req.Keys[i], req.Lengths[i], nil, s.now()
		w.retaken, w.pinUntil = false, 0
		if i < len(req.Slices) {
			w.slices = req.Slices[i]
		}
		r.Code = s.startOne(&w, i, len(req.Keys), &r.Value)
		if i == 0 && req.Config.PreferSameNode && r.Code == wire.OK {
			w.unit = s.unitOf(r.Value)
		}
	}
	if !upsert {
		count(&s.counters.BatchPutStart, out)
	}
}

// unitOf is where the last memory replica of an answer lies.
func (s *Service) unitOf(rs []wire.Replica) *unit {
	for i := len(rs) - 1; i >= 0; i-- {
		if rs[i].Kind != wire.KindMemory || rs[i].Endpoint == "" {
			continue
		}
		for _, u := range s.registry.view.Load().units {
			for _, g := range u.segs {
				if g.TEEndpoint == rs[i].Endpoint {
					return u
				}
			}
		}
	}
	return nil
}

// results makes resp n elements long, reusing what they held.
func results[T any](resp *[]wire.Result[T], n int) []wire.Result[T] {
	if cap(*resp) < n {
		grown := make([]wire.Result[T], n)
		copy(grown, (*resp)[:cap(*resp)])
		*resp = grown
	}
	*resp = (*resp)[:n]
	return *resp
}

// count books a batch call.
func count[T any](c *BatchCalls, out []wire.Result[T]) {
	failed := 0
	for i := range out {
		if out[i].Code != wire.OK {
			failed++
		}
	}
	c.add(len(out), failed)
}

func (c *BatchCalls) add(items, failed int) {
	c.Requests.Add(1)
	c.Items.Add(uint64(items))
	switch {
	case failed == 0:
		return
	case failed == items:
		c.Failures.Add(1)
	default:
		c.PartialSuccesses.Add(1)
	}
	c.FailedItems.Add(uint64(failed))
}

// aimed reports whether a call for replica type t is about a replica.
func aimed(t wire.ReplicaType, r *replica) bool {
	switch t {
	case wire.ReplicaAll, wire.ReplicaMemory:
		return r.kind == wire.KindMemory
	case wire.ReplicaDisk:
		return r.kind == wire.KindDisk
	case wire.ReplicaLocalDisk:
		return r.kind == wire.KindLocalDisk
	}
	return false
}

// endOf finishes a write of an object; called with its shard locked. resident reports that the object has
// to be announced to its policy: the caller does that, in the order of its batch.
func (s *Service) endOf(sh *shard, si, n uint32, client wire.UUID, meta *wire.ObjectMeta, typ wire.ReplicaType, now int64) (resident bool, code wire.ErrorCode) {
	if n == 0 {
		return false, wire.ErrObjectNotFound
	}
	o := sh.objects.at(n)
	if !s.freshen(sh, n, o, now) {
		return false, wire.ErrObjectNotFound
	}
	if o.writer != client {
		s.counters.LateWriters.Add(1)
		return false, wire.ErrIllegalClient
	}
	if !o.is(fProcessing) {
		targets, finished := 0, true
		for it := sh.begin(o); it.ok(); it.advance(sh) {
			if aimed(typ, it.replica) {
				targets++
				finished = finished && it.state == complete
			}
		}
		if targets > 0 && finished {
			return false, wire.OK
		}
		return false, wire.ErrInvalidWrite
	}
	had := has(sh, o, isComplete)
	ended := false
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.state == processing && aimed(typ, it.replica) && !s.ownedByTask(sh, n, o, it.id) {
			it.state = complete
			ended = true
			if it.kind == wire.KindMemory {
				s.seg(it.replica).failed.Store(0)
			}
		}
	}
	pins := !had && ended && s.commitPin(sh, n, o, now)
	if meta.Checksum.OK || typ == wire.ReplicaAll || typ == wire.ReplicaMemory || typ == wire.ReplicaNoF {
		o.checksum = meta.Checksum.Value
		if o.flags &^= fChecksum; meta.Checksum.OK {
			o.flags |= fChecksum
		}
	}
	if s.cfg.Offload && !s.cfg.OffloadEvict {
		s.offloadAtEnd(sh, si, n, o)
	}
	rewritten := o.is(fUpsert)
	if !s.unfinished(sh, n, o) {
		s.finishWrite(sh, o)
	}
	s.recount(sh, o)
	switch {
	case !ended || !has(sh, o, isCompleteMemory):
		return false, wire.OK
	case o.handle == 0:
		return true, wire.OK
	}
	if pins {
		s.emitPin(sh, n, o, now)
	}
	if rewritten {
		s.emitUse(o, s.tenantOf(o).dom(), &chain{}, now)
	}
	return false, wire.OK
}

// PutEnd makes the replicas of a type readable.
func (s *Service) PutEnd(req *wire.PutEndRequest, resp *wire.Result[wire.Void]) {
	s.counters.PutEnd.Requests.Add(1)
	t, code := s.readTenant(req.Tenant)
	if code == wire.OK && t == nil {
		code = wire.ErrObjectNotFound
	}
	if code == wire.OK {
		hash := eviction.KeyHash(t.name, req.Meta.Key)
		sh, si := s.shardOf(hash)
		now := s.now()
		var resident bool
		sh.mu.Lock()
		n := sh.find(hash, t.number, req.Meta.Key)
		if resident, code = s.endOf(sh, si, n, req.Client, &req.Meta, req.Type, now); resident {
			s.emitInsert(sh, makeRef(si, n), sh.objects.at(n), t.dom(), &chain{added: 1}, now)
		}
		sh.mu.Unlock()
		s.relieve(t.dom(), now)
	}
	if resp.Code = code; code != wire.OK {
		s.counters.PutEnd.Failures.Add(1)
	}
}

// relieve drains a domain whose background does not keep up.
func (s *Service) relieve(d *domain, now int64) {
	if d.full.Load() && d.mu.TryLock() {
		d.drain(now)
		d.mu.Unlock()
	}
}

// PutRevoke gives up the replicas of a type.
func (s *Service) PutRevoke(req *wire.PutRevokeRequest, resp *wire.Result[wire.Void]) {
	s.counters.PutRevoke.Requests.Add(1)
	t, code := s.readTenant(req.Tenant)
	if code == wire.OK {
		code = s.revoke(t, req.Client, req.Key, req.Type)
	}
	if resp.Code = code; code != wire.OK {
		s.counters.PutRevoke.Failures.Add(1)
	}
}

func (s *Service) revoke(t *tenant, client wire.UUID, key string, typ wire.ReplicaType) wire.ErrorCode {
	if t == nil {
		return wire.ErrObjectNotFound
	}
	hash := eviction.KeyHash(t.name, key)
	sh, _ := s.shardOf(hash)
	now := s.now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := sh.find(hash, t.number, key)
	if n == 0 {
		return wire.ErrObjectNotFound
	}
	o := sh.objects.at(n)
	if !s.freshen(sh, n, o, now) {
		return wire.ErrObjectNotFound
	}
	switch {
	case o.writer != client:
		s.counters.LateWriters.Add(1)
		return wire.ErrIllegalClient
	case !o.is(fProcessing):
		return wire.ErrInvalidWrite
	case has(sh, o, func(r *replica) bool { return aimed(typ, r) && r.state != processing }):
		return wire.ErrInvalidWrite
	}
	f := freeNow
	if o.is(fRetaken) {
		f = freeWritten // another write of this client may be the one that is revoked
	}
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.kind == wire.KindMemory && aimed(typ, it.replica) {
			s.putFailed(s.seg(it.replica), now)
		}
	}
	s.discardAll(sh, o, f, o.putStart, now, func(r *replica) bool {
		return aimed(typ, r) && r.state == processing && !s.ownedByTask(sh, n, o, r.id)
	})
	if o.count > 0 && !has(sh, o, func(r *replica) bool { return r.state == processing }) {
		s.clearPendingPin(sh, n, o)
	}
	if s.settle(sh, n, o, eviction.CodeReplaced, now) && !s.unfinished(sh, n, o) {
		s.finishWrite(sh, o)
	}
	return wire.OK
}

// putFailed counts a revoked put against a segment: several in a row mean that it cannot be reached.
func (s *Service) putFailed(g *segment, now int64) {
	if s.cfg.SuspectRevokes > 0 && int(g.failed.Add(1)) >= s.cfg.SuspectRevokes {
		if g.avoided.Swap(now+s.cfg.SuspectTime.Milliseconds()) <= now {
			s.counters.SegmentsSuspected.Add(1)
			s.log.Warn("puts to a segment fail in a row; it is avoided for a while", "segment", g.Name, "puts", g.failed.Load(), "for", s.cfg.SuspectTime)
		}
	}
}

// BatchPutRevoke is PutRevoke for several keys.
func (s *Service) BatchPutRevoke(req *wire.BatchPutRevokeRequest, resp *[]wire.Result[wire.Void]) {
	s.batchRevoke(req, resp, req.Type)
	count(&s.counters.BatchPutRevoke, *resp)
}

func (s *Service) batchRevoke(req *wire.BatchPutRevokeRequest, resp *[]wire.Result[wire.Void], typ wire.ReplicaType) {
	out := results(resp, len(req.Keys))
	t, code := s.readTenant(req.Tenant)
	for i := range out {
		if out[i].Code = code; code == wire.OK {
			out[i].Code = s.revoke(t, req.Client, req.Keys[i], typ)
		}
	}
}
