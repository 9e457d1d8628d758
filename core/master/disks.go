package master

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// diskTable knows the clients that keep objects on disks of their own.
type diskTable struct {
	mu   sync.Mutex // before diskOwner.mu
	byID map[wire.UUID]*diskOwner
	list atomic.Pointer[[]*diskOwner] // by number
}

// diskOwner is a client's disk. A client that unmounts its disk or expires loses its owner for good: its
// replicas cannot be read from then on, and it gets a new one when it comes back.
type diskOwner struct {
	id       wire.UUID
	number   uint32
	gone     atomic.Bool
	replicas atomic.Int64
	used     atomic.Int64 // bytes
	capacity atomic.Int64 // reported, 0 unknown
	names    atomic.Pointer[[]string]

	mu         sync.Mutex // a leaf
	mounted    bool       // registered by MountLocalDiskSegment
	enabled    bool
	offloads   mailbox
	promotions mailbox
	clear      bool // the client is to delete everything
}

// mailbox holds tasks in order, each object once. Dropped ones leave a gap that is skipped.
type mailbox struct {
	items []wire.OffloadTask // Key "": a gap
	base  int                // number of items[0]
	there map[groupName]int  // tenant number and key → number
}

func (m *mailbox) len() int { return len(m.there) }

func (m *mailbox) add(tenant uint16, t wire.OffloadTask) bool {
	k := groupName{tenant, t.Key}
	if _, ok := m.there[k]; ok {
		return false
	}
	if m.there == nil {
		m.there = map[groupName]int{}
	}
	m.there[k] = m.base + len(m.items)
	m.items = append(m.items, t)
	return true
}

func (m *mailbox) has(tenant uint16, key string) bool {
	_, ok := m.there[groupName{tenant, key}]
	return ok
}

func (m *mailbox) drop(tenant uint16, key string) {
	k := groupName{tenant, key}
	if i, ok := m.there[k]; ok {
		delete(m.there, k)
		m.items[i-m.base] = wire.OffloadTask{}
	}
}

// take appends the first n tasks to dst and removes them.
func (m *mailbox) take(dst []wire.OffloadTask, n int, number func(tenant string) uint16) []wire.OffloadTask {
	for len(m.items) > 0 && n > 0 {
		t := m.items[0]
		m.items = m.items[1:]
		m.base++
		if t.Key != "" {
			delete(m.there, groupName{number(t.Tenant), t.Key})
			dst = append(dst, t)
			n--
		}
	}
	if len(m.items) == 0 {
		m.items = nil
	}
	return dst
}

func (t *diskTable) owner(number uint32) *diskOwner { return (*t.list.Load())[number] }

func (d *diskOwner) endpoint(n uint32) string { return (*d.names.Load())[n] }

// nameOf returns the number of an endpoint.
func (d *diskOwner) nameOf(endpoint string) uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := *d.names.Load()
	if i := slices.Index(names, endpoint); i >= 0 {
		return uint32(i)
	}
	names = append(slices.Clip(names), strings.Clone(endpoint))
	d.names.Store(&names)
	return uint32(len(names) - 1)
}

// get returns the owner of a client, making it if asked.
func (t *diskTable) get(id wire.UUID, make bool) *diskOwner {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.byID[id]
	if d == nil && make {
		d = &diskOwner{id: id}
		d.names.Store(&[]string{})
		list := *t.list.Load()
		// Take the place of one that is gone with all its replicas.
		d.number = uint32(len(list))
		for i, old := range list {
			if old.gone.Load() && old.replicas.Load() == 0 {
				d.number = uint32(i)
			}
		}
		next := slices.Clone(list)
		if d.number == uint32(len(list)) {
			next = append(next, d)
		}
		next[d.number] = d
		t.list.Store(&next)
		if t.byID == nil {
			t.byID = map[wire.UUID]*diskOwner{}
		}
		t.byID[id] = d
	}
	return d
}

