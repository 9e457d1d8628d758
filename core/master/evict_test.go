package master

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// fill puts n objects k0..kn-1 of 1 MiB.
func (s *store) fill(n int, c ...func(*wire.ReplicateConfig)) {
	s.Helper()
	for i := range n {
		s.put(fmt.Sprintf("k%d", i), mib, c...)
		s.clock.Add(1)
	}
}

// missing lists which of k0..kn-1 are gone.
func (s *store) missing(n int) string {
	var out []string
	for i := range n {
		if k := fmt.Sprintf("k%d", i); !s.there(k) {
			out = append(out, k)
		}
	}
	return strings.Join(out, " ")
}

func TestEvictionOnDemand(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(*store)
		size    uint64
		want    string // what is gone
	}{
		{"the oldest goes", nil, mib, "k0"},
		{"as many as are needed", nil, 3 * mib, "k0 k1 k2"},
		{"what was read stays", func(s *store) { s.get("k0"); s.get("k2"); s.clock.Add(20_000); s.put("n", mib) }, mib, "k1 k3"},
		{"what is being read stays", func(s *store) { s.get("k0") }, mib, "k1"},
		{"the end of a chain goes first", func(s *store) {
			var out []wire.Result[wire.ReplicaList]
			req := wire.KeysRequest{Tenant: "default"}
			for i := range 16 {
				req.Keys = append(req.Keys, fmt.Sprintf("k%d", i))
			}
			s.BatchGetReplicaList(&req, &out)
			s.clock.Add(20_000)
		}, 2 * mib, "k14 k15"},
		{"everything", nil, 16 * mib, "k0 k1 k2 k3 k4 k5 k6 k7 k8 k9 k10 k11 k12 k13 k14 k15"},
		{"nothing for what can never fit", nil, 16*mib + 1, ""},
		{"a probe only helps while there is something else", func(s *store) {
			for i := range 14 {
				s.exists(fmt.Sprintf("k%d", i))
			}
			s.put("n1", mib)
			s.put("n2", mib)
			s.get("n1")
			s.get("n2")
		}, mib, "k0 k14 k15"},
	} {
		for _, kind := range []string{"built in", "lru"} {
			t.Run(tc.name+", "+kind, func(t *testing.T) {
				s := newStore(t, func(o *Options) {
					if kind != "built in" {
						o.Policies = policies(kind)
					}
				})
				s.mount(0, 16*mib, clientA)
				s.fill(16)
				s.check()
				if tc.prepare != nil {
					tc.prepare(s)
				}
				_, code := s.start(clientA, "new", tc.size)
				if tc.want == "" {
					s.must("put", code, wire.ErrNoAvailableHandle)
				} else {
					s.must("put", code, wire.OK)
				}
				s.check()
				if got := s.missing(16); got != tc.want {
					t.Errorf("gone: %s, want %s", got, tc.want)
				}
			})
		}
	}
}

// Probes must not freeze eviction (S19).
func TestProbesDoNotFreezeEviction(t *testing.T) {
	for _, tc := range []struct {
		probes string
		want   wire.ErrorCode
	}{
		{"capped", wire.OK}, {"none", wire.OK}, {"upstream", wire.ErrNoAvailableHandle},
	} {
		t.Run(tc.probes, func(t *testing.T) {
			s := newStore(t, func(o *Options) { o.Config.ProbeLease, o.Config.LeaseTTL = tc.probes, 5*time.Second })
			s.mount(0, 64*mib, clientA)
			s.fill(61)
			for range 5 {
				for i := range 61 {
					s.exists(fmt.Sprintf("k%d", i))
				}
				s.pass(1000)
				s.ping(clientA)
			}
			_, code := s.start(clientA, "new", 5*mib)
			s.must("put", code, tc.want)
			if tc.want != wire.OK {
				r := s.Stats().Eviction
				if r.Evicted != 0 || r.Objects != 61 || r.Leased != 61 || r.Need != 5*mib || r.TotalFree != 3*mib {
					t.Errorf("report: %+v", r)
				}
				if want := "0 of 61 objects evicted: 61 leased"; !strings.HasPrefix(r.String(), want) {
					t.Errorf("report %q does not begin with %q", r, want)
				}
			}
			s.check()
		})
	}
}

