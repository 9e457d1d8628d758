package wasm

import (
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/abi"
	"github.com/mooncake-agent/mooncake/plugins/hostorder"
)

// What happens after faults, in terms of now_ms.
const (
	maxFaults   = 3                              // within faultWindow: quarantine
	faultWindow = uint64(10 * time.Minute / 1e6) // ms
	firstWait   = uint64(time.Second / 1e6)      // ms before the first new start; four times that before the next
	maxStrikes  = 100                            // within faultWindow: a fault
)

// policy runs a guest. It keeps an order of its own beside it, so that it always has an answer; see
// eviction.Supervised for what callers see of faults.
type policy struct {
	f       *Factory
	spec    eviction.Spec
	order   hostorder.Order
	guest   *instance        // nil while it is down
	pending []eviction.Event // to be delivered; they lie in the guest's buffer, where that can be
	log     *slog.Logger
	lines   logLimit

	settled     bool   // an event other than RESTORE has come: faults are handled here
	restoreFuel uint64 // what is left of it
	faultTimes  []uint64
	retryAt     uint64
	strikeSince uint64
	strikes     int
	rejects     []eviction.Event
	cands       []uint32 // score mode
	rank        ranking

	told eviction.Supervision
	gone struct{ spent, nanos uint64 } // of instances that are closed
}

// New implements eviction.Factory: it starts an instance. A guest that cannot start or refuses to is an error.
func (f *Factory) New(s eviction.Spec) (eviction.Policy, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	p := &policy{f: f, spec: s, order: hostorder.Order{Max: s.MaxHandles, Scored: f.info.Score}}
	p.log = f.log.With("module", f.info.Name)
	if s.Tenant != eviction.AnyTenant {
		p.log = p.log.With("tenant", s.Tenant)
	}
	p.lines.log = p.log
	p.told = eviction.Supervision{
		Module: f.info.Name, SHA256: f.info.SHA256, Faults: map[string]uint64{}, Strikes: map[string]uint64{"unknown": 0, "duplicate": 0},
	}
	for _, k := range FaultKinds {
		p.told.Faults[string(k)] = 0
	}
	if fault := p.start(); fault != nil {
		return nil, fault
	}
	return p.withAbilities(), nil
}

// start makes an instance and tells it what is resident.
func (p *policy) start() *Fault {
	t, fault := p.f.start(p.spec, p.order.Now, &p.lines)
	if fault != nil {
		return fault
	}
	p.guest = t
	p.told.Instances++
	p.restoreFuel = initBudget(p.spec.MaxHandles)
	if p.f.info.Score {
		return nil
	}
	p.pending = abi.Records(t.buffer(abi.BufferEvents))[:0]
	p.order.Each(func(h uint32, r *hostorder.Record) bool {
		e := p.order.Event(h, r)
		e.Kind, e.NowMS = eviction.Restore, p.order.Now
		p.pending = append(p.pending, e)
		if len(p.pending) >= batchMax {
			fault = p.flush()
		}
		return fault == nil
	})
	if fault == nil {
		fault = p.flush()
	}
	if fault != nil {
		p.stop()
	}
	return fault
}

// stop closes the instance.
func (p *policy) stop() {
	if p.guest != nil {
		p.gone.spent += p.guest.spent
		p.gone.nanos += p.guest.nanos
		p.pending = nil // the memory goes
		p.guest.close()
		p.guest = nil
	}
}

// Apply implements eviction.Policy.
func (p *policy) Apply(events []eviction.Event) error {
	onlyRestore := true
	for i := range events {
		e := &events[i]
		told, err := p.order.Apply(e)
		if err != nil {
			return err
		}
		switch e.Kind {
		case eviction.Restore:
		case eviction.Resize:
			p.spec.Capacity = max(1, e.Size)
			fallthrough
		default:
			p.settled, onlyRestore = true, false
		}
		if told && p.guest != nil && !p.f.info.Score {
			p.pending = append(p.pending, *e)
			if len(p.pending) >= batchMax {
				if err := p.handle(p.flush()); err != nil {
					return err
				}
			}
		}
	}
	if onlyRestore {
		if err := p.handle(p.flush()); err != nil {
			return err
		}
	}
	p.restart()
	return nil
}

