package master

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
)

// anyTenant is the name of the domain of all tenants without a policy of their own.
const anyTenant = "*"

// domain is one eviction policy and what it rules over: a tenant, or all tenants that have no policy of
// their own. Calls of the policy are serialised by mu.
type domain struct {
	s      *Service
	name   string
	ring   ring
	chains chains
	// round numbers the questions for victims; an object read since the question carries it.
	round atomic.Uint32
	// told is set while somebody wants to know of probes and misses too: a policy from outside, or a recording.
	told  atomic.Bool
	hard  atomic.Int64 // hard-pinned objects with a handle
	known atomic.Int64 // objects with a handle
	full  atomic.Bool  // more events wait than the background should leave
	count domainCounts

	changing sync.Mutex // one change of policy at a time; before mu

	mu       sync.Mutex
	rule     Policy          // what was asked for
	outside  bool            // its instances work aside
	policy   eviction.Policy // nil: the LRU serves
	handles  uint32          // MaxHandles of the instance
	capacity uint64          // it was last told
	lru      hostLRU
	spare    []eviction.Event
	skipped  map[eviction.Handle]bool // went while the instance was being filled; it must not hear of their end
	drained  uint64                   // the time of the last event that was told
	reserve  []eviction.Handle        // the last answer
	taken    int                      // how many of them were looked at
	backUp   bool                     // the reserve is the LRU's
	asked    uint16                   // round of the reserve
	faults   []int64                  // times of the last faults
	retryAt  int64                    // when a failed policy is tried again
	fault    string
	strikes  []int64  // times of the last strikes
	fallen   bool     // the guard put the LRU in the policy's place
	swap     *swap    // an instance that is being made
	old      *retired // the instance before the last change
	guard    guard
	regret   regret
}

// firstHandles is the MaxHandles of a first instance; it doubles.
const firstHandles = 4096

// Faults that quarantine a policy until somebody sets it anew: so many within so long.
const (
	maxFaults   = 3
	faultWindow = 10 * time.Minute
)

// never is a time that does not come.
const never = 1<<63 - 1

// spec describes the domain to a new instance; called with mu held.
func (d *domain) spec(handles uint32) eviction.Spec {
	tenant := eviction.AnyTenant
	if t := d.s.knownTenant(d.name); t != nil {
		tenant = uint32(t.number)
	}
	d.capacity = d.size()
	return eviction.Spec{Capacity: d.capacity, MaxHandles: handles, Seed: d.s.seed, Tenant: tenant, BatchMax: applyBatch}
}

// applyBatch is the most events of one Apply.
const applyBatch = 256

// size is the domain's capacity in bytes: the tenant's quota, or the store.
func (d *domain) size() uint64 {
	if t := d.s.knownTenant(d.name); t != nil && d.s.cfg.MultiTenants {
		if q := t.quota.Load(); q > 0 {
			return q
		}
	}
	return uint64(max(1, d.s.counters.CapacityBytes.Load()))
}

// resizeDomains tells all domains their capacity; called with tenants.mu held.
func (s *Service) resizeDomains() {
	for _, d := range s.allDomains() {
		if !d.told.Load() {
			continue
		}
		size := d.size()
		d.ring.mu.Lock()
		if d.ring.size != size {
			d.ring.size = size
			d.ring.append(&eviction.Event{Kind: eviction.Resize, Size: size, NowMS: uint64(s.now())})
		}
		d.ring.mu.Unlock()
	}
}

// drain tells LRU, guard and policy what has happened; called with mu held.
func (d *domain) drain(now int64) {
	events, largest, at := d.ring.take(d.spare)
	d.drained = at
	d.full.Store(false)
	d.lru.grow(largest)
	if r := d.s.recorder.Load(); r != nil && len(events) > 0 {
		(*r).Offer(events)
	}
	for i := range events {
		d.observe(&events[i])
		d.lru.apply(&events[i])
	}
	if d.swap != nil {
		d.swap.log = append(d.swap.log, events...)
	}
	if d.old != nil {
		d.follow(events, largest)
	}
	switch {
	case d.rule.Factory == nil || d.fallen:
	case d.policy == nil && (now < d.retryAt || largest == 0):
	case d.policy == nil && d.outside:
		d.s.kickEviction() // tend makes one
	case d.policy == nil:
		d.rebuild(now, largest) // RESTORE tells it all
	case largest > d.handles && d.grow(largest) != nil:
		if !d.rebuild(now, largest) {
			break
		}
	default:
		for rest := d.heard(events); len(rest) > 0; {
			n := min(len(rest), applyBatch)
			if err := d.policy.Apply(rest[:n]); err != nil {
				d.failed(now, fmt.Errorf("apply: %w", err))
				break
			}
			rest = rest[n:]
		}
	}
	d.ring.recycle(events, d.swap != nil)
	if cap(events) > 4*ringLoss {
		events = nil
	}
	d.spare = events
	if v := d.guard.judge(now, d.policy != nil); v != "" {
		d.judged(v, now)
	}
}

// heard leaves out what an instance cannot know: the end of objects that it was never told of.
func (d *domain) heard(events []eviction.Event) []eviction.Event {
	return leaveOut(events, d.skipped)
}

// leaveOut returns the events without those of skipped handles. A handle counts as skipped until its REMOVE.
func leaveOut(events []eviction.Event, skipped map[eviction.Handle]bool) []eviction.Event {
	if len(skipped) == 0 {
		return events
	}
	out := make([]eviction.Event, 0, len(events))
	for _, e := range events {
		if e.Handle != 0 && skipped[e.Handle] {
			if e.Kind == eviction.Remove {
				delete(skipped, e.Handle)
			}
			continue
		}
		out = append(out, e)
	}
	return out
}

