package policy

// Lists holds several doubly linked lists over the handles 1..max: 8 bytes a handle, no pointers. A handle is on
// at most one list; the caller knows on which. Front is the newest end by custom.
type Lists struct {
	n   []node
	max uint32
}

// Ends of lists are nodes too, behind the last handle.
type node struct{ prev, next uint32 }

// NewLists makes empty lists 0..lists-1.
func NewLists(max uint32, lists int) Lists {
	l := Lists{n: make([]node, int(max)+1+lists), max: max}
	for end := max + 1; int(end) < len(l.n); end++ {
		l.n[end] = node{end, end}
	}
	return l
}

// PushFront puts h, which is on no list, at the front.
func (l *Lists) PushFront(list int, h uint32) {
	n, end := l.n, l.max+1+uint32(list)
	first := n[end].next
	n[h] = node{end, first}
	n[end].next = h
	n[first].prev = h
}

// Remove takes h off its list.
func (l *Lists) Remove(h uint32) {
	n := l.n
	at := n[h]
	n[at.prev].next = at.next
	n[at.next].prev = at.prev
}

// MoveFront takes h off its list and puts it at the front of list.
func (l *Lists) MoveFront(list int, h uint32) {
	n, end := l.n, l.max+1+uint32(list)
	at := n[h]
	n[at.prev].next = at.next
	n[at.next].prev = at.prev
	first := n[end].next
	n[h] = node{end, first}
	n[end].next = h
	n[first].prev = h
}

// Back returns the oldest handle, 0 if the list is empty.
func (l *Lists) Back(list int) uint32 { return l.handle(l.n[l.max+1+uint32(list)].prev) }

// Newer returns the neighbour of h towards the front, 0 at the front.
func (l *Lists) Newer(h uint32) uint32 { return l.handle(l.n[h].prev) }

func (l *Lists) handle(h uint32) uint32 {
	if h > l.max {
		return 0
	}
	return h
}
