package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mooncake-agent/mooncake/eviction"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// The features of a plugin are abilities of the policy, so each set of them is a type of its own.
type (
	admitting struct{ *policy }
	saving    struct{ *policy }
	stating   struct{ *policy }

	admittingSaving struct {
		*policy
		admitting
		saving
	}
	admittingStating struct {
		*policy
		admitting
		stating
	}
	savingStating struct {
		*policy
		saving
		stating
	}
	everything struct {
		*policy
		admitting
		saving
		stating
	}
)

var (
	_ eviction.Admitter   = admitting{}
	_ eviction.StateSaver = saving{}
	_ eviction.Statser    = stating{}
)

func (p *policy) withAbilities() eviction.Policy {
	a, s, t := admitting{p}, saving{p}, stating{p}
	g := p.f.program
	switch admit, state, stats := g.Has(featureAdmit), g.Has(featureState), g.Has(featureStats); {
	case admit && state && stats:
		return everything{p, a, s, t}
	case admit && state:
		return admittingSaving{p, a, s}
	case admit && stats:
		return admittingStating{p, a, t}
	case state && stats:
		return savingStating{p, s, t}
	case admit:
		return a
	case state:
		return s
	case stats:
		return t
	}
	return p
}

// Admit implements eviction.Admitter. A plugin that is down refuses nothing.
func (a admitting) Admit(events []eviction.Event, refuse []bool) error {
	p := a.policy
	p.settled = true
	p.revive()
	_ = p.handle(p.flush()) // nil once settled
	for len(events) > 0 && p.guest != nil {
		n := min(len(events), batchMax)
		_ = p.handle(p.admit(events[:n], refuse[:n]))
		events, refuse = events[n:], refuse[n:]
	}
	return nil
}

func (p *policy) admit(events []eviction.Event, refuse []bool) *fault {
	p.raw = encode(p.raw, events)
	var refused []uint32
	f := p.call("Admit", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := p.guest.calls.Admit(ctx, &pluginv1.AdmitRequest{Events: p.raw})
		refused = resp.GetRefused()
		return resp.GetError(), err
	})
	if f != nil {
		return f
	}
	for k, i := range refused {
		if int64(i) >= int64(len(events)) || k > 0 && i <= refused[k-1] {
			return faultf(faultAnswer, "Admit", "refuses record %d of %d, or not in order", i, len(events))
		}
	}
	for _, i := range refused {
		refuse[i] = true
	}
	return nil
}

var errDown = errors.New("external: the plugin is not running")

// Save implements eviction.StateSaver.
func (s saving) Save(dst []byte) ([]byte, error) {
	p := s.policy
	if err := p.handle(p.flush()); err != nil {
		return dst, err
	}
	if p.guest == nil {
		return dst, errDown
	}
	out, f := p.save(dst)
	if f != nil {
		_ = p.handle(f)
		return dst, f
	}
	return out, nil
}

func (p *policy) save(dst []byte) ([]byte, *fault) {
	var state []byte
	f := p.call("Save", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := p.guest.calls.Save(ctx, &pluginv1.SaveRequest{})
		state = resp.GetState()
		return resp.GetError(), err
	})
	if f == nil && len(state) > eviction.MaxState {
		f = faultf(faultAnswer, "Save", "%d bytes of state, at most %d", len(state), eviction.MaxState)
	}
	if f != nil {
		return dst, f
	}
	return append(dst, state...), nil
}

// Load implements eviction.StateSaver. A plugin that is down takes nothing.
func (s saving) Load(state []byte) (taken bool, err error) {
	p := s.policy
	if err := p.handle(p.flush()); err != nil {
		return false, err
	}
	if p.guest == nil || len(state) > eviction.MaxState {
		return false, nil
	}
	taken, f := p.load(state)
	return taken, p.handle(f)
}

func (p *policy) load(state []byte) (taken bool, f *fault) {
	f = p.call("Load", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := p.guest.calls.Load(ctx, &pluginv1.LoadRequest{State: state})
		taken = resp.GetTaken()
		return resp.GetError(), err
	})
	return taken && f == nil, f
}

// maxStats bounds what a plugin says of itself.
const maxStats = 64 << 10

// Stats implements eviction.Statser: the plugin's own JSON object, or an empty one while it is down.
func (s stating) Stats() (json.RawMessage, error) {
	p, none := s.policy, json.RawMessage("{}")
	if err := p.handle(p.flush()); err != nil {
		return none, err
	}
	if p.guest == nil {
		return none, nil
	}
	var raw []byte
	f := p.call("Stats", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := p.guest.calls.Stats(ctx, &pluginv1.StatsRequest{})
		raw = resp.GetStatsJson()
		return resp.GetError(), err
	})
	if f == nil && len(raw) > maxStats {
		f = faultf(faultAnswer, "Stats", "%d bytes, at most %d", len(raw), maxStats)
	}
	if f != nil {
		return none, p.handle(f)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil || object == nil {
		return none, fmt.Errorf("external: Stats answered %.80q, which is no JSON object", raw)
	}
	return bytes.Clone(raw), nil
}
