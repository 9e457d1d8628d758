package master

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// strict is a policy that checks what the contract promises to policies, around another one.
type strict struct {
	eviction.Policy
	t        testing.TB
	busy     atomic.Bool
	spec     eviction.Spec
	now      uint64
	resident map[eviction.Handle]eviction.Event
	req      uint32
	depth    uint32
	tail     bool
	rejected map[eviction.Code]int
	kinds    map[eviction.EventKind]int
}

type strictFactory struct {
	eviction.Factory
	t    testing.TB
	mu   sync.Mutex
	made []*strict
}

func (f *strictFactory) New(spec eviction.Spec) (eviction.Policy, error) {
	if err := spec.Validate(); err != nil {
		f.t.Errorf("Spec: %v", err)
	}
	p, err := f.Factory.New(spec)
	s := &strict{Policy: p, t: f.t, spec: spec, resident: map[eviction.Handle]eviction.Event{}, rejected: map[eviction.Code]int{}, kinds: map[eviction.EventKind]int{}}
	f.mu.Lock()
	f.made = append(f.made, s)
	f.mu.Unlock()
	return s, err
}

func (f *strictFactory) last() *strict {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[len(f.made)-1]
}

func (p *strict) enter() func() {
	if p.busy.Swap(true) {
		p.t.Error("two calls of a policy at a time")
	}
	return func() { p.busy.Store(false) }
}

func (p *strict) Apply(events []eviction.Event) error {
	defer p.enter()()
	if uint32(len(events)) > p.spec.BatchMax {
		p.t.Errorf("Apply of %d events, BatchMax is %d", len(events), p.spec.BatchMax)
	}
	for i := range events {
		e := &events[i]
		p.kinds[e.Kind]++
		if e.NowMS < p.now {
			p.t.Errorf("%v: now_ms went from %d to %d", e.Kind, p.now, e.NowMS)
		}
		p.now = e.NowMS
		was, there := p.resident[e.Handle]
		if uint32(e.Handle) > p.spec.MaxHandles {
			p.t.Errorf("%v of handle %d, MaxHandles is %d", e.Kind, e.Handle, p.spec.MaxHandles)
		}
		if e.Flags&eviction.FlagTailFirst != 0 && (e.Kind == eviction.Insert || e.Kind == eviction.Access) {
			if p.tail && e.Req == p.req && e.Depth >= p.depth {
				p.t.Errorf("%v of request %d: depth %d after %d", e.Kind, e.Req, e.Depth, p.depth)
			}
			p.tail, p.req, p.depth = true, e.Req, e.Depth
		}
		switch e.Kind {
		case eviction.Insert, eviction.Restore:
			if there || e.Handle == 0 {
				p.t.Errorf("%v of handle %d, resident %v", e.Kind, e.Handle, there)
			}
			p.resident[e.Handle] = *e
		case eviction.Remove:
			if !there || was.KeyHash != e.KeyHash || was.Tenant != e.Tenant || was.Size != e.Size {
				p.t.Errorf("REMOVE %+v of what was inserted as %+v (there %v)", *e, was, there)
			}
			delete(p.resident, e.Handle)
		case eviction.Access, eviction.Probe, eviction.Moved, eviction.Pin, eviction.Unpin:
			if there && was.KeyHash != e.KeyHash {
				p.t.Errorf("%v names %x, the handle is %x", e.Kind, e.KeyHash, was.KeyHash)
			}
			if e.Kind == eviction.Access && e.Added != 0 {
				p.t.Error("ACCESS with added")
			}
		case eviction.Reject:
			p.rejected[e.Code]++
			if there && (was.KeyHash != e.KeyHash || was.Size != e.Size) {
				p.t.Errorf("REJECT %+v of %+v", *e, was)
			}
		case eviction.Ghost:
			if e.Handle != 0 || e.KeyHash == 0 {
				p.t.Errorf("GHOST %+v", *e)
			}
		}
	}
	return p.Policy.Apply(events)
}

func (p *strict) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	defer p.enter()()
	if need.Max < 1 {
		p.t.Errorf("Need %+v", need)
	}
	return p.Policy.Victims(dst, need)
}