// mountedOwner returns the owner of a client that has mounted its disk.
func (t *diskTable) mountedOwner(id wire.UUID) *diskOwner {
	d := t.get(id, false)
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.mounted {
		return nil
	}
	return d
}

// dropped books a local disk replica that is gone.
func (t *diskTable) dropped(r *replica) {
	d := t.owner(r.seg)
	d.replicas.Add(-1)
	d.used.Add(-int64(r.place))
}

func (t *diskTable) capacityOf(id wire.UUID) (mounted bool, bytes int64) {
	if d := t.mountedOwner(id); d != nil {
		return true, d.capacity.Load()
	}
	return false, 0
}

// diskFree is the free share of a client's disk, 1 if it is not known.
func (s *Service) diskFree(id wire.UUID) float64 {
	d := s.disks.get(id, false)
	if d == nil || d.capacity.Load() <= 0 {
		return 1
	}
	return max(0, 1-float64(d.used.Load())/float64(d.capacity.Load()))
}

// requestClear tells owners (nil: all) to delete everything.
func (t *diskTable) requestClear(numbers map[uint32]bool) {
	for _, d := range *t.list.Load() {
		if !d.gone.Load() && (numbers == nil || numbers[d.number]) {
			d.mu.Lock()
			d.clear = true
			d.mu.Unlock()
		}
	}
}

// forget ends a client's disk: what lies there is unreadable at once. The table is swept in the background.
func (t *diskTable) forget(s *Service, id wire.UUID) {
	t.mu.Lock()
	d := t.byID[id]
	if d != nil {
		delete(t.byID, id)
		d.gone.Store(true)
	}
	t.mu.Unlock()
	if d == nil {
		return
	}
	s.counters.FileCapacityBytes.Add(-d.capacity.Load())
	if d.replicas.Load() > 0 {
		s.sweepDisks.Store(true)
		s.wakeSweep()
	}
}

// sweepGoneDisks drops the replicas on disks that are gone. It looks at every object, but only after such
// an event.
func (s *Service) sweepGoneDisks(ctx context.Context) {
	if !s.sweepDisks.Swap(false) {
		return
	}
	now := s.now()
	s.scan(ctx, nil, func(sh *shard, _, n uint32, o *object) bool {
		if has(sh, o, func(r *replica) bool { return isLocalDisk(r) && !s.alive(r) }) {
			s.freshen(sh, n, o, now)
		}
		return true
	})
}

// MountLocalDiskSegment registers a client's disk.
func (s *Service) MountLocalDiskSegment(req *wire.LocalDiskRequest, resp *wire.Result[wire.Void]) {
	if !s.cfg.Offload {
		resp.Code = wire.ErrUnableOffload
		return
	}
	d := s.disks.get(req.Client, true)
	d.mu.Lock()
	if !d.mounted {
		d.mounted, d.enabled = true, req.Enable
	}
	d.mu.Unlock()
	s.heardOf(req.Client, "", s.now())
	resp.Code = wire.OK
}

// UnmountLocalDiskSegment removes a client's disk and what lies there; doing it again is fine.
func (s *Service) UnmountLocalDiskSegment(req *wire.ClientRequest, resp *wire.Result[wire.Void]) {
	if !s.cfg.Offload {
		resp.Code = wire.ErrUnableOffload
		return
	}
	s.disks.forget(s, req.Client)
	resp.Code = wire.OK
}

// ReportSSDCapacity notes the size of a client's disk.
func (s *Service) ReportSSDCapacity(req *wire.ReportSSDCapacityRequest, resp *wire.Result[wire.Void]) {
	if req.Bytes < 0 {
		resp.Code = wire.ErrInvalidParams
		return
	}
	d := s.disks.mountedOwner(req.Client)
	if d == nil {
		resp.Code = wire.ErrSegmentNotFound
		return
	}
	s.counters.FileCapacityBytes.Add(req.Bytes - d.capacity.Swap(req.Bytes))
	resp.Code = wire.OK
}