// flush delivers what is pending.
func (p *policy) flush() *Fault {
	n := len(p.pending)
	if n == 0 || p.guest == nil {
		return nil
	}
	t := p.guest
	budget := p.f.budget(n)
	pool := uint64(0)
	for i := range p.pending {
		if p.pending[i].Kind == eviction.Restore {
			pool = min(p.restoreFuel, restoreCall)
			break
		}
	}
	t.now = p.pending[n-1].NowMS
	abi.EncodeAll(t.buffer(abi.BufferEvents), p.pending)
	spent, nanos := t.spent, t.nanos
	code, fault := t.call(abi.FuncEvents, t.hot.events, budget+pool, uint64(n))
	spent, nanos = t.spent-spent, t.nanos-nanos
	if spent > budget {
		p.restoreFuel -= min(spent-budget, p.restoreFuel)
	}
	p.told.Events += uint64(n)
	p.told.Batches++
	p.told.EventFuel += spent
	p.told.EventNanos += nanos
	p.pending = p.pending[:0]
	if fault == nil && code != 0 {
		fault = faultf(FaultReturn, abi.FuncEvents, "returned %d for %d events, 0 is good", code, n)
	}
	return fault
}

// handle discards the instance after a fault and decides when it may start again. While the policy is being
// filled the caller is to decide.
func (p *policy) handle(f *Fault) error {
	if f == nil {
		return nil
	}
	now := p.order.Now
	p.stop()
	p.told.Faults[string(f.Kind)]++
	p.told.Fault, p.told.FaultMS = f.Error(), now
	kept := p.faultTimes[:0]
	for _, at := range p.faultTimes {
		if at+faultWindow >= now {
			kept = append(kept, at)
		}
	}
	p.faultTimes = append(kept, now)
	n := len(p.faultTimes)
	if n >= maxFaults {
		p.retryAt = never
		p.log.Error("eviction policy guest failed too often: it stays off until the policy is set again; the built-in order serves",
			"kind", f.Kind, "faults", n, "error", f)
	} else {
		wait := firstWait << (2 * (n - 1))
		p.retryAt = now + wait
		p.log.Warn("eviction policy guest failed; the built-in order serves", "kind", f.Kind, "retry_in", (time.Duration(wait) * time.Millisecond).String(), "error", f)
	}
	if !p.settled {
		return f
	}
	return nil
}

const never = ^uint64(0)

// restart starts a failed guest again when its time has come.
func (p *policy) restart() {
	if p.guest != nil || p.order.Now < p.retryAt {
		return
	}
	p.settled = true
	if p.handle(p.start()) == nil && p.guest != nil {
		p.log.Info("eviction policy guest runs again", "resident", p.order.Count)
	}
}

// Victims implements eviction.Policy.
func (p *policy) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	if need.Max <= 0 {
		return dst, nil
	}
	p.settled = true
	p.restart()
	p.order.Answer()
	first := len(dst)
	_ = p.handle(p.flush()) // nil once settled
	missing := need.Bytes
	if p.guest != nil {
		var fault *Fault
		if p.f.info.Score {
			dst, fault = p.score(dst, &need)
		} else {
			dst, fault = p.ask(dst, &need)
		}
		_ = p.handle(fault)
		for _, h := range dst[first:] {
			missing -= min(missing, p.order.At(uint32(h)).Size)
		}
	}
	if n := need.Max - (len(dst) - first); n > 0 && (need.Bytes == 0 || missing > 0) {
		before := len(dst)
		dst = p.order.Fill(dst, &need, n, missing)
		p.told.Fallbacks += uint64(len(dst) - before)
	}
	return dst, nil
}

