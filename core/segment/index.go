package segment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/mooncake-agent/mooncake/transports"
)

// ErrOverlap is wrapped by the error for a region that shares bytes with a registered one.
var ErrOverlap = errors.New("regions overlap")

// Index holds the registered regions, sorted by address. The zero value is empty and ready.
//
// Readers work on an immutable snapshot: Find takes no lock, allocates nothing and costs O(log
// regions). The snapshot is a list of leaves of at most leafMax regions, so that one change copies
// about the square root of the whole; a batch is merged in one pass. All methods may be called
// concurrently.
type Index struct {
	mu   sync.Mutex // serialises changes
	seq  uint64     // of the last registration
	snap atomic.Pointer[snapshot]
}

// snapshot is immutable. firsts[i] is the lowest address in leaves[i]; no leaf is empty.
type snapshot struct {
	firsts []uint64
	leaves [][]*entry
	n      int
}

// entry is one registered region, its range cached to save interface calls.
type entry struct {
	addr, end uint64 // [addr, end)
	data      []byte
	access    transports.Access
	region    transports.Region
	seq       uint64
	refs      refs
}

// ReleaseRef implements the owner side of transports.Ref.
func (e *entry) ReleaseRef() { e.refs.release() }

const leafMax = 256

var empty = &snapshot{}

func (x *Index) load() *snapshot {
	if s := x.snap.Load(); s != nil {
		return s
	}
	return empty
}

