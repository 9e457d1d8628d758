package master

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func TestPingRemountCycle(t *testing.T) {
	s := newStore(t, nil)
	if got := s.ping(clientA); got != wire.ClientNeedRemount {
		t.Errorf("first ping: %d", got)
	}
	s.must("mount", s.mountSeg(clientA, s.segmentOf(0, mib)), wire.OK)
	if got := s.ping(clientA); got != wire.ClientNeedRemount {
		t.Errorf("ping after a mount: %d", got)
	}
	s.must("remount", s.remountSegs(clientA, s.segmentOf(0, mib)), wire.OK)
	if got := s.ping(clientA); got != wire.ClientOK {
		t.Errorf("ping after a remount: %d", got)
	}
	s.must("remount of nothing", s.remountSegs(clientB), wire.OK)
	if got := s.ping(clientB); got != wire.ClientOK {
		t.Errorf("ping after an empty remount: %d", got)
	}
	if got := s.Counters().ActiveClients.Load(); got != 2 {
		t.Errorf("%d active clients", got)
	}
	s.must("remount of another's segment", s.remountSegs(clientC, s.segmentOf(0, mib)), wire.ErrInvalidParams)
	changed := s.segmentOf(0, 2*mib)
	s.must("remount with another size", s.remountSegs(clientA, changed), wire.ErrInvalidParams)
	s.must("mount again", s.mountSeg(clientA, s.segmentOf(0, mib)), wire.OK)
	s.must("mount of the same by another", s.mountSeg(clientB, s.segmentOf(0, mib)), wire.OK)
	if d := s.SegmentDetails(); len(d) != 1 || d[0].Client != clientA {
		t.Errorf("segments: %+v", d)
	}
	bad := s.segmentOf(5, 0)
	s.must("remount with an invalid segment", s.remountSegs(clientC, s.segmentOf(4, mib), bad), wire.OK)
	if got := s.SegmentNames(); !slices.Equal(got, []string{"node0:1", "node4:1"}) {
		t.Errorf("segments: %v", got)
	}
	s.check()
}

// A client is suspected before it expires; what it holds stays until then.
func TestSuspectedThenExpired(t *testing.T) {
	var lost []string
	s := newStore(t, func(o *Options) {
		o.OnSegmentLost = func(g wire.Segment, c wire.UUID) { lost = append(lost, g.Name) }
	})
	s.mount(0, mib, clientA)
	s.mount(1, mib, clientB)
	s.put("a", 100, preferred("node0:1"))
	s.put("both", 100, replicas(2))
	s.pass(5000)
	s.ping(clientB)
	s.pass(1)
	state := func(id wire.UUID) string {
		for _, c := range s.Clients() {
			if c.ID == id {
				return c.State
			}
		}
		return "unknown"
	}
	if got := state(clientA); got != "suspected" {
		t.Fatalf("silent for 5 s: %s", got)
	}
	if got := s.spread(20, 100); got[node(0)] != 0 {
		t.Errorf("placed %v on the segment of a suspected client", got)
	}
	if _, code := s.get("a"); code != wire.OK {
		t.Errorf("get of what a suspected client holds: %v", code)
	}
	s.pass(4000)
	if got := s.ping(clientA); got != wire.ClientOK || state(clientA) != "ok" {
		t.Errorf("ping of a suspected client: %d, %s", got, state(clientA))
	}
	if got := s.spread(50, 100); got[node(0)] == 0 {
		t.Error("nothing is placed on the segment of a client that came back")
	}
	s.ping(clientB)
	s.pass(9000)
	s.ping(clientB)
	s.pass(1001)
	if got := state(clientA); got != "unknown" {
		t.Fatalf("silent for the TTL: %s", got)
	}
	if !slices.Equal(lost, []string{"node0:1"}) {
		t.Errorf("told of lost segments: %v", lost)
	}
	_, code := s.get("a")
	s.must("get of what it held", code, wire.ErrObjectNotFound)
	if list, code := s.get("both"); code != wire.OK || len(list.Replicas) != 1 || list.Replicas[0].Endpoint != node(1) {
		t.Errorf("get of what had a second replica: %v %+v", code, list)
	}
	s.check()
	if got := s.ping(clientA); got != wire.ClientNeedRemount {
		t.Errorf("ping after expiry: %d", got)
	}
	s.must("remount", s.remountSegs(clientA, s.segmentOf(0, mib)), wire.OK)
	if s.exists("a") {
		t.Error("an object came back with the segment")
	}
	c := s.Counters()
	if c.ClientsExpired.Load() != 1 || c.ClientsSuspected.Load() < 2 || c.SuspectedClients.Load() != 0 {
		t.Errorf("expired %d, suspected %d, now %d", c.ClientsExpired.Load(), c.ClientsSuspected.Load(), c.SuspectedClients.Load())
	}
	s.check()
}