// ask puts the question to a guest in event mode and checks each victim that it names.
func (p *policy) ask(dst []eviction.Handle, need *eviction.Need) ([]eviction.Handle, *Fault) {
	t := p.guest
	most := min(need.Max, victimsMax)
	p.told.Questions++
	n, fault := t.call(abi.FuncVictims, t.hot.victims, p.f.budget(most),
		need.Bytes, uint64(most), uint64(need.Tenant), uint64(need.Segment), uint64(need.Flags))
	if fault != nil {
		return dst, fault
	}
	if n < 0 || int(n) > most {
		return dst, faultf(FaultReturn, abi.FuncVictims, "returned %d, at most %d handles were asked for", n, most)
	}
	named := t.buffer(abi.BufferVictims)[:abi.BufferVictims.Size(int(n))]
	p.rejects = p.rejects[:0]
	first, strikes := len(dst), 0
	for i := range int(n) {
		h := handleAt(named, i)
		if code := p.order.Check(h, need); code != 0 {
			switch code {
			case eviction.CodeUnknown:
				p.told.Strikes["unknown"]++
				strikes++
			case eviction.CodeDuplicate:
				p.told.Strikes["duplicate"]++
				strikes++
			default:
				p.told.Protected++
			}
			if e, ok := p.order.Reject(h, code); ok && len(p.rejects) < batchMax {
				p.rejects = append(p.rejects, e)
			}
			continue
		}
		dst = append(dst, eviction.Handle(h))
	}
	p.order.SoftLast(dst[first:], need)
	return dst, p.afterAnswer(strikes)
}

// afterAnswer queues the refusals of an answer and counts its strikes.
func (p *policy) afterAnswer(strikes int) *Fault {
	p.pending = append(p.pending, p.rejects...) // nothing else is pending, and there is room for a batch
	if now := p.order.Now; now >= p.strikeSince+faultWindow {
		p.strikeSince, p.strikes = now, 0
	}
	if p.strikes += strikes; p.strikes >= maxStrikes {
		n := p.strikes
		p.strikes = 0
		return faultf(FaultStrikes, abi.FuncVictims, "named %d victims that were not resident or were named before", n)
	}
	if len(p.pending) >= batchMax {
		return p.flush()
	}
	return nil
}

// Grow implements eviction.Grower: a new instance with room for more handles takes over what the old one knew.
func (p *policy) Grow(maxHandles uint32) error {
	s := p.spec
	s.MaxHandles = maxHandles
	if err := s.Validate(); err != nil {
		return err
	}
	if maxHandles <= p.spec.MaxHandles {
		return nil
	}
	p.spec, p.order.Max = s, maxHandles
	if p.guest == nil {
		return nil
	}
	if fault := p.flush(); fault != nil {
		return p.handle(fault)
	}
	var state []byte
	if p.f.info.State {
		var fault *Fault
		if state, fault = p.save(nil); fault != nil {
			return p.handle(fault)
		}
	}
	p.stop()
	if fault := p.start(); fault != nil {
		return p.handle(fault)
	}
	if state != nil {
		_, fault := p.load(state)
		return p.handle(fault)
	}
	return nil
}

// Close implements eviction.Policy.
func (p *policy) Close() error {
	p.stop()
	p.retryAt = never
	return nil
}

// MemoryBytes implements eviction.MemoryUser: the guest's memory, stacks and code, and the host's own order.
func (p *policy) MemoryBytes() uint64 {
	n := p.order.MemoryBytes()
	if p.guest != nil {
		n += p.guest.memoryBytes() + p.f.info.CodeBytes
	}
	return n
}

// Supervision implements eviction.Supervised.
func (p *policy) Supervision() eviction.Supervision {
	s := p.told
	s.Faults, s.Strikes = maps.Clone(s.Faults), maps.Clone(s.Strikes)
	switch {
	case p.guest != nil:
		s.State = eviction.GuestRunning
	case p.retryAt == never:
		s.State = eviction.GuestQuarantined
	default:
		s.State, s.RetryMS = eviction.GuestWaiting, p.retryAt
	}
	s.Fuel, s.Nanos = p.gone.spent, p.gone.nanos
	if p.guest != nil {
		s.Fuel += p.guest.spent
		s.Nanos += p.guest.nanos
	}
	s.MemoryBytes = p.MemoryBytes()
	return s
}

var errDown = errors.New("wasm: the guest is not running")
