package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/abi"
	"github.com/mooncake-agent/mooncake/plugins/external"
	"github.com/mooncake-agent/mooncake/plugins/hostorder"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

const (
	batchMax    = 4096                           // events in one call, and victims
	maxRejects  = 256                            // REJECTs that one answer causes
	maxStrikes  = 100                            // within faultWindow: a fault
	faultWindow = uint64(10 * time.Minute / 1e6) // ms
)

// The kinds of fault.
const (
	faultEnded   = "ended"      // the process is gone
	faultTimeout = "timeout"    // no answer within call_timeout
	faultAnswer  = "bad_answer" // an answer that the protocol does not allow
	faultError   = "error"      // the plugin answered an error
	faultStrikes = "strikes"    // too many victims that were not resident or were named twice
)

var faultKinds = []string{faultEnded, faultTimeout, faultAnswer, faultError, faultStrikes}

// fault is what a process did that costs it its life.
type fault struct {
	kind, call string
	why        error
}

func (f *fault) Error() string { return fmt.Sprintf("external: %s: %s: %v", f.call, f.kind, f.why) }
func (f *fault) Unwrap() error { return f.why }

func faultf(kind, call, format string, args ...any) *fault {
	return &fault{kind, call, fmt.Errorf(format, args...)}
}

// guest is a process that was told what is resident.
type guest struct {
	*external.Process
	calls pluginv1.EvictionServiceClient
}

// policy asks a process. It keeps an order of its own beside it, so that it always has an answer; see
// eviction.Supervised for what callers see of faults.
type policy struct {
	f       *Factory
	plugin  *external.Plugin
	spec    eviction.Spec
	order   hostorder.Order
	guest   *guest // nil while it is down
	used    uint64 // generation of the last guest
	pending []eviction.Event
	raw     []byte // of a batch
	log     *slog.Logger

	settled     bool // an event other than RESTORE has come: faults are handled here
	strikeSince uint64
	strikes     int
	rejects     []eviction.Event

	told eviction.Supervision
}

var (
	_ eviction.Policy     = (*policy)(nil)
	_ eviction.MemoryUser = (*policy)(nil)
	_ eviction.Supervised = (*policy)(nil)
	_ eviction.Grower     = (*policy)(nil)
)

func newPolicy(f *Factory, s eviction.Spec) *policy {
	p := &policy{f: f, plugin: f.program.Plugin(), spec: s, order: hostorder.Order{Max: s.MaxHandles}, log: f.program.Log()}
	if s.Tenant != eviction.AnyTenant {
		p.log = p.log.With("tenant", s.Tenant)
	}
	c := f.program.Config()
	p.told = eviction.Supervision{
		Module: filepath.Base(c.Command[0]), SHA256: c.SHA256[c.Command[0]], Faults: map[string]uint64{}, Strikes: map[string]uint64{"unknown": 0, "duplicate": 0},
	}
	for _, k := range faultKinds {
		p.told.Faults[k] = 0
	}
	return p
}

// open starts the first process.
func (p *policy) open() error {
	if err := p.plugin.Start(nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.f.cfg.StartTimeout)
	defer cancel()
	proc, err := p.plugin.Process(ctx)
	if err != nil {
		return err
	}
	if f := p.adopt(proc); f != nil {
		return f
	}
	return nil
}

// adopt makes a new process the guest: it is told what is resident.
func (p *policy) adopt(proc *external.Process) *fault {
	p.used = proc.Generation()
	p.guest = &guest{proc, pluginv1.NewEvictionServiceClient(proc.Conn())}
	p.pending = p.pending[:0]
	p.told.Instances++
	f := p.call("Start", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := p.guest.calls.Start(ctx, &pluginv1.StartPolicyRequest{
			Capacity: p.spec.Capacity, MaxHandles: p.spec.MaxHandles, BlockTokens: p.spec.BlockTokens, Seed: p.spec.Seed, Tenant: p.spec.Tenant, BatchMax: batchMax,
		})
		return resp.GetError(), err
	})
	if f != nil {
		return f
	}
	p.order.Each(func(h uint32, r *hostorder.Record) bool {
		e := p.order.Event(h, r)
		e.Kind, e.NowMS = eviction.Restore, p.order.Now
		p.pending = append(p.pending, e)
		if len(p.pending) == batchMax {
			f = p.flush()
		}
		return f == nil
	})
	if f == nil {
		f = p.flush()
	}
	return f
}

