package verbs

import (
	"fmt"
	"time"
)

// abort makes an op end with err as soon as its slices are back. p.mu is held.
func (p *Peer) abort(o *op, err error) {
	if o.err == nil {
		o.err = err
	}
	if o.aborted.Load() {
		return
	}
	o.since = p.t.now()
	o.aborted.Store(true)
	o.cut = o.len
}

// stopOps aborts the ops that match likes; those with nothing at a device end at once.
func (p *Peer) stopOps(match func(*op) bool, err error) {
	var over *op
	p.mu.Lock()
	for o := p.live.first; o != nil; {
		next := o.next
		if match(o) {
			p.abort(o, err)
			if o.out == 0 {
				p.retire(o)
				o.next, over = over, o
			}
		}
		o = next
	}
	parked := p.parked
	p.parked = nil
	p.mu.Unlock()
	p.place(parked) // those that are over end there
	for _, e := range p.endpoints() {
		e.sweep()
	}
	for over != nil {
		o := over
		over, o.next = o.next, nil
		p.report(o)
	}
}

// endpoints are those that this peer's slices may be with.
func (p *Peer) endpoints() (out []*endpoint) {
	p.mu.Lock()
	rails := make([]*rail, 0, len(p.rails))
	for _, r := range p.rails {
		rails = append(rails, r)
	}
	p.mu.Unlock()
	for _, r := range rails {
		if e := r.n.store.find(r.path); e != nil {
			out = append(out, e)
		}
	}
	return out
}

// cancel ends a batch whose context is over.
func (p *Peer) cancel(b *batch) {
	p.stopOps(func(o *op) bool { return o.b == b }, canceled(b.ctx))
}

// dropLocal ends ops that use a region and have not begun; those that have are waited for by their registration.
func (p *Peer) dropLocal(r *registration, err error) {
	p.stopOps(func(o *op) bool { return o.reg == r }, err)
}

// cutOff takes the memory of ops back from the devices by making their connections fail; slices of others are moved
// again over new ones.
func (p *Peer) cutOff(match func(*op) bool, why error) {
	p.stopOps(match, why)
	for _, e := range p.endpoints() {
		if e.carries(match) {
			e.fail(fmt.Errorf("verbs: a transfer was broken off: %w", errReplaced))
		}
	}
}

// overdue makes the connections fail that hold work of ops that were given up a while ago: those where nothing moves,
// and after abortLimit all.
func (p *Peer) overdue(now time.Duration) {
	after := func(d time.Duration) func(*op) bool {
		return func(o *op) bool { return o.aborted.Load() && now-o.since > d }
	}
	late, tooLate := after(abortGrace), after(abortLimit)
	p.mu.Lock()
	found := false
	for o := p.live.first; o != nil && !found; o = o.next {
		found = late(o)
	}
	p.mu.Unlock()
	if !found {
		return
	}
	for _, e := range p.endpoints() {
		if e.carries(late) && (e.stalled(now) || e.carries(tooLate)) {
			e.fail(fmt.Errorf("verbs: a transfer was broken off: %w", errReplaced))
		}
	}
}

// stop refuses new ops and gives up all others.
func (p *Peer) stop(why error) {
	p.mu.Lock()
	p.closed = true
	if p.live.n == 0 {
		p.setGone()
	}
	p.mu.Unlock()
	p.stopOps(everyOp, why)
}

func everyOp(*op) bool { return true }

// await is false when ops are left at the end of t.
func (p *Peer) await(t *time.Timer) bool {
	select {
	case <-p.gone:
		return true
	case <-t.C:
		return false
	}
}

// Close implements transports.Peer. Connections stay for other handles of the same peer.
func (p *Peer) Close() error {
	why := errPeerClosed
	if p.t.ctx.Err() != nil {
		why = errTransportClosed
	}
	p.stop(why)
	grace := time.NewTimer(abortLimit)
	defer grace.Stop()
	if !p.await(grace) { // the janitor has seen to connections where nothing moves
		p.cutOff(everyOp, why)
		<-p.gone // the longest wait is for a device that does not give work back: drainTimeout
	}
	p.mu.Lock()
	for _, r := range p.rails {
		r.n.rails.put(r)
	}
	p.rails, p.ways = nil, nil
	p.mu.Unlock()
	p.t.forget(p)
	return nil
}
