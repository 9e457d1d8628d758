package master

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// newest is the worst of policies: what came or was used last goes first.
type newest struct{ order []eviction.Handle }

func (n *newest) Apply(events []eviction.Event) error {
	for _, e := range events {
		switch e.Kind {
		case eviction.Insert, eviction.Restore, eviction.Access, eviction.Remove:
			n.order = slices.DeleteFunc(n.order, func(h eviction.Handle) bool { return h == e.Handle })
			if e.Kind != eviction.Remove {
				n.order = append(n.order, e.Handle)
			}
		}
	}
	return nil
}

func (n *newest) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	for i := len(n.order) - 1; i >= 0 && len(dst) < need.Max; i-- {
		dst = append(dst, n.order[i])
	}
	return dst, nil
}
func (n *newest) Close() error { return nil }

// traffic is requests for chains of five blocks, the more popular ones more often, one a second.
func (c *traceClient) traffic(requests int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	zipf := rand.NewZipf(r, 1.1, 1, 399)
	for range requests {
		c.clock.Add(1000)
		chain := make([]uint32, 5)
		first := uint32(zipf.Uint64()) * 5
		for i := range chain {
			chain[i] = first + uint32(i)
		}
		c.request(chain)
		c.Poll()
	}
}

// A policy that is worse than LRU for ten minutes is noticed, and by default the LRU takes its place.
func TestGuard(t *testing.T) {
	bad := eviction.FactoryFunc(func(eviction.Spec) (eviction.Policy, error) { return &newest{}, nil })
	good := policies("lru")[anyTenant].Factory
	for _, c := range []struct {
		name   string
		policy Policy
		state  string
		guard  string
	}{
		{"bad", Policy{Name: "newest", Factory: bad}, "fell back", "fell back"},
		{"bad, alarm only", Policy{Name: "newest", Factory: bad, Guard: GuardAlarm}, "running", "alarm"},
		{"bad, not guarded", Policy{Name: "newest", Factory: bad, Guard: GuardOff}, "running", "off"},
		{"good", Policy{Name: "lru", Factory: good}, "running", "ok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTraceStore(t, Native, 400)
			if err := s.SetPolicy(anyTenant, c.policy); err != nil {
				t.Fatal(err)
			}
			s.traffic(9*60, 1)
			if d := s.Policies()[0]; d.State != "running" || d.Guard.Alarms != 0 {
				t.Errorf("after nine minutes: %+v", d)
			}
			s.traffic(15*60, 2)
			d := s.Policies()[0]
			if d.State != c.state || d.Guard.Verdict != c.guard || d.Fallback != (c.state == "fell back") {
				t.Errorf("state %s, guard %+v, want %s, %s", d.State, d.Guard, c.state, c.guard)
			}
			if alarms := s.Counters().GuardAlarms.Load(); (alarms == 1) != (c.guard == "alarm" || c.guard == "fell back") {
				t.Errorf("%d alarms", alarms)
			}
			if c.name == "good" && math.Abs(d.Guard.Store-d.Guard.LRU) > 0.01 {
				t.Errorf("the shadow of an LRU differs from the LRU: %+v", d.Guard)
			}
			if d.State != "fell back" {
				return
			}
			if !strings.Contains(d.Fault, "worse than the built-in LRU") {
				t.Errorf("fault %q", d.Fault)
			}
			// Now it is the LRU that serves: the new blocks stay.
			before := s.Policies()[0].Requests
			s.traffic(600, 3)
			after := s.Policies()[0].Requests
			if share := float64(after.Prefix-before.Prefix) / float64(after.Asked-before.Asked); share < d.Guard.LRU-0.05 {
				t.Errorf("prefix hit %.3f after the fall back, the shadow had %.3f", share, d.Guard.LRU)
			}
			// An operator decides again.
			if err := s.SetPolicy(anyTenant, Policy{Name: "lru", Factory: good}); err != nil {
				t.Fatal(err)
			}
			if d := s.Policies()[0]; d.State != "running" || d.Fault != "" {
				t.Errorf("after policy set: %+v", d)
			}
			s.check()
		})
	}
}

