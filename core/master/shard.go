package master

import (
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// shard is one part of the object table. Objects are spread by the upper bits of their hash.
type shard struct {
	mu sync.Mutex

	index   index
	objects slab[object]
	extra   slab[extraReplica]
	keys    arena

	// writes are the running puts, oldest first; entries whose object or epoch has moved on are void.
	writes  []writeEntry
	writing int    // objects with fProcessing
	epoch   uint32 // of the last write; no two writes of a shard share one

	// What few objects have, by object number.
	pins       map[uint32]softPin
	copies     map[uint32]*copyTask
	offloads   map[uint32]*offloadTask
	promotions map[uint32]*promotionTask

	_ [24]byte // keep the mutexes of neighbours apart
}

// writeEntry is a running put.
type writeEntry struct {
	object, epoch uint32
	start         int64
}

// softPin is the soft pin of an object: the one in force, and what the running write will do at its end.
type softPin struct {
	until   int64 // 0: none in force
	pending wire.SoftPinAction
	ttl     int64 // of a pending one
}

func (s *Service) shardOf(hash uint64) (*shard, uint32) {
	n := uint32(hash >> (64 - shardBits))
	return &s.shards[n], n
}

func makeRef(shard, object uint32) ref { return ref(object<<shardBits | shard) }

// find returns the number of an object, 0 if there is none.
func (sh *shard) find(hash uint64, tenant uint16, key string) uint32 {
	x := &sh.index
	if x.used == 0 {
		return 0
	}
	mask := uint32(len(x.slots) - 1)
	tag := uint32(hash)
	for i := tag & mask; ; i = (i + 1) & mask {
		s := x.slots[i]
		if s.object == 0 {
			return 0
		}
		if s.tag == tag {
			o := sh.objects.at(s.object)
			if o.hash == hash && o.tenant == tenant && string(sh.keys.get(o.key, o.keyLen)) == key {
				return s.object
			}
		}
	}
}

// insert makes an object without replicas. ok is false when the shard is full.
func (sh *shard) insert(hash uint64, tenant uint16, key string) (n uint32, o *object, ok bool) {
	if len(sh.objects.free) == 0 && sh.objects.next > maxIndex {
		return 0, nil, false
	}
	at, ok := sh.keys.add(key)
	if !ok {
		return 0, nil, false
	}
	n = sh.objects.alloc()
	o = sh.objects.at(n)
	*o = object{hash: hash, tenant: tenant, key: at, keyLen: uint32(len(key)), flags: fLive}
	sh.index.insert(hash, n)
	return n, o, true
}

// erase takes an object without replicas, tasks and pins out of the table.
func (sh *shard) erase(n uint32, o *object) {
	sh.index.remove(o.hash, n)
	sh.keys.remove(o.key)
	sh.objects.release(n)
	if sh.index.used == 0 && sh.objects.next > keepObjects {
		// A store that was emptied gives its memory back. Numbers start again; whoever still has one finds
		// no object, or another epoch.
		sh.objects, sh.extra, sh.keys = slab[object]{}, slab[extraReplica]{}, arena{}
		sh.writes = nil
	}
}

// keepObjects is the number of records for which an empty shard keeps its memory.
const keepObjects = 1024

// live returns an object that is in the table, nil if the number is not in use.
func (sh *shard) live(n uint32) *object {
	if n == 0 || n >= sh.objects.next {
		return nil
	}
	if o := sh.objects.at(n); o.is(fLive) {
		return o
	}
	return nil
}

func (sh *shard) keyBytes(o *object) []byte  { return sh.keys.get(o.key, o.keyLen) }
func (sh *shard) keyString(o *object) string { return string(sh.keyBytes(o)) }

// Replicas of an object: for r := sh.begin(o); r.ok(); r.advance(sh) { r.replica ... }
type replicaIter struct {
	*replica
	next uint32
}

func (sh *shard) begin(o *object) replicaIter {
	if o.count == 0 {
		return replicaIter{}
	}
	return replicaIter{&o.first, o.more}
}

func (it *replicaIter) ok() bool { return it.replica != nil }

func (it *replicaIter) advance(sh *shard) {
	if it.next == 0 {
		it.replica = nil
		return
	}
	e := sh.extra.at(it.next)
	it.replica, it.next = &e.replica, e.next
}

// addReplica appends a copy. The pointer is valid until replicas are removed.
func (sh *shard) addReplica(o *object, r replica) *replica {
	o.count++
	if o.count == 1 {
		o.first = r
		return &o.first
	}
	n := sh.extra.alloc()
	e := sh.extra.at(n)
	e.replica, e.next = r, 0
	if o.more == 0 {
		o.more = n
		return &e.replica
	}
	last := sh.extra.at(o.more)
	for last.next != 0 {
		last = sh.extra.at(last.next)
	}
	last.next = n
	return &e.replica
}

// dropReplica takes the replica with an id out of the list; what it held is the caller's affair.
func (sh *shard) dropReplica(o *object, id uint64) {
	if o.count == 0 {
		return
	}
	if o.first.id == id {
		o.count--
		if o.more == 0 {
			o.first = replica{}
			return
		}
		n := o.more
		e := sh.extra.at(n)
		o.first, o.more = e.replica, e.next
		sh.extra.release(n)
		return
	}
	for link := &o.more; *link != 0; {
		n := *link
		e := sh.extra.at(n)
		if e.id == id {
			*link = e.next
			sh.extra.release(n)
			o.count--
			return
		}
		link = &e.next
	}
}

func (sh *shard) byID(o *object, id uint64) *replica {
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.id == id {
			return it.replica
		}
	}
	return nil
}

// pushWrite starts a write and notes it, dropping void entries once they are the greater part.
func (sh *shard) pushWrite(n uint32, o *object) {
	if !o.is(fProcessing) {
		o.flags |= fProcessing
		sh.writing++
	}
	sh.epoch++
	o.epoch = sh.epoch
	if len(sh.writes) > 2*sh.writing+32 {
		keep := sh.writes[:0]
		for _, w := range sh.writes {
			if sh.running(w) {
				keep = append(keep, w)
			}
		}
		sh.writes = keep
	}
	sh.writes = append(sh.writes, writeEntry{n, o.epoch, o.putStart})
}

func (sh *shard) running(w writeEntry) bool {
	o := sh.live(w.object)
	return o != nil && o.epoch == w.epoch && o.is(fProcessing)
}

func (sh *shard) endWrite(o *object) {
	if o.is(fProcessing) {
		o.flags &^= fProcessing | fUpsert | fRetaken
		sh.writing--
	}
}
