package aside

import (
	"errors"
	"fmt"

	"github.com/mooncake-agent/mooncake/eviction"
)

// run is the goroutine of the policy: the only one that calls it.
func (p *Policy) run() {
	var events []eviction.Event
	for range p.wake {
		for p.round(&events) {
		}
		if p.over() {
			break
		}
	}
	_ = p.inner.Close() // nobody is left who could hear of it
}

// over tells that the policy is closed. Then nobody waits for it any more: who comes later is sent away at once.
func (p *Policy) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.dismiss()
	}
	return p.closed
}

// dismiss sends everybody away who waits; called with mu held.
func (p *Policy) dismiss() {
	end(p.visits)
	p.visits = nil
	p.tellAnswered()
}

// round tells what waits, lets visitors in and asks one question. It reports that there may be more to do.
func (p *Policy) round(spare *[]eviction.Event) bool {
	p.mu.Lock()
	if p.closed || p.err != nil {
		p.dismiss()
		p.mu.Unlock()
		return false
	}
	events, visits, grow, heard := p.queue, p.visits, p.grow, p.pushed
	p.queue, p.visits, p.grow = (*spare)[:0], nil, 0
	p.mu.Unlock()
	err := p.tell(events, grow)
	if *spare = events[:0]; cap(events) > 2*loss {
		*spare = nil
	}
	if err != nil {
		end(visits)
		p.fail(err)
		return false
	}
	for _, v := range visits {
		if v.ctx.Err() == nil {
			v.f(p.inner)
			v.was = true
		}
		close(v.done)
	}
	asked, err := p.ask(heard)
	if err != nil {
		p.fail(err)
		return false
	}
	return asked || len(events) > 0 || len(visits) > 0
}

// end sends visitors away.
func end(visits []*visit) {
	for _, v := range visits {
		close(v.done)
	}
}

// fail notes an error for the host, who is to close the policy.
func (p *Policy) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.queue = nil
	p.dismiss()
}

// tellAnswered wakes those who wait for answers; called with mu held.
func (p *Policy) tellAnswered() {
	close(p.answered)
	p.answered = make(chan struct{})
}

var errNoGrower = errors.New("the policy cannot grow")

// tell gives events to the policy.
func (p *Policy) tell(events []eviction.Event, grow uint32) error {
	if grow > 0 {
		g, ok := p.inner.(eviction.Grower)
		if !ok {
			return errNoGrower
		}
		if err := g.Grow(grow); err != nil {
			return fmt.Errorf("grow: %w", err)
		}
	}
	for len(events) > 0 {
		n := min(len(events), applyMax)
		if err := p.inner.Apply(events[:n]); err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		events = events[n:]
	}
	return nil
}

// ask asks one question that is due. The policy has been told so many events; what came since is in the queue.
func (p *Policy) ask(heard uint64) (asked bool, err error) {
	p.mu.Lock()
	a := p.answers.next(p.resident)
	if a == nil || p.closed {
		p.mu.Unlock()
		return false, nil
	}
	need := eviction.Need{Max: a.most, Tenant: a.tenant, Segment: a.segment, Flags: a.flags}
	dst := p.answers.spare[:0]
	p.answers.spare = nil
	p.mu.Unlock()
	victims, err := p.inner.Victims(dst, need)
	if err == nil && len(victims) > need.Max {
		err = errTooMany
	}
	if err != nil {
		return false, fmt.Errorf("victims: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers.install(a, victims, heard, p.queue)
	p.tellAnswered()
	return true, nil
}

var errTooMany = errors.New("named more handles than were asked for")
