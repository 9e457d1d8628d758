package master

import (
	"container/heap"
	"slices"

	"github.com/mooncake-agent/mooncake/eviction"
)

// hostLRU is the service's own order of a domain's handles: it chooses victims where no policy is
// configured or a policy has failed, fills up answers that are too short, and is the order of RESTORE.
// 9 bytes a handle. Batches arrive deepest block first, so the end of a chain is older than its beginning.
//
// Handles that were proposed and refused because of a lease are parked until the lease ends, so that the
// same leased objects are not looked at again for every put. Guarded by domain.mu.
type hostLRU struct {
	prev, next blocks[uint32] // by handle; 0: the end of its list
	place      blocks[uint8]
	lists      [lruLists]struct{ front, back uint32 }
	size       [lruLists]int
	parked     parkHeap
}

// The places of a handle.
const (
	lruNone = iota
	lruMain
	lruSoft   // soft-pinned: named after all others, when allowed
	lruHard   // hard-pinned: never named
	lruParked // refused; comes back when its lease ends
	lruProbed // refused only because of a probe; named before giving up
	lruLists
)

type parkEntry struct {
	until int64
	h     eviction.Handle
}

type parkHeap []parkEntry

func (p parkHeap) Len() int           { return len(p) }
func (p parkHeap) Less(i, j int) bool { return p[i].until < p[j].until }
func (p parkHeap) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *parkHeap) Push(x any)        { *p = append(*p, x.(parkEntry)) }
func (p *parkHeap) Pop() any {
	old := *p
	x := old[len(old)-1]
	*p = old[:len(old)-1]
	return x
}

func (l *hostLRU) grow(maxHandle uint32) {
	l.prev.grow(int(maxHandle) + 1)
	l.next.grow(int(maxHandle) + 1)
	l.place.grow(int(maxHandle) + 1)
}

func (l *hostLRU) knows(h eviction.Handle) bool { return int(h) < l.place.n }

// at is the place of a known handle.
func (l *hostLRU) at(h eviction.Handle) uint8 { return *l.place.at(int(h)) }

func (l *hostLRU) set(h uint32, place uint8, prev, next uint32) {
	*l.place.at(int(h)), *l.prev.at(int(h)), *l.next.at(int(h)) = place, prev, next
}

func (l *hostLRU) unlink(h uint32) {
	place := l.place.at(int(h))
	list := &l.lists[*place]
	p, n := *l.prev.at(int(h)), *l.next.at(int(h))
	if p == 0 {
		list.front = n
	} else {
		*l.next.at(int(p)) = n
	}
	if n == 0 {
		list.back = p
	} else {
		*l.prev.at(int(n)) = p
	}
	l.size[*place]--
	*place = lruNone
}

func (l *hostLRU) pushFront(place uint8, h uint32) {
	list := &l.lists[place]
	l.set(h, place, 0, list.front)
	if list.front == 0 {
		list.back = h
	} else {
		*l.prev.at(int(list.front)) = h
	}
	list.front = h
	l.size[place]++
}

func (l *hostLRU) pushBack(place uint8, h uint32) {
	list := &l.lists[place]
	l.set(h, place, list.back, 0)
	if list.back == 0 {
		list.front = h
	} else {
		*l.next.at(int(list.back)) = h
	}
	list.back = h
	l.size[place]++
}

func placeFor(f eviction.Flags) uint8 {
	switch {
	case f&eviction.FlagHardPin != 0:
		return lruHard
	case f&eviction.FlagSoftPin != 0:
		return lruSoft
	}
	return lruMain
}

// apply follows one event.
func (l *hostLRU) apply(e *eviction.Event) {
	h := uint32(e.Handle)
	if h == 0 || !l.knows(e.Handle) {
		return
	}
	switch at := l.at(e.Handle); e.Kind {
	case eviction.Insert:
		if at != lruNone {
			l.unlink(h)
		}
		l.pushFront(placeFor(e.Flags), h)
	case eviction.Access:
		switch at {
		case lruMain, lruSoft:
			if l.lists[at].front != h {
				l.unlink(h)
				l.pushFront(at, h)
			}
		case lruParked, lruProbed:
			l.unlink(h)
			l.pushFront(lruMain, h)
		}
	case eviction.Remove:
		if at != lruNone {
			l.unlink(h)
		}
	case eviction.Pin:
		if at != lruNone {
			l.unlink(h)
			l.pushFront(placeFor(e.Flags), h)
		}
	case eviction.Unpin:
		if at == lruSoft {
			l.unlink(h)
			l.pushFront(lruMain, h)
		}
	}
}

// park sets a refused handle aside until a time.
func (l *hostLRU) park(h eviction.Handle, probed bool, until int64) {
	if at := l.at(h); at != lruMain && at != lruProbed {
		return
	}
	l.unlink(uint32(h))
	if probed {
		l.pushFront(lruProbed, uint32(h))
	} else {
		l.pushFront(lruParked, uint32(h))
	}
	heap.Push(&l.parked, parkEntry{until, h})
}

// isParked reports a handle whose refusal still holds.
func (l *hostLRU) isParked(h eviction.Handle) bool {
	return l.knows(h) && (l.at(h) == lruParked || l.at(h) == lruProbed)
}

// unpark brings back the handles whose time has come as the oldest: they were before they were refused.
func (l *hostLRU) unpark(now int64) {
	first := len(l.parked)
	for n := first; n > 0 && l.parked[0].until <= now; n-- {
		// Pop leaves the entry behind the heap's end; so the due ones line up there, the last due first.
		heap.Pop(&l.parked)
	}
	due := l.parked[len(l.parked):first]
	for _, e := range due {
		h := uint32(e.h)
		if l.isParked(e.h) {
			l.unlink(h)
			l.pushBack(lruMain, h)
		}
	}
}

// victims appends the oldest handles of one place.
func (l *hostLRU) victims(dst []eviction.Handle, place uint8, most int) []eviction.Handle {
	for h := l.lists[place].back; h != 0 && most > 0; h = *l.prev.at(int(h)) {
		dst = append(dst, eviction.Handle(h))
		most--
	}
	return dst
}

// order appends all handles, the oldest first.
func (l *hostLRU) order(dst []eviction.Handle) []eviction.Handle {
	n := 0
	for _, size := range l.size {
		n += size
	}
	dst = slices.Grow(dst, n)
	for _, place := range [...]uint8{lruHard, lruSoft, lruParked, lruProbed, lruMain} {
		for h := l.lists[place].back; h != 0; h = *l.prev.at(int(h)) {
			dst = append(dst, eviction.Handle(h))
		}
	}
	return dst
}