func TestUnmount(t *testing.T) {
	for _, compat := range []bool{false, true} {
		t.Run(fmt.Sprintf("compat_unowned_unmount %v", compat), func(t *testing.T) {
			s := newStore(t, func(o *Options) { o.Config.UnownedUnmount = compat })
			s.mount(0, mib, clientA)
			s.put("k", 100)
			s.must("unmount of nothing", s.unmount(7, clientA), wire.OK)
			if compat {
				s.must("unmount by another", s.unmount(0, clientB), wire.OK)
			} else {
				s.must("unmount by another", s.unmount(0, clientB), wire.ErrIllegalClient)
				if !s.there("k") {
					t.Fatal("an object was destroyed by a stranger")
				}
				s.must("unmount", s.unmount(0, clientA), wire.OK)
			}
			_, code := s.get("k") // before the sweep
			s.must("get", code, wire.ErrObjectNotFound)
			if s.exists("k") {
				t.Error("exists")
			}
			s.Poll()
			s.check()
			if n := s.Counters().Keys.Load(); n != 0 {
				t.Errorf("%d keys", n)
			}
			s.must("unmount again", s.unmount(0, clientA), wire.OK)
		})
	}
}

// The number of a segment is used again, but not for replicas of the old one.
func TestRemountManyTimes(t *testing.T) {
	s := newStore(t, nil)
	for i := range 200 {
		s.mount(i%3, mib, clientA)
		for j := range 20 {
			s.put(fmt.Sprintf("k%d-%d", i, j), 1000, replicas(2))
		}
		s.must("unmount", s.unmount(i%3, clientA), wire.OK)
		if i%7 == 0 {
			s.Poll()
			s.check()
		}
	}
	s.Poll()
	s.check()
	if n := len(*s.registry.numbers.Load()); n > 40 {
		t.Errorf("%d segment numbers after 200 mounts of 3 segments", n)
	}
}

func TestGracefulUnmount(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.mount(1, mib, clientB)
	s.put("k", 100, preferred("node0:1"))
	leave := func(n int, c wire.UUID, ms uint64) wire.ErrorCode {
		var r wire.Result[wire.Void]
		s.GracefulUnmountSegment(&wire.UnmountSegmentRequest{Segment: segmentID(n), Client: c, GraceMS: ms}, &r)
		return r.Code
	}
	s.must("by a client without segments", leave(0, clientC, 500), wire.ErrSegmentNotFound)
	s.must("of another's segment", leave(0, clientB, 500), wire.ErrInvalidParams)
	s.must("of one that does not exist", leave(9, clientB, 500), wire.ErrInvalidParams)
	s.must("leave", leave(0, clientA, 500), wire.OK)
	status := func() wire.Result[wire.SegmentStatus] {
		var r wire.Result[wire.SegmentStatus]
		s.QuerySegmentStatusByID(&wire.IDRequest{ID: segmentID(0)}, &r)
		return r
	}
	if got := status(); got.Value != wire.SegmentGracefullyUnmounting {
		t.Errorf("status: %+v", got)
	}
	if got := s.spread(20, 100, preferred("node0:1")); got[node(0)] != 0 {
		t.Errorf("placed %v", got)
	}
	_, code := s.get("k")
	s.must("get during the grace period", code, wire.OK)
	s.must("mount during it", s.mountSeg(clientA, s.segmentOf(0, mib)), wire.ErrUnavailableInCurrentStatus)
	s.pass(499)
	s.must("status", status().Code, wire.OK)
	s.pass(1)
	s.must("status after it", status().Code, wire.ErrSegmentNotFound)
	s.check()
	_, code = s.get("k")
	s.must("get after it", code, wire.ErrObjectNotFound)
}

