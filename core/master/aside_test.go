package master

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// lifo is a policy from outside that throws away what came last, so that its victims can be told from those of the
// built-in order. Its calls can be held up.
type lifo struct {
	eviction.Policy
	f     *lifoFactory
	order []eviction.Handle
}

type lifoFactory struct {
	mu     sync.Mutex
	gate   chan struct{} // what calls wait for
	inside atomic.Int32  // calls that wait
	fails  int           // instances that cannot be made
}

func (f *lifoFactory) DomainSettings() eviction.Settings {
	return eviction.Settings{Reserve: 4, Aside: true}
}

func (f *lifoFactory) New(eviction.Spec) (eviction.Policy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		return nil, errors.New("not today")
	}
	return &lifo{f: f}, nil
}

// hold makes calls wait until release.
func (f *lifoFactory) hold() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gate = gate
	return sync.OnceFunc(func() {
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
	})
}

func (f *lifoFactory) enter() {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		f.inside.Add(1)
		<-gate
		f.inside.Add(-1)
	}
}

func (p *lifo) Apply(events []eviction.Event) error {
	p.f.enter()
	for _, e := range events {
		switch e.Kind {
		case eviction.Insert, eviction.Restore:
			p.order = append(p.order, e.Handle)
		case eviction.Remove:
			p.order = slices.DeleteFunc(p.order, func(h eviction.Handle) bool { return h == e.Handle })
		}
	}
	return nil
}

func (p *lifo) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	p.f.enter()
	for i := len(p.order) - 1; i >= 0 && need.Max > 0; i-- {
		dst = append(dst, p.order[i])
		need.Max--
	}
	return dst, nil
}

func (p *lifo) Close() error { return nil }

// lifoStore is a full store of 16 objects of a MiB, k0 to k15.
func lifoStore(t *testing.T, f *lifoFactory, change func(*Config)) *store {
	s := newStore(t, func(o *Options) {
		o.Config.FreeReserve, o.Config.LeaseTTL = 0, 0
		o.Policies = map[string]Policy{anyTenant: {Name: "lifo", Factory: f, Guard: GuardOff}}
		if change != nil {
			change(&o.Config)
		}
	})
	s.mount(0, 16*mib, clientA)
	s.Poll()
	s.fill(16)
	return s
}

// heard waits until the policy has heard of everything and its victims are named.
func (s *store) heard(t *testing.T) {
	t.Helper()
	d := s.allDomains()[0]
	d.mu.Lock()
	d.drain(s.now())
	d.mu.Unlock()
	for range 3 { // an answer may be under way, and one after it
		if !d.visit(30*time.Second, func(eviction.Policy) {}) {
			t.Fatal("the policy does not answer")
		}
	}
}

// The victims are those of the policy, named ahead.
func TestVictimsNamedAhead(t *testing.T) {
	s := lifoStore(t, &lifoFactory{}, nil)
	s.heard(t)
	s.put("new0", mib)
	s.put("new1", mib)
	if s.there("k15") || s.there("k14") || !s.there("k0") {
		t.Errorf("missing: %s", s.missing(16))
	}
	d := s.Policies()[0]
	if d.State != "running" || d.Evicted != 2 || d.Fallbacks != 0 {
		t.Errorf("%+v", d)
	}
	s.check()
}

// A victim that is read after it was named stays, and that is counted once, whoever had named it to whom.
func TestNamedAheadAndUsed(t *testing.T) {
	s := lifoStore(t, &lifoFactory{}, nil)
	s.heard(t)
	s.put("new0", mib) // k15 goes, the store has taken k14, k13 and k12 along
	if _, code := s.get("k14"); code != wire.OK {
		t.Fatal(code)
	}
	s.clock.Add(1) // its lease is over
	s.put("new1", mib)
	s.heard(t)
	if d := s.Policies()[0]; !s.there("k14") || s.there("k13") || d.Refused["used"] != 1 {
		t.Errorf("missing %s, %d used", s.missing(16), d.Refused["used"])
	}
	s.check()
}

// While a policy from outside is held up in a call, whatever it is, puts find room by the built-in order, policies can
// be changed, and the master ends.
func TestNoPutWaitsForAPolicyFromOutside(t *testing.T) {
	f := &lifoFactory{}
	s := lifoStore(t, f, nil)
	s.heard(t)
	release := f.hold()
	defer release()
	s.pass(tickPeriod) // a TICK to tell and a question
	testenv.Eventually(t, 30*time.Second, func() error {
		if f.inside.Load() == 0 {
			return errors.New("the policy is not held up")
		}
		return nil
	})
	for i := range 40 {
		s.put(fmt.Sprintf("more%d", i), mib)
	}
	d := s.allDomains()[0].ownStats(s.now())
	if d.Evicted != 40 || d.Fallbacks < 20 || d.Faults != 0 {
		t.Errorf("evicted %d, %d of them by the built-in order, %d faults", d.Evicted, d.Fallbacks, d.Faults)
	}
	if err := s.SetPolicy(anyTenant, Policy{Name: Native}); err != nil {
		t.Error(err)
	}
	if err := s.RollbackPolicy(anyTenant); err != nil {
		t.Error(err)
	}
	s.put("last", mib)
	release()
	s.heard(t)
	before := s.allDomains()[0].ownStats(s.now())
	s.put("by the policy", mib)
	if d := s.allDomains()[0].ownStats(s.now()); d.Evicted != before.Evicted+1 || d.Fallbacks != before.Fallbacks {
		t.Errorf("after all: %d evicted, %d by the built-in order, before %d and %d", d.Evicted, d.Fallbacks, before.Evicted, before.Fallbacks)
	}
	s.check()
}

