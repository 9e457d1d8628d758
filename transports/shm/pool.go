package shm

import (
	"context"
	"math"
	"sync"
	"sync/atomic"

	"github.com/mooncake-agent/mooncake/transports"
)

const (
	// pieceBytes is what is copied between two looks at cancellation and at the peer.
	pieceBytes = 1 << 20
	// inlineBytes is what Submit copies all by itself: waking another goroutine would take longer than it saves.
	inlineBytes = 1 << 20
	// helpBytes is the share of a larger Submit that it copies before it returns, next to the copiers: whoever waits
	// for the result would be idle otherwise, and whoever does not is held up for about a millisecond.
	helpBytes = 8 << 20
	// roundPieces is how many small ops one copier takes at once.
	roundPieces = 32
)

// batch is what the ops of one Submit share, and the memory of its calls. It is used again.
type batch struct {
	l     *link
	ctx   context.Context
	done  transports.Completion
	left  atomic.Int64 // calls without completion, plus one while Submit adds more
	watch transports.Watch
	calls []call
}

// keptCalls is how many calls a batch may have to be kept.
const keptCalls = 1024

var batches sync.Pool

// newBatch returns a batch of n calls.
func newBatch(l *link, ctx context.Context, n int, done transports.Completion) *batch {
	b, _ := batches.Get().(*batch)
	if b == nil {
		b = new(batch)
		b.watch.F = func() {
			b.l.t.pool.drop(func(c *call) bool { return c.b == b }, canceled(b.ctx.Err()))
			b.l.dropParked(b)
		}
	}
	b.l, b.ctx, b.done = l, ctx, done
	if cap(b.calls) < n {
		b.calls = make([]call, n)
	}
	b.calls = b.calls[:n]
	b.left.Store(1)
	return b
}

// leave ends one use of b: a call's, or Submit's own.
func (b *batch) leave() {
	if b.left.Add(-1) > 0 || !b.watch.Stop() || cap(b.calls) > keptCalls { // a watch that has begun still looks at b
		return
	}
	clear(b.calls)
	b.l, b.ctx, b.done = nil, nil, nil
	batches.Put(b)
}

// call is one op that was not done within Submit. It is in the pool's queue, with copiers, or parked at its
// link, and ends exactly once.
type call struct {
	b      *batch
	l      *link
	data   []byte // the local memory
	reg    *registration
	remote uint64
	cookie uint64
	write  bool
	next   *call // in the queue, or among the parked ones

	// Guarded by pool.mu.
	taken uint64 // bytes handed to copiers
	moved uint64 // bytes copied
	busy  int    // copiers at work on it
	err   error  // the first one
}

func (c *call) len() uint64 { return uint64(len(c.data)) }

// span is the remote range.
func (c *call) span() span { return span{c.remote, c.remote + c.len()} }

// end reports the call.
func (c *call) end(err error) {
	n := c.len()
	if err != nil {
		n = 0
	}
	c.l.t.m.count(c.write, n, err)
	c.b.done(c.cookie, n, err)
	c.b.leave()
}

// pool is a queue of calls and the goroutines that work on it, which end when it is empty.
type pool struct {
	limit int

	mu         sync.Mutex
	head, tail *call
	workers    int
	run        func() // work, as a value that is made once
	wg         sync.WaitGroup
}

// piece is a part of a call in the hands of a copier.
type piece struct {
	c      *call
	off, n uint64
	err    error
}

// add queues the list that begins with first and starts copiers for bytes. With help the calling goroutine is one
// of them for a while.
func (q *pool) add(first, last *call, bytes uint64, help bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tail == nil {
		q.head = first
	} else {
		q.tail.next = first
	}
	q.tail = last
	want := min(q.limit, int((bytes+pieceBytes-1)/pieceBytes))
	if help {
		want--
	}
	q.start(want)
	if help {
		q.copy(helpBytes)
		if q.head != nil {
			q.start(want + 1)
		}
	}
}

