package master

import (
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/segment/space"
	"github.com/mooncake-agent/mooncake/eviction"
)

// ref names an object in the whole service: the shard in the low bits, its number there above. 0 is none.
type ref uint32

const (
	shardBits = 7
	numShards = 1 << shardBits
	maxIndex  = 1<<(32-shardBits) - 1 // objects of one shard
)

func (r ref) shard() uint32 { return uint32(r) & (numShards - 1) }
func (r ref) index() uint32 { return uint32(r) >> shardBits }

// objectFlags are the states of an object.
type objectFlags uint16

const (
	fLive       objectFlags = 1 << iota
	fProcessing             // a put or upsert has not ended
	fHardPin
	fSoftPin     // a soft pin is in force: shard.pins has its deadline
	fPinPending  // shard.pins has what the running put will do to the soft pin
	fChecksum    // object.checksum counts
	fCopyTask    // shard.copies has a copy or move
	fOffload     // shard.offloads has a task
	fPromotion   // shard.promotions has a task
	fMemCounted  // counted in mem_cache_nums_
	fFileCounted // counted in file_cache_nums_
	fUpsert      // the running write replaces a value in place
	fRetaken     // the running write took over one of the same client, which may still be writing too
)

// object is one record of the table: 128 bytes without pointers, so that the garbage collector never looks
// at it. Everything that few objects have lives in maps of the shard. Guarded by shard.mu.
type object struct {
	hash     uint64 // eviction.KeyHash
	size     uint64 // bytes
	writer   wire.UUID
	lease    int64 // end of the read lease, Unix milliseconds
	probe    int64 // end of what ExistKey granted, unless that is a read lease
	putStart int64
	checksum uint64

	key     uint32 // in shard.keys
	keyLen  uint32
	handle  eviction.Handle // in the domain of its tenant; 0: not announced to the policy
	group   uint32          // group number, 0 none
	epoch   uint32          // counts the writes of this record
	more    uint32          // further replicas, in shard.extra
	tenant  uint16
	flags   objectFlags
	touched uint16 // the domain's round of questions at the last read
	data    uint8  // ObjectDataType
	count   uint8  // replicas

	first replica
}

// replica is one copy. What the fields mean depends on kind:
//
//	memory:     seg = segment number, node = its range there, place = offset in the segment
//	local disk: seg = number of the disk owner, node = number of its endpoint, place = bytes
//	disk:       nothing; the path follows from the key
type replica struct {
	id    uint64
	place uint64
	seg   uint32
	node  uint32
	kind  wire.ReplicaKind
	state uint8 // wire.ReplicaStatus
	busy  uint16
	_     uint32
}

type extraReplica struct {
	replica
	next uint32
}

// maxReplicas is what object.count can hold.
const maxReplicas = 255

const (
	processing = uint8(wire.StatusProcessing)
	complete   = uint8(wire.StatusComplete)
)

func (r *replica) range_() space.Handle { return space.Handle(r.node) }

func (o *object) is(f objectFlags) bool { return o.flags&f != 0 }

// slab holds values of one type in blocks of 64, numbered from 1.
type slab[T any] struct {
	blocks []*[64]T
	free   []uint32
	next   uint32
}

func (s *slab[T]) at(i uint32) *T { return &s.blocks[i>>6][i&63] }

// alloc returns the number of a zeroed value.
func (s *slab[T]) alloc() uint32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		return i
	}
	if s.next == 0 {
		s.next = 1
	}
	i := s.next
	if int(i>>6) == len(s.blocks) {
		s.blocks = append(s.blocks, new([64]T))
	}
	s.next++
	return i
}

// peek is the number that alloc will return.
func (s *slab[T]) peek() uint32 {
	if n := len(s.free); n > 0 {
		return s.free[n-1]
	}
	return max(s.next, 1)
}

func (s *slab[T]) release(i uint32) {
	var zero T
	*s.at(i) = zero
	s.free = append(s.free, i)
}

// blocks is a list that grows without copying what is there.
type blocks[T any] struct {
	list []*[1024]T
	n    int
}

func (b *blocks[T]) grow(n int) {
	for b.n = max(b.n, n); len(b.list)*1024 < b.n; {
		b.list = append(b.list, new([1024]T))
	}
}

func (b *blocks[T]) at(i int) *T { return &b.list[uint(i)/1024][uint(i)%1024] }