// The background waits for the policy, so what it keeps free is chosen by it, however much it is.
func TestBackgroundWaitsForVictims(t *testing.T) {
	for _, mode := range []string{"on_demand", "watermark"} {
		t.Run(mode, func(t *testing.T) {
			s := lifoStore(t, &lifoFactory{}, func(c *Config) {
				c.EvictionMode, c.EvictionRatio, c.Watermark = mode, 0.5, 0.95
			})
			s.heard(t)
			if mode == "on_demand" {
				d := s.allDomains()[0]
				d.mu.Lock()
				var seen tally
				k := query{tenant: eviction.AnyTenant, most: 100, now: s.now(), patient: true, enough: func() bool { return seen.evicted == 9 }}
				if !d.evict(&k, &seen) {
					t.Errorf("%+v", seen)
				}
				d.mu.Unlock()
			} else {
				s.Poll()
			}
			d := s.Policies()[0]
			if d.Evicted != 9 || d.Fallbacks != 0 || !s.there("k0") || s.there("k15") {
				t.Errorf("%d evicted, %d by the built-in order; missing: %s", d.Evicted, d.Fallbacks, s.missing(16))
			}
			s.check()
		})
	}
}

// Tenants that share a policy get victims of their own.
func TestVictimsAheadOfTenants(t *testing.T) {
	s := newStore(t, func(o *Options) {
		o.Config.FreeReserve, o.Config.LeaseTTL, o.Config.MultiTenants = 0, 0, true
		o.Policies = map[string]Policy{anyTenant: {Name: "lru", Factory: outside{policies("lru")[anyTenant].Factory}, Guard: GuardOff}}
	})
	s.mount(0, 16*mib, clientA)
	s.must("quota", s.SetTenantQuota("a", 8*mib), wire.OK)
	s.must("quota", s.SetTenantQuota("b", 8*mib), wire.OK)
	s.Poll()
	for i := range 100 {
		key := fmt.Sprintf("k%d", i)
		s.must("put", s.putAs([]string{"a", "b"}[i%2], key, mib), wire.OK)
		s.heard(t)
	}
	// Each tenant's first question finds nothing yet.
	if d := s.Policies()[0]; d.Evicted != 84 || d.Fallbacks > 16 {
		t.Errorf("%d evicted, %d by the built-in order", d.Evicted, d.Fallbacks)
	}
	s.check()
}

// The background makes the first instance, and tries again what failed.
func TestPolicyFromOutsideIsMadeAside(t *testing.T) {
	f := &lifoFactory{fails: 1}
	s := lifoStore(t, f, nil)
	d := s.Policies()[0]
	if d.State != "waiting" || d.Fault != "New: not today" || !d.Fallback {
		t.Errorf("%s, %q", d.State, d.Fault)
	}
	s.put("meanwhile", mib)
	if s.there("k0") {
		t.Error("k0 is still there, the built-in order would take it")
	}
	s.pass(d.RetryMS)
	s.heard(t)
	s.put("then", mib)
	if d := s.Policies()[0]; d.State != "running" || d.Fault != "" || !s.there("k1") || s.there("meanwhile") {
		t.Errorf("%s, %q, missing %s", d.State, d.Fault, s.missing(16))
	}
	s.check()
}

// Who asks a policy from outside for admission waits no longer than admitTime.
func TestLateAdmission(t *testing.T) {
	f := &lifoFactory{}
	s := lifoStore(t, f, nil)
	if err := s.SetPolicy(anyTenant, Policy{Name: "choosy", Guard: GuardOff, Admission: "on", Factory: outside{eviction.FactoryFunc(func(spec eviction.Spec) (eviction.Policy, error) {
		p, err := f.New(spec)
		return &choosy{Policy: p}, err
	})}}); err != nil {
		t.Fatal(err)
	}
	s.heard(t)
	// A busy machine may be late although nothing holds the policy up.
	fresh := 16
	testenv.Eventually(t, 30*time.Second, func() error {
		if _, code := s.start(clientA, "big", unwanted); code != wire.ErrNoAvailableHandle {
			s.revokePut(clientA, "big")
			for range 2 { // the room that it had
				s.put(fmt.Sprintf("k%d", fresh), mib)
				fresh++
			}
			return fmt.Errorf("put of what is not wanted: %v", code)
		}
		return nil
	})
	before := s.Policies()[0]
	if before.AdmitRefused != 1 || before.AdmitAsked != before.AdmitRefused+before.AdmitLate {
		t.Errorf("asked %d, refused %d, late %d", before.AdmitAsked, before.AdmitRefused, before.AdmitLate)
	}
	release := f.hold()
	defer release()
	s.pass(tickPeriod)
	s.put("big", unwanted)
	release()
	if d := s.Policies()[0]; d.AdmitAsked != before.AdmitAsked+1 || d.AdmitRefused != 1 || d.AdmitLate != before.AdmitLate+1 {
		t.Errorf("held up: asked %d, refused %d, late %d", d.AdmitAsked, d.AdmitRefused, d.AdmitLate)
	}
	s.check()
}
