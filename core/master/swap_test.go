package master

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// strictPolicy makes a named policy under the eyes of strict.
func strictPolicy(t testing.TB, name string) (Policy, *strictFactory) {
	f := &strictFactory{Factory: policies(name)[anyTenant].Factory, t: t}
	return Policy{Name: name, Factory: f}, f
}

// agree checks that an instance knows exactly what is resident in a domain.
func agree(t testing.TB, d *domain, p *strict) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drain(d.s.now())
	if n, want := len(p.resident), int(d.known.Load()); n != want {
		t.Errorf("the policy of %s thinks %d objects are resident, %d are", d.name, n, want)
	}
}

// hooked calls f once, after so many events of a RESTORE.
type hooked struct {
	eviction.Policy
	after int
	f     func()
}

func (h *hooked) Apply(events []eviction.Event) error {
	err := h.Policy.Apply(events)
	if h.after -= len(events); h.after <= 0 && h.f != nil {
		f := h.f
		h.f = nil
		f()
	}
	return err
}

// What happens while a new policy is told what is resident reaches it, in order, and nothing else does: objects
// that go, come, are used and are pinned.
func TestSwapWhileThingsHappen(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Policies, o.Config.LeaseTTL = policies("lru"), 0 })
	s.mount(0, 2*mib, clientA)
	for i := range 1000 {
		s.put(fmt.Sprintf("k%d", i), 1024)
	}
	p, f := strictPolicy(t, "lru")
	inner := p.Factory
	p.Factory = eviction.FactoryFunc(func(spec eviction.Spec) (eviction.Policy, error) {
		q, err := inner.New(spec)
		return &hooked{Policy: q, after: applyBatch, f: func() {
			for i := range 1000 {
				switch i % 4 {
				case 0: // some have been told, some have not
					s.must("remove", s.del(fmt.Sprintf("k%d", i), false), wire.OK)
				case 1:
					s.get(fmt.Sprintf("k%d", i))
				}
			}
			for i := range 500 {
				s.put(fmt.Sprintf("n%d", i), 1024)
			}
			s.Poll() // handles that were freed must not be used again yet
			for i := range 500 {
				s.put(fmt.Sprintf("m%d", i), 1024)
			}
			s.must("remove", s.del("n0", false), wire.OK)
		}}, err
	})
	if err := s.SetPolicy(anyTenant, p); err != nil {
		t.Fatal(err)
	}
	agree(t, s.allDomains()[0], f.last())
	if n := s.Counters().PolicyFaults.Load(); n != 0 {
		t.Errorf("%d faults", n)
	}
	for i := range 400 {
		s.put(fmt.Sprintf("p%d", i), 1024) // the oldest go, which nobody has used
	}
	if s.there("k2") || !s.there("k997") || !s.there("n1") {
		t.Errorf("k2 %v, k997 %v, n1 %v", s.there("k2"), s.there("k997"), s.there("n1"))
	}
	agree(t, s.allDomains()[0], f.last())
	s.check()
}

// A policy that cannot start leaves the old one in force, whenever it fails.
func TestSwapFails(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(p eviction.Policy) (eviction.Policy, error)
		want string
	}{
		{"New", func(eviction.Policy) (eviction.Policy, error) { return nil, errors.New("no such device") }, "New: no such device"},
		{"RESTORE", func(p eviction.Policy) (eviction.Policy, error) {
			return &broken{Policy: p, closed: new(atomic.Int32), apply: func() error { return errors.New("trap") }}, nil
		}, "RESTORE: trap"},
	} {
		t.Run(c.name, func(t *testing.T) {
			use, old := withStrict(t, "lru")
			s := newStore(t, use)
			s.mount(0, 16*mib, clientA)
			s.fill(16)
			s.Poll()
			inner := policies("lru")[anyTenant].Factory
			err := s.SetPolicy(anyTenant, Policy{Name: "bad", Factory: eviction.FactoryFunc(func(spec eviction.Spec) (eviction.Policy, error) {
				p, err := inner.New(spec)
				if err != nil {
					return nil, err
				}
				return c.f(p)
			})})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("SetPolicy: %v, want %s", err, c.want)
			}
			d := s.Policies()[0]
			if d.Policy != "lru" || d.State != "running" || d.Faults != 0 || d.Previous != "" {
				t.Errorf("after the failure: %+v", d)
			}
			s.del("k3", true)
			s.put("n", mib)
			agree(t, s.allDomains()[0], old.last())
		})
	}
}

