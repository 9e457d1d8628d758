package master

import (
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// write is one PutStart or UpsertStart.
type write struct {
	client wire.UUID
	key    string
	size   uint64
	slices []uint64
	cfg    *wire.ReplicateConfig
	group  string
	t      *tenant
	unit   *unit  // where the first key of the batch went
	req    uint32 // number of the call for the policy, 0 if it was not asked yet
	batch  uint32 // keys of the call
	upsert bool
	pinTTL int64 // milliseconds
	now    int64

	retaken  bool  // it takes over a write of the same client id
	pinUntil int64 // soft pin of the value that it preempted
}

// checkConfig makes the checks of a put that do not depend on state, in upstream's order; pinTTL is the
// life of the soft pin that it asks for, in milliseconds.
func (s *Service) checkConfig(cfg *wire.ReplicateConfig, key string, size uint64, t *tenant) (pinTTL int64, code wire.ErrorCode) {
	switch {
	case cfg.Replicas == 0 && cfg.NoFReplicas == 0 && cfg.DFSReplicas == 0, key == "", size == 0:
		return 0, wire.ErrInvalidParams
	case cfg.DFSReplicas > 1, cfg.DFSReplicas > 0 && cfg.Replicas == 0, cfg.DFSReplicas > 0 && t != s.defaultTenant:
		return 0, wire.ErrInvalidParams
	case cfg.DFSReplicas > 0:
		return 0, wire.ErrDFSServiceUnavailable
	case cfg.NoFReplicas > 0:
		return 0, wire.ErrInvalidParams
	}
	switch cfg.SoftPin {
	case wire.SoftPinPreserve, wire.SoftPinDisable:
		if cfg.SoftPinTTLMS.OK {
			return 0, wire.ErrInvalidParams
		}
		return 0, wire.OK
	case wire.SoftPinEnable:
		ttl := uint64(s.cfg.SoftPinTTL.Milliseconds())
		if cfg.SoftPinTTLMS.OK {
			ttl = cfg.SoftPinTTLMS.Value
		}
		if ttl > uint64(s.cfg.MaxSoftPinTTL.Milliseconds()) {
			return 0, wire.ErrInvalidParams
		}
		return int64(ttl), wire.OK
	}
	return 0, wire.ErrInvalidParams
}

// groupOf is the group of key i of n; ok is false when the list does not fit the keys.
func groupOf(cfg *wire.ReplicateConfig, i, n int) (name string, ok bool) {
	if !cfg.GroupIDs.OK {
		return "", true
	}
	if len(cfg.GroupIDs.Value) != n {
		return "", false
	}
	return cfg.GroupIDs.Value[i], true
}

// retries bound the rounds of one put that lost the room it made to others.
const (
	roomRetries  = 4
	quotaRetries = 2
)

// placing is the scratch of one put.
type placing struct {
	q   request
	buf [4]placement
}

var placements = sync.Pool{New: func() any { return new(placing) }}

// start serves a PutStart or UpsertStart that passed checkConfig: it appends the replicas to out.
func (s *Service) start(w *write, out *[]wire.Replica) wire.ErrorCode {
	hash := eviction.KeyHash(w.t.name, w.key)
	sh, si := s.shardOf(hash)
	x := placements.Get().(*placing)
	defer placements.Put(x)
	q := &x.q
	*q = request{
		size: w.size, count: int(min(w.cfg.Replicas, maxReplicas-1)), preferred: w.cfg.PreferredSegment, list: w.cfg.PreferredSegments,
		unit: w.unit, hash: hash, tenant: w.t,
	}
	if w.cfg.Replicas == 1 && (s.strategy == strategyLocal || w.cfg.PreferSameNode) {
		if q.host = w.cfg.HostID; q.host == "" {
			q.host = s.clients.hostOf(w.client)
		}
	}
	var ready []placement // room that was made for this put and is still nobody's
	quotaTries := 0
	for try := 0; ; try++ {
		sh.mu.Lock()
		n, o, code := s.admit(sh, si, hash, w, out)
		if code != wire.OK || o != nil && o.is(fUpsert) {
			sh.mu.Unlock()
			s.cancelAll(ready, w.size)
			return code
		}
		charge := s.quotaCharge(q, o)
		if !s.charge(w.t, charge) {
			sh.mu.Unlock()
			s.cancelAll(ready, w.size)
			ready = nil
			never := s.quotaCharge(q, nil) > w.t.quota.Load() // whatever is evicted
			if quotaTries++; never || quotaTries > quotaRetries || !s.worthIt(w, hash) || !s.quotaRoom(w.t, s.quotaCharge(q, nil), w.now) {
				w.t.rejects.Add(1)
				s.counters.QuotaRejects.Add(1)
				return wire.ErrTenantQuotaExceeded
			}
			continue
		}
		placed := ready
		if len(placed) == 0 {
			r := makeRef(si, n)
			if n == 0 {
				r = makeRef(si, sh.objects.peek())
			}
			placed = s.place(x.buf[:0], q, r, w.now)
		}
		if s.evictPreferred && try == 0 && len(placed) > 0 {
			if g := s.spilled(q, placed); g != nil {
				w.t.used.Add(-int64(charge))
				sh.mu.Unlock()
				s.cancelAll(placed, w.size)
				s.emptySegment(w.t, g, w.size, w.now)
				continue
			}
		}
		if len(placed) > 0 || o != nil && s.inPlace(o, w) {
			code := s.commit(sh, si, hash, n, o, w, placed, charge, out)
			sh.mu.Unlock()
			return code
		}
		w.t.used.Add(-int64(charge))
		sh.mu.Unlock()
		if try < roomRetries {
			s.emitGhost(w.t.dom(), w.t, hash, w.size, &chain{}, w.now)
			ready = s.makeRoom(q, w.now, func() bool { return try > 0 || quotaTries > 0 || s.worthIt(w, hash) })
		}
		if len(ready) == 0 {
			s.counters.PutStartAllocFailures.Add(1)
			return wire.ErrNoAvailableHandle
		}
	}
}

func (s *Service) cancelAll(ps []placement, size uint64) {
	for _, p := range ps {
		s.cancelPlacement(p, size)
	}
}

// quotaCharge is what a put may cost its tenant; the old value of an upsert counts against it.
func (s *Service) quotaCharge(q *request, old *object) uint64 {
	if !s.cfg.MultiTenants {
		return 0
	}
	count := min(q.count, max(1, len(s.registry.view.Load().units)))
	cost := roundUp(q.size) * uint64(count)
	if old != nil {
		cost -= min(cost, roundUp(old.size)*uint64(old.count))
	}
	return cost
}

// roundUp is the space that size bytes take in a segment of less than 3.75 GiB.
func roundUp(size uint64) uint64 {
	if size < 16 {
		return size
	}
	shift := 0
	for size>>shift >= 16 {
		shift++
	}
	return (size + 1<<shift - 1) >> shift << shift
}

// spilled returns the preferred segment when a put went elsewhere although that one is healthy.
func (s *Service) spilled(q *request, placed []placement) *segment {
	name := q.preferred
	if q.unit != nil {
		name = q.unit.name
	} else if name == "" && len(q.list) > 0 {
		name = q.list[0]
	}
	u := s.registry.view.Load().unit(name)
	if u == nil {
		return nil
	}
	for i := range placed {
		if placed[i].seg.Name == name {
			return nil
		}
	}
	if g := u.segs[0]; g.takes() && g.Size >= q.size {
		return g
	}
	return nil
}

// emptySegment evicts in one segment until size bytes fit there; with tenants only what is the writer's own.
func (s *Service) emptySegment(t *tenant, g *segment, size uint64, now int64) {
	var seen tally
	k := query{tenant: eviction.AnyTenant, segment: g, most: 4096, now: now, enough: func() bool { return g.largest.Load() >= size }}
	if s.cfg.MultiTenants {
		k.tenant = uint32(t.number)
	}
	d := t.dom()
	d.mu.Lock()
	d.evict(&k, &seen)
	d.mu.Unlock()
}

// admit decides whether a write may go on; called with the shard locked. o is nil when the key is free,
// else the value that an upsert replaces; if o has fUpsert, the value is being rewritten in place and out
// is filled.
func (s *Service) admit(sh *shard, si uint32, hash uint64, w *write, out *[]wire.Replica) (uint32, *object, wire.ErrorCode) {
	n := sh.find(hash, w.t.number, w.key)
	if n == 0 {
		return 0, nil, wire.OK
	}
	o := sh.objects.at(n)
	if !s.freshen(sh, n, o, w.now) {
		return 0, nil, wire.OK
	}
	if w.upsert {
		return s.admitUpsert(sh, si, n, o, w, out)
	}
	if has(sh, o, isComplete) || o.putStart+s.cfg.PutDiscard.Milliseconds() >= w.now {
		return 0, nil, wire.ErrObjectAlreadyExists
	}
	if o.is(fPromotion | fCopyTask) {
		return 0, nil, wire.ErrObjectAlreadyExists
	}
	// The first writer is late: its space stays out of use until it must have ended, and the key is free.
	w.retake(o)
	s.discardAll(sh, o, freeWritten, o.putStart, w.now, func(*replica) bool { return true })
	s.eraseObject(sh, n, o, eviction.CodeReplaced, w.now)
	return 0, nil, wire.OK
}

// retake notes that the writer whose place is taken has the same client id as the new one, so that their
// ends and revokes cannot be told apart.
func (w *write) retake(o *object) {
	w.retaken = w.retaken || o.writer == w.client
}

// commit makes the write's replicas; called with the shard locked. o is the value that is replaced, or nil;
// charge is what the tenant was charged before the real sizes were known.
func (s *Service) commit(sh *shard, si uint32, hash uint64, n uint32, o *object, w *write, placed []placement, charge uint64, out *[]wire.Replica) wire.ErrorCode {
	hard := w.cfg.HardPin
	real := int64(0)
	for i := range placed {
		real += int64(placed[i].rounded)
	}
	w.t.used.Add(real - int64(charge))
	switch {
	case o == nil:
		if n, o = s.newObject(sh, hash, w.t, w.key, w.size); o == nil || s.cfg.MultiTenants && w.t.closed.Load() {
			w.t.used.Add(-real)
			s.cancelAll(placed, w.size)
			if o != nil {
				s.eraseObject(sh, n, o, eviction.CodeRemoved, w.now)
				return wire.ErrTenantNotRegistered
			}
			return wire.ErrInternalError
		}
		if w.group != "" {
			o.group = s.groups.join(w.t.number, w.group, makeRef(si, n))
		}
		if w.pinUntil > w.now {
			s.setSoftPin(sh, n, o, w.pinUntil)
		}
	case len(placed) == 0:
		s.rewrite(sh, n, o, w, out)
		return wire.OK
	default:
		s.replaceValue(sh, n, o, w)
		hard = hard || o.is(fHardPin)
	}
	r := makeRef(si, n)
	for i := range placed {
		if placed[i].owner != r {
			placed[i].seg.own(placed[i].node, r)
		}
		s.attach(sh, o, placed[i])
	}
	if s.fsDir != "" {
		sh.addReplica(o, replica{id: s.nextReplica(), kind: wire.KindDisk, state: processing})
	}
	if uint64(len(placed)) < w.cfg.Replicas {
		s.counters.PutStartPartial.Add(1)
	}
	if hard && !o.is(fHardPin) {
		o.flags |= fHardPin
		s.counters.HardPinnedKeys.Add(1)
	}
	o.data = w.cfg.DataType
	s.counters.observeSize(w.size)
	sh.beginPin(n, o, w.cfg.SoftPin, w.pinTTL)
	s.startWrite(sh, n, o, w.client, w.now)
	if w.retaken {
		o.flags |= fRetaken
	}
	s.describeAll(sh, o, w, out)
	return wire.OK
}

// describeAll appends all replicas of an object, for its writer.
func (s *Service) describeAll(sh *shard, o *object, w *write, out *[]wire.Replica) {
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		d := grow(out)
		s.describe(sh, o, it.replica, d)
		if it.kind == wire.KindMemory {
			d.Slices = append(d.Slices[:0], w.slices...)
		}
	}
}

// grow appends an element to a reused list, keeping what the element held before.
func grow(out *[]wire.Replica) *wire.Replica {
	if n := len(*out); n < cap(*out) {
		*out = (*out)[:n+1]
	} else {
		*out = append(*out, wire.Replica{})
	}
	return &(*out)[len(*out)-1]
}

// describe fills a wire replica.
func (s *Service) describe(sh *shard, o *object, r *replica, d *wire.Replica) {
	*d = wire.Replica{ID: r.id, Kind: r.kind, Status: wire.ReplicaStatus(r.state), Size: o.size, Slices: d.Slices[:0]}
	switch r.kind {
	case wire.KindMemory:
		g := s.seg(r)
		d.Address, d.Protocol, d.Endpoint = g.Base+r.place, "tcp", g.TEEndpoint
	case wire.KindDisk:
		d.Path = s.diskPath(sh.keyBytes(o))
	case wire.KindLocalDisk:
		owner := s.disks.owner(r.seg)
		d.Size, d.Client, d.Endpoint = r.place, owner.id, owner.endpoint(r.node)
	}
}
