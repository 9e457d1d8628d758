package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/conformance"
	"github.com/mooncake-agent/mooncake/eviction/replay"
	"github.com/mooncake-agent/mooncake/plugins/wasm"
)

// policyCheck is what is to be checked and how.
type policyCheck struct {
	config wasm.Config
	trace  string
	blocks uint64
	// accesses of generated traffic
	accesses int
}

const (
	usualObjects = 100_000
	manyObjects  = 1_000_000
	perQuestion  = 64 // victims that are asked for at once

	// What draws a remark.
	slowEvent    = 60.0  // ns, the budget of a policy in C
	fuelShare    = 0.5   // of the budget
	largeObject  = 140.0 // bytes an object: 64 that the default memory limit allows for, and the host's own
	helpedShare  = 0.02  // of victims
	worseThanLRU = 0.01  // prefix hit: the shadow guard's bound
)

func sortedStrings(s []string) []string { return slices.Sorted(slices.Values(s)) }

// notAModule tells that err is the module's fault.
func notAModule(err error) bool { return errors.Is(err, wasm.ErrRefused) }

func (o *policyCheck) openTrace() (*replay.Trace, error) {
	if o.trace != "" {
		return replay.Open(o.trace)
	}
	return replay.Generate("phases", 1, o.accesses)
}

func checkSpec(objects uint32) eviction.Spec {
	return eviction.Spec{Capacity: uint64(objects) * 512, MaxHandles: objects, BlockTokens: 16, Seed: 1, Tenant: eviction.AnyTenant, BatchMax: 256}
}

// start tries an instance for a usual store, then one for a large store.
func (o *policyCheck) start(r *policyReport, f *wasm.Factory) bool {
	try := func(objects uint32) (time.Duration, error) {
		begin := time.Now()
		p, err := f.New(checkSpec(objects))
		if err != nil {
			return 0, err
		}
		took := time.Since(begin)
		return took, p.Close()
	}
	took, err := try(usualObjects)
	if err != nil {
		r.add(levelFail, "start", "it does not start for %d objects: %v", usualObjects, err)
		return false
	}
	more, err := try(manyObjects)
	if err != nil {
		r.add(levelNote, "start", "it starts for %d objects in %d ms, but not for %d: %v", usualObjects, took.Milliseconds(), manyObjects, err)
		return true
	}
	r.add(levelOK, "start", "it starts for %d objects in %d ms, for %d in %d ms", usualObjects, took.Milliseconds(), manyObjects, more.Milliseconds())
	return true
}

// guestAudit remembers the policies that a factory makes, to read in the end what they tell of their guests.
type guestAudit struct {
	*wasm.Factory
	made []eviction.Supervised
}

func newGuestAudit(f *wasm.Factory) *guestAudit { return &guestAudit{Factory: f} }

func (a *guestAudit) New(s eviction.Spec) (eviction.Policy, error) {
	p, err := a.Factory.New(s)
	if g, ok := p.(eviction.Supervised); ok {
		a.made = append(a.made, g)
	}
	return p, err
}

// sum adds up what the guests did.
func (a *guestAudit) sum() eviction.Supervision {
	all := eviction.Supervision{Faults: map[string]uint64{}, Strikes: map[string]uint64{}}
	for _, g := range a.made {
		s := g.Supervision()
		for k, n := range s.Faults {
			all.Faults[k] += n
		}
		for k, n := range s.Strikes {
			all.Strikes[k] += n
		}
		all.Protected += s.Protected
		if s.Fault != "" {
			all.Fault = s.Fault
		}
	}
	return all
}

// guest reports what the host had to put right, in all that was tried.
func (o *policyCheck) guest(r *policyReport, s eviction.Supervision) {
	before := len(r.Findings)
	var faults []string
	for _, k := range slices.Sorted(maps.Keys(s.Faults)) {
		if n := s.Faults[k]; n > 0 {
			faults = append(faults, fmt.Sprintf("%s %d times", k, n))
		}
	}
	if len(faults) > 0 {
		hint := ""
		if s.Faults[string(wasm.FaultFuel)] > 0 {
			hint = o.fuelHint()
		}
		r.add(levelFail, "guest", "it failed: %s; the last time: %s%s", strings.Join(faults, ", "), s.Fault, hint)
	}
	if n := s.Strikes["unknown"] + s.Strikes["duplicate"]; n > 0 {
		r.add(levelFail, "guest", "it named %d victims that were not resident, and %d twice in one answer", s.Strikes["unknown"], s.Strikes["duplicate"])
	}
	if s.Protected > 0 {
		r.add(levelFail, "guest", "it named %d victims that were pinned, or not of the tenant or segment that was asked for", s.Protected)
	}
	if len(r.Findings) == before {
		r.add(levelOK, "guest", "no fault, no victim that was not there or had to stay")
	}
}