func withStrict(t testing.TB, name string) (func(*Options), *strictFactory) {
	f := &strictFactory{Factory: policies(name)[anyTenant].Factory, t: t}
	return func(o *Options) { o.Policies = map[string]Policy{anyTenant: {Name: name, Factory: f}} }, f
}

// work is a random but repeatable load on a store; it returns what was evicted, in order.
func (s *store) work(seed uint64, steps int) {
	r := rand.New(rand.NewPCG(seed, 1))
	chainKeys := func(c int) []string {
		keys := make([]string, 1+c%7)
		for i := range keys {
			keys[i] = fmt.Sprintf("c%d-%d", c, i)
		}
		return keys
	}
	var starts []wire.Result[[]wire.Replica]
	var ends []wire.Result[wire.Void]
	var lists []wire.Result[wire.ReplicaList]
	var yes []wire.Result[bool]
	for range steps {
		s.clock.Add(int64(r.IntN(300)))
		keys := chainKeys(r.IntN(150))
		switch r.IntN(6) {
		case 0, 1, 2:
			put := wire.BatchPutStartRequest{Client: clientA, Keys: keys, Config: config(), Tenant: "default"}
			for range keys {
				put.Lengths = append(put.Lengths, uint64(1000+r.IntN(3000)))
			}
			s.BatchPutStart(&put, &starts)
			end := wire.BatchPutEndRequest{Client: clientA, Type: wire.ReplicaAll, Tenant: "default"}
			for i, x := range starts {
				if x.Code == wire.OK {
					end.Metas = append(end.Metas, wire.ObjectMeta{Key: keys[i]})
				}
			}
			s.BatchPutEnd(&end, &ends)
		case 3:
			s.BatchGetReplicaList(&wire.KeysRequest{Keys: keys, Tenant: "default"}, &lists)
		case 4:
			s.BatchExistKey(&wire.KeysRequest{Keys: keys, Tenant: "default"}, &yes)
		case 5:
			s.del(keys[r.IntN(len(keys))], r.IntN(2) == 0)
		}
		if r.IntN(20) == 0 {
			s.ping(clientA)
			s.Poll()
		}
	}
}

func TestPolicyContract(t *testing.T) {
	for _, name := range []string{"lru", "sieve", "s3fifo", "arc"} {
		t.Run(name, func(t *testing.T) {
			use, f := withStrict(t, name)
			s := newStore(t, use)
			s.mount(0, 256<<10, clientA)
			s.mount(1, 256<<10, clientA)
			s.work(1, 4000)
			s.check()
			s.Poll()
			p := f.last()
			for _, k := range []eviction.EventKind{eviction.Insert, eviction.Access, eviction.Probe, eviction.Remove, eviction.Reject, eviction.Ghost} {
				if p.kinds[k] == 0 {
					t.Errorf("no %v in the whole run", k)
				}
			}
			if len(p.resident) != int(s.allDomains()[0].known.Load()) {
				t.Errorf("the policy thinks %d objects are resident, %d are", len(p.resident), s.allDomains()[0].known.Load())
			}
			if n := s.Counters().PolicyFaults.Load(); n != 0 {
				t.Errorf("%d faults", n)
			}
			if s.Counters().EvictedKeys.Load() == 0 {
				t.Error("nothing was evicted")
			}
		})
	}
}

// The built-in order and the policy lru evict the same objects; the victim reserve makes no difference to the
// built-in order (lru moves what is refused for having been used behind what was used later).
func TestBuiltInIsLRU(t *testing.T) {
	run := func(policy string, reserve int) string {
		s := newStore(t, func(o *Options) {
			o.Config.VictimReserve, o.Config.FreeReserve, o.Config.LeaseTTL = reserve, 0, 0
			if policy != "" {
				o.Policies = policies(policy)
			}
		})
		s.mount(0, 256<<10, clientA)
		s.work(7, 3000)
		s.check()
		var keys []string
		for c := ""; ; {
			var err error
			if keys, c, err = s.ListKeys(keys, "", c, 10); err != nil {
				t.Fatal(err)
			}
			if c == "" {
				break
			}
		}
		return fmt.Sprint(s.Counters().EvictedKeys.Load(), len(keys), keys)
	}
	want := run("", 0)
	for _, reserve := range []int{1, 32} {
		if got := run("", reserve); got != want {
			t.Errorf("built in with a reserve of %d differs from none:\n%.200s\n%.200s", reserve, got, want)
		}
	}
	if got := run("lru", 0); got != want {
		t.Errorf("lru differs from the built-in order:\n%.200s\n%.200s", got, want)
	}
}