// start makes sure that n copiers are at work. q.mu is held.
func (q *pool) start(n int) {
	for q.workers < n {
		if q.run == nil {
			q.run = q.work
		}
		q.workers++
		q.wg.Add(1)
		go q.run()
	}
}

func (q *pool) pop() {
	c := q.head
	q.head = c.next
	if q.head == nil {
		q.tail = nil
	}
	c.next = nil
}

// take fills round with the next pieces. q.mu is held.
func (q *pool) take(round []piece) []piece {
	room := uint64(pieceBytes)
	for q.head != nil && room > 0 && len(round) < cap(round) {
		c := q.head
		n := min(c.len()-c.taken, room)
		if n < c.len()-c.taken && room < pieceBytes && c.taken == 0 {
			break // the start of a large call: begin with whole pieces
		}
		round = append(round, piece{c: c, off: c.taken, n: n})
		c.taken += n
		c.busy++
		room -= n
		if c.taken == c.len() {
			q.pop()
		}
	}
	return round
}

func (q *pool) work() {
	defer q.wg.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.copy(math.MaxInt)
	q.workers--
}

// copy works until the queue is empty, or on about budget bytes. q.mu is held, but not while it copies or reports.
func (q *pool) copy(budget int) {
	var room [roundPieces]piece
	for ; budget > 0; budget -= pieceBytes {
		round := q.take(room[:0])
		if len(round) == 0 {
			return
		}
		q.mu.Unlock()
		for i := range round {
			p := &round[i]
			if p.err = p.c.b.ctx.Err(); p.err != nil {
				p.err = canceled(p.err)
				continue
			}
			p.err = p.c.l.move(p.c.data[p.off:p.off+p.n], p.c.remote+p.off, p.c.span(), p.c.write, p.c.reg)
		}
		q.mu.Lock()
		over := round[:0]
		for _, p := range round {
			if q.landed(p) {
				over = append(over, p)
			}
		}
		if len(over) > 0 {
			q.mu.Unlock()
			for _, p := range over {
				p.c.settle()
			}
			q.mu.Lock()
		}
		clear(room[:len(round)])
	}
}

// landed counts a piece and tells whether its call is over. q.mu is held.
func (q *pool) landed(p piece) bool {
	c := p.c
	c.busy--
	if p.err == nil {
		c.moved += p.n
	} else if c.err == nil {
		c.err = p.err
		if c.taken < c.len() { // pieces are taken from the head only, so that is where it is
			c.taken = c.len()
			q.pop()
		}
	}
	return c.busy == 0 && c.taken == c.len()
}

// settle ends a call that no copier has any more, or asks the owner about its range.
func (c *call) settle() {
	switch {
	case c.err == nil:
		c.end(nil)
	case c.err == errUnknown && c.moved == 0:
		c.taken, c.err = 0, nil
		c.l.park(c)
	case c.err == errUnknown:
		c.end(errRevoked)
	default:
		c.end(c.err)
	}
}

// drop ends the queued calls for which hit is true. One that is being copied ends after its piece.
func (q *pool) drop(hit func(*call) bool, why error) {
	var over *call
	q.mu.Lock()
	all := q.head
	q.head, q.tail = nil, nil
	for all != nil {
		c := all
		all, c.next = c.next, nil
		if !hit(c) {
			if q.tail == nil {
				q.head = c
			} else {
				q.tail.next = c
			}
			q.tail = c
			continue
		}
		c.taken = c.len()
		if c.err == nil {
			c.err = why
		}
		if c.busy == 0 {
			c.next, over = over, c
		}
	}
	q.mu.Unlock()
	endAll(over, nil)
}

// endAll ends a list of calls with err, or each with its own.
func endAll(list *call, err error) {
	for c := list; c != nil; {
		next := c.next
		c.next = nil
		if err != nil {
			c.end(err)
		} else {
			c.end(c.err)
		}
		c = next
	}
}
