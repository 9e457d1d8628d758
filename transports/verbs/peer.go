package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// Peer implements [transports.Peer]. Ops wait in a queue and are cut into slices as there is room; slices find their
// pair of devices when they are cut, and another one when that fails.
type Peer struct {
	t *Transport
	r *remote

	mu      sync.Mutex
	closed  bool
	ways    map[[2]string]ways
	rails   map[[2]int]*rail
	turn    int
	live    opList // all unfinished ops
	next    *op    // the first that is not cut up; follows the order of live
	out     int    // slices cut and not finished
	parked  *slice // waiting for a pause to end
	parkEnd time.Time
	room    chan struct{} // a token when ops have finished
	gone    chan struct{} // closed when closed and no op is left
	free    *slice        // spare ones
	nfree   int
}

var (
	_ transports.Peer   = (*Peer)(nil)
	_ transports.Poller = (*Peer)(nil)
)

const (
	// maxPark is the longest pause that a slice is kept for.
	maxPark = 1500 * time.Millisecond
	// maxLive bounds the ops of one peer.
	maxLive = 16384
	// abortGrace is how long a connection with work of a cancelled op may go without a completion before it is made to
	// fail, and abortLimit how long the work may take in any case.
	abortGrace = 250 * time.Millisecond
	abortLimit = 1200 * time.Millisecond
	maxSpare   = 4096
	// connectTries is how often a connection is tried for a slice when there is no other pair of devices.
	connectTries = 2
)

var (
	errTransportClosed = fmt.Errorf("verbs: the transport was closed: %w", transports.ErrClosed)
	errPeerClosed      = fmt.Errorf("verbs: the peer was closed: %w", transports.ErrClosed)
	errNoWay           = fmt.Errorf("verbs: no device of this node can reach one of the peer's: %w", transports.ErrUnreachable)
)

func newPeer(t *Transport, r *remote) *Peer {
	return &Peer{t: t, r: r, ways: map[[2]string]ways{}, rails: map[[2]int]*rail{}, room: make(chan struct{}, 1), gone: make(chan struct{})}
}

// rail returns the rail of two devices, held until Close. p.mu is held.
func (p *Peer) rail(n *nic, dev int) *rail {
	k := [2]int{n.index, dev}
	r := p.rails[k]
	if r == nil {
		r = n.rails.get(p.r.server, p.r.devices[dev].Name, p.r.identity)
		p.rails[k] = r
	}
	return r
}

// Submit implements transports.Peer. It waits only while the peer has 16384 ops under way.
func (p *Peer) Submit(ctx context.Context, ops []transports.Op, done transports.Completion) error {
	for i := range ops {
		o := &ops[i]
		if o.Local == nil || o.Offset > o.Local.Len() || o.Len > o.Local.Len()-o.Offset {
			return fmt.Errorf("verbs: op %d: %d bytes at offset %d: %w", i, o.Len, o.Offset, transports.ErrNotRegistered)
		}
	}
	if err := ctx.Err(); err != nil {
		return canceled(ctx)
	}
	b := &batch{p: p, ctx: ctx, done: done, start: time.Now(), ops: make([]op, len(ops))}
	b.left.Store(int64(len(ops)) + 1)
	accepted, err := p.admit(ctx, b, ops)
	if err != nil {
		return err
	}
	b.watch.F = func() { p.cancel(b) }
	b.watch.Start(ctx)
	for i := range ops { // those that do not go to the wire
		if o := &b.ops[i]; !accepted[i] {
			p.report(o)
		}
	}
	p.fill()
	b.leave()
	return nil
}

func canceled(ctx context.Context) error { return fmt.Errorf("verbs: %w", ctx.Err()) }

