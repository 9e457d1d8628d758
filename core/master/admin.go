package master

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Readers and switches for the administrator's HTTP server. None of them grants a lease.

// ListKeys appends to dst the keys of readable objects of a tenant, at most limit (and at least one if there
// is one), and returns the cursor of the next page; "" starts and ends. Keys that are put or removed
// meanwhile may or may not be listed; no key is listed twice. Like the other readers it looks at a few
// hundred objects at a time.
func (s *Service) ListKeys(dst []string, tenant, cursor string, limit int) (keys []string, next string, err error) {
	t, code := s.readTenant(tenant)
	if code != wire.OK {
		return dst, "", code
	}
	if t == nil {
		return dst, "", nil
	}
	si, n := 0, uint32(1)
	if cursor != "" {
		v, err := strconv.ParseUint(cursor, 16, 64)
		if si, n = int(v>>32), uint32(v); err != nil || si >= numShards || n == 0 {
			return dst, "", fmt.Errorf("master: %q is not a cursor: %w", cursor, wire.ErrInvalidParams)
		}
	}
	limit = len(dst) + max(1, limit)
	for ; si < numShards; si, n = si+1, 1 {
		sh := &s.shards[si]
		for {
			sh.mu.Lock()
			end := max(1, sh.objects.next)
			for stop := min(n+scanStep, end); n < stop; n++ {
				o := sh.live(n)
				if o == nil || o.tenant != t.number || !s.hasReadable(sh, o) {
					continue
				}
				if len(dst) >= limit {
					sh.mu.Unlock()
					return dst, strconv.FormatUint(uint64(si)<<32|uint64(n), 16), nil
				}
				dst = append(dst, sh.keyString(o))
			}
			sh.mu.Unlock()
			if n >= end {
				break
			}
		}
	}
	return dst, "", nil
}

// QueryKey is /query_key and one entry of /batch_query_keys: the readable replicas.
func (s *Service) QueryKey(tenant, key string, resp *wire.Result[wire.ReplicaList]) {
	*resp = wire.Result[wire.ReplicaList]{}
	t, code := s.readTenant(tenant)
	if resp.Code = code; code != wire.OK {
		return
	}
	if resp.Code = wire.ErrObjectNotFound; t == nil {
		return
	}
	now := s.now()
	s.withObject(t, key, func(sh *shard, _ uint32, o *object) {
		switch {
		case s.list(sh, o, now, &resp.Value.Replicas):
			resp.Code, resp.Value.LeaseTTLMS = wire.OK, uint64(s.leaseMS)
			if o.is(fChecksum) {
				resp.Value.Checksum = wire.Opt[uint64]{Value: o.checksum, OK: true}
			}
		case s.hasAlive(sh, o):
			resp.Code = wire.ErrReplicaIsNotReady
		}
	})
}

// DescribeKey answers [KeyDetail].
func (s *Service) DescribeKey(tenant, key string) (d KeyDetail, code wire.ErrorCode) {
	t, code := s.readTenant(tenant)
	if code != wire.OK {
		return d, code
	}
	if t == nil {
		return d, wire.ErrObjectNotFound
	}
	code = wire.ErrObjectNotFound
	s.withObject(t, key, func(sh *shard, n uint32, o *object) {
		code = wire.OK
		d = KeyDetail{
			Tenant: t.name, Key: sh.keyString(o), Size: o.size, Writer: o.writer, PutStartMS: o.putStart,
			LeaseMS: s.leaseEnd(o), ProbeMS: o.probe, HardPin: o.is(fHardPin), Processing: o.is(fProcessing),
			Group: s.groupName(o), DataType: o.data, Epoch: o.epoch,
		}
		if o.is(fSoftPin) {
			d.SoftPinMS = sh.pins[n].until
		}
		for it := sh.begin(o); it.ok(); it.advance(sh) {
			s.describe(sh, o, it.replica, grow(&d.Replicas))
			name := ""
			if it.kind == wire.KindMemory {
				name = s.seg(it.replica).Name
			}
			d.Segments = append(d.Segments, name)
			d.Busy += int(it.busy)
		}
	})
	return d, code
}

// SegmentDetails lists the segments in order of name and id.
func (s *Service) SegmentDetails() []SegmentDetail {
	now := s.now()
	s.registry.mu.Lock()
	segs := make([]*segment, 0, len(s.registry.byID))
	for _, g := range s.registry.byID {
		segs = append(segs, g)
	}
	s.registry.mu.Unlock()
	slices.SortFunc(segs, func(a, b *segment) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.ID[0], b.ID[0]), cmp.Compare(a.ID[1], b.ID[1]))
	})
	out := make([]SegmentDetail, 0, len(segs))
	for _, g := range segs {
		d := SegmentDetail{
			Segment: g.Segment, Client: g.client, Status: wire.SegmentStatus(g.status.Load()), Largest: g.largest.Load(),
			Suspect: g.suspect(now), WarmUp: g.warmth(now), MountedMS: g.mounted,
		}
		g.mu.Lock()
		if !g.gone.Load() {
			d.Requested, d.Used, d.Objects, d.Quarantined = g.requested, g.space.Used(), g.objects, g.quarantined
		}
		g.mu.Unlock()
		out = append(out, d)
	}
	return out
}

// SegmentNames lists the distinct names in order, as /get_all_segments does.
func (s *Service) SegmentNames() []string {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	out := make([]string, 0, len(s.registry.byName))
	for name := range s.registry.byName {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// SegmentUse is /query_segment: requested bytes, really taken bytes and capacity of all segments of a name.
func (s *Service) SegmentUse(name string) (requested, used, capacity uint64, ok bool) {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	for _, g := range s.registry.byName[name] {
		g.mu.Lock()
		requested += g.requested
		used += g.space.Used()
		capacity += g.Size
		g.mu.Unlock()
		ok = true
	}
	return requested, used, capacity, ok
}

// SuspectSegment marks or clears a segment name as sick, for probers and operators: nothing new is placed
// there while others have room, and reads are sent to other replicas first. It lasts until cleared.
func (s *Service) SuspectSegment(name, reason string, suspect bool) wire.ErrorCode {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	segs := s.registry.byName[name]
	if len(segs) == 0 {
		return wire.ErrSegmentNotFound
	}
	for _, g := range segs {
		if suspect {
			if g.marked.Swap(&reason) == nil {
				s.counters.SegmentsSuspected.Add(1)
			}
		} else {
			g.marked.Store(nil)
			g.avoided.Store(0)
			g.failed.Store(0)
		}
	}
	return wire.OK
}

// Stats computes [Stats].
func (s *Service) Stats() Stats {
	var st Stats
	st.TotalFree, st.LargestFree = s.freeSpace()
	s.pressure.mu.Lock()
	st.Eviction = s.pressure.report
	s.pressure.mu.Unlock()
	st.Domains = s.Policies()
	s.tenants.mu.Lock()
	for _, t := range s.tenantTable().list {
		st.Tenants = append(st.Tenants, s.tenantStats(t))
	}
	s.tenants.mu.Unlock()
	s.tasks.mu.Lock()
	c := s.tasks.counts
	s.tasks.mu.Unlock()
	st.Tasks = TaskStats{Pending: c[wire.TaskPending], Processing: c[wire.TaskProcessing], Finished: c[wire.TaskFailed] + c[wire.TaskSuccess]}
	return st
}