// The shadow is a fraction of a large domain, and stays within its share of the room.
func TestGuardSamples(t *testing.T) {
	var g guard
	g.start(true)
	for i := range 200_000 {
		e := eviction.Event{Kind: eviction.Insert, KeyHash: uint64(i) * 0x9e3779b97f4a7c15, Size: 100, NowMS: uint64(i)}
		g.use += 100
		if e.KeyHash&g.mask == 0 {
			g.observe(&e, 0)
		}
	}
	if g.mask != guardMask {
		t.Errorf("mask %x", g.mask)
	}
	if share := float64(g.cache.n) / 200_000; share < 0.9/16 || share > 1.1/16 {
		t.Errorf("%d keys in the shadow of 200000", g.cache.n)
	}
	if g.cache.bytes > g.use/16 || g.cache.bytes != uint64(g.cache.n)*100 {
		t.Errorf("%d bytes in the shadow of %d", g.cache.bytes, g.use)
	}
	if per := float64(g.cache.memoryBytes()) / 200_000; per > 8 {
		t.Errorf("%.1f bytes a key", per)
	}
	n := 0
	for i := g.cache.back; i != 0; i = g.cache.prev[i] {
		if g.cache.find(g.cache.hash[i]) != i {
			t.Fatalf("entry %d is not found", i)
		}
		n++
	}
	if n != g.cache.n {
		t.Errorf("%d entries on the list, %d counted", n, g.cache.n)
	}
}

// Evicted keys that are asked for again soon are regretted.
func TestRegret(t *testing.T) {
	for _, name := range []string{Native, "lru"} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, func(o *Options) {
				if name != Native {
					o.Policies = policies(name)
				}
				o.Config.RegretWindow = time.Minute
			})
			s.mount(0, mib, clientA)
			keys := make([]string, 2048)
			for i := range keys {
				keys[i] = fmt.Sprintf("k%d", i)
				s.put(keys[i], 1024)
			}
			var yes []wire.Result[bool]
			ask := func(from, to int) {
				s.BatchExistKey(&wire.KeysRequest{Keys: keys[from:to], Tenant: "default"}, &yes)
				s.Poll()
			}
			d := func() DomainStats { return s.Policies()[0] }
			evicted := d().Evicted
			if evicted < 1000 {
				t.Fatalf("%d evicted", evicted)
			}
			ask(0, 500)
			if r := d().Regret; r < 250 || r > 1000 {
				t.Errorf("regret %d of 500 keys that were asked for again", r)
			}
			before := d().Regret
			ask(0, 500)
			if r := d().Regret; r != before {
				t.Errorf("the same keys were regretted twice: %d, then %d", before, r)
			}
			s.ping(clientA)
			s.clock.Add(61_000)
			ask(500, 1000)
			if r := d().Regret; r != before {
				t.Errorf("regret %d after the window, want %d", r, before)
			}
		})
	}
}