func TestRollback(t *testing.T) {
	use, old := withStrict(t, "lru")
	s := newStore(t, use)
	s.mount(0, 16*mib, clientA)
	s.fill(16)
	first := func() *strict { old.mu.Lock(); defer old.mu.Unlock(); return old.made[0] }
	if err := s.RollbackPolicy(anyTenant); err == nil || !strings.Contains(err.Error(), "nothing to roll back to") {
		t.Errorf("before a change: %v", err)
	}
	p, f := strictPolicy(t, "arc")
	if err := s.SetPolicy(anyTenant, p); err != nil {
		t.Fatal(err)
	}
	s.clock.Add(20_000)
	s.ping(clientA)
	s.put("n", mib) // evicts k0
	if err := s.RollbackPolicy(anyTenant); err != nil {
		t.Fatal(err)
	}
	if n := len(old.made); n != 1 {
		t.Errorf("%d instances of the old policy, want the first one again", n)
	}
	agree(t, s.allDomains()[0], first())
	s.put("n2", mib)
	if got := s.missing(16); got != "k0 k1" {
		t.Errorf("gone: %s", got)
	}
	agree(t, s.allDomains()[0], f.last()) // it follows, so that one can go forward again
	if err := s.RollbackPolicy(anyTenant); err != nil {
		t.Fatal(err)
	}
	if d := s.Policies()[0]; d.Policy != "arc" || d.Previous != "lru" {
		t.Errorf("forward again: %+v", d)
	}
	s.pass(keepOld.Milliseconds() + 1)
	if err := s.RollbackPolicy(anyTenant); err == nil {
		t.Error("rolled back after more than a minute")
	}
	// From the built-in order and back to it.
	if err := s.SetPolicy(anyTenant, Policy{}); err != nil {
		t.Fatal(err)
	}
	if d := s.Policies()[0]; d.State != Native || d.Previous != "arc" {
		t.Errorf("native: %+v", d)
	}
	if err := s.RollbackPolicy(anyTenant); err != nil {
		t.Fatal(err)
	}
	agree(t, s.allDomains()[0], f.last())
	s.check()
}

// The learned state goes to the next instance of the same policy.
func TestSwapKeepsWhatWasLearned(t *testing.T) {
	var loaded atomic.Int32
	factory := eviction.FactoryFunc(func(spec eviction.Spec) (eviction.Policy, error) {
		p, err := policies("lru")[anyTenant].Factory.New(spec)
		return &learner{Policy: p, loaded: &loaded}, err
	})
	s := newStore(t, func(o *Options) { o.Policies = map[string]Policy{anyTenant: {Name: "l", Factory: factory}} })
	s.mount(0, mib, clientA)
	s.put("k", 1)
	s.Poll()
	if err := s.SetPolicy(anyTenant, Policy{Name: "l", Factory: factory}); err != nil {
		t.Fatal(err)
	}
	if loaded.Load() != 1 {
		t.Errorf("loaded %d times", loaded.Load())
	}
}

type learner struct {
	eviction.Policy
	loaded *atomic.Int32
}

func (l *learner) Save(dst []byte) ([]byte, error) { return append(dst, "wisdom"...), nil }
func (l *learner) Load(state []byte) (bool, error) {
	if string(state) != "wisdom" {
		return false, nil
	}
	l.loaded.Add(1)
	return true, nil
}

// Many changes of policy under load: no object that is pinned or leased is lost, and the policies know what is there.
func TestSwapsUnderLoad(t *testing.T) {
	s := newStore(t, func(o *Options) {
		multi(o)
		o.Clock, o.Config.LeaseTTL = nil, time.Hour
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mount(0, 2*mib, clientA)
	tenants := []string{"default", "a"}
	for _, name := range tenants {
		s.must("quota", s.SetTenantQuota(name, mib), wire.OK)
		for i := range 20 {
			s.must("put", s.putAs(name, fmt.Sprintf("leased%d", i), 1024), wire.OK)
			var r wire.Result[wire.ReplicaList]
			s.GetReplicaList(&wire.KeyRequest{Key: fmt.Sprintf("leased%d", i), Tenant: name}, &r)
			s.must("get", r.Code, wire.OK)
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			var yes []wire.Result[bool]
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				tenant := tenants[i%2]
				keys := []string{fmt.Sprintf("w%d-%d", w, i), fmt.Sprintf("w%d-%d", w, i-7), fmt.Sprintf("w%d-%d", w, i-50)}
				s.BatchExistKey(&wire.KeysRequest{Keys: keys, Tenant: tenant}, &yes)
				if code := s.putAs(tenant, keys[0], 20_000); code != wire.OK && code != wire.ErrNoAvailableHandle && code != wire.ErrTenantQuotaExceeded {
					t.Errorf("put: %v", code)
				}
				if i%5 == 0 {
					s.Remove(&wire.RemoveRequest{Key: keys[1], Tenant: tenant, Force: true}, new(wire.Result[wire.Void]))
				}
			}
		})
	}
	last := map[string]*strictFactory{}
	for i := range 100 {
		s.ping(clientA)
		domain := []string{anyTenant, "a"}[i%2]
		name := []string{"lru", "arc", "sieve", Native, "s3fifo"}[i%5]
		var p Policy
		delete(last, domain)
		if name != Native {
			p, last[domain] = strictPolicy(t, name)
		}
		if err := s.SetPolicy(domain, p); err != nil {
			t.Fatal(err)
		}
		switch i % 11 {
		case 5:
			if err := s.RollbackPolicy(domain); err != nil {
				t.Fatal(err)
			}
			delete(last, domain)
		case 7:
			if domain != anyTenant {
				if err := s.DropPolicy(domain); err != nil {
					t.Fatal(err)
				}
				delete(last, domain)
			}
		}
	}
	close(stop)
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for name, f := range last {
		agree(t, s.domainNamed(name), f.last())
	}
	for _, name := range tenants {
		for i := range 20 {
			if d, code := s.DescribeKey(name, fmt.Sprintf("leased%d", i)); code != wire.OK || d.LeaseMS <= s.now() {
				t.Errorf("leased%d of %s: %v %+v", i, name, code, d)
			}
		}
	}
	if n := s.Counters().PolicyFaults.Load(); n != 0 {
		t.Errorf("%d faults", n)
	}
	if s.Counters().EvictedKeys.Load() == 0 {
		t.Error("nothing was evicted")
	}
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	s.check()
}