func TestPinsUnderPressure(t *testing.T) {
	t.Run("all hard-pinned", func(t *testing.T) {
		s := newStore(t, nil)
		s.mount(0, 16*mib, clientA)
		s.fill(16, withHardPin)
		_, code := s.start(clientA, "new", 1)
		s.must("put of a byte", code, wire.ErrNoAvailableHandle)
		if r := s.Stats().Eviction; r.HardPinned != 16 {
			t.Errorf("report: %+v", r)
		}
		s.must("remove", s.del("k3", false), wire.OK)
		_, code = s.start(clientA, "new", mib)
		s.must("put after a removal", code, wire.OK)
		s.check()
	})
	t.Run("soft pins go last", func(t *testing.T) {
		s := newStore(t, nil)
		s.mount(0, 16*mib, clientA)
		s.fill(8, withSoftPin(0))
		for i := 8; i < 16; i++ {
			s.put(fmt.Sprintf("k%d", i), mib)
		}
		if got := s.Counters().SoftPinnedKeys.Load(); got != 8 {
			t.Fatalf("%d soft pins", got)
		}
		for i := range 8 {
			s.put(fmt.Sprintf("n%d", i), mib, withHardPin)
		}
		if got := s.missing(16); got != "k8 k9 k10 k11 k12 k13 k14 k15" {
			t.Errorf("gone: %s", got)
		}
		s.put("n8", mib)
		if got := s.missing(8); got != "k0" {
			t.Errorf("gone: %s", got)
		}
		s.check()
	})
	t.Run("soft pins hold if the config says so", func(t *testing.T) {
		s := newStore(t, func(o *Options) { o.Config.EvictSoftPinned = false })
		s.mount(0, 16*mib, clientA)
		s.fill(16, withSoftPin(60_000))
		_, code := s.start(clientA, "new", mib)
		s.must("put", code, wire.ErrNoAvailableHandle)
		s.ping(clientA)
		s.clock.Add(5000)
		s.ping(clientA)
		for range 6 {
			s.pass(9990)
			s.ping(clientA)
		}
		if got := s.Counters().SoftPinnedKeys.Load(); got != 0 {
			t.Errorf("%d soft pins after their time", got)
		}
		_, code = s.start(clientA, "new", mib)
		s.must("put after the pins", code, wire.OK)
		s.check()
	})
	t.Run("upsert ends a soft pin", func(t *testing.T) {
		s := newStore(t, nil)
		s.mount(0, 16*mib, clientA)
		s.put("k", 100, withSoftPin(0))
		s.upsert(clientA, "k", 200)
		s.must("end", s.end(clientA, "k"), wire.OK)
		if got := s.Counters().SoftPinnedKeys.Load(); got != 1 {
			t.Errorf("preserve: %d soft pins", got)
		}
		s.upsert(clientA, "k", 200, func(c *wire.ReplicateConfig) { c.SoftPin = wire.SoftPinDisable })
		s.must("end", s.end(clientA, "k"), wire.OK)
		if got := s.Counters().SoftPinnedKeys.Load(); got != 0 {
			t.Errorf("disable: %d soft pins", got)
		}
		s.check()
	})
}

func TestGroupIsEvictedWhole(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, 16*mib, clientA)
	s.fill(4, inGroup("grp"))
	for i := 4; i < 16; i++ {
		s.put(fmt.Sprintf("k%d", i), mib)
	}
	s.get("k3") // one member is read: all stay
	s.put("n1", mib)
	if got := s.missing(16); got != "k4" {
		t.Errorf("gone while a member is read: %s", got)
	}
	s.clock.Add(20_000)
	for i := 5; i < 16; i++ {
		s.get(fmt.Sprintf("k%d", i))
	}
	s.clock.Add(20_000)
	s.put("n2", mib) // n1 is older than the reads, the group older still
	s.put("n3", mib)
	if got := s.missing(16); got != "k0 k1 k2 k3 k4" {
		t.Errorf("gone: %s", got)
	}
	s.check()
}

// A store that is merely full loses nothing to the background; once puts need eviction, it keeps some room.
func TestFreeReserveOnlyUnderDemand(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, 128*mib, clientA)
	s.fill(128)
	s.pass(100)
	if got := s.missing(128); got != "" {
		t.Errorf("a full store lost %s", got)
	}
	s.put("n", mib)
	s.pass(100)
	if free, _ := s.freeSpace(); free < 128*mib/50 {
		t.Errorf("%d bytes free after a put needed eviction, want 2 %% of the store", free)
	}
	s.check()
}

// With mixed sizes on several segments there may be enough room, but nowhere in one piece.
func TestEvictionMakesOnePiece(t *testing.T) {
	s := newStore(t, nil)
	for n := range 4 {
		s.mount(n, 16*mib, clientA)
	}
	for i := range 4 * 16 * 4 {
		s.put(fmt.Sprintf("s%d", i), mib/4)
	}
	for i := range 3 {
		rs, code := s.start(clientA, fmt.Sprintf("big%d", i), 10*mib)
		s.must("put of 10 MiB", code, wire.OK)
		if len(rs) != 1 {
			t.Fatalf("replicas: %+v", rs)
		}
	}
	s.check()
	if left := s.Counters().Keys.Load(); left < 80 {
		t.Errorf("%d of 256 small objects are left after making 30 MiB of 64 MiB", left-3)
	}
}