// What a policy is told of a put: its place in the chain that somebody has just asked for.
func TestChainOfAPut(t *testing.T) {
	use, f := withStrict(t, "lru")
	s := newStore(t, use)
	s.mount(0, mib, clientA)
	c := &traceClient{store: s, req: wire.BatchPutStartRequest{Client: clientA, Config: config(), Tenant: "default"},
		end: wire.BatchPutEndRequest{Client: clientA, Type: wire.ReplicaAll, Tenant: "default"}}
	c.request([]uint32{0, 1, 2})
	s.Poll()
	tap := &tap{Policy: f.last()}
	s.allDomains()[0].policy = tap
	c.request([]uint32{0, 1, 2, 3, 4, 5}) // asks for all, reads three, puts three
	s.Poll()
	key := map[uint64]int{}
	for i, k := range c.keys {
		key[eviction.KeyHash("default", k)] = i
	}
	handle := map[int]eviction.Handle{}
	for _, e := range f.last().resident {
		handle[key[e.KeyHash]] = e.Handle
	}
	var got []string
	for _, e := range tap.events {
		k := key[e.KeyHash]
		if e.Kind == eviction.Tick {
			continue
		}
		if want := handle[k-1]; k > 0 && e.Parent != want && e.Kind != eviction.Ghost {
			t.Errorf("%v of block %d: parent %d, want %d", e.Kind, k, e.Parent, want)
		}
		if e.Flags&marks != 0 || e.Segment != 0 && (e.Kind == eviction.Ghost || e.Kind == eviction.Access) {
			t.Errorf("marks reach the policy: %+v", e)
		}
		got = append(got, fmt.Sprintf("%v %d depth %d matched %d added %d", e.Kind, k, e.Depth, e.Matched, e.Added))
	}
	want := []string{
		"GHOST 5 depth 5 matched 0 added 0", "GHOST 4 depth 4 matched 0 added 0", "GHOST 3 depth 3 matched 0 added 0",
		"PROBE 2 depth 2 matched 0 added 0", "PROBE 1 depth 1 matched 0 added 0", "PROBE 0 depth 0 matched 0 added 0",
		"ACCESS 2 depth 2 matched 3 added 0", "ACCESS 1 depth 1 matched 3 added 0", "ACCESS 0 depth 0 matched 3 added 0",
		"INSERT 5 depth 5 matched 3 added 3", "INSERT 4 depth 4 matched 3 added 3", "INSERT 3 depth 3 matched 3 added 3",
	}
	if !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The last block is smaller than the others: it is not full.
	tap.events = nil
	c.req.Keys, c.req.Lengths = []string{"x", "y", "z"}, []uint64{1024, 1024, 100}
	s.BatchPutStart(&c.req, &c.start)
	c.end.Metas = []wire.ObjectMeta{{Key: "x"}, {Key: "y"}, {Key: "z"}}
	s.BatchPutEnd(&c.end, &c.ended)
	s.Poll()
	partial := 0
	for _, e := range tap.events {
		if e.Flags&eviction.FlagPartial != 0 {
			partial++
			if e.Depth != 2 {
				t.Errorf("block %d is partial", e.Depth)
			}
		}
	}
	if partial != 1 {
		t.Errorf("%d partial blocks", partial)
	}
}

// tap keeps what a policy is told.
type tap struct {
	eviction.Policy
	events []eviction.Event
}

func (p *tap) Apply(events []eviction.Event) error {
	p.events = append(p.events, events...)
	return p.Policy.Apply(events)
}

// A policy that keeps naming what is not there loses its instance.
func TestStrikes(t *testing.T) {
	var closed atomic.Int32
	inner := policies("lru")[anyTenant].Factory
	s := newStore(t, func(o *Options) {
		o.Policies = map[string]Policy{anyTenant: {Name: "liar", Factory: eviction.FactoryFunc(func(spec eviction.Spec) (eviction.Policy, error) {
			p, err := inner.New(spec)
			return &broken{Policy: p, closed: &closed, victims: func(dst []eviction.Handle, _ int) ([]eviction.Handle, error) {
				return append(dst, 4000, 4000, 1, 1), nil
			}}, err
		})}}
	})
	s.mount(0, 16*mib, clientA)
	s.fill(16)
	puts := 0
	for ; s.Counters().PolicyFaults.Load() == 0 && puts < maxStrikes; puts++ {
		s.put(fmt.Sprintf("n%d", puts), mib)
		s.pass(10)
	}
	d := s.Policies()[0]
	if d.Faults != 1 || d.State != "waiting" || !strings.Contains(d.Fault, "not resident") || d.Strikes < maxStrikes {
		t.Errorf("after %d puts: %+v", puts, d)
	}
	if d.Refused["unknown"] == 0 || d.Refused["duplicate"] == 0 {
		t.Errorf("refused %v", d.Refused)
	}
	if d.Fallbacks == 0 {
		t.Error("no victim was the LRU's")
	}
	s.check()
}