// More objects than handles: the host makes a larger instance and tells it what is resident.
func TestHandlesGrow(t *testing.T) {
	use, f := withStrict(t, "lru")
	s := newStore(t, use)
	s.mount(0, 64*mib, clientA)
	for i := range 3 * firstHandles {
		s.put(fmt.Sprintf("k%d", i), 1024)
		if i%100 == 0 {
			s.Poll()
		}
	}
	s.Poll()
	if n := len(f.made); n != 3 {
		t.Errorf("%d instances, want 3 (4096, 8192, 16384 handles)", n)
	}
	if n := len(f.last().resident); n != 3*firstHandles {
		t.Errorf("the last instance knows %d objects of %d", n, 3*firstHandles)
	}
	s.put("n", 60*mib)
	if s.there("k0") {
		t.Error("the oldest object survived a put of nearly the whole store")
	}
	s.check()
}

// broken answers as told.
type broken struct {
	eviction.Policy
	apply   func() error
	victims func(dst []eviction.Handle, max int) ([]eviction.Handle, error)
	closed  *atomic.Int32
}

func (b *broken) Apply(ev []eviction.Event) error {
	if b.apply != nil {
		return b.apply()
	}
	return b.Policy.Apply(ev)
}

func (b *broken) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	if b.victims != nil {
		return b.victims(dst, need.Max)
	}
	return b.Policy.Victims(dst, need)
}

func (b *broken) Close() error { b.closed.Add(1); return b.Policy.Close() }

// Whatever a policy does, puts find room, in the built-in order if need be.
func TestPolicyMisbehaves(t *testing.T) {
	for _, tc := range []struct {
		name   string
		break_ func(*broken)
		faulty bool
		gone   string
	}{
		{"fails to apply", func(b *broken) { b.apply = func() error { return errors.New("no") } }, true, "k0"},
		{"fails to name victims", func(b *broken) {
			b.victims = func([]eviction.Handle, int) ([]eviction.Handle, error) { return nil, errors.New("no") }
		}, true, "k0"},
		{"names none", func(b *broken) {
			b.victims = func(dst []eviction.Handle, _ int) ([]eviction.Handle, error) { return dst, nil }
		}, false, "k0"},
		{"names too many", func(b *broken) {
			b.victims = func(dst []eviction.Handle, max int) ([]eviction.Handle, error) {
				for i := range max + 1 {
					dst = append(dst, eviction.Handle(i+1))
				}
				return dst, nil
			}
		}, true, "k0"},
		{"names unknown ones", func(b *broken) {
			b.victims = func(dst []eviction.Handle, _ int) ([]eviction.Handle, error) {
				return append(dst, 0, 4_000_000_000, 999), nil
			}
		}, false, "k0"},
		{"names one again and again", func(b *broken) {
			b.victims = func(dst []eviction.Handle, _ int) ([]eviction.Handle, error) { return append(dst, 8, 8, 8), nil }
		}, false, "k7"},
		{"names pinned ones", func(b *broken) {
			b.victims = func(dst []eviction.Handle, _ int) ([]eviction.Handle, error) { return append(dst, 17), nil }
		}, false, "k0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var closed atomic.Int32
			inner := policies("lru")[anyTenant].Factory
			s := newStore(t, func(o *Options) {
				o.Policies = map[string]Policy{anyTenant: {Factory: eviction.FactoryFunc(func(spec eviction.Spec) (eviction.Policy, error) {
					p, err := inner.New(spec)
					b := &broken{Policy: p, closed: &closed}
					tc.break_(b)
					return b, err
				})}}
			})
			s.mount(0, 17*mib, clientA)
			s.fill(16)
			s.put("pinned", mib, withHardPin)
			s.put("new", mib)
			if got := s.missing(16); got != tc.gone {
				t.Errorf("gone: %s, want %s", got, tc.gone)
			}
			s.put("new2", mib)
			if !s.there("pinned") {
				t.Error("a hard-pinned object was evicted")
			}
			s.check()
			faults := s.Counters().PolicyFaults.Load()
			if (faults > 0) != tc.faulty {
				t.Errorf("%d faults", faults)
			}
			st := s.Stats().Domains[0]
			if st.Fallback != tc.faulty || (st.Fault != "") != tc.faulty {
				t.Errorf("status: %+v", st)
			}
			if tc.faulty && closed.Load() == 0 {
				t.Error("the failed instance was not closed")
			}
		})
	}
}