// admit queues the ops that are to be moved; the others have their result.
func (p *Peer) admit(ctx context.Context, b *batch, ops []transports.Op) (accepted []bool, err error) {
	accepted = make([]bool, len(ops))
	p.mu.Lock()
	for !p.closed && p.live.n >= maxLive {
		p.mu.Unlock()
		select {
		case <-p.room:
		case <-ctx.Done():
			return nil, canceled(ctx)
		}
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	if p.closed {
		if p.t.ctx.Err() != nil {
			return nil, errTransportClosed
		}
		return nil, errPeerClosed
	}
	for i := range ops {
		in, o := &ops[i], &b.ops[i]
		o.b, o.cookie, o.write, o.local, o.remote, o.len = b, in.Cookie, in.Write, in.Local.Addr()+in.Offset, in.Remote, in.Len
		if o.len == 0 {
			continue
		}
		closing := false
		o.reg, closing = p.t.regs.acquire(o.local, o.len)
		switch {
		case closing:
			o.err = errLocalGone
		case o.reg == nil:
			o.err = fmt.Errorf("verbs: local memory [%#x, %#x) is not registered with the devices: %w", o.local, o.local+o.len, transports.ErrNotShareable)
		case !p.r.covers(o.remote, o.len):
			o.err = fmt.Errorf("verbs: segment %q has no memory at [%#x, %#x): %w", p.r.segment, o.remote, o.remote+o.len, transports.ErrRejected)
		default:
			accepted[i] = true
			p.live.add(o)
			if p.next == nil {
				p.next = o
			}
		}
	}
	return accepted, nil
}

// fill cuts ops into slices while there is room, and hands them to the devices.
func (p *Peer) fill() {
	for {
		var first, last *slice
		n := 0
		p.mu.Lock()
		for p.next != nil && p.out < p.t.cfg.MaxQueued && n < 2*postBatch {
			o := p.next
			if o.cut == o.len {
				p.next = o.next
				continue
			}
			s := p.cut(o)
			if last == nil {
				first = s
			} else {
				last.next = s
			}
			last = s
			n++
		}
		p.mu.Unlock()
		if n == 0 {
			return
		}
		p.place(first)
	}
}

// place hands slices to endpoints.
func (p *Peer) place(s *slice) {
	var touched [4]*endpoint
	some := touched[:0]
	var lost *slice
	for s != nil {
		next := s.next
		s.next = nil
		e, err := p.assign(s)
		switch {
		case err != nil:
			s.err = err
			s.next, lost = lost, s
		case e != nil:
			known := false
			for _, t := range some {
				known = known || t == e
			}
			if !known {
				some = append(some, e)
			}
		}
		s = next
	}
	for _, e := range some {
		e.kick()
	}
	if lost != nil {
		p.finish(lost)
	}
}

// assign puts a slice into the queue of an endpoint. Neither an endpoint nor an error: the slice waits for a pause to
// end, or is over because its op is.
func (p *Peer) assign(s *slice) (*endpoint, error) {
	for range 4 {
		p.mu.Lock()
		if s.op.aborted.Load() {
			p.mu.Unlock()
			return nil, s.op.err
		}
		w, err := p.pick(s)
		if err != nil && p.t.ctx.Err() != nil { // a connection that was being made was given up for that
			p.mu.Unlock()
			return nil, errTransportClosed
		}
		if err != nil {
			until, soon := retryTime(err, time.Now())
			if soon && s.worthWaiting() {
				p.park(s, until)
				p.mu.Unlock()
				p.t.wakeJanitor()
				return nil, nil
			}
			p.mu.Unlock()
			if s.err != nil && !errors.Is(err, s.err) {
				err = fmt.Errorf("%w; before that: %w", err, s.err)
			}
			return nil, err
		}
		s.way = w
		p.mu.Unlock()
		e, err := w.n.store.get(w.server, w.name)
		if err != nil {
			w.failed(err)
			s.last, s.err = w.rail, &connectError{err}
			if s.tries++; s.tries > p.t.cfg.Retries {
				return nil, err
			}
			continue
		}
		w.n.bytes.Add(int64(s.len))
		s.err = nil
		if e.enqueue(s) {
			return e, nil
		}
		w.n.bytes.Add(-int64(s.len))
		w.n.store.remove(e) // whoever made it fail has not come to that yet; it must not be found again
	}
	return nil, fmt.Errorf("verbs: %s: connections to it keep failing: %w", p.r.server, transports.ErrUnreachable)
}

// park keeps a slice for later. p.mu is held.
func (p *Peer) park(s *slice, until time.Time) {
	if p.parked == nil || until.Before(p.parkEnd) {
		p.parkEnd = until
	}
	s.next, p.parked = p.parked, s
}

// unpark tries parked slices again once their time has come, and returns when to come again.
func (p *Peer) unpark(now time.Time) (again time.Time) {
	p.mu.Lock()
	s := p.parked
	if s == nil || now.Before(p.parkEnd) {
		again = p.parkEnd
		if s == nil {
			again = time.Time{}
		}
		p.mu.Unlock()
		return again
	}
	p.parked = nil
	p.mu.Unlock()
	p.place(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parked != nil {
		return p.parkEnd
	}
	return time.Time{}
}

// refused tells whether the peer's device has refused access to the buffer a moment ago.
func (p *Peer) refused(s *slice, dev int) bool {
	until := p.r.buffers[s.buf].refused[opIndex(s.op.write)][dev].Load()
	return until != 0 && int64(p.t.now()) < until
}

func (p *Peer) bounced(s *slice, why error) {
	s.way.n.bytes.Add(-int64(s.len))
	own := s.err
	if own == nil {
		s.err = why
	}
	final := errors.Is(s.err, transports.ErrUnquiet)
	if own != nil {
		switch {
		case errors.Is(own, transports.ErrRejected):
			// By this device: its keys may be those of before it was lost, and others may know better.
			p.r.buffers[s.buf].refused[opIndex(s.op.write)][s.way.dev].Store(int64(p.t.now() + refusedFor))
		case errors.Is(own, transports.ErrNotRegistered):
			final = true
		}
	}
	p.mu.Lock()
	if own != nil || !blameless(why) {
		s.op.started = s.op.started || own != nil
		s.tries++
	}
	s.last = s.way.rail
	over := s.op.aborted.Load()
	if !final && !over && s.tries > p.t.cfg.Retries {
		final = true
		s.err = fmt.Errorf("verbs: segment %q: gave up after %d attempts: %w", p.r.segment, s.tries, s.err)
	}
	if over {
		s.err = s.op.err
	}
	p.mu.Unlock()
	if final || over {
		p.finish(s)
		return
	}
	p.t.m.retries.WithLabelValues(reason(s.err)).Inc()
	p.place(s)
}

// finish ends slices, each with its own error or none, and reports the ops that end with them.
func (p *Peer) finish(s *slice) {
	var over *op
	p.mu.Lock()
	for s != nil {
		next := s.next
		o := s.op
		o.out--
		p.out--
		if s.err != nil && o.err == nil {
			p.abort(o, s.err)
		} else if s.err == nil {
			o.started = true
			p.t.m.slices.WithLabelValues(s.way.n.name, opNames[opIndex(o.write)]).Inc()
		}
		if o.out == 0 && o.cut == o.len {
			p.retire(o)
			o.next, over = over, o
		}
		p.spare(s)
		s = next
	}
	more := p.next != nil && p.out < p.t.cfg.MaxQueued/2
	p.mu.Unlock()
	if more {
		p.fill()
	}
	for over != nil {
		o := over
		over, o.next = o.next, nil
		p.report(o)
	}
}

func (p *Peer) spare(s *slice) {
	*s = slice{}
	if p.nfree < maxSpare {
		s.next, p.free = p.free, s
		p.nfree++
	}
}

// retire takes a finished op off the list. p.mu is held.
func (p *Peer) retire(o *op) {
	if p.next == o {
		p.next = o.next
	}
	p.live.remove(o)
	select {
	case p.room <- struct{}{}:
	default:
	}
	if p.closed && p.live.n == 0 {
		p.setGone()
	}
}

func (p *Peer) setGone() {
	select {
	case <-p.gone:
	default:
		close(p.gone)
	}
}

// report tells the submitter.
func (p *Peer) report(o *op) {
	b := o.b
	n := o.len
	switch {
	case o.err != nil:
		n = 0
		p.t.m.failed.WithLabelValues(reason(o.err)).Inc()
	case n > 0:
		p.t.m.moved(o.write, n, time.Since(b.start).Seconds())
	}
	if o.reg != nil {
		o.reg.release()
	}
	b.done(o.cookie, n, o.err)
	b.leave()
}

// Poll implements transports.Poller.
func (p *Peer) Poll() (found bool) {
	for _, n := range p.t.nics {
		n.mu.RLock()
		queues := n.queues
		n.mu.RUnlock()
		for _, q := range queues {
			if q.used.Load() > 0 {
				f, _ := q.take() // an error is the poller's to report
				found = found || f
			}
		}
	}
	return found
}
