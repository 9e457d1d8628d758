package master

import (
	"fmt"
	"time"

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
	defer d.mu.Unlock()
	d.drain(now)
	a, ok := d.policy.(eviction.Admitter)
	if !ok {
		return true
	}
	d.count.admitAsked.Add(1)
	e.NowMS = max(e.NowMS, d.drained)
	var refuse [1]bool
	if err := a.Admit([]eviction.Event{*e}, refuse[:]); err != nil {
		d.failed(now, fmt.Errorf("admit: %w", err))
		return true
	}
	if time.Now().After(deadline) {
		d.count.admitLate.Add(1)
		return true
	}
	if !refuse[0] {
		return true
	}
	d.count.admitRefused.Add(1)
	d.regret.refused(e.KeyHash, e.NowMS)
	return d.count.storeRefused.Load()
}
