package tcp

import (
	"context"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// call is one op on its way. It is in exactly one place: the peer's queue, one lane's ring, or (when its
// completion has been taken) nowhere. The peer's lock guards it.
type call struct {
	b      *batch
	data   []byte // the local memory
	remote uint64
	cookie uint64
	write  bool
	start  time.Duration
	reg    *registration // of the local memory; nil when it is not registered

	reused  bool   // its lane was open before: it may have died since
	retried bool   // was sent again after its lane turned out to be dead
	minGen  uint64 // only lanes opened after this one will do

	hdr  [headerLen]byte
	next *call // in the queue or in the free list
}

// wireLen is what the request takes on the wire.
func (c *call) wireLen() uint64 {
	if c.write {
		return headerLen + uint64(len(c.data))
	}
	return headerLen
}

// batch is what the ops of one Submit share.
type batch struct {
	ctx    context.Context
	done   transports.Completion
	left   int // ops without completion, plus one while Submit adds more
	queued int // of those, how many are in the queue
	watch  transports.Watch
	next   *batch // in the list of idle ones
}

// finished is a completion to be reported once the peer's lock is released.
type finished struct {
	done   transports.Completion
	cookie uint64
	n      uint64
	start  time.Duration
	write  bool
	reason string // of a failure, for the metric
	err    error
}

type finishedList []finished

var finishedLists = sync.Pool{New: func() any { l := make(finishedList, 0, 8); return &l }}

// run reports and empties the list. No lock is held.
func (l *finishedList) run(t *Transport) {
	if len(*l) == 0 {
		return
	}
	now := t.now()
	for i := range *l {
		f := &(*l)[i]
		if f.err != nil {
			t.m.failed.WithLabelValues(f.reason).Inc()
		} else if f.n > 0 {
			t.m.moved(roleClient, f.write, f.n)
			t.m.latency[opIndex(f.write)].Observe((now - f.start).Seconds())
		}
		f.done(f.cookie, f.n, f.err)
		*f = finished{}
	}
	*l = (*l)[:0]
}

// queue is a FIFO of calls.
type queue struct {
	head, tail *call
	n          int
}

func (q *queue) push(c *call) {
	c.next = nil
	if q.tail == nil {
		q.head = c
	} else {
		q.tail.next = c
	}
	q.tail = c
	q.n++
}

func (q *queue) pushFront(c *call) {
	c.next = q.head
	q.head = c
	if q.tail == nil {
		q.tail = c
	}
	q.n++
}

func (q *queue) pop() *call {
	c := q.head
	q.head = c.next
	if q.head == nil {
		q.tail = nil
	}
	c.next = nil
	q.n--
	return c
}

// filter removes the calls for which drop is true.
func (q *queue) filter(drop func(*call) bool) {
	all := q.head
	*q = queue{}
	for all != nil {
		c := all
		all = all.next
		if !drop(c) {
			q.push(c)
		}
	}
}
