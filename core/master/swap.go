package master

import (
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
)

// keepOld is how long the policy before a change is kept for a rollback.
const keepOld = time.Minute

// swap is an instance that is being made beside the one in force. While there is one, no handle is used
// again: the new instance has to hear of its removal first.
type swap struct {
	log []eviction.Event // what happened since the order was read
}

// retired is the policy before the last change. Its instance follows the events, so that going back to it is
// one step.
type retired struct {
	rule    Policy
	policy  eviction.Policy // nil: the LRU, or an instance that could not follow
	handles uint32
	skipped map[eviction.Handle]bool
	until   int64
}

// made is an instance that is ready to take over.
type made struct {
	policy  eviction.Policy
	handles uint32
	skipped map[eviction.Handle]bool
}

// change puts another policy in force; called with changing held.
func (d *domain) change(p Policy) error {
	if p.Factory == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.drain(d.s.now())
		d.install(p, nil, 0, nil, true)
		return nil
	}
	if err := d.replace(p, 0, true); err != nil {
		return fmt.Errorf("master: eviction domain %q: %w; the old policy stays", d.name, err)
	}
	return nil
}

// replace makes an instance aside and puts it in force; keep keeps the old one for a rollback. Called with
// changing held, not mu.
func (d *domain) replace(p Policy, least uint32, keep bool) error {
	for {
		m, err := d.make(&p, least)
		if errors.Is(err, errOutgrown) {
			least = 2 * m.handles
			continue
		}
		if err != nil {
			return err
		}
		d.install(p, m.policy, m.handles, m.skipped, keep) // make returned with mu held
		d.mu.Unlock()
		return nil
	}
}

// errOutgrown: more handles came into use than the new instance has.
var errOutgrown = errors.New("outgrown")

// catchUps bounds the rounds in which a new instance catches up without holding the domain.
const catchUps = 100

// make makes an instance and tells it everything. Only without an error it returns with mu held, and nothing
// has happened since that the instance was not told of.
func (d *domain) make(p *Policy, least uint32) (m made, err error) {
	s := d.s
	state := d.learned()
	d.mu.Lock()
	d.swap = &swap{}
	d.tellAll() // before the order is read, so that the log is complete
	d.drain(s.now())
	d.swap.log = nil
	order, now := d.lru.order(nil), d.drained
	m.handles = room(uint32(max(d.lru.place.n, 1)-1), least)
	spec := d.spec(m.handles)
	d.mu.Unlock()
	defer func() {
		if err != nil {
			closePolicy(m.policy)
			d.mu.Lock()
		}
		d.swap = nil
		d.tellAll()
		d.ring.reuse()
		if err != nil {
			d.mu.Unlock()
		}
	}()
	if m.policy, err = p.Factory.New(spec); err != nil {
		return m, fmt.Errorf("New: %w", err)
	}
	if m.skipped, err = d.fill(m.policy, order, now); err != nil {
		return m, fmt.Errorf("RESTORE: %w", err)
	}
	if err = offer(state, m.policy); err != nil {
		return m, err
	}
	for round := 0; ; round++ {
		d.mu.Lock()
		d.drain(s.now())
		log := d.swap.log
		d.swap.log = nil
		outgrown := uint32(d.lru.place.n) > m.handles+1
		last := len(log) <= applyBatch || round == catchUps
		if !last || outgrown {
			d.mu.Unlock()
		}
		if outgrown {
			return m, errOutgrown
		}
		if settings := s.settings(p); last && settings.Aside {
			m.policy = d.aside(m.policy, settings.Reserve)
		}
		if err = tell(m.policy, leaveOut(log, m.skipped)); err != nil {
			if last {
				d.mu.Unlock()
			}
			return m, fmt.Errorf("apply: %w", err)
		}
		if last {
			return m, nil
		}
	}
}

// tell applies events in batches.
func tell(p eviction.Policy, events []eviction.Event) error {
	for len(events) > 0 {
		n := min(len(events), applyBatch)
		if err := p.Apply(events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// install puts an instance in force, or the LRU; called with mu held and all events told.
func (d *domain) install(p Policy, instance eviction.Policy, handles uint32, skipped map[eviction.Handle]bool, keep bool) {
	if keep {
		d.forget()
		d.old = &retired{rule: d.rule, policy: d.policy, handles: d.handles, skipped: d.skipped, until: d.s.now() + keepOld.Milliseconds()}
		d.count.oldUntil.Store(d.old.until)
	} else {
		closePolicy(d.policy)
	}
	if !keep {
		d.policy, d.handles, d.skipped = instance, handles, skipped
		d.dropReserve()
		return
	}
	d.policy, d.handles, d.skipped = instance, handles, skipped
	d.rules(p)
	d.count.changes.Add(1)
}

// forget gives up the policy that was kept for a rollback; called with mu held.
func (d *domain) forget() {
	if d.old != nil {
		closePolicy(d.old.policy)
		d.old = nil
	}
	d.count.oldUntil.Store(never)
}

// follow keeps the old instance up to date; called with mu held.
func (d *domain) follow(events []eviction.Event, largest uint32) {
	o := d.old
	if o.policy == nil {
		return
	}
	if largest > o.handles || tell(o.policy, leaveOut(events, o.skipped)) != nil {
		closePolicy(o.policy)
		o.policy = nil // a rollback fills a new one
	}
}

// tend does what comes with time: it lets go of the old policy, ticks, makes instances that are missing and a larger
// one before it is needed, so that no put has to wait for that.
func (d *domain) tend(now int64) {
	d.renew(now)
	if d.count.oldUntil.Load() <= now {
		d.mu.Lock()
		if d.old != nil && d.old.until <= now {
			d.forget()
		}
		d.mu.Unlock()
	}
	if d.told.Load() && d.ring.tick(uint64(now)) {
		d.mu.Lock()
		d.drain(now)
		d.mu.Unlock()
	}
	if used := d.ring.largest(); used > firstHandles/2 && d.changing.TryLock() {
		d.mu.Lock()
		_, grows := d.policy.(eviction.Grower)
		full := d.policy != nil && !grows && used > d.handles-d.handles/8
		rule, handles := d.rule, d.handles
		d.mu.Unlock()
		if full {
			if err := d.replace(rule, 2*handles, false); err != nil {
				d.s.log.Warn("a larger instance of an eviction policy could not be made; it is tried again when handles run out", "domain", d.name, "error", err)
			} else {
				d.s.counters.PolicyRebuilds.Add(1)
			}
		}
		d.changing.Unlock()
	}
}
