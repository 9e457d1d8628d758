package master

import (
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// spread puts n objects and counts where they went, by segment number.
func (s *store) spread(n int, size uint64, c ...func(*wire.ReplicateConfig)) map[string]int {
	s.Helper()
	out := map[string]int{}
	for i := range n {
		rs := s.put(fmt.Sprintf("s%d-%d", s.Counters().Keys.Load(), i), size, c...)
		for _, r := range rs {
			out[r.Endpoint]++
		}
	}
	return out
}

func node(n int) string { return fmt.Sprintf("10.0.0.%d:15001", n) }

func TestPlacement(t *testing.T) {
	t.Run("replicas lie in different names", func(t *testing.T) {
		s := newStore(t, nil)
		for n := range 4 {
			s.mount(n, 4*mib, clientA)
		}
		for i := range 50 {
			rs, code := s.start(clientA, fmt.Sprintf("k%d", i), 1000, replicas(uint64(1+i%6)))
			s.must("put", code, wire.OK)
			seen := map[string]bool{}
			for _, r := range rs {
				if seen[r.Endpoint] {
					t.Fatalf("two replicas in %s", r.Endpoint)
				}
				seen[r.Endpoint] = true
			}
			if want := min(1+i%6, 4); len(rs) != want {
				t.Fatalf("%d replicas, want %d", len(rs), want)
			}
		}
		if got := s.Counters().PutStartPartial.Load(); got != 16 {
			t.Errorf("%d partial puts, want 16 (5 and 6 replicas on 4 segments)", got)
		}
		s.check()
	})
	t.Run("segments of one name are one place", func(t *testing.T) {
		s := newStore(t, nil)
		a, b := s.segmentOf(0, mib), s.segmentOf(1, mib)
		b.Name = a.Name
		s.must("remount", s.remountSegs(clientA, a, b), wire.OK)
		rs, _ := s.start(clientA, "k", 1000, replicas(2))
		if len(rs) != 1 {
			t.Errorf("%d replicas in one name", len(rs))
		}
		for i := range 60 {
			s.put(fmt.Sprintf("k%d", i), 32<<10)
		}
		if _, used, capacity, ok := s.SegmentUse(a.Name); !ok || capacity != 2*mib || used != 60*32<<10+1024 {
			t.Errorf("use: %d of %d", used, capacity)
		}
		s.check()
	})
	t.Run("preference is soft and ordered", func(t *testing.T) {
		s := newStore(t, nil)
		for n := range 3 {
			s.mount(n, mib, clientA)
		}
		if got := s.spread(20, 100, preferred("node9:1", "node2:1", "node1:1")); got[node(2)] != 20 {
			t.Errorf("placed %v", got)
		}
		rs := s.put("two", 100, preferred("node2:1", "node1:1"), replicas(2))
		if rs[0].Endpoint != node(2) || rs[1].Endpoint != node(1) {
			t.Errorf("placed %v", rs)
		}
		rs = s.put("one name replaces the list", 100, preferred("node2:1"), func(c *wire.ReplicateConfig) { c.PreferredSegment = "node0:1" })
		if rs[0].Endpoint != node(0) {
			t.Errorf("placed %v", rs)
		}
		s.put("half", 600<<10, preferred("node2:1"))
		if rs = s.put("too large there", 600<<10, preferred("node2:1")); rs[0].Endpoint == node(2) {
			t.Errorf("placed %v", rs)
		}
	})
	t.Run("random spreads", func(t *testing.T) {
		s := newStore(t, nil)
		for n := range 4 {
			s.mount(n, 64*mib, clientA)
		}
		for at, n := range s.spread(4000, 100) {
			if n < 850 || n > 1150 {
				t.Errorf("%d of 4000 objects in %s", n, at)
			}
		}
	})
	t.Run("free ratio first", func(t *testing.T) {
		s := newStore(t, func(o *Options) { o.Config.Strategy, o.Config.WarmUp = "free_ratio_first", 0 })
		s.mount(0, 64*mib, clientA)
		s.spread(32, mib)
		s.mount(1, 64*mib, clientA)
		if got := s.spread(30, mib); got[node(1)] != 30 {
			t.Errorf("placed %v while the other was fuller", got)
		}
		s.spread(2, mib)
		if got := s.spread(20, mib); got[node(0)] < 9 || got[node(1)] < 9 {
			t.Errorf("placed %v with equal shares free", got)
		}
	})
	t.Run("local first", func(t *testing.T) {
		s := newStore(t, func(o *Options) { o.Config.Strategy = "local_first" })
		for n := range 4 {
			s.mount(n, mib, wire.UUID{uint64(n) + 1, 1})
		}
		local := func(c *wire.ReplicateConfig) { c.HostID = "host2" }
		if got := s.spread(20, 100, local); got[node(2)] != 20 {
			t.Errorf("placed %v, the writer is on host2", got)
		}
		rs, code := s.start(wire.UUID{4, 1}, "by client", 100)
		s.must("put", code, wire.OK)
		if rs[0].Endpoint != node(3) {
			t.Errorf("placed %v, the writer's segment is on host3", rs)
		}
		s.put("fill", mib-64<<10, preferred("node2:1"))
		s.put("fill2", 60<<10, local)
		got := s.spread(20, 100<<10, local)
		if got[node(2)] != 0 || len(got) < 2 {
			t.Errorf("placed %v once the writer's host was full", got)
		}
	})
	t.Run("free share of the disk first", func(t *testing.T) {
		s := newStore(t, func(o *Options) { o.Config.Strategy, o.Config.Offload = "ssd_free_ratio_first", true })
		s.mount(0, mib, clientA)
		s.mount(1, mib, clientB)
		for _, c := range []wire.UUID{clientA, clientB} {
			var r wire.Result[wire.Void]
			s.MountLocalDiskSegment(&wire.LocalDiskRequest{Client: c, Enable: true}, &r)
			s.ReportSSDCapacity(&wire.ReportSSDCapacityRequest{Client: c, Bytes: 1000}, &r)
			s.must("report", r.Code, wire.OK)
		}
		var r wire.Result[wire.Void]
		s.NotifyOffloadSuccess(&wire.NotifyOffloadRequest{Client: clientA, Tasks: []wire.OffloadTask{{Tenant: "default", Key: "d"}}, Metas: []wire.StorageMeta{{DataSize: 900, TEEndpoint: "x:1"}}}, &r)
		s.must("notify", r.Code, wire.OK)
		if got := s.spread(20, 100); got[node(1)] != 20 {
			t.Errorf("placed %v, the disk of the other is nearly full", got)
		}
		s.check()
	})
	t.Run("rest of a batch follows the first key", func(t *testing.T) {
		s := newStore(t, nil)
		for n := range 4 {
			s.mount(n, mib, clientA)
		}
		req := wire.BatchPutStartRequest{Client: clientA, Config: config(func(c *wire.ReplicateConfig) { c.PreferSameNode = true }), Tenant: "default"}
		for i := range 20 {
			req.Keys, req.Lengths = append(req.Keys, fmt.Sprintf("k%d", i)), append(req.Lengths, 100)
		}
		var out []wire.Result[[]wire.Replica]
		s.BatchPutStart(&req, &out)
		for i := range out {
			if out[i].Value[0].Endpoint != out[0].Value[0].Endpoint {
				t.Fatalf("key %d went to %s, the first to %s", i, out[i].Value[0].Endpoint, out[0].Value[0].Endpoint)
			}
		}
	})
}

// A segment that joins a store with data is not crushed by all new writes.
func TestWarmUp(t *testing.T) {
	for _, strategy := range []string{"random", "free_ratio_first"} {
		t.Run(strategy, func(t *testing.T) {
			s := newStore(t, func(o *Options) { o.Config.Strategy, o.Config.ClientTTL = strategy, time.Hour })
			s.mount(0, 64*mib, clientA)
			s.mount(1, 64*mib, clientA)
			s.spread(60, mib)
			s.mount(2, 64*mib, clientA)
			cold := s.spread(300, 100)[node(2)]
			s.pass(30_000)
			warmer := s.spread(300, 100)[node(2)]
			s.pass(30_000)
			warm := s.spread(300, 100)[node(2)]
			if d := s.SegmentDetails()[2]; d.WarmUp != 1 {
				t.Errorf("warm-up after a minute: %v", d.WarmUp)
			}
			t.Logf("of 300 puts the newcomer took %d, after 30 s %d, after 60 s %d", cold, warmer, warm)
			if strategy == "random" && (cold > 30 || warmer <= cold || warm < 80) {
				t.Errorf("of 300 puts the newcomer took %d, after 30 s %d, after 60 s %d", cold, warmer, warm)
			}
			if strategy == "free_ratio_first" && (cold > 10 || warm < 290) {
				t.Errorf("of 300 puts the newcomer took %d, after 60 s %d", cold, warm)
			}
		})
	}
}

// A segment whose puts fail is avoided for a while, reads of what lies there go elsewhere first (S24).
func TestSickSegment(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Config.ClientTTL = time.Hour })
	s.mount(0, 64*mib, clientA)
	s.mount(1, 64*mib, clientA)
	both := s.put("both", 100, replicas(2))
	for i := range 3 {
		k := fmt.Sprintf("f%d", i)
		s.start(clientA, k, 100, preferred("node0:1"))
		s.must("revoke", s.revokePut(clientA, k), wire.OK)
	}
	if d := s.SegmentDetails()[0]; d.Suspect == "" {
		t.Fatal("three failed puts in a row do not make the segment suspect")
	}
	if got := s.spread(50, 100, preferred("node0:1")); got[node(0)] != 0 {
		t.Errorf("placed %v", got)
	}
	if list, _ := s.get("both"); list.Replicas[0].Endpoint != node(1) || len(list.Replicas) != 2 {
		t.Errorf("a read is sent to %v first; stored as %v", list.Replicas, both)
	}
	s.clock.Add(10_001)
	if got := s.spread(1, 100, preferred("node0:1")); got[node(0)] != 1 {
		t.Errorf("placed %v after the time", got)
	}
	// An operator's mark lasts until it is taken away; the last segment is used all the same.
	s.must("mark", s.SuspectSegment("node0:1", "broken NIC", true), wire.OK)
	s.must("mark", s.SuspectSegment("nowhere", "", true), wire.ErrSegmentNotFound)
	if got := s.spread(20, 100); got[node(0)] != 0 {
		t.Errorf("placed %v", got)
	}
	s.must("unmount", s.unmount(1, clientA), wire.OK)
	if got := s.spread(5, 100); got[node(0)] != 5 {
		t.Errorf("placed %v with no other segment", got)
	}
	s.must("mark", s.SuspectSegment("node0:1", "", false), wire.OK)
	if d := s.SegmentDetails()[0]; d.Suspect != "" {
		t.Errorf("still suspect: %s", d.Suspect)
	}
	s.check()
}

func TestSegmentOfAnyShape(t *testing.T) {
	s := newStore(t, nil)
	g := s.segmentOf(0, 1<<43) // 8 TiB
	g.Base = 0x100000000
	s.must("mount", s.mountSeg(clientA, g), wire.OK)
	s.put("small", 1)
	s.put("large", 1<<42)
	_, code := s.start(clientA, "larger", 1<<43+1)
	s.must("too large", code, wire.ErrNoAvailableHandle)
	s.check()
	for name, change := range map[string]func(*wire.Segment){
		"no base":    func(g *wire.Segment) { g.Base = 0 },
		"no size":    func(g *wire.Segment) { g.Size = 0 },
		"overflow":   func(g *wire.Segment) { g.Base = 1<<64 - 1 },
		"huge":       func(g *wire.Segment) { g.Base, g.Size = 1, 1<<63+1 },
		"wraps to 0": func(g *wire.Segment) { g.Base, g.Size = 1<<63, 1<<63+1 },
	} {
		t.Run(name, func(t *testing.T) {
			g := s.segmentOf(3, mib)
			change(&g)
			s.must("mount", s.mountSeg(clientA, g), wire.ErrInvalidParams)
		})
	}
}