// call runs one RPC with the time for it.
func (p *policy) call(name string, f func(context.Context) (*pluginv1.Error, error)) *fault {
	ctx, cancel := context.WithTimeout(context.Background(), p.f.cfg.CallTimeout)
	defer cancel()
	began := time.Now()
	answer, err := f(ctx)
	p.told.Nanos += uint64(time.Since(began))
	switch {
	case err == nil && answer == nil:
		return nil
	case err == nil:
		return faultf(faultError, name, "%s: %.1000q", answer.Code, answer.Message)
	case ctx.Err() != nil:
		return faultf(faultTimeout, name, "no answer for %v (call_timeout)", p.f.cfg.CallTimeout)
	case status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled:
		return &fault{faultEnded, name, err}
	}
	return &fault{faultAnswer, name, err}
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
		if told && p.guest != nil {
			p.pending = append(p.pending, *e)
			if len(p.pending) == batchMax {
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
	p.revive()
	return nil
}

// flush delivers what is pending.
func (p *policy) flush() *fault {
	n := len(p.pending)
	if n == 0 || p.guest == nil {
		return nil
	}
	p.raw = encode(p.raw, p.pending)
	p.pending = p.pending[:0]
	nanos := p.told.Nanos
	f := p.call("Apply", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := p.guest.calls.Apply(ctx, &pluginv1.ApplyRequest{Events: p.raw})
		return resp.GetError(), err
	})
	p.told.Events += uint64(n)
	p.told.Batches++
	p.told.EventNanos += p.told.Nanos - nanos
	return f
}

func encode(dst []byte, events []eviction.Event) []byte {
	size := len(events) * eviction.EventSize
	if cap(dst) < size {
		dst = make([]byte, size)
	}
	dst = dst[:size]
	abi.EncodeAll(dst, events)
	return dst
}

// handle gives a process up after a fault; the supervisor starts the next one. While the policy is being filled the
// caller is to decide.
func (p *policy) handle(f *fault) error {
	if f == nil {
		return nil
	}
	if f.kind == faultEnded { // how it ended is known by now, or in a moment
		select {
		case <-p.guest.Dead():
			f.why = fmt.Errorf("%s: %w", p.guest.Exit(), f.why)
		case <-time.After(100 * time.Millisecond):
		}
	}
	p.guest.Fault(f)
	p.guest, p.pending = nil, p.pending[:0]
	p.told.Faults[f.kind]++
	p.told.Fault, p.told.FaultMS = f.Error(), p.order.Now
	if !p.settled {
		return f
	}
	p.log.Warn("eviction policy plugin failed; the built-in order serves", "fault", f.kind, "error", f)
	return nil
}

// revive adopts the next process when it is ready.
func (p *policy) revive() {
	if p.guest != nil {
		return
	}
	proc, err := p.plugin.Process(context.Background()) // the first start is decided: it does not wait
	if err != nil || proc.Generation() == p.used {
		return
	}
	p.settled = true
	if p.handle(p.adopt(proc)) == nil && p.guest != nil {
		p.log.Info("eviction policy plugin serves again", "generation", proc.Generation(), "resident", p.order.Count)
	}
}

// Victims implements eviction.Policy.
func (p *policy) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	if need.Max <= 0 {
		return dst, nil
	}
	p.settled = true
	p.revive()
	p.order.Answer()
	first := len(dst)
	_ = p.handle(p.flush()) // nil once settled
	missing := need.Bytes
	if p.guest != nil {
		var f *fault
		dst, f = p.ask(dst, &need)
		_ = p.handle(f)
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

// ask puts the question to the process and checks each victim that it names.
func (p *policy) ask(dst []eviction.Handle, need *eviction.Need) ([]eviction.Handle, *fault) {
	most := min(need.Max, batchMax)
	p.told.Questions++
	var named []uint32
	f := p.call("Victims", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := p.guest.calls.Victims(ctx, &pluginv1.VictimsRequest{
			Bytes: need.Bytes, Max: uint32(most), Tenant: need.Tenant, Segment: need.Segment, Flags: uint32(need.Flags),
		})
		named = resp.GetHandles()
		return resp.GetError(), err
	})
	if f != nil {
		return dst, f
	}
	if len(named) > most {
		return dst, faultf(faultAnswer, "Victims", "%d handles, at most %d were asked for", len(named), most)
	}
	p.rejects = p.rejects[:0]
	first, strikes := len(dst), 0
	for _, h := range named {
		code := p.order.Check(h, need)
		switch code {
		case 0:
			dst = append(dst, eviction.Handle(h))
			continue
		case eviction.CodeUnknown:
			p.told.Strikes["unknown"]++
			strikes++
		case eviction.CodeDuplicate:
			p.told.Strikes["duplicate"]++
			strikes++
		default:
			p.told.Protected++
		}
		if e, ok := p.order.Reject(h, code); ok && len(p.rejects) < maxRejects {
			p.rejects = append(p.rejects, e)
		}
	}
	p.order.SoftLast(dst[first:], need)
	p.pending = append(p.pending, p.rejects...)
	return dst, p.strike(strikes)
}

// strike counts the mistakes of an answer.
func (p *policy) strike(n int) *fault {
	if now := p.order.Now; now >= p.strikeSince+faultWindow {
		p.strikeSince, p.strikes = now, 0
	}
	if p.strikes += n; p.strikes < maxStrikes {
		return nil
	}
	n = p.strikes
	p.strikes = 0
	return faultf(faultStrikes, "Victims", "named %d victims that were not resident or were named before", n)
}

// Grow implements eviction.Grower: a new process with room for more handles takes over what the old one knew.
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
	if p.guest == nil { // the next one starts with what is said above
		return nil
	}
	if f := p.flush(); f != nil {
		return p.handle(f)
	}
	var state []byte
	if p.f.program.Has(featureState) {
		var f *fault
		if state, f = p.save(nil); f != nil {
			return p.handle(f)
		}
	}
	next := p.f.program.Plugin()
	old, oldGuest, used := p.plugin, p.guest, p.used
	p.plugin = next
	if err := p.open(); err != nil { // the old process cannot go on either: it would see handles that it does not know
		p.plugin, p.guest, p.used = old, oldGuest, used
		return errors.Join(p.handle(faultf(faultEnded, "Start", "a process with room for %d handles: %w", maxHandles, err)), next.Stop())
	}
	if err := old.Stop(); err != nil {
		return err
	}
	if state != nil {
		_, f := p.load(state)
		return p.handle(f)
	}
	return nil
}

// Close implements eviction.Policy. It waits until the process is dead.
func (p *policy) Close() error {
	p.guest, p.pending = nil, nil
	return p.plugin.Stop()
}

// MemoryBytes implements eviction.MemoryUser: the host's own order. What the process holds is bounded by memory_limit.
func (p *policy) MemoryBytes() uint64 { return p.order.MemoryBytes() }

// Supervision implements eviction.Supervised.
func (p *policy) Supervision() eviction.Supervision {
	s := p.told
	s.Faults, s.Strikes = maps.Clone(s.Faults), maps.Clone(s.Strikes)
	st := p.plugin.Status()
	switch {
	case p.guest != nil:
		s.State = eviction.GuestRunning
	case st.State == external.StateTripped || st.State == external.StateRefused:
		s.State = eviction.GuestQuarantined
	default:
		s.State, s.RetryMS = eviction.GuestWaiting, p.order.Now
		if wait := time.Until(st.RetryAt); !st.RetryAt.IsZero() && wait > 0 {
			s.RetryMS += uint64(wait.Milliseconds())
		}
	}
	s.MemoryBytes = p.MemoryBytes()
	return s
}