// fuelHint says what a guest needs that has run out of fuel: it is measured with as much as there may be.
func (o *policyCheck) fuelHint() string {
	c := o.config
	c.FuelPerEvent = mostFuel
	hint := fmt.Sprintf("\nits calls are too expensive for fuel_per_event: %d", o.config.FuelPerEvent)
	f, err := wasm.Open(context.Background(), c, nil) // it is in the cache
	if err != nil {
		return hint
	}
	defer f.Close()
	var r policyReport
	o.measure(&r, newGuestAudit(f))
	if r.FuelPerEvent == 0 || r.FuelPerQuestion == 0 {
		return hint + ", and for any other: find the loop that does not end"
	}
	event, victim := r.FuelPerEvent, r.FuelPerQuestion/perQuestion
	const step = 500
	need := (int(2*max(event, victim))/step + 1) * step
	name := filepath.Base(c.Module)
	return hint + fmt.Sprintf(": an event takes %.0f instructions and a victim %.0f, on average. Make them cheaper, or allow twice that: "+
		"mooncake policy set %s:fuel_per_event=%d (to try: mooncake policy check --fuel-per-event %d)", event, victim, name, need, need)
}

// mostFuel is the greatest fuel_per_event.
const mostFuel = 1_000_000

// contract runs the conformance suite. The host stands in for a guest that fails, so what guest finds counts as
// much as the outcome.
func (o *policyCheck) contract(r *policyReport, a *guestAudit) {
	outcomes := conformance.Run(a, conformance.Options{Foreign: true}, nil)
	r.Contract = len(outcomes)
	for _, c := range outcomes {
		if len(c.Failures) > 0 {
			r.Broken++
			r.add(levelFail, "contract", "%s:\n%s", c.Name, strings.Join(c.Failures, "\n"))
		}
	}
	if r.Broken == 0 {
		r.add(levelOK, "contract", "all %d checks: pins, refusals, tenants, segments, late events, swaps; the same events give the same answers", r.Contract)
	}
}

// measure runs batches of 256 over a usual number of objects, and questions.
func (o *policyCheck) measure(r *policyReport, f *guestAudit) {
	p, err := f.New(checkSpec(usualObjects))
	if err != nil {
		r.add(levelFail, "speed", "%v", err)
		return
	}
	defer p.Close()
	m := policyMeter{p: p, told: p.(eviction.Supervised).Supervision}
	m.fill()
	for range 3 { // the best of some, since other programs take time too
		before := m.told()
		for range 150 {
			m.batch()
		}
		after := m.told()
		if n := float64(after.Events - before.Events); n > 0 {
			ns := float64(after.EventNanos-before.EventNanos) / n
			if r.NanosPerEvent == 0 || ns < r.NanosPerEvent {
				r.NanosPerEvent = ns
			}
			r.FuelPerEvent = float64(after.EventFuel-before.EventFuel) / n
		}
	}
	before := m.told()
	const questions = 50
	for range questions {
		m.ask(perQuestion)
	}
	after := m.told()
	r.FuelPerQuestion = float64(after.Fuel-before.Fuel-(after.EventFuel-before.EventFuel)) / questions
	r.BytesPerObject = float64(after.MemoryBytes) / usualObjects
	if m.err != nil {
		r.add(levelFail, "speed", "%v", m.err)
	}
	if m.err != nil || after.Fault != "" {
		return // figures of a guest that is down mean nothing
	}
	budget := float64(o.config.FuelPerEvent)
	level := levelOK
	if r.FuelPerEvent > fuelShare*budget || r.FuelPerQuestion > fuelShare*(10_000+perQuestion*budget) {
		level = levelNote
	}
	r.add(level, "fuel", "%.0f instructions an event of %.0f allowed, %.0f for a question of %d victims", r.FuelPerEvent, budget, r.FuelPerQuestion, perQuestion)
	switch {
	case f.Info().Score:
		r.add(levelOK, "speed", "score mode: asked only when there is no room")
	case r.NanosPerEvent > slowEvent:
		r.add(levelNote, "speed", "%.0f ns an event in the batches of a master; a policy in C takes about 30, and %.0f is the budget", r.NanosPerEvent, slowEvent)
	default:
		r.add(levelOK, "speed", "%.0f ns an event in the batches of a master, the budget is %.0f", r.NanosPerEvent, slowEvent)
	}
	level = levelOK
	if r.BytesPerObject > largeObject {
		level = levelNote
	}
	r.add(level, "memory", "%.1f bytes an object with %d objects, the host's own records and the machine code included", r.BytesPerObject, usualObjects)
}