// room is the MaxHandles of an instance that has to take handles up to largest: a power of two times
// firstHandles, at least least.
func room(largest, least uint32) uint32 {
	handles := max(least, firstHandles)
	for handles < largest+largest/8 && handles < 1<<31 {
		handles *= 2
	}
	return handles
}

var errNoGrower = fmt.Errorf("the policy cannot grow")

// grow makes room for larger handles in the instance, if it can do that; called with mu held.
func (d *domain) grow(largest uint32) error {
	g, ok := d.policy.(eviction.Grower)
	if !ok {
		return errNoGrower
	}
	handles := room(largest, d.handles)
	if err := g.Grow(handles); err != nil {
		return err
	}
	d.handles = handles
	return nil
}

// rebuild makes a new instance for at least so many handles and tells it what is resident, oldest first;
// called with mu held, after the LRU has followed all events taken. It reports success.
func (d *domain) rebuild(now int64, largest uint32) bool {
	handles := room(largest, d.handles)
	p, err := d.rule.Factory.New(d.spec(handles))
	if err != nil {
		d.failed(now, fmt.Errorf("New: %w", err))
		return false
	}
	d.s.counters.PolicyRebuilds.Add(1)
	skipped, err := d.fill(p, d.lru.order(nil), d.drained)
	if err != nil {
		closePolicy(p)
		d.failed(now, fmt.Errorf("RESTORE: %w", err))
		return false
	}
	if old := d.policy; old != nil {
		err = offer(saved(old), p)
		closePolicy(old)
	}
	if err != nil {
		closePolicy(p)
		d.policy = nil
		d.failed(now, err)
		return false
	}
	d.policy, d.handles, d.fault, d.skipped = p, handles, "", skipped
	d.guard.restart()
	d.dropReserve()
	return true
}

// closePolicy ends an instance. Its error has nobody to go to: the instance is gone either way.
func closePolicy(p eviction.Policy) {
	if p != nil {
		_ = p.Close()
	}
}

// saved is the learned state of an instance, nil if it has none.
func saved(p eviction.Policy) []byte {
	s, ok := p.(eviction.StateSaver)
	if !ok {
		return nil
	}
	state, err := s.Save(nil)
	if err != nil || len(state) > eviction.MaxState {
		return nil // the old instance's trouble, not the new one's
	}
	return state
}

// offer hands the learned state of one instance to the next.
func offer(state []byte, p eviction.Policy) error {
	taker, ok := p.(eviction.StateSaver)
	if !ok || len(state) == 0 {
		return nil
	}
	if _, err := taker.Load(state); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return nil
}

// fill tells an instance what is resident: the handles in order that still stand for an object. The others
// are returned: their REMOVE has been told already, or comes and must not be told.
func (d *domain) fill(p eviction.Policy, order []eviction.Handle, now uint64) (skipped map[eviction.Handle]bool, err error) {
	batch := make([]eviction.Event, 0, applyBatch)
	skipped = map[eviction.Handle]bool{}
	for _, h := range order {
		r := d.ring.object(h)
		sh := &d.s.shards[r.shard()]
		sh.mu.Lock()
		if o := sh.live(r.index()); o != nil && o.handle == h && d.s.tenantOf(o).dom() == d {
			batch = append(batch, d.s.event(sh, o, eviction.Restore, int64(now)))
		} else {
			skipped[h] = true
		}
		sh.mu.Unlock()
		if len(batch) == applyBatch {
			if err := p.Apply(batch); err != nil {
				return nil, err
			}
			batch = batch[:0]
		}
	}
	if len(batch) > 0 {
		err = p.Apply(batch)
	}
	return skipped, err
}

// failed discards the instance after a fault: the LRU serves until the policy is tried again.
func (d *domain) failed(now int64, err error) {
	d.s.counters.PolicyFaults.Add(1)
	d.count.faults.Add(1)
	closePolicy(d.policy)
	d.policy = nil
	d.dropReserve()
	d.fault = err.Error()
	d.strikes = nil
	d.faults = slices.DeleteFunc(append(d.faults, now), func(t int64) bool { return t+faultWindow.Milliseconds() < now })
	if len(d.faults) >= maxFaults {
		d.retryAt = never
		d.s.log.Error("eviction policy has failed too often and stays off until it is set again; the built-in LRU serves", "domain", d.name, "faults", len(d.faults), slog.Any("error", err))
		return
	}
	wait := time.Second << (2 * (len(d.faults) - 1))
	d.retryAt = now + wait.Milliseconds()
	d.s.log.Warn("eviction policy failed; the built-in LRU serves", "domain", d.name, "retry_in", wait.String(), slog.Any("error", err))
}

// maxStrikes within strikeWindow are a fault: victims that by the events told are not resident, named twice,
// or hard-pinned.
const (
	maxStrikes   = 64
	strikeWindow = time.Minute
)

// strike counts a victim that the policy must not have named.
func (d *domain) strike(now int64) {
	d.count.strikes.Add(1)
	d.strikes = append(d.strikes, now)
	if len(d.strikes) < maxStrikes {
		return
	}
	if first := d.strikes[0]; now-first <= strikeWindow.Milliseconds() {
		d.failed(now, fmt.Errorf("victims: %d in %d ms were not resident, named twice or hard-pinned", len(d.strikes), now-first))
		return
	}
	d.strikes = d.strikes[1:]
}
