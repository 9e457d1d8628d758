package order

import "github.com/mooncake-agent/mooncake/eviction"

// Lists holds several doubly linked lists over the same handles in one flat array: 8 bytes a handle, no
// pointers. A handle is on at most one list; the caller knows on which. Front is the newest end by custom.
type Lists struct {
	n   []node
	max eviction.Handle
}

// Ends of lists are nodes too, behind the last handle, so that linking has no special cases.
type node struct{ prev, next eviction.Handle }

// NewLists makes empty lists 0..lists-1 over handles 1..maxHandles.
func NewLists(maxHandles uint32, lists int) Lists {
	l := Lists{n: make([]node, int(maxHandles)+1+lists), max: eviction.Handle(maxHandles)}
	for i := range lists {
		end := l.end(i)
		l.n[end] = node{end, end}
	}
	return l
}

func (l *Lists) end(list int) eviction.Handle { return l.max + 1 + eviction.Handle(list) }

func (l *Lists) handle(h eviction.Handle) eviction.Handle {
	if h > l.max {
		return 0
	}
	return h
}

// PushFront puts h, which is on no list, at the front.
func (l *Lists) PushFront(list int, h eviction.Handle) {
	l.insert(l.end(list), h, l.n[l.end(list)].next)
}

// PushBack puts h, which is on no list, at the back.
func (l *Lists) PushBack(list int, h eviction.Handle) {
	l.insert(l.n[l.end(list)].prev, h, l.end(list))
}

func (l *Lists) insert(prev, h, next eviction.Handle) {
	l.n[h] = node{prev, next}
	l.n[prev].next = h
	l.n[next].prev = h
}

// Remove takes h off its list.
func (l *Lists) Remove(h eviction.Handle) {
	at := l.n[h]
	l.n[at.prev].next = at.next
	l.n[at.next].prev = at.prev
}

// MoveFront takes h off its list and puts it at the front of list.
func (l *Lists) MoveFront(list int, h eviction.Handle) {
	n, end := l.n, l.end(list)
	first := n[end].next
	if first == h {
		return
	}
	at := n[h]
	n[at.prev].next = at.next
	n[at.next].prev = at.prev
	first = n[end].next
	n[h] = node{end, first}
	n[end].next = h
	n[first].prev = h
}

// Front returns the newest handle, 0 if the list is empty.
func (l *Lists) Front(list int) eviction.Handle { return l.handle(l.n[l.end(list)].next) }

// Back returns the oldest handle, 0 if the list is empty.
func (l *Lists) Back(list int) eviction.Handle { return l.handle(l.n[l.end(list)].prev) }

// Newer returns the neighbour of h towards the front, 0 at the front.
func (l *Lists) Newer(h eviction.Handle) eviction.Handle { return l.handle(l.n[h].prev) }

// Older returns the neighbour of h towards the back, 0 at the back.
func (l *Lists) Older(h eviction.Handle) eviction.Handle { return l.handle(l.n[h].next) }

// MemoryBytes is the size of the array.
func (l *Lists) MemoryBytes() uint64 { return uint64(cap(l.n)) * 8 }
