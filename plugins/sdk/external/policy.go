package external

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"github.com/mooncake-agent/mooncake/eviction"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// Features of eviction policies.
const (
	featureAdmit = "admit"
	featureState = "state"
	featureStats = "stats"
)

// ServePolicy serves an eviction policy, as Serve does. P is the concrete type of the policies that open's
// factory makes: its optional abilities (eviction.Admitter, StateSaver, Statser) are announced to the host.
func ServePolicy[P eviction.Policy](a About, open func(Config) (func(eviction.Spec) (P, error), error)) error {
	var zero P
	if any(zero) == nil {
		return errors.New("external: ServePolicy wants the concrete type of the policy, not an interface")
	}
	s := &policyServer{}
	p := Part{
		About: a, Kind: pluginv1.Kind_KIND_EVICTION,
		Register: func(g *grpc.Server) { pluginv1.RegisterEvictionServiceServer(g, s) },
		Configure: func(_ context.Context, c Config) error {
			f, err := open(c)
			s.mu.Lock()
			defer s.mu.Unlock()
			if err == nil {
				s.make = func(spec eviction.Spec) (eviction.Policy, error) { return f(spec) }
			}
			return err
		},
		Shutdown: func(context.Context) error { return s.close() },
	}
	if _, ok := any(zero).(eviction.Admitter); ok {
		p.Features = append(p.Features, featureAdmit)
	}
	if _, ok := any(zero).(eviction.StateSaver); ok {
		p.Features = append(p.Features, featureState)
	}
	if _, ok := any(zero).(eviction.Statser); ok {
		p.Features = append(p.Features, featureStats)
	}
	return Serve(p)
}

// policyServer is the EvictionService of one instance. The host's calls do not overlap; the lock is for hosts that do not
// keep to that.
type policyServer struct {
	pluginv1.UnimplementedEvictionServiceServer
	make func(eviction.Spec) (eviction.Policy, error)

	mu      sync.Mutex
	policy  eviction.Policy
	events  []eviction.Event
	victims []eviction.Handle
}

// fail says what went wrong with a policy.
func fail(err error) *pluginv1.Error {
	if err == nil {
		return nil
	}
	code := pluginv1.ErrorCode_ERROR_CODE_INTERNAL
	switch {
	case errors.Is(err, eviction.ErrBadEvent):
		code = pluginv1.ErrorCode_ERROR_CODE_BAD_EVENT
	case errors.Is(err, errNoPolicy):
		code = pluginv1.ErrorCode_ERROR_CODE_CLOSED
	}
	return &pluginv1.Error{Code: code, Message: err.Error()}
}

var errNoPolicy = errors.New("there is no instance: Start comes first, and nothing after Shutdown")

// with runs f on the instance.
func (s *policyServer) with(f func(eviction.Policy) error) *pluginv1.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.policy == nil {
		return fail(errNoPolicy)
	}
	return fail(f(s.policy))
}

func (s *policyServer) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.policy == nil {
		return nil
	}
	p := s.policy
	s.policy = nil
	return p.Close()
}

func (s *policyServer) Start(_ context.Context, r *pluginv1.StartPolicyRequest) (*pluginv1.StartPolicyResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.make == nil || s.policy != nil {
		return &pluginv1.StartPolicyResponse{Error: fail(errors.New("Start comes once, after Configure"))}, nil
	}
	p, err := s.make(eviction.Spec{
		Capacity: r.Capacity, MaxHandles: r.MaxHandles, BlockTokens: r.BlockTokens, Seed: r.Seed, Tenant: r.Tenant, BatchMax: r.BatchMax,
	})
	if err == nil {
		s.policy = p
	}
	return &pluginv1.StartPolicyResponse{Error: fail(err)}, nil
}

// decode reads the records of a call into the server's own slice.
func (s *policyServer) decode(raw []byte) ([]eviction.Event, error) {
	if len(raw)%eviction.EventSize != 0 {
		return nil, fmt.Errorf("%d bytes are no whole records of %d: %w", len(raw), eviction.EventSize, eviction.ErrBadEvent)
	}
	s.events = s.events[:0]
	for ; len(raw) > 0; raw = raw[eviction.EventSize:] {
		e, err := eviction.DecodeEvent(raw)
		if err != nil {
			return nil, err
		}
		s.events = append(s.events, e)
	}
	return s.events, nil
}

func (s *policyServer) Apply(_ context.Context, r *pluginv1.ApplyRequest) (*pluginv1.ApplyResponse, error) {
	return &pluginv1.ApplyResponse{Error: s.with(func(p eviction.Policy) error {
		events, err := s.decode(r.Events)
		if err != nil {
			return err
		}
		return p.Apply(events)
	})}, nil
}

func (s *policyServer) Victims(_ context.Context, r *pluginv1.VictimsRequest) (*pluginv1.VictimsResponse, error) {
	resp := &pluginv1.VictimsResponse{}
	resp.Error = s.with(func(p eviction.Policy) (err error) {
		s.victims, err = p.Victims(s.victims[:0], eviction.Need{
			Bytes: r.Bytes, Max: int(r.Max), Tenant: r.Tenant, Segment: r.Segment, Flags: eviction.NeedFlags(r.Flags),
		})
		if err != nil {
			return err
		}
		resp.Handles = make([]uint32, len(s.victims))
		for i, h := range s.victims {
			resp.Handles[i] = uint32(h)
		}
		return nil
	})
	return resp, nil
}

func (s *policyServer) Admit(_ context.Context, r *pluginv1.AdmitRequest) (*pluginv1.AdmitResponse, error) {
	resp := &pluginv1.AdmitResponse{}
	resp.Error = s.with(func(p eviction.Policy) error {
		events, err := s.decode(r.Events)
		if err != nil {
			return err
		}
		refuse := make([]bool, len(events))
		if a, ok := p.(eviction.Admitter); !ok {
			return errors.New("the policy has no admission")
		} else if err := a.Admit(events, refuse); err != nil {
			return err
		}
		for i, no := range refuse {
			if no {
				resp.Refused = append(resp.Refused, uint32(i))
			}
		}
		return nil
	})
	return resp, nil
}

func (s *policyServer) Save(context.Context, *pluginv1.SaveRequest) (*pluginv1.SaveResponse, error) {
	resp := &pluginv1.SaveResponse{}
	resp.Error = s.with(func(p eviction.Policy) (err error) {
		saver, ok := p.(eviction.StateSaver)
		if !ok {
			return errors.New("the policy has no state to save")
		}
		resp.State, err = saver.Save(nil)
		return err
	})
	return resp, nil
}

func (s *policyServer) Load(_ context.Context, r *pluginv1.LoadRequest) (*pluginv1.LoadResponse, error) {
	resp := &pluginv1.LoadResponse{}
	resp.Error = s.with(func(p eviction.Policy) (err error) {
		saver, ok := p.(eviction.StateSaver)
		if !ok {
			return errors.New("the policy has no state to load")
		}
		resp.Taken, err = saver.Load(r.State)
		return err
	})
	return resp, nil
}

func (s *policyServer) Stats(context.Context, *pluginv1.StatsRequest) (*pluginv1.StatsResponse, error) {
	resp := &pluginv1.StatsResponse{}
	resp.Error = s.with(func(p eviction.Policy) (err error) {
		st, ok := p.(eviction.Statser)
		if !ok {
			return errors.New("the policy has no statistics")
		}
		resp.StatsJson, err = st.Stats()
		return err
	})
	return resp, nil
}
