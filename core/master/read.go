package master

import (
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// ExistKey reports whether an object can be read.
func (s *Service) ExistKey(req *wire.KeyRequest, resp *wire.Result[bool]) {
	s.counters.ExistKey.Requests.Add(1)
	resp.Value = false
	t, code := s.readTenant(req.Tenant)
	if resp.Code = code; code != wire.OK {
		s.counters.ExistKey.Failures.Add(1)
		return
	}
	if t == nil {
		return
	}
	hash := eviction.KeyHash(t.name, req.Key)
	sh, _ := s.shardOf(hash)
	now := s.now()
	sh.mu.Lock()
	if n := sh.find(hash, t.number, req.Key); n != 0 {
		if o := sh.objects.at(n); s.hasReadable(sh, o) {
			resp.Value = true
			s.grantProbe(o, now)
			s.emitProbe(o, t.dom(), &chain{}, now)
		}
	}
	if !resp.Value {
		s.emitGhost(t.dom(), t, hash, 0, &chain{}, now)
	}
	sh.mu.Unlock()
}

// readHits collects what a call found, for the counters.
type readHits struct {
	mem, file, valid    uint64
	memBytes, fileBytes uint64
}

func (s *Service) countReads(h *readHits, asked int) {
	c := &s.counters
	c.TotalGets.Add(uint64(asked))
	if h.valid == 0 {
		return
	}
	c.ValidGets.Add(h.valid)
	if h.mem > 0 {
		c.MemHits.Add(h.mem)
		c.MemHitBytes.Add(h.memBytes)
	}
	if h.file > 0 {
		c.FileHits.Add(h.file)
		c.FileHitBytes.Add(h.fileBytes)
	}
}

// GetReplicaList answers where an object can be read, and protects it for the lease.
func (s *Service) GetReplicaList(req *wire.KeyRequest, resp *wire.Result[wire.ReplicaList]) {
	s.counters.GetReplicaList.Requests.Add(1)
	v := &resp.Value
	v.Replicas, v.LeaseTTLMS, v.Checksum = v.Replicas[:0], 0, wire.Opt[uint64]{}
	t, code := s.readTenant(req.Tenant)
	if code == wire.OK && t == nil {
		code = wire.ErrObjectNotFound
	}
	if code == wire.OK {
		hash := eviction.KeyHash(t.name, req.Key)
		sh, si := s.shardOf(hash)
		now := s.now()
		var hits readHits
		sh.mu.Lock()
		c := chain{get: true, marks: flagAsk | flagLead}
		code = s.read(sh, si, sh.find(hash, t.number, req.Key), t, hash, &c, now, v, &hits)
		sh.mu.Unlock()
		s.countReads(&hits, 1)
		t.dom().count.single.add(1, func(int) bool { return code == wire.OK })
	}
	if resp.Code = code; code != wire.OK {
		s.counters.GetReplicaList.Failures.Add(1)
	}
}

// read serves one key of a get; called with its shard locked.
func (s *Service) read(sh *shard, si, n uint32, t *tenant, hash uint64, c *chain, now int64, v *wire.ReplicaList, hits *readHits) wire.ErrorCode {
	if n == 0 {
		s.emitGhost(t.dom(), t, hash, 0, c, now)
		return wire.ErrObjectNotFound
	}
	o := sh.objects.at(n)
	if !s.list(sh, o, now, &v.Replicas) {
		if !s.hasAlive(sh, o) {
			return wire.ErrObjectNotFound
		}
		return wire.ErrReplicaIsNotReady
	}
	v.LeaseTTLMS = uint64(s.leaseMS)
	if o.is(fChecksum) {
		v.Checksum = wire.Opt[uint64]{Value: o.checksum, OK: true}
	}
	hits.valid++
	switch v.Replicas[0].Kind {
	case wire.KindMemory:
		hits.mem++
		hits.memBytes += o.size
	case wire.KindDisk, wire.KindLocalDisk:
		hits.file++
		hits.fileBytes += o.size
	}
	s.grantRead(o, now)
	s.emitUse(o, t.dom(), c, now)
	if s.cfg.Promotion && o.handle == 0 {
		s.promoteOnHit(sh, si, n, o, t, now)
	}
	return wire.OK
}

// list appends the readable replicas in stored order, but those in suspected segments last; it reports
// whether there is any.
func (s *Service) list(sh *shard, o *object, now int64, out *[]wire.Replica) bool {
	found, sick := false, false
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if !s.readable(it.replica) {
			continue
		}
		if o.count > 1 && it.kind == wire.KindMemory && s.seg(it.replica).isSuspect(now) {
			sick = true
			continue
		}
		s.describe(sh, o, it.replica, grow(out))
		found = true
	}
	if !sick {
		return found
	}
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if s.readable(it.replica) && it.kind == wire.KindMemory && s.seg(it.replica).isSuspect(now) {
			s.describe(sh, o, it.replica, grow(out))
		}
	}
	return true
}