// Upstream's arithmetic: above 90 % a round evicts 5 % of the objects and what is above the watermark.
func TestWatermarkMode(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Config.EvictionMode = "watermark" })
	s.mount(0, 64*mib, clientA)
	s.put("hard", mib, withHardPin)
	for i := range 3 {
		s.put(fmt.Sprintf("soft%d", i), mib, withSoftPin(0))
	}
	s.fill(54)
	s.get("k0")
	s.pass(10)
	// 58 MiB of 64: base 57, target 0.05625 → 4.
	if got := s.missing(54); got != "k1 k2 k3 k4" {
		t.Errorf("gone: %s, want the four oldest that are neither pinned nor leased", got)
	}
	s.pass(10)
	if got := s.missing(54); got != "k1 k2 k3 k4" {
		t.Errorf("gone below the watermark: %s", got)
	}
	// A put without room fails; the next round makes room although the store is below the watermark.
	_, code := s.start(clientA, "new", 16*mib)
	s.must("put without room", code, wire.ErrNoAvailableHandle)
	s.pass(10)
	if got := s.Counters().EvictionSuccesses.Load(); got != 2 {
		t.Errorf("%d rounds evicted something, want 2", got)
	}
	// But one that can never fit starts nothing.
	evicted := s.Counters().EvictedKeys.Load()
	_, code = s.start(clientA, "new", 65*mib)
	s.must("put that can never fit", code, wire.ErrNoAvailableHandle)
	s.pass(10)
	if got := s.Counters().EvictedKeys.Load(); got != evicted {
		t.Errorf("%d objects were evicted for a put that can never fit", got-evicted)
	}
	s.check()
}

// Rounded sizes count: with 1 MiB + 1 byte each object takes 1.125 MiB, and the watermark sees it.
func TestWatermarkCountsRoundedBytes(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Config.EvictionMode = "watermark" })
	s.mount(0, 64*mib, clientA)
	for i := range 80 {
		_, code := s.start(clientA, fmt.Sprintf("k%d", i), mib+1)
		s.must(fmt.Sprintf("put %d", i), code, wire.OK)
		s.must("end", s.end(clientA, fmt.Sprintf("k%d", i)), wire.OK)
		s.pass(10)
	}
	s.check()
}

// A segment that writers prefer is full.
func TestPressureOnOneSegment(t *testing.T) {
	t.Run("spill while others have room", func(t *testing.T) {
		s := newStore(t, nil)
		s.mount(0, 16*mib, clientA)
		s.mount(1, 64*mib, clientA)
		s.fill(16, preferred("node0:1"))
		for i := range 8 {
			rs := s.put(fmt.Sprintf("spilled%d", i), mib, preferred("node0:1"))
			if rs[0].Endpoint != "10.0.0.1:15001" {
				t.Errorf("put %d without room went to %s", i, rs[0].Endpoint)
			}
			s.pass(50)
		}
		if got := s.missing(16); got != "" {
			t.Errorf("gone although there is room: %s", got)
		}
		s.check()
	})
	t.Run("spill while the store is short of room", func(t *testing.T) {
		s := newStore(t, func(o *Options) { o.Config.FreeReserve = 0 })
		s.mount(0, 16*mib, clientA)
		s.mount(1, 64*mib, clientA)
		for i := range 64 { // the oldest, so the next victims
			s.put(fmt.Sprintf("other%d", i), mib, preferred("node1:1"))
		}
		s.fill(16, preferred("node0:1"))
		rs := s.put("spilled", mib, preferred("node0:1"))
		if rs[0].Endpoint != "10.0.0.1:15001" {
			t.Errorf("the first put without room went to %s", rs[0].Endpoint)
		}
		s.pass(50)
		rs = s.put("next", mib, preferred("node0:1"))
		if rs[0].Endpoint != "10.0.0.0:15001" {
			t.Errorf("the next one went to %s", rs[0].Endpoint)
		}
		if got := s.missing(16); got != "k0" {
			t.Errorf("gone: %s", got)
		}
		s.check()
	})
	t.Run("evict", func(t *testing.T) {
		s := newStore(t, func(o *Options) { o.Config.PreferredFull = "evict" })
		s.mount(0, 16*mib, clientA)
		s.mount(1, 64*mib, clientA)
		s.fill(16, preferred("node0:1"))
		rs := s.put("new", mib, preferred("node0:1"))
		if rs[0].Endpoint != "10.0.0.0:15001" || s.missing(16) != "k0" {
			t.Errorf("went to %s, gone: %s", rs[0].Endpoint, s.missing(16))
		}
		s.check()
	})
	t.Run("a copy there goes before an only copy", func(t *testing.T) {
		s := newStore(t, func(o *Options) { o.Config.PreferredFull = "evict" })
		s.mount(0, 16*mib, clientA)
		s.mount(1, 64*mib, clientA)
		s.fill(16, replicas(2))
		s.put("new", mib, preferred("node0:1"))
		if got := s.missing(16); got != "" {
			t.Errorf("gone: %s, though each had a second replica", got)
		}
		if list, _ := s.look("k0"); len(list.Replicas) != 1 || list.Replicas[0].Endpoint != "10.0.0.1:15001" {
			t.Errorf("k0: %+v", list.Replicas)
		}
		s.check()
	})
}