func TestFailedPolicyIsTriedAgainThenQuarantined(t *testing.T) {
	made := 0
	inner := policies("lru")[anyTenant].Factory
	var closed atomic.Int32
	faulty := eviction.FactoryFunc(func(spec eviction.Spec) (eviction.Policy, error) {
		made++
		p, err := inner.New(spec)
		return &broken{Policy: p, closed: &closed, victims: func([]eviction.Handle, int) ([]eviction.Handle, error) {
			return nil, errors.New("no")
		}}, err
	})
	s := newStore(t, func(o *Options) { o.Policies = map[string]Policy{anyTenant: {Factory: faulty}} })
	s.mount(0, 16*mib, clientA)
	s.fill(16)
	puts := 0
	put := func() {
		puts++
		s.ping(clientA)
		s.put(fmt.Sprintf("n%d", puts), mib)
	}
	for range 5 {
		put()
	}
	if made != 1 {
		t.Errorf("%d instances within the back-off, want 1", made)
	}
	for range 10 {
		s.clock.Add(8000)
		put()
		s.Poll()
	}
	if made != maxFaults {
		t.Errorf("%d instances, want %d before the quarantine", made, maxFaults)
	}
	if d := s.Stats().Domains[0]; !d.Fallback || !strings.Contains(d.Fault, "no") {
		t.Errorf("status: %+v", d)
	}
	if err := s.SetPolicy(anyTenant, Policy{Factory: inner}); err != nil {
		t.Fatal(err)
	}
	if d := s.Stats().Domains[0]; d.Fallback || d.Fault != "" {
		t.Errorf("status after a new policy was set: %+v", d)
	}
	put()
	if err := s.SetPolicy("nobody", Policy{Factory: inner}); err == nil || !strings.Contains(err.Error(), "without enable_multi_tenants") {
		t.Errorf("SetPolicy of an unknown domain: %v", err)
	}
	if err := s.SetPolicy(anyTenant, Policy{}); err != nil {
		t.Fatal(err)
	}
	put()
	s.check()
}

// A change of policy under load loses nothing and keeps the order.
func TestSetPolicyKeepsTheOrder(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, 16*mib, clientA)
	s.fill(16)
	s.get("k0")
	s.clock.Add(20_000)
	s.ping(clientA)
	use, f := withStrict(t, "lru")
	var o Options
	use(&o)
	if err := s.SetPolicy(anyTenant, o.Policies[anyTenant]); err != nil {
		t.Fatal(err)
	}
	if n := len(f.last().resident); n != 16 {
		t.Fatalf("the new policy was told of %d objects", n)
	}
	s.put("n", mib)
	s.put("n2", mib)
	if got := s.missing(16); got != "k1 k2" {
		t.Errorf("gone: %s", got)
	}
	s.check()
}

// Reads are dropped first when events pile up; nothing else is.
func TestEventBacklog(t *testing.T) {
	use, f := withStrict(t, "lru")
	s := newStore(t, use)
	s.mount(0, mib, clientA)
	s.put("k", 100)
	for range ringLoss + 100 {
		s.get("k")
	}
	for i := range 100 {
		s.put(fmt.Sprintf("n%d", i), 100)
	}
	if got := s.Counters().EventsDropped.Load(); got == 0 {
		t.Error("no read was dropped")
	}
	s.Poll()
	if n := len(f.last().resident); n != 101 {
		t.Errorf("the policy knows %d of 101 objects", n)
	}
}