// A tenant gets a policy of its own while it has objects: they move with their order, and back.
func TestDomainsComeAndGo(t *testing.T) {
	s := newStore(t, multi)
	s.mount(0, 32*mib, clientA)
	for _, name := range []string{"a", "b"} {
		s.must("quota", s.SetTenantQuota(name, 16*mib), wire.OK)
		for i := range 16 {
			s.must("put", s.putAs(name, fmt.Sprintf("k%d", i), mib), wire.OK)
		}
	}
	s.clock.Add(20_000)
	s.ping(clientA)
	var r wire.Result[wire.ReplicaList]
	s.GetReplicaList(&wire.KeyRequest{Key: "k0", Tenant: "a"}, &r) // leased, and newer than the others
	p, f := strictPolicy(t, "lru")
	if err := s.SetPolicy("a", p); err != nil {
		t.Fatal(err)
	}
	if st := s.Policies(); len(st) != 2 || st[1].Name != "a" || st[1].Objects != 16 || st[0].Objects != 16 || st[1].Capacity != 16*mib {
		t.Fatalf("domains: %+v", st)
	}
	agree(t, s.domainNamed("a"), f.last())
	gone := func(tenant string) string {
		var out []string
		for i := range 16 {
			if _, code := s.DescribeKey(tenant, fmt.Sprintf("k%d", i)); code != wire.OK {
				out = append(out, fmt.Sprintf("k%d", i))
			}
		}
		return strings.Join(out, " ")
	}
	s.must("put", s.putAs("a", "n", 2*mib), wire.OK)
	if got := gone("a"); got != "k1 k2" {
		t.Errorf("gone of a: %s", got)
	}
	if got := gone("b"); got != "" {
		t.Errorf("a pushed out %s of b", got)
	}
	s.check()
	if err := s.DropPolicy("a"); err != nil {
		t.Fatal(err)
	}
	if st := s.Policies(); len(st) != 1 || st[0].Objects != 31 {
		t.Errorf("domains: %+v", st)
	}
	s.must("put", s.putAs("a", "n2", 2*mib), wire.OK)
	if got := gone("a"); got != "k1 k2 k3 k4" {
		t.Errorf("gone of a: %s", got)
	}
	s.check()
	if err := s.DropPolicy("a"); err == nil || !strings.Contains(err.Error(), `"a" has no eviction policy of its own`) {
		t.Error(err)
	}
	if err := s.SetPolicy("_x", p); err == nil {
		t.Error("a policy for a name that no tenant can have")
	}
	if err := s.SetPolicy("later", p); err != nil {
		t.Fatal(err)
	}
	s.must("quota", s.SetTenantQuota("later", mib), wire.OK)
	s.must("put", s.putAs("later", "k", 1000), wire.OK)
	agree(t, s.domainNamed("later"), f.last())
}

// Before handles run out a larger instance is made beside the old one.
func TestGrowsAhead(t *testing.T) {
	p, f := strictPolicy(t, "lru")
	s := newStore(t, func(o *Options) { o.Policies = map[string]Policy{anyTenant: p} })
	s.mount(0, 64*mib, clientA)
	s.put("k", 1024)
	s.Poll()
	for i := range firstHandles - firstHandles/16 {
		s.put(fmt.Sprintf("k%d", i), 1024)
	}
	s.Poll()
	if n := len(f.made); n != 2 || f.last().spec.MaxHandles != 2*firstHandles {
		t.Fatalf("%d instances, the last of %d handles", n, f.last().spec.MaxHandles)
	}
	agree(t, s.allDomains()[0], f.last())
	if d := s.Policies()[0]; d.Previous != "" || d.Changes != 0 {
		t.Errorf("a larger instance counts as a change: %+v", d)
	}
}