// Add registers all of regions or none. The error wraps [ErrOverlap] and names both ranges when one
// shares bytes with another or with a registered region (also with one whose Remove still waits), or
// [ErrBadRegion]. Touching ranges are no overlap. O(k log k + n) for k regions.
func (x *Index) Add(regions ...transports.Region) error {
	added := make([]*entry, len(regions))
	for i, r := range regions {
		e := &entry{addr: r.Addr(), data: r.Bytes(), access: r.Access(), region: r}
		n := r.Len()
		if e.addr == 0 || n == 0 || n > math.MaxUint64-e.addr || uint64(len(e.data)) != n {
			return fmt.Errorf("segment: region of %d bytes at %#x with %d bytes of memory: %w", n, e.addr, len(e.data), ErrBadRegion)
		}
		e.end = e.addr + n
		added[i] = e
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, e := range added {
		e.seq = x.seq + uint64(i) + 1
	}
	slices.SortFunc(added, func(a, b *entry) int { return cmp.Compare(a.addr, b.addr) })
	old := x.load()
	for i, e := range added {
		if i > 0 && e.addr < added[i-1].end {
			return overlap(e, added[i-1])
		}
		if o := old.firstEndingAfter(e.addr); o != nil && o.addr < e.end {
			return overlap(e, o)
		}
	}
	x.seq += uint64(len(added))
	if len(added) == 1 {
		x.snap.Store(old.with(added[0]))
	} else if len(added) > 0 {
		x.snap.Store(build(merge(old, added)))
	}
	return nil
}

func overlap(e, o *entry) error {
	return fmt.Errorf("segment: [%#x, %#x) overlaps the registered [%#x, %#x): %w", e.addr, e.end, o.addr, o.end, ErrOverlap)
}

// Remove unregisters the regions that start at addrs and returns when nothing touches them any more.
// New Finds are refused at once. An unknown address, or one given twice, is an error that wraps
// transports.ErrNotRegistered, and nothing is changed. When ctx ends first, the error wraps
// transports.ErrUnquiet: the regions with users left stay unusable and keep their range taken, and
// calling Remove again waits on.
func (x *Index) Remove(ctx context.Context, addrs ...uint64) error {
	gone, err := x.shut(addrs)
	if err != nil {
		return err
	}
	var quiet []*entry
	var busy []error
	for _, e := range gone {
		if err := e.refs.wait(ctx); err != nil {
			busy = append(busy, fmt.Errorf("segment: [%#x, %#x) is still in use, %w: %w", e.addr, e.end, err, transports.ErrUnquiet))
			continue
		}
		quiet = append(quiet, e)
	}
	x.drop(quiet)
	return errors.Join(busy...)
}

func (x *Index) shut(addrs []uint64) ([]*entry, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.load()
	gone := make([]*entry, len(addrs))
	seen := make(map[uint64]struct{}, len(addrs))
	for i, a := range addrs {
		_, dup := seen[a]
		seen[a] = struct{}{}
		if gone[i] = s.at(a); gone[i] == nil || dup {
			return nil, fmt.Errorf("segment: no region starts at %#x: %w", a, transports.ErrNotRegistered)
		}
	}
	for _, e := range gone {
		e.refs.shut()
	}
	return gone, nil
}

// drop takes entries out. Another Remove of the same region may have been faster.
func (x *Index) drop(gone []*entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.load()
	if len(gone) == 1 {
		x.snap.Store(s.without(gone[0]))
		return
	}
	out := make(map[*entry]struct{}, len(gone))
	for _, e := range gone {
		out[e] = struct{}{}
	}
	all := make([]*entry, 0, s.n)
	for _, l := range s.leaves {
		for _, e := range l {
			if _, dead := out[e]; !dead {
				all = append(all, e)
			}
		}
	}
	x.snap.Store(build(all))
}

// Find returns the range [addr, addr+n) if it lies inside one region, and holds that region until
// Ref.Release. Regions that touch are not merged, as with upstream. Otherwise, and for n = 0, it
// returns transports.ErrNotRegistered itself: the caller knows the range and where it came from.
func (x *Index) Find(addr, n uint64) (transports.Ref, error) {
	e, off := x.find(addr, n)
	if e == nil {
		return transports.Ref{}, transports.ErrNotRegistered
	}
	return transports.Ref{Data: e.data[off : off+n : off+n], Access: e.access, Owner: e}, nil
}

// FindRegion is Find for the local side of an op: it also returns the region and where in it the
// range starts.
func (x *Index) FindRegion(addr, n uint64) (r transports.Region, offset uint64, ref transports.Ref, err error) {
	e, off := x.find(addr, n)
	if e == nil {
		return nil, 0, transports.Ref{}, transports.ErrNotRegistered
	}
	return e.region, off, transports.Ref{Data: e.data[off : off+n : off+n], Access: e.access, Owner: e}, nil
}

func (x *Index) find(addr, n uint64) (*entry, uint64) {
	e := x.load().floor(addr)
	if e == nil || n == 0 || addr >= e.end || n > e.end-addr || !e.refs.acquire() {
		return nil, 0
	}
	return e, addr - e.addr
}

// At returns the region that starts at addr, nil if there is none or its removal has begun.
func (x *Index) At(addr uint64) transports.Region {
	if e := x.load().at(addr); e != nil && !e.refs.shutting() {
		return e.region
	}
	return nil
}

// List returns the regions in the order of their registration, without those whose removal has begun.
func (x *Index) List() []transports.Region {
	s := x.load()
	all := make([]*entry, 0, s.n)
	for _, l := range s.leaves {
		for _, e := range l {
			if !e.refs.shutting() {
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
	out := make([]transports.Region, len(all))
	for i, e := range all {
		out[i] = e.region
	}
	return out
}

// Len returns the number of regions, those included whose Remove still waits.
func (x *Index) Len() int { return x.load().n }

// leafOf returns the index of the leaf that holds addr if any does; -1 when all start above it.
func (s *snapshot) leafOf(addr uint64) int {
	lo, hi := 0, len(s.firsts)
	for lo < hi {
		if m := int(uint(lo+hi) >> 1); s.firsts[m] <= addr {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo - 1
}

// floor returns the entry with the highest start that is not above addr.
func (s *snapshot) floor(addr uint64) *entry {
	i := s.leafOf(addr)
	if i < 0 {
		return nil
	}
	l := s.leaves[i]
	lo, hi := 0, len(l)
	for lo < hi {
		if m := int(uint(lo+hi) >> 1); l[m].addr <= addr {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return l[lo-1]
}

func (s *snapshot) at(addr uint64) *entry {
	if e := s.floor(addr); e != nil && e.addr == addr {
		return e
	}
	return nil
}

// firstEndingAfter returns the lowest entry whose end is above addr: the only one of its kind that can
// overlap a range starting there.
func (s *snapshot) firstEndingAfter(addr uint64) *entry {
	e := s.floor(addr)
	if e != nil && e.end > addr {
		return e
	}
	i := s.leafOf(addr)
	if i >= 0 {
		l := s.leaves[i]
		if j := sort.Search(len(l), func(j int) bool { return l[j].addr > addr }); j < len(l) {
			return l[j]
		}
	}
	if i+1 < len(s.leaves) {
		return s.leaves[i+1][0]
	}
	return nil
}

// with returns a snapshot that also holds e; one leaf is copied, and split when it is full.
func (s *snapshot) with(e *entry) *snapshot {
	if s.n == 0 {
		return build([]*entry{e})
	}
	i := max(s.leafOf(e.addr), 0)
	l := s.leaves[i]
	j := sort.Search(len(l), func(j int) bool { return l[j].addr > e.addr })
	wide := make([]*entry, 0, len(l)+1)
	wide = append(append(append(wide, l[:j]...), e), l[j:]...)
	if len(wide) <= leafMax {
		return s.replace(i, 1, s.n+1, wide)
	}
	// Registrations usually come in rising order: a split at the end keeps the left leaf full.
	cut := len(wide) / 2
	if i == len(s.leaves)-1 && j == len(l) {
		cut = len(wide) - 1
	}
	return s.replace(i, 1, s.n+1, wide[:cut:cut], wide[cut:])
}

// without returns a snapshot that does not hold e.
func (s *snapshot) without(e *entry) *snapshot {
	if s.at(e.addr) != e {
		return s
	}
	i := s.leafOf(e.addr)
	l := slices.DeleteFunc(slices.Clone(s.leaves[i]), func(o *entry) bool { return o == e })
	if len(l) == 0 {
		return s.replace(i, 1, s.n-1)
	}
	if i+1 < len(s.leaves) && len(l)+len(s.leaves[i+1]) <= leafMax/2 {
		return s.replace(i, 2, s.n-1, slices.Concat(l, s.leaves[i+1]))
	}
	return s.replace(i, 1, s.n-1, l)
}

// replace returns a snapshot of n entries with k leaves from i on exchanged for others.
func (s *snapshot) replace(i, k, n int, others ...[]*entry) *snapshot {
	out := &snapshot{n: n, firsts: make([]uint64, 0, len(s.leaves)+1), leaves: make([][]*entry, 0, len(s.leaves)+1)}
	out.leaves = append(append(append(out.leaves, s.leaves[:i]...), others...), s.leaves[i+k:]...)
	out.firsts = append(out.firsts, s.firsts[:i]...)
	for _, l := range others {
		out.firsts = append(out.firsts, l[0].addr)
	}
	out.firsts = append(out.firsts, s.firsts[i+k:]...)
	return out
}

// merge returns the entries of s and added (sorted) in order.
func merge(s *snapshot, added []*entry) []*entry {
	all := make([]*entry, 0, s.n+len(added))
	for _, l := range s.leaves {
		for _, e := range l {
			for len(added) > 0 && added[0].addr < e.addr {
				all, added = append(all, added[0]), added[1:]
			}
			all = append(all, e)
		}
	}
	return append(all, added...)
}

// build cuts sorted entries into leaves, half full so that single additions find room.
func build(all []*entry) *snapshot {
	s := &snapshot{n: len(all)}
	for l := range slices.Chunk(all, leafMax/2) {
		s.leaves = append(s.leaves, slices.Clone(l)) // own array: a leaf must not keep the dead of others alive
		s.firsts = append(s.firsts, l[0].addr)
	}
	return s
}