// PollRemoveAll tells a client, once, to delete everything on its disk.
func (s *Service) PollRemoveAll(req *wire.ClientRequest, resp *wire.Result[bool]) {
	d := s.disks.mountedOwner(req.Client)
	if d == nil {
		*resp = wire.Result[bool]{Code: wire.ErrSegmentNotFound}
		return
	}
	d.mu.Lock()
	*resp = wire.Result[bool]{Value: d.clear}
	d.clear = false
	d.mu.Unlock()
}

// EvictDiskReplica removes the replica of an object on the shared or the client's own disk.
func (s *Service) EvictDiskReplica(req *wire.EvictDiskRequest, resp *wire.Result[wire.Void]) {
	s.counters.EvictDiskReplica.Requests.Add(1)
	t, code := s.readTenant(req.Tenant)
	if code == wire.OK {
		code = s.evictDisk(t, req.Client, req.Key, req.Type)
	}
	if resp.Code = code; code != wire.OK {
		s.counters.EvictDiskReplica.Failures.Add(1)
	}
}

// BatchEvictDiskReplica is EvictDiskReplica for several keys.
func (s *Service) BatchEvictDiskReplica(req *wire.BatchEvictDiskRequest, resp *[]wire.Result[wire.Void]) {
	out := results(resp, len(req.Keys))
	t, code := s.readTenant(req.Tenant)
	for i := range out {
		if out[i].Code = code; code == wire.OK {
			out[i].Code = s.evictDisk(t, req.Client, req.Keys[i], req.Type)
		}
	}
}

func (s *Service) evictDisk(t *tenant, client wire.UUID, key string, typ wire.ReplicaType) wire.ErrorCode {
	if t == nil {
		return wire.ErrObjectNotFound
	}
	hash := eviction.KeyHash(t.name, key)
	sh, _ := s.shardOf(hash)
	now := s.now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := sh.find(hash, t.number, key)
	if n == 0 || !s.freshen(sh, n, sh.objects.at(n), now) {
		return wire.ErrObjectNotFound
	}
	if typ != wire.ReplicaDisk && typ != wire.ReplicaLocalDisk {
		return wire.ErrInvalidParams
	}
	o := sh.objects.at(n)
	s.discardAll(sh, o, freeNow, 0, now, func(r *replica) bool {
		return aimed(typ, r) && (typ == wire.ReplicaDisk || s.disks.owner(r.seg).id == client)
	})
	if s.settle(sh, n, o, eviction.CodeRemoved, now) && !s.unfinished(sh, n, o) {
		s.finishWrite(sh, o)
	}
	return wire.OK
}

// diskPath is where the disk replica of a key lies on the shared file system.
func (s *Service) diskPath(key []byte) string {
	h := stdHash(key)
	b := make([]byte, 0, len(s.fsDir)+5+len(key))
	b = append(b, s.fsDir...)
	b = append(b, '/', 'a'+byte(h&15), '/', 'a'+byte(h>>4&15), '/')
	for _, c := range key {
		if c == 0 || strings.IndexByte(`/\:*?"<>|`, c) >= 0 {
			c = '_'
		}
		b = append(b, c)
	}
	return string(b)
}

// stdHash is libstdc++'s std::hash<std::string>, from which the file tree of disk replicas is derived.
func stdHash(key []byte) uint64 {
	const m = 0xc6a4a7935bd1e995
	mix := func(v uint64) uint64 { return v ^ v>>47 }
	x := 0xc70f6907 ^ uint64(len(key))*m
	for ; len(key) >= 8; key = key[8:] {
		x = (x ^ mix(binary.LittleEndian.Uint64(key)*m)*m) * m
	}
	if len(key) > 0 {
		var rest [8]byte
		copy(rest[:], key)
		x = (x ^ binary.LittleEndian.Uint64(rest[:])) * m
	}
	return mix(mix(x) * m)
}