// replay runs traffic through the policy and through lru.
func (o *policyCheck) replay(r *policyReport, f *guestAudit, t *replay.Trace) error {
	blocks := o.blocks
	if blocks == 0 {
		blocks = max(1, uint64(t.Unique())/4)
	}
	capacity := blocks * t.MeanSize()
	lru, err := eviction.Kind.Build(context.Background(), "lru", module.Env{}, module.NoConfig{})
	if err != nil {
		return err
	}
	base, err := replay.Run(t, lru, capacity, replay.Options{Seed: 1})
	if err != nil {
		return err
	}
	own, err := replay.Run(t, f, capacity, replay.Options{Seed: 1})
	if err != nil {
		r.add(levelFail, "hits", "the replay failed: %v", err)
		return nil
	}
	r.PrefixHit, r.PrefixHitLRU = own.PrefixHit(), base.PrefixHit()
	r.AccessesPerSec = float64(own.Accesses) / own.Elapsed.Seconds()
	s := f.made[len(f.made)-1].Supervision() // of the replay
	if share := float64(s.Fallbacks) / float64(max(1, own.Evictions)); share > helpedShare && s.Fault == "" {
		r.add(levelNote, "hits", "it named too few victims: the host chose %.0f %% of them by its own LRU", 100*share)
	}
	level, more := levelOK, ""
	if r.PrefixHit < r.PrefixHitLRU-worseThanLRU {
		level, more = levelNote, ": worse than the shadow guard allows, a master would fall back to LRU"
	}
	r.add(level, "hits", "prefix hit %.2f %%, lru %.2f %% (%s, %d requests, %d blocks fit)%s; %.2f M block accesses a second",
		100*r.PrefixHit, 100*r.PrefixHitLRU, t.Name, len(t.Requests), blocks, more, r.AccessesPerSec/1e6)
	return nil
}

// policyMeter drives one policy with events in full batches.
type policyMeter struct {
	p       eviction.Policy
	told    func() eviction.Supervision
	now     uint64
	next    uint64 // number for the next key
	chance  uint64
	victims []eviction.Handle
	events  []eviction.Event
	err     error
}

func (m *policyMeter) apply() {
	if err := m.p.Apply(m.events); err != nil && m.err == nil {
		m.err = err
	}
	m.events = m.events[:0]
}

func (m *policyMeter) insert(h eviction.Handle) {
	m.next++
	m.events = append(m.events, eviction.Event{
		Kind: eviction.Insert, Handle: h, Size: 512, NowMS: m.now, KeyHash: conformance.Mix(m.next), Req: uint32(m.next / 8), Added: 8, Depth: 7 - uint32(m.next%8),
	})
}

func (m *policyMeter) fill() {
	for h := eviction.Handle(1); h <= usualObjects; h++ {
		m.insert(h)
		if len(m.events) == 256 {
			m.apply()
		}
	}
	m.apply()
}

// batch is two uses, then one object goes and another comes, 64 times.
func (m *policyMeter) batch() {
	m.now++
	for range 64 {
		var h [3]eviction.Handle
		for i := range h {
			m.chance++
			h[i] = 1 + eviction.Handle(conformance.Mix(conformance.Mix(m.chance))%usualObjects)
		}
		for _, used := range h[:2] {
			m.events = append(m.events, eviction.Event{Kind: eviction.Access, Handle: used, Size: 512, NowMS: m.now, KeyHash: uint64(used)})
		}
		m.events = append(m.events, eviction.Event{Kind: eviction.Remove, Code: eviction.CodeEvicted, Handle: h[2], Size: 512, NowMS: m.now, KeyHash: uint64(h[2])})
		m.insert(h[2])
	}
	m.apply()
}

// ask evicts n objects and puts others in their place.
func (m *policyMeter) ask(n int) {
	v, err := m.p.Victims(m.victims[:0], conformance.Any(n))
	if err != nil && m.err == nil {
		m.err = err
	}
	m.victims = v
	for _, h := range v {
		m.events = append(m.events, eviction.Event{Kind: eviction.Remove, Code: eviction.CodeEvicted, Handle: h, Size: 512, NowMS: m.now})
	}
	for _, h := range v {
		m.insert(h)
	}
	m.apply()
}
