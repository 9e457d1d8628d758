package order

import (
	"unsafe"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Lists is [ListsOf] links alone: 8 bytes a handle.
type Lists = ListsOf[struct{}]

// NewLists makes empty lists 0..lists-1 over handles 1..maxHandles.
func NewLists(maxHandles uint32, lists int) Lists { return NewListsOf[struct{}](maxHandles, lists) }

// ListsOf holds several doubly linked lists over the same handles in one flat array: no pointers, 8 bytes a
// handle and a T beside them, so that both are read at once. A handle is on at most one list; the caller knows
// on which. Front is the newest end by custom.
type ListsOf[T any] struct {
	n   []node[T]
	max eviction.Handle
}

// Ends of lists are nodes too, behind the last handle, so that linking has no special cases.
type node[T any] struct {
	of         T
	prev, next eviction.Handle
}

// NewListsOf makes empty lists 0..lists-1 over handles 1..maxHandles, each with the zero T.
func NewListsOf[T any](maxHandles uint32, lists int) ListsOf[T] {
	l := ListsOf[T]{n: make([]node[T], int(maxHandles)+1+lists), max: eviction.Handle(maxHandles)}
	for i := range lists {
		end := l.end(i)
		l.n[end].prev, l.n[end].next = end, end
	}
	return l
}

// Of is what goes with h, whether it is on a list or not.
func (l *ListsOf[T]) Of(h eviction.Handle) *T { return &l.n[h].of }

func (l *ListsOf[T]) end(list int) eviction.Handle { return l.max + 1 + eviction.Handle(list) }

func (l *ListsOf[T]) handle(h eviction.Handle) eviction.Handle {
	if h > l.max {
		return 0
	}
	return h
}

// PushFront puts h, which is on no list, at the front.
func (l *ListsOf[T]) PushFront(list int, h eviction.Handle) {
	l.insert(l.end(list), h, l.n[l.end(list)].next)
}

// PushBack puts h, which is on no list, at the back.
func (l *ListsOf[T]) PushBack(list int, h eviction.Handle) {
	l.insert(l.n[l.end(list)].prev, h, l.end(list))
}

func (l *ListsOf[T]) insert(prev, h, next eviction.Handle) {
	l.n[h].prev, l.n[h].next = prev, next
	l.n[prev].next = h
	l.n[next].prev = h
}

// Remove takes h off its list.
func (l *ListsOf[T]) Remove(h eviction.Handle) {
	at := &l.n[h]
	l.n[at.prev].next = at.next
	l.n[at.next].prev = at.prev
}

// MoveFront takes h off its list and puts it at the front of list.
func (l *ListsOf[T]) MoveFront(list int, h eviction.Handle) {
	n, end := l.n, l.end(list)
	first := n[end].next
	if first == h {
		return
	}
	at := &n[h]
	n[at.prev].next = at.next
	n[at.next].prev = at.prev
	first = n[end].next
	at.prev, at.next = end, first
	n[end].next = h
	n[first].prev = h
}

// Fetch reads the handles of events and their neighbours, see [Fetcher].
func (l *ListsOf[T]) Fetch(events []eviction.Event) (sum uint32) {
	for i := range events {
		if h := int(events[i].Handle); h < len(l.n) {
			sum += uint32(l.n[h].prev)
		}
	}
	for i := range events {
		if h := int(events[i].Handle); h < len(l.n) {
			at := &l.n[h]
			sum += uint32(l.n[at.prev].next + l.n[at.next].prev)
		}
	}
	return sum
}

// Front returns the newest handle, 0 if the list is empty.
func (l *ListsOf[T]) Front(list int) eviction.Handle { return l.handle(l.n[l.end(list)].next) }

// Back returns the oldest handle, 0 if the list is empty.
func (l *ListsOf[T]) Back(list int) eviction.Handle { return l.handle(l.n[l.end(list)].prev) }

// Newer returns the neighbour of h towards the front, 0 at the front.
func (l *ListsOf[T]) Newer(h eviction.Handle) eviction.Handle { return l.handle(l.n[h].prev) }

// Older returns the neighbour of h towards the back, 0 at the back.
func (l *ListsOf[T]) Older(h eviction.Handle) eviction.Handle { return l.handle(l.n[h].next) }

// MemoryBytes is the size of the array.
func (l *ListsOf[T]) MemoryBytes() uint64 { return uint64(cap(l.n)) * uint64(unsafe.Sizeof(l.n[0])) }
