package master

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/core/master/aside"
	"github.com/mooncake-agent/mooncake/eviction"
)

// admitTime is how long a put waits for the policy's opinion; a late one counts as yes.
const admitTime = 2 * time.Millisecond

// worthIt asks the policy whether a put that needs an eviction is worth it. No shard may be locked.
func (s *Service) worthIt(w *write, hash uint64) bool {
	d := w.t.dom()
	if !d.count.admission.Load() {
		return true
	}
	if w.req == 0 {
		w.req = d.request()
	}
	e := eviction.Event{
		Kind: eviction.Insert, Tenant: uint32(w.t.number), Size: w.size, NowMS: uint64(w.now), KeyHash: hash, Req: w.req, Added: w.batch,
	}
	if m, ok := d.chains.find(hash); ok {
		e.Depth, e.Matched = m.depth, m.matched
	}
	if w.cfg.HardPin {
		e.Flags |= eviction.FlagHardPin
	}
	return d.admit(&e, w.now)
}

// admit answers for one would-be INSERT.
func (d *domain) admit(e *eviction.Event, now int64) bool {
	deadline := time.Now().Add(admitTime)
	for !d.mu.TryLock() {
		if time.Now().After(deadline) {
			d.count.admitLate.Add(1)
			return true
		}
		time.Sleep(admitTime / 40)
	}
	refused, known := d.opinion(e, now, deadline)
	if !known {
		return true
	}
	d.count.admitAsked.Add(1)
	if time.Now().After(deadline) {
		d.count.admitLate.Add(1)
		return true
	}
	if !refused {
		return true
	}
	d.count.admitRefused.Add(1)
	d.mu.Lock()
	d.regret.refused(e.KeyHash, e.NowMS)
	d.mu.Unlock()
	return d.count.storeRefused.Load()
}

// opinion asks the policy; known: it has opinions. Called with mu held, it returns without. After the deadline the answer
// does not count.
func (d *domain) opinion(e *eviction.Event, now int64, deadline time.Time) (refused, known bool) {
	d.drain(now)
	e.NowMS = max(e.NowMS, d.drained)
	var refuse [1]bool
	var err error
	ask := func(p eviction.Policy) {
		var a eviction.Admitter
		if a, known = p.(eviction.Admitter); known {
			err = a.Admit([]eviction.Event{*e}, refuse[:])
		}
	}
	if a, ok := d.policy.(*aside.Policy); ok {
		d.mu.Unlock()
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		if a.Visit(ctx, ask) != nil {
			return false, ctx.Err() != nil // late, if it is not gone
		}
		return refuse[0] && err == nil, known // with an error it is down, and says so in its status
	}
	defer d.mu.Unlock()
	if ask(d.policy); err != nil {
		d.failed(now, fmt.Errorf("admit: %w", err))
		return false, false
	}
	return refuse[0], known
}
