package master

import (
	"sync"
	"sync/atomic"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/segment/space"
)

// segment is one mounted piece of a client's memory. What lies in it is known by range: owners names the
// object of each, so that a segment that goes away takes its replicas along without a search of the table.
type segment struct {
	wire.Segment
	client  wire.UUID
	number  uint32 // in replica.seg; not used again before the last replica is gone
	mounted int64
	warm    int64 // it takes its full share of the puts from then on

	mu          sync.Mutex // a leaf
	space       *space.Allocator
	owners      blocks[ref] // by range handle - 1; 0: nobody's, or free
	requested   uint64
	objects     int
	quarantined uint64

	// Readable without the lock.
	gone    atomic.Bool   // unmounted: its replicas cannot be read
	status  atomic.Int32  // wire.SegmentStatus
	free    atomic.Uint64 // bytes
	largest atomic.Uint64 // the largest put that would fit
	inUse   atomic.Int64  // replicas; the sweep is over at 0

	silent  atomic.Bool // its client is suspected
	marked  atomic.Pointer[string]
	failed  atomic.Int32 // revoked puts in a row
	avoided atomic.Int64 // avoided until, after revoked puts
	wanted  atomic.Int64 // bytes a put that preferred it found no room for; the background makes room
}

// placement is a range that was taken for a replica.
type placement struct {
	seg     *segment
	node    space.Handle
	offset  uint64
	rounded uint64
	owner   ref
}

func newSegment(d wire.Segment, client wire.UUID) (*segment, error) {
	sp, err := space.New(d.Size)
	if err != nil {
		return nil, err
	}
	g := &segment{Segment: d, client: client, space: sp}
	g.status.Store(int32(wire.SegmentOK))
	g.measure()
	return g, nil
}

func (g *segment) measure() {
	g.free.Store(g.space.Size() - g.space.Used())
	g.largest.Store(g.space.Largest())
}

func (g *segment) takes() bool {
	return !g.gone.Load() && wire.SegmentStatus(g.status.Load()) == wire.SegmentOK
}

// suspect tells why nothing new should be placed here, "" if it may.
func (g *segment) suspect(now int64) string {
	if why := g.marked.Load(); why != nil {
		return *why
	}
	if g.silent.Load() {
		return "its client has not pinged lately"
	}
	if g.avoided.Load() > now {
		return "puts to it failed"
	}
	return ""
}

func (g *segment) isSuspect(now int64) bool {
	return g.silent.Load() || g.avoided.Load() > now || g.marked.Load() != nil
}

// warmth is the share of its puts that a segment takes, 0.1 for one that has just joined, 1 after warm-up.
func (g *segment) warmth(now int64) float64 {
	if now >= g.warm || g.warm <= g.mounted {
		return 1
	}
	return 0.1 + 0.9*float64(now-g.mounted)/float64(g.warm-g.mounted)
}

// take finds room for size bytes of the object r; r may be 0 and set later by own.
func (g *segment) take(size uint64, r ref) (placement, bool) {
	if size > g.largest.Load() {
		return placement{}, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone.Load() {
		return placement{}, false
	}
	before := g.space.Used()
	offset, h, ok := g.space.Allocate(size)
	if !ok {
		return placement{}, false
	}
	g.owners.grow(int(h))
	*g.owners.at(int(h - 1)) = r
	g.requested += size
	g.objects++
	g.inUse.Add(1)
	g.measure()
	return placement{g, h, offset, g.space.Used() - before, r}, true
}

// own says whose a range is.
func (g *segment) own(h space.Handle, r ref) {
	g.mu.Lock()
	*g.owners.at(int(h - 1)) = r // even when it is gone, so that the sweep finds the replica
	g.mu.Unlock()
}

// give frees a range at once. alive is false when the segment is gone and its numbers with it.
func (g *segment) give(h space.Handle, size uint64) (rounded uint64, alive bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, rounded = g.space.Range(h)
	g.inUse.Add(-1)
	if g.gone.Load() {
		return rounded, false
	}
	g.space.Free(h)
	*g.owners.at(int(h - 1)) = 0
	g.requested -= size
	g.objects--
	g.measure()
	return rounded, true
}

// hold takes a range away from its object without freeing it: somebody may still be reading or writing it.
func (g *segment) hold(h space.Handle) (rounded uint64, alive bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, rounded = g.space.Range(h)
	g.inUse.Add(-1)
	if g.gone.Load() {
		return rounded, false
	}
	*g.owners.at(int(h - 1)) = 0
	g.objects--
	g.quarantined += rounded
	return rounded, true
}

// endHold frees a range that was held.
func (g *segment) endHold(h space.Handle, size uint64) (rounded uint64, alive bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone.Load() {
		return 0, false
	}
	_, rounded = g.space.Range(h)
	g.space.Free(h)
	g.requested -= size
	g.quarantined -= rounded
	g.measure()
	return rounded, true
}

func (g *segment) rangeSize(h space.Handle) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, n := g.space.Range(h)
	return n
}

// leave makes the segment unreadable and returns what it held.
func (g *segment) leave() (requested, used, quarantined uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone.Store(true)
	g.status.Store(int32(wire.SegmentUnmounting))
	g.largest.Store(0)
	g.free.Store(0)
	return g.requested, g.space.Used(), g.quarantined
}

// residents copies the owners of ranges from..from+len(dst) and returns how many ranges there are in all.
func (g *segment) residents(dst []ref, from int) (n, total int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for ; n < len(dst) && from+n < g.owners.n; n++ {
		dst[n] = *g.owners.at(from + n)
	}
	return n, g.owners.n
}

// clear forgets the ranges of a segment that is gone and whose replicas are, too.
func (g *segment) clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.owners, g.space = blocks[ref]{}, nil
}
