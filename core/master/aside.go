package master

import (
	"context"
	"time"

	"github.com/mooncake-agent/mooncake/core/master/aside"
	"github.com/mooncake-agent/mooncake/eviction"
)

// Policies that run code from outside work aside: neither a put nor anybody else who holds the domain waits for them.

// How long somebody who does not hold the domain waits for such a policy.
const (
	answerTime = 250 * time.Millisecond // the background, for victims
	stateTime  = 30 * time.Second       // a swap, for learned state
	statsTime  = 2 * time.Second        // policy status and metrics
)

// aside lets an instance work aside from now on; called with mu held, when it was told what is resident.
func (d *domain) aside(p eviction.Policy, reserve int) eviction.Policy {
	return aside.New(p, int(d.known.Load()), aside.Options{
		Ahead:   reserve,
		Dropped: func() { d.s.counters.EventsDropped.Add(1) },
		Used:    func() { d.refuse(refusedUsed) },
	}, d.s.guests.Go)
}

// visit lets f see the policy, if there is one, between two of its calls, for at most limit if it works aside. f gets the
// policy as its factory made it. Called without mu held. It reports that f has run.
func (d *domain) visit(limit time.Duration, f func(eviction.Policy)) bool {
	d.mu.Lock()
	p := d.policy
	a, ok := p.(*aside.Policy)
	if !ok {
		defer d.mu.Unlock()
		if p != nil {
			f(p)
		}
		return p != nil
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return a.Visit(ctx, f) == nil
}

// learned is the learned state of the instance in force, nil if it has none.
func (d *domain) learned() []byte {
	var state []byte
	if !d.visit(stateTime, func(p eviction.Policy) { state = saved(p) }) {
		return nil
	}
	return state
}

// await lets the domain go until its policy, which works aside, has named victims; called with mu held. It reports that
// there are some.
func (d *domain) await(need eviction.Need) bool {
	a, ok := d.policy.(*aside.Policy)
	if !ok {
		return false
	}
	d.mu.Unlock()
	defer d.mu.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	return a.Await(ctx, need)
}

// renew makes an instance of a policy that works aside where there is none: the first, or one after a fault whose time
// has come.
func (d *domain) renew(now int64) {
	if !d.changing.TryLock() {
		return
	}
	defer d.changing.Unlock()
	d.mu.Lock()
	due := d.outside && d.policy == nil && !d.fallen && now >= d.retryAt
	rule := d.rule
	d.mu.Unlock()
	if !due {
		return
	}
	err := d.replace(rule, 0, false)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.failed(now, err)
		return
	}
	d.fault = ""
	d.guard.restart()
	d.s.counters.PolicyRebuilds.Add(1)
}
