package order

import "github.com/mooncake-agent/mooncake/eviction"

// Ghosts remembers keys that are not resident, on several lists of which any member can be taken out: 21
// bytes a ghost. A slot number is valid until that ghost is removed.
type Ghosts struct {
	keys  []uint64 // by slot; slot 0 is none
	lists Lists
	free  int // number of the list of unused slots
	index index[uint64]
	n     int
}

// NewGhosts makes room for max ghosts on lists 0..lists-1.
func NewGhosts(max uint32, lists int) Ghosts {
	g := Ghosts{keys: make([]uint64, int(max)+1), lists: NewLists(max, lists+1), free: lists, index: newIndex[uint64](int(max))}
	for s := max; s > 0; s-- {
		g.lists.PushBack(g.free, eviction.Handle(s))
	}
	return g
}

// Find returns the slot of a key, 0 if it is not remembered.
func (g *Ghosts) Find(key uint64) uint32 {
	if at, ok := g.index.find(key, g.keys); ok {
		return g.index.t[at] - 1
	}
	return 0
}

// Add remembers a key as the newest of a list and returns its slot. A key that is there already moves. If no
// slot is free the oldest of the list goes, and if the list is empty nothing is added and 0 returned.
func (g *Ghosts) Add(list int, key uint64) uint32 {
	at, ok := g.index.find(key, g.keys)
	if ok {
		s := g.index.t[at] - 1
		g.lists.MoveFront(list, eviction.Handle(s))
		return s
	}
	s := uint32(g.lists.Back(g.free))
	if s == 0 {
		if s = g.Oldest(list); s == 0 {
			return 0
		}
		g.Remove(s)
		at, _ = g.index.find(key, g.keys)
	}
	g.n++
	g.keys[s] = key
	g.index.t[at] = s + 1
	g.lists.MoveFront(list, eviction.Handle(s))
	return s
}

// Oldest returns the oldest slot of a list, 0 if it is empty.
func (g *Ghosts) Oldest(list int) uint32 { return uint32(g.lists.Back(list)) }

// Newer returns the neighbour of a slot towards the newest of its list, 0 at the end.
func (g *Ghosts) Newer(slot uint32) uint32 { return uint32(g.lists.Newer(eviction.Handle(slot))) }

// Len is the number of ghosts.
func (g *Ghosts) Len() int { return g.n }

// Remove forgets a slot.
func (g *Ghosts) Remove(slot uint32) {
	g.n--
	at, _ := g.index.find(g.keys[slot], g.keys)
	g.index.drop(at, g.keys)
	g.lists.MoveFront(g.free, eviction.Handle(slot))
}

// MemoryBytes is the size of the tables.
func (g *Ghosts) MemoryBytes() uint64 {
	return uint64(cap(g.keys))*8 + g.lists.MemoryBytes() + uint64(cap(g.index.t))*4
}

// GhostQueue remembers the last keys that were added, first in first out, and lets any be taken out: about 11
// bytes a ghost. Keys taken out leave gaps; when a third of the ring is gaps the oldest keys go early.
type GhostQueue struct {
	ring        []uint32 // fingerprints; a place whose fingerprint is not indexed at it is a gap
	index       index[uint32]
	head, tail  int // next to write, oldest
	used, count int // places between tail and head, keys among them
	max         int
}

// NewGhostQueue makes room for max ghosts.
func NewGhostQueue(max uint32) GhostQueue {
	n := int(max) + int(max)/2 + 1
	return GhostQueue{ring: make([]uint32, n), index: newIndex[uint32](int(max)), max: int(max)}
}

// Len is the number of keys.
func (q *GhostQueue) Len() int { return q.count }

// Take removes a key and reports whether it was there.
func (q *GhostQueue) Take(key uint64) bool {
	at, ok := q.index.find(fingerprint(key), q.ring)
	if ok {
		q.index.drop(at, q.ring)
		q.count--
	}
	return ok
}

// Has reports whether a key is remembered.
func (q *GhostQueue) Has(key uint64) bool {
	_, ok := q.index.find(fingerprint(key), q.ring)
	return ok
}

// Add remembers a key as the newest.
func (q *GhostQueue) Add(key uint64) {
	if q.max == 0 {
		return
	}
	q.Take(key)
	if q.count == q.max {
		q.Drop()
	}
	if q.used == len(q.ring) {
		q.dropPlace()
	}
	fp := fingerprint(key)
	at, _ := q.index.find(fp, q.ring)
	q.ring[q.head] = fp
	q.index.t[at] = uint32(q.head) + 1
	q.head = q.next(q.head)
	q.used++
	q.count++
}

// Drop forgets the oldest key.
func (q *GhostQueue) Drop() {
	for q.used > 0 && !q.dropPlace() {
	}
}

// dropPlace frees the oldest place and reports whether a key was in it.
func (q *GhostQueue) dropPlace() bool {
	at, ok := q.index.find(q.ring[q.tail], q.ring)
	ok = ok && q.index.t[at] == uint32(q.tail)+1
	if ok {
		q.index.drop(at, q.ring)
		q.count--
	}
	q.tail = q.next(q.tail)
	q.used--
	return ok
}

func (q *GhostQueue) next(i int) int {
	if i++; i == len(q.ring) {
		return 0
	}
	return i
}

// MemoryBytes is the size of the tables.
func (q *GhostQueue) MemoryBytes() uint64 { return uint64(cap(q.ring))*4 + uint64(cap(q.index.t))*4 }
