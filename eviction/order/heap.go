package order

import "github.com/mooncake-agent/mooncake/eviction"

// Heap keeps handles by a key, smallest first; equal keys in order of their second key. 24 bytes a handle.
type Heap struct {
	items []item
	at    []uint32 // position + 1 by handle; 0 not there
}

type item struct {
	key float64
	seq uint64
	h   eviction.Handle
}

func (a *item) less(b *item) bool { return a.key < b.key || a.key == b.key && a.seq < b.seq }

// NewHeap makes an empty heap.
func NewHeap(maxHandles uint32) Heap {
	return Heap{items: make([]item, 0, maxHandles), at: make([]uint32, int(maxHandles)+1)}
}

// Set puts h in or changes its keys.
func (q *Heap) Set(h eviction.Handle, key float64, seq uint64) {
	i := int(q.at[h]) - 1
	if i < 0 {
		i = len(q.items)
		q.items = append(q.items, item{})
	}
	q.place(i, item{key, seq, h})
	q.down(q.up(i))
}

// Key returns the first key of h, which must be there.
func (q *Heap) Key(h eviction.Handle) float64 { return q.items[q.at[h]-1].key }

// Remove takes h, which must be there, out.
func (q *Heap) Remove(h eviction.Handle) {
	i := int(q.at[h]) - 1
	last := q.items[len(q.items)-1]
	q.items = q.items[:len(q.items)-1]
	q.at[h] = 0
	if last.h != h {
		q.place(i, last)
		q.down(q.up(i))
	}
}

func (q *Heap) place(i int, x item) {
	q.items[i] = x
	q.at[x.h] = uint32(i) + 1
}

func (q *Heap) up(i int) int {
	x := q.items[i]
	for i > 0 && x.less(&q.items[(i-1)/4]) {
		q.place(i, q.items[(i-1)/4])
		i = (i - 1) / 4
	}
	q.place(i, x)
	return i
}

func (q *Heap) down(i int) {
	x := q.items[i]
	for {
		least := -1
		for c := 4*i + 1; c <= 4*i+4 && c < len(q.items); c++ {
			if least < 0 || q.items[c].less(&q.items[least]) {
				least = c
			}
		}
		if least < 0 || !q.items[least].less(&x) {
			break
		}
		q.place(i, q.items[least])
		i = least
	}
	q.place(i, x)
}

// Offer names the handles in order, smallest key first, changing nothing. The first costs nothing; n of them
// cost n² steps at worst, with no memory of its own up to 64, and after those the rest follows in the heap's
// own order, which is nearly sorted.
func (q *Heap) Offer(w *Walk) {
	// The frontier holds positions whose parents were named: the next smallest is one of them.
	var frontier [256]int32
	n := 0
	if len(q.items) > 0 {
		n = 1
	}
	for named := 0; n > 0 && n < len(frontier)-4; named++ {
		least := 0
		for i := 1; i < n; i++ {
			if q.items[frontier[i]].less(&q.items[frontier[least]]) {
				least = i
			}
		}
		at := frontier[least]
		n--
		frontier[least] = frontier[n]
		if !w.Offer(q.items[at].h) {
			return
		}
		for c := 4*at + 1; c <= 4*at+4 && int(c) < len(q.items); c++ {
			frontier[n] = c
			n++
		}
	}
	// Whatever is below the frontier: each subtree in heap order.
	for i := range n {
		if !q.subtree(w, frontier[i]) {
			return
		}
	}
}

func (q *Heap) subtree(w *Walk, at int32) bool {
	if !w.Offer(q.items[at].h) {
		return false
	}
	for c := 4*at + 1; c <= 4*at+4 && int(c) < len(q.items); c++ {
		if !q.subtree(w, c) {
			return false
		}
	}
	return true
}

// MemoryBytes is the size of the arrays.
func (q *Heap) MemoryBytes() uint64 { return uint64(cap(q.items))*24 + uint64(cap(q.at))*4 }
