package transfer

import (
	"errors"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// peer is the sending side towards one segment: a queue of parts of batches, what is in flight, and the
// routes over which the segment can be reached. Nothing here is shared with other segments.
//
// At most one goroutine dispatches at a time (busy): a submitter, for a few rounds, or one started when there
// is room again. It takes parts in turn, so that a long batch does not hold up a short one.
type peer struct {
	s *Segment

	run func() // dispatch, as a value that is made once; see newPeer

	mu       sync.Mutex
	first    *part // FIFO, linked by next
	last     *part
	busy     bool
	inflight uint64 // bytes with transports
	flying   int    // ops with transports
	routes   []*route
	routed   bool       // routes are valid for the current descriptor
	stats    []pathStat // by transport
	copies   pathStat   // of this engine's own segment

	failedOnes *task // waiting for recovery, linked by next
	recovering bool
	pauseUntil time.Time // no refresh before, because the last one failed
}

func (p *peer) init(s *Segment) {
	p.s = s
	p.run = func() {
		defer s.e.bg.wg.Done()
		p.dispatch(0)
	}
}

// add puts a part at the end of the queue. p.mu is held.
func (p *peer) add(q *part) {
	q.next = nil
	if p.first == nil {
		p.first = q
	} else {
		p.last.next = q
	}
	p.last = q
}

// drop takes the first part out of the queue. p.mu is held.
func (p *peer) drop() (q *part) {
	q = p.first
	p.first, q.next = q.next, nil
	if p.first == nil {
		p.last = nil
	}
	return q
}

// part is what one batch wants from one peer.
type part struct {
	b          *Batch
	head, tail *task
	next       *part // in the peer's queue
}

func (q *part) push(t *task) {
	t.next = nil
	if q.head == nil {
		q.head = t
	} else {
		q.tail.next = t
	}
	q.tail = t
}

const (
	// turn is what a part may take when others wait.
	turnOps   = 64
	turnBytes = 4 << 20
	// submitRounds is how long a submitter dispatches before a goroutine takes over.
	submitRounds = 4
)

// enqueue adds a part and dispatches, in the calling goroutine if inline is set and nothing can block it.
func (p *peer) enqueue(q *part, inline bool) {
	p.mu.Lock()
	p.add(q)
	if p.busy {
		p.mu.Unlock()
		return
	}
	p.busy = true
	p.mu.Unlock()
	if inline && !p.dispatch(submitRounds) {
		return
	}
	p.s.e.bg.start(p.run)
}

// requeue puts a task back; legal in a completion.
func (p *peer) requeue(t *task) {
	p.mu.Lock()
	if p.last != nil && p.last.b == t.b { // as when a whole batch takes the next path
		p.last.push(t)
	} else {
		q := &part{b: t.b}
		q.push(t)
		p.add(q)
	}
	start := !p.busy
	p.busy = true
	p.mu.Unlock()
	if start {
		p.s.e.bg.start(p.run)
	}
}

var opsPool = sync.Pool{New: func() any { s := make([]transports.Op, 0, turnOps); return &s }}

// dispatch hands ops to transports until the queue is empty or the peer has no room. With rounds > 0 it
// returns true, still busy, when that many were not enough or a dial is needed, which may block.
func (p *peer) dispatch(rounds int) (more bool) {
	buf := opsPool.Get().(*[]transports.Op)
	defer func() {
		clear(*buf)
		*buf = (*buf)[:0]
		opsPool.Put(buf)
	}()
	limited := rounds > 0
	for {
		p.mu.Lock()
		path, ok := p.next()
		if !ok {
			p.busy = false
			p.mu.Unlock()
			return false
		}
		r := p.routeFor(path)
		if limited && (rounds == 0 || r == nil || r.h == nil) {
			p.mu.Unlock()
			return true
		}
		rounds--
		if r == nil || r.h == nil {
			p.mu.Unlock()
			if r = p.dial(path); r == nil {
				continue
			}
			p.mu.Lock()
			if r.retired || r.h == nil {
				p.mu.Unlock()
				continue
			}
		}
		clear(*buf)
		ops, b := p.takeTurn((*buf)[:0], r)
		*buf = ops
		h := r.h
		p.mu.Unlock()
		if len(ops) > 0 {
			p.submit(r, h, b, ops)
		}
	}
}

// next drops finished work from the front and tells whether there is a task that may go now, and from which
// transport on. p.mu is held.
func (p *peer) next() (path int, ok bool) {
	for p.first != nil {
		q := p.first
		if q.b.ctx.Err() != nil { // the batch's sweep deals with its tasks
			q.head = nil
		}
		for q.head != nil && q.head.state.Load() != taskQueued { // ended while it waited
			q.head = q.head.next
		}
		if q.head != nil {
			return q.head.path, p.room(q.head)
		}
		p.drop()
	}
	return 0, false
}

func (p *peer) room(t *task) bool {
	o := &p.s.e.opt
	return p.flying == 0 || p.flying < o.MaxInflightRequests && p.inflight+t.len <= uint64(o.MaxInflightBytes)
}

// takeTurn takes ops for r from the first part. p.mu is held.
func (p *peer) takeTurn(ops []transports.Op, r *route) ([]transports.Op, *Batch) {
	q := p.first
	alone := q.next == nil
	bytes := uint64(0)
	sent := time.Since(q.b.start)
	for t := q.head; t != nil; t = q.head {
		if t.path > r.index || !p.room(t) || !alone && (len(ops) == turnOps || bytes >= turnBytes) {
			break
		}
		q.head = t.next
		t.next = nil
		if !t.state.CompareAndSwap(taskQueued, taskFlying) {
			continue
		}
		t.route, t.sent = r, sent
		r.users++
		p.flying++
		p.inflight += t.len
		bytes += t.len
		ops = append(ops, transports.Op{Write: t.write, Local: t.local, Offset: t.offset, Remote: t.remote, Len: t.len, Cookie: t.cookie()})
	}
	p.s.e.m.inflight.Add(float64(bytes))
	if q.head == nil {
		p.drop()
	} else if !alone {
		p.add(p.drop())
	}
	return ops, q.b
}

// submit hands ops of one batch to a transport.
func (p *peer) submit(r *route, h transports.Peer, b *Batch, ops []transports.Op) {
	b.carriedBy(h) // before, since the batch may be over when Submit returns
	err := h.Submit(&b.ctx, ops, b.land)
	if err == nil {
		return
	}
	// One bad op must not spoil the others.
	if len(ops) > 1 && !errors.Is(err, transports.ErrUnreachable) && !errors.Is(err, transports.ErrClosed) && b.ctx.Err() == nil {
		for i := range ops {
			if err := h.Submit(&b.ctx, ops[i:i+1], b.land); err != nil {
				b.landed(ops[i].Cookie, 0, err)
			}
		}
		return
	}
	for i := range ops {
		b.landed(ops[i].Cookie, 0, err)
	}
}

// landed counts an op out, which moved n bytes or failed with err, and starts a dispatcher when waiting work has
// room again.
func (p *peer) landed(t *task, n uint64, err error) {
	o := &p.s.e.opt
	r := t.route
	took := time.Since(t.b.start) - t.sent
	p.mu.Lock()
	p.flying--
	p.inflight -= t.len
	r.users--
	switch {
	case err == nil:
		p.stat(r.index).ok(n, took)
		r.down, r.pause = time.Time{}, 0
	case !errors.Is(err, transports.ErrNotShareable) && t.b.ctx.Err() == nil:
		p.stat(r.index).failed(err)
	}
	start := p.first != nil && !p.busy &&
		(p.flying == 0 || p.flying <= o.MaxInflightRequests*3/4 && p.inflight <= uint64(o.MaxInflightBytes)/4*3)
	if start {
		p.busy = true
	}
	closing := r.retired && r.users == 0
	p.mu.Unlock()
	p.s.e.m.inflight.Sub(float64(t.len))
	if err == nil {
		r.bytes[opIndex(t.write)].Add(float64(n))
	}
	if start {
		p.s.e.bg.start(p.run)
	}
	if closing {
		r.closeLater()
	}
}