func TestQueries(t *testing.T) {
	s := newStore(t, nil)
	g := s.segmentOf(0, mib)
	g.TEEndpoint = "[fe80::1]:15001"
	s.must("mount", s.mountSeg(clientA, g), wire.OK)
	s.mount(1, mib, clientA)
	s.mount(2, mib, clientB)
	var ips wire.Result[[]wire.Pair[wire.UUID, []string]]
	s.BatchQueryIP(&wire.BatchQueryIPRequest{Clients: []wire.UUID{clientA, clientC, clientB, clientA}}, &ips)
	if got := fmt.Sprint(ips.Value); got != fmt.Sprintf("[{%v [fe80::1 10.0.0.1]} {%v [10.0.0.2]}]", clientA, clientB) {
		t.Errorf("BatchQueryIp: %s", got)
	}
	var st wire.Result[wire.SegmentStatus]
	s.QuerySegmentStatus(&wire.NameRequest{Name: "node1:1"}, &st)
	if st.Code != wire.OK || st.Value != wire.SegmentOK {
		t.Errorf("status: %+v", st)
	}
	s.QuerySegmentStatus(&wire.NameRequest{Name: "nosuch"}, &st)
	s.must("status of no segment", st.Code, wire.ErrSegmentNotFound)
	var ready wire.Result[string]
	if s.ServiceReady(&wire.NoArgs{}, &ready); ready.Value != "2.0.0" {
		t.Errorf("ServiceReady: %+v", ready)
	}
	var v wire.Result[wire.Void]
	s.MountNoFSegment(&wire.MountSegmentRequest{}, &v)
	s.must("NoF", v.Code, wire.ErrUnavailableInCurrentMode)
}

// Pings are answered while shards are held for long, and a join storm expires nobody (S28).
func TestHeartbeatsDoNotWaitForData(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	for i := range s.shards {
		s.shards[i].mu.Lock()
	}
	s.allDomains()[0].mu.Lock()
	done := make(chan wire.ClientStatus)
	go func() { done <- s.ping(clientA) }()
	select {
	case got := <-done:
		if got != wire.ClientOK {
			t.Errorf("ping: %d", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("a ping waits for the object table")
	}
	for i := range s.shards {
		s.shards[i].mu.Unlock()
	}
	s.allDomains()[0].mu.Unlock()
	if t.Failed() {
		<-done
	}

	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			c := wire.UUID{uint64(i), 99}
			g := s.segmentOf(100+i, mib)
			s.must("mount", s.mountSeg(c, g), wire.OK)
			s.ping(c)
			s.must("remount", s.remountSegs(c, g), wire.OK)
		})
	}
	wg.Wait()
	s.pass(9000)
	for i := range 1000 {
		if got := s.ping(wire.UUID{uint64(i), 99}); got != wire.ClientOK {
			t.Fatalf("client %d: %d", i, got)
		}
	}
	s.pass(9000)
	if got := len(s.SegmentNames()); got != 1000 { // the segment of client A, which was silent, is gone
		t.Errorf("%d segments", got)
	}
	s.check()
}
