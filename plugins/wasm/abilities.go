package wasm

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/abi"
)

// A guest's optional exports are abilities of the policy, so each set of them is a type of its own.
type (
	admitting struct{ *policy }
	saving    struct{ *policy }
	both      struct {
		*policy
		saving
		admitting
	}
)

var (
	_ eviction.Policy     = (*policy)(nil)
	_ eviction.MemoryUser = (*policy)(nil)
	_ eviction.Supervised = (*policy)(nil)
	_ eviction.Grower     = (*policy)(nil)
	_ eviction.Statser    = (*policy)(nil)
	_ eviction.Admitter   = admitting{}
	_ eviction.StateSaver = saving{}
)

func (p *policy) withAbilities() eviction.Policy {
	switch i := p.f.info; {
	case i.Admit && i.State:
		return both{p, saving{p}, admitting{p}}
	case i.Admit:
		return admitting{p}
	case i.State:
		return saving{p}
	}
	return p
}

// Admit implements eviction.Admitter. A guest that is down refuses nothing.
func (a admitting) Admit(events []eviction.Event, refuse []bool) error {
	p := a.policy
	p.settled = true
	_ = p.handle(p.flush()) // nil once settled
	for len(events) > 0 && p.guest != nil {
		n := min(len(events), batchMax)
		_ = p.handle(p.admit(events[:n], refuse[:n]))
		events, refuse = events[n:], refuse[n:]
	}
	return nil
}

func (p *policy) admit(events []eviction.Event, refuse []bool) *Fault {
	t, n := p.guest, len(events)
	abi.EncodeAll(t.buffer(abi.BufferEvents), events)
	size := abi.BufferAdmit.Size(n)
	got, fault := t.call(abi.FuncAdmit, t.fn[abi.FuncAdmit], p.f.budget(n), uint64(n))
	if fault != nil {
		return fault
	}
	if got < 0 || int(got) > size {
		return faultf(FaultReturn, abi.FuncAdmit, "returned %d for %d objects, which are %d bytes", got, n, size)
	}
	bits := t.buffer(abi.BufferAdmit)
	for i := range refuse {
		refuse[i] = bits[i/8]>>(i%8)&1 != 0
	}
	return nil
}

// Save implements eviction.StateSaver.
func (s saving) Save(dst []byte) ([]byte, error) {
	p := s.policy
	if err := p.handle(p.flush()); err != nil {
		return dst, err
	}
	if p.guest == nil {
		return dst, errDown
	}
	out, fault := p.save(dst)
	if fault != nil {
		_ = p.handle(fault)
		return dst, fault
	}
	return out, nil
}

func (p *policy) save(dst []byte) ([]byte, *Fault) {
	n, fault := p.guest.call(abi.FuncSave, p.guest.fn[abi.FuncSave], initBudget(p.spec.MaxHandles))
	if fault != nil {
		return dst, fault
	}
	if n < 0 || n > abi.MaxState {
		return dst, faultf(FaultReturn, abi.FuncSave, "returned %d, the state has at most %d bytes", n, abi.MaxState)
	}
	return append(dst, p.guest.buffer(abi.BufferState)[:n]...), nil
}

// Load implements eviction.StateSaver. A guest that is down takes nothing.
func (s saving) Load(state []byte) (taken bool, err error) {
	p := s.policy
	if err := p.handle(p.flush()); err != nil {
		return false, err
	}
	if p.guest == nil || len(state) > abi.MaxState {
		return false, nil
	}
	taken, fault := p.load(state)
	return taken, p.handle(fault)
}

func (p *policy) load(state []byte) (taken bool, fault *Fault) {
	t := p.guest
	copy(t.buffer(abi.BufferState), state)
	code, fault := t.call(abi.FuncLoad, t.fn[abi.FuncLoad], initBudget(p.spec.MaxHandles), uint64(len(state)))
	switch {
	case fault != nil:
		return false, fault
	case abi.LoadResult(code) == abi.LoadTaken:
		return true, nil
	case abi.LoadResult(code) == abi.LoadNotMine:
		return false, nil
	}
	return false, faultf(FaultReturn, abi.FuncLoad, "returned %d; %d is taken, %d is not mine", code, abi.LoadTaken, abi.LoadNotMine)
}

// Stats implements eviction.Statser: the guest's own JSON object, or an empty one.
func (p *policy) Stats() (json.RawMessage, error) {
	none := json.RawMessage("{}")
	if err := p.handle(p.flush()); err != nil {
		return none, err
	}
	if !p.f.info.Stats || p.guest == nil {
		return none, nil
	}
	t := p.guest
	n, fault := t.call(abi.FuncStats, t.fn[abi.FuncStats], statsFuel)
	if fault == nil && (n < 0 || uint32(n) > t.size[abi.BufferState]) {
		fault = faultf(FaultReturn, abi.FuncStats, "returned %d, the buffer has %d bytes", n, t.size[abi.BufferState])
	}
	if fault != nil {
		return none, p.handle(fault)
	}
	var object map[string]json.RawMessage
	raw := bytes.Clone(t.buffer(abi.BufferState)[:n])
	if err := json.Unmarshal(raw, &object); err != nil || object == nil {
		return none, fmt.Errorf("wasm: %s wrote %q, which is no JSON object", abi.FuncStats, clean(string(raw), 80))
	}
	return raw, nil
}
