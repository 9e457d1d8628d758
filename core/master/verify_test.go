package master

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// verify compares everything that is kept twice, with all shards locked.
func (s *Service) verify() error {
	for i := range s.shards {
		s.shards[i].mu.Lock()
		defer s.shards[i].mu.Unlock()
	}
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	s.timers.mu.Lock()
	defer s.timers.mu.Unlock()

	type span struct {
		from, to uint64
		what     string
	}
	spans := map[*segment][]span{}
	inUse := map[*segment]int{}
	objects := map[*segment]int{}
	requested := map[*segment]uint64{}
	var keys, soft, hard, processingKeys, memReps, fileReps, writingTotal int
	var mem, file int64
	tenants := map[uint16]int64{}
	tenantObjects := map[uint16]int64{}
	handles := map[*domain]map[uint32]bool{}
	inGroups := map[uint32]int{}
	ids := map[uint64]bool{}
	for si := range s.shards {
		sh := &s.shards[si]
		writing, live := 0, 0
		for n := uint32(1); n < sh.objects.next; n++ {
			o := sh.live(n)
			if o == nil {
				continue
			}
			live++
			keys++
			key := sh.keyString(o)
			if found := sh.find(o.hash, o.tenant, key); found != n {
				return fmt.Errorf("key %q: the index finds object %d, not %d", key, found, n)
			}
			if o.count == 0 {
				return fmt.Errorf("key %q has no replica", key)
			}
			tenantObjects[o.tenant]++
			if o.is(fProcessing) {
				processingKeys++
				writing++
				if !slices.ContainsFunc(sh.writes, func(w writeEntry) bool { return w.object == n && w.epoch == o.epoch }) {
					return fmt.Errorf("key %q is being written but not among the running writes", key)
				}
			}
			if o.is(fHardPin) {
				hard++
			}
			if o.is(fSoftPin) {
				soft++
				if sh.pins[n].until == 0 {
					return fmt.Errorf("key %q is soft-pinned without an end", key)
				}
			}
			if o.group != 0 {
				inGroups[o.group]++
				if !slices.Contains(s.groups.list[o.group-1].members, makeRef(uint32(si), n)) {
					return fmt.Errorf("key %q is not a member of its group", key)
				}
			}
			count, haveMem, haveFile, busy := 0, false, false, 0
			for it := sh.begin(o); it.ok(); it.advance(sh) {
				count++
				if ids[it.id] {
					return fmt.Errorf("key %q: replica id %d is used twice", key, it.id)
				}
				ids[it.id] = true
				busy += int(it.busy)
				switch it.kind {
				case wire.KindMemory:
					g := s.seg(it.replica)
					if g == nil {
						return fmt.Errorf("key %q: replica %d lies in no segment", key, it.id)
					}
					inUse[g]++
					haveMem = haveMem || it.state == complete
					off, size := g.space.Range(it.range_())
					tenants[o.tenant] += int64(size)
					if g.gone.Load() {
						continue
					}
					if off != it.place || size < o.size {
						return fmt.Errorf("key %q: replica %d lies at %d, its range at %d, %d bytes", key, it.id, it.place, off, size)
					}
					if *g.owners.at(int(it.node - 1)) != makeRef(uint32(si), n) {
						return fmt.Errorf("key %q: its range belongs to %d", key, *g.owners.at(int(it.node - 1)))
					}
					objects[g]++
					requested[g] += o.size
					mem += int64(o.size)
					spans[g] = append(spans[g], span{off, off + size, "object " + key})
				case wire.KindDisk, wire.KindLocalDisk:
					haveFile = haveFile || it.state == complete
				}
			}
			if count != int(o.count) {
				return fmt.Errorf("key %q has %d replicas, counts %d", key, count, o.count)
			}
			want := 0
			if o.is(fCopyTask) {
				want += 2
			}
			if o.is(fOffload) {
				want++
			}
			if o.is(fPromotion) {
				want++
			}
			if busy > want {
				return fmt.Errorf("key %q: busy %d with %d tasks", key, busy, want)
			}
			if o.is(fCopyTask) != (sh.copies[n] != nil) || o.is(fOffload) != (sh.offloads[n] != nil) || o.is(fPromotion) != (sh.promotions[n] != nil) {
				return fmt.Errorf("key %q: task flags %x do not match its tasks", key, o.flags)
			}
			if haveMem {
				memReps++
			}
			if haveFile {
				fileReps++
				file += int64(o.size)
			}
			if o.handle != 0 {
				d := s.tenantOf(o).dom()
				if handles[d] == nil {
					handles[d] = map[uint32]bool{}
				}
				if handles[d][uint32(o.handle)] {
					return fmt.Errorf("key %q shares handle %d", key, o.handle)
				}
				handles[d][uint32(o.handle)] = true
				if got := d.ring.object(o.handle); got != makeRef(uint32(si), n) {
					return fmt.Errorf("key %q: handle %d stands for %d", key, o.handle, got)
				}
			} else if haveMem && !o.is(fProcessing) {
				return fmt.Errorf("key %q is resident but its policy was not told", key)
			}
		}
		if writing != sh.writing {
			return fmt.Errorf("shard %d: %d writes, counts %d", si, writing, sh.writing)
		}
		if live != sh.index.used {
			return fmt.Errorf("shard %d: %d objects, %d in the index", si, live, sh.index.used)
		}
		if len(sh.copies)+len(sh.offloads)+len(sh.promotions)+len(sh.pins) > 4*live {
			return fmt.Errorf("shard %d: left-overs of objects that are gone", si)
		}
		writingTotal += writing
	}
	held := map[*segment]uint64{}
	for _, h := range slices.Concat([]hold(s.timers.quarantine), s.timers.held[s.timers.start:]) {
		if h.seg.gone.Load() {
			continue
		}
		off, size := h.seg.space.Range(h.node)
		spans[h.seg] = append(spans[h.seg], span{off, off + size, fmt.Sprintf("quarantine until %d", h.safe)})
		held[h.seg] += size
		requested[h.seg] += h.size
		mem += int64(h.size)
	}
	var allocated, capacity, quarantined int64
	for _, g := range s.registry.byID {
		list := spans[g]
		slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		var sum uint64
		for i, x := range list {
			sum += x.to - x.from
			if x.to > g.Size {
				return fmt.Errorf("segment %s: %s ends at %d of %d", g.Name, x.what, x.to, g.Size)
			}
			if i > 0 && list[i-1].to > x.from {
				return fmt.Errorf("segment %s: bytes %d..%d belong to %s and to %s", g.Name, x.from, list[i-1].to, list[i-1].what, x.what)
			}
		}
		switch {
		case sum != g.space.Used():
			return fmt.Errorf("segment %s: objects and quarantine take %d bytes, the allocator says %d", g.Name, sum, g.space.Used())
		case g.free.Load() != g.Size-g.space.Used() && g.space.Size() == g.Size:
			return fmt.Errorf("segment %s: free %d of %d used %d", g.Name, g.free.Load(), g.Size, g.space.Used())
		case g.objects != objects[g]:
			return fmt.Errorf("segment %s: %d replicas, counts %d", g.Name, objects[g], g.objects)
		case int(g.inUse.Load()) != inUse[g]:
			return fmt.Errorf("segment %s: %d replicas in use, counts %d", g.Name, inUse[g], g.inUse.Load())
		case g.requested != requested[g]:
			return fmt.Errorf("segment %s: %d requested, counts %d", g.Name, requested[g], g.requested)
		case g.quarantined != held[g]:
			return fmt.Errorf("segment %s: %d quarantined, counts %d", g.Name, held[g], g.quarantined)
		}
		allocated += int64(g.space.Used())
		quarantined += int64(held[g])
		capacity += int64(g.Size)
	}
	c := &s.counters
	for _, x := range []struct {
		what      string
		got, want int64
	}{
		{"keys", c.Keys.Load(), int64(keys)}, {"soft pins", c.SoftPinnedKeys.Load(), int64(soft)}, {"hard pins", c.HardPinnedKeys.Load(), int64(hard)},
		{"processing", c.ProcessingKeys.Load(), int64(processingKeys)}, {"objects in memory", c.MemReplicas.Load(), int64(memReps)},
		{"objects on disk", c.FileReplicas.Load(), int64(fileReps)}, {"bytes on disk", c.FileBytes.Load(), file}, {"allocated", c.AllocatedBytes.Load(), allocated},
		{"requested", c.RequestedBytes.Load(), mem}, {"capacity", c.CapacityBytes.Load(), capacity}, {"quarantined", c.QuarantinedBytes.Load(), quarantined},
		{"segments", c.Segments.Load(), int64(len(s.registry.byID))},
	} {
		if x.got != x.want {
			return fmt.Errorf("gauge %s is %d, not %d", x.what, x.got, x.want)
		}
	}
	for _, t := range s.tenantTable().list {
		if t.used.Load() != tenants[t.number] || t.objects.Load() != tenantObjects[t.number] {
			return fmt.Errorf("tenant %s: used %d and %d objects, counts %d and %d", t.name, tenants[t.number], tenantObjects[t.number], t.used.Load(), t.objects.Load())
		}
	}
	for _, d := range s.allDomains() {
		if int(d.known.Load()) != len(handles[d]) {
			return fmt.Errorf("domain %s: %d objects with a handle, counts %d", d.name, len(handles[d]), d.known.Load())
		}
	}
	for i, g := range s.groups.list {
		if g != nil && len(g.members) != inGroups[uint32(i+1)] {
			return fmt.Errorf("group %s: %d members, counts %d", g.name, inGroups[uint32(i+1)], len(g.members))
		}
	}
	return nil
}
