package master

import (
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// What each call answers in each state of a key (scenario S21).
func TestCallsInEachState(t *testing.T) {
	states := map[string]func(*store){
		"absent":     func(*store) {},
		"processing": func(s *store) { s.start(clientA, "k", 100) },
		"complete":   func(s *store) { s.put("k", 100) },
		"leased":     func(s *store) { s.put("k", 100); s.get("k") },
		"probed":     func(s *store) { s.put("k", 100); s.exists("k") },
		"lease over": func(s *store) { s.put("k", 100); s.get("k"); s.pass(10_000) },
	}
	for _, tc := range []struct {
		call string
		do   func(*store) wire.ErrorCode
		want map[string]wire.ErrorCode // else OK
	}{
		{"get", func(s *store) wire.ErrorCode { _, c := s.get("k"); return c },
			map[string]wire.ErrorCode{"absent": wire.ErrObjectNotFound, "processing": wire.ErrReplicaIsNotReady}},
		{"remove", func(s *store) wire.ErrorCode { return s.del("k", false) },
			map[string]wire.ErrorCode{"absent": wire.ErrObjectNotFound, "processing": wire.ErrReplicaIsNotReady, "leased": wire.ErrObjectHasLease, "probed": wire.ErrObjectHasLease}},
		{"remove by force", func(s *store) wire.ErrorCode { return s.del("k", true) },
			map[string]wire.ErrorCode{"absent": wire.ErrObjectNotFound, "processing": wire.ErrReplicaIsNotReady}},
		{"put", func(s *store) wire.ErrorCode { _, c := s.start(clientB, "k", 100); return c },
			map[string]wire.ErrorCode{"processing": wire.ErrObjectAlreadyExists, "complete": wire.ErrObjectAlreadyExists, "leased": wire.ErrObjectAlreadyExists, "probed": wire.ErrObjectAlreadyExists, "lease over": wire.ErrObjectAlreadyExists}},
		{"upsert", func(s *store) wire.ErrorCode { _, c := s.upsert(clientB, "k", 100); return c }, nil},
		{"end", func(s *store) wire.ErrorCode { return s.end(clientA, "k") }, map[string]wire.ErrorCode{"absent": wire.ErrObjectNotFound}},
		{"revoke", func(s *store) wire.ErrorCode { return s.revokePut(clientA, "k") },
			map[string]wire.ErrorCode{"absent": wire.ErrObjectNotFound, "complete": wire.ErrInvalidWrite, "leased": wire.ErrInvalidWrite, "probed": wire.ErrInvalidWrite, "lease over": wire.ErrInvalidWrite}},
	} {
		for state, prepare := range states {
			t.Run(tc.call+" when "+state, func(t *testing.T) {
				s := newStore(t, nil)
				s.mount(0, mib, clientA)
				prepare(s)
				s.must(tc.call, tc.do(s), tc.want[state])
				s.check()
			})
		}
	}
}

func TestExistIsTrueOnlyForReadable(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.put("k", 100)
	s.start(clientA, "p", 100)
	var out []wire.Result[bool]
	s.BatchExistKey(&wire.KeysRequest{Keys: []string{"k", "p", "none", "k"}, Tenant: "default"}, &out)
	for i, want := range []bool{true, false, false, true} {
		if out[i].Code != wire.OK || out[i].Value != want {
			t.Errorf("BatchExistKey[%d] = %+v, want %v", i, out[i], want)
		}
	}
	if s.exists("p") || s.exists("none") || !s.exists("k") {
		t.Error("ExistKey differs from BatchExistKey")
	}
}

// Bytes of an object that is being read are not given to a writer, however the object went away (S20).
func TestLeasedSpaceIsNotReused(t *testing.T) {
	const size = 60 << 10
	for name, drop := range map[string]func(s *store){
		"removed by force": func(s *store) { s.must("remove", s.del("k", true), wire.OK) },
		"replaced":         func(s *store) { _, c := s.upsert(clientA, "k", 1000); s.must("upsert", c, wire.OK) },
		"cleared with all": func(s *store) {
			if n := s.RemoveEverything(t.Context(), "", true); n != 1 {
				s.Fatalf("removed %d", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, func(o *Options) { o.Config.LeaseTTL = 500 * time.Millisecond })
			s.mount(0, 64<<10, clientA)
			s.put("k", size)
			s.get("k")
			drop(s)
			s.check()
			_, code := s.start(clientA, "new", size)
			s.must("put while the old bytes are read", code, wire.ErrNoAvailableHandle)
			s.clock.Add(499)
			_, code = s.start(clientA, "new", size)
			s.must("put 1 ms before the lease ends", code, wire.ErrNoAvailableHandle)
			s.clock.Add(2)
			if name == "replaced" {
				s.must("revoke", s.revokePut(clientA, "k"), wire.OK)
			}
			_, code = s.start(clientA, "new", size)
			s.must("put after the lease", code, wire.OK)
			s.check()
		})
	}
}

func TestLeaseEndsAndCountsFromTheLastRead(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.put("k", 100)
	s.get("k")
	s.clock.Add(9000)
	s.get("k")
	s.clock.Add(9000)
	s.must("remove within the second lease", s.del("k", false), wire.ErrObjectHasLease)
	s.clock.Add(1000)
	s.must("remove after it", s.del("k", false), wire.OK)
}

func TestQueryingKeysGrantsNoLease(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.put("k", 100)
	if _, code := s.look("k"); code != wire.OK {
		t.Fatal(code)
	}
	if _, code := s.DescribeKey("default", "k"); code != wire.OK {
		t.Fatal(code)
	}
	s.must("remove", s.del("k", false), wire.OK)
}

func TestGroupsAreLeasedTogether(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	for _, k := range []string{"g1", "g2", "g3"} {
		s.put(k, 100, inGroup("grp"))
	}
	s.put("alone", 100)
	s.get("g1")
	s.must("remove of another member", s.del("g2", false), wire.ErrObjectHasLease)
	s.must("remove of a stranger", s.del("alone", false), wire.OK)
	// Less than half of the lease is gone: a second read renews its own object only.
	s.clock.Add(4000)
	s.get("g1")
	s.clock.Add(6000)
	s.must("remove of another member after its lease", s.del("g2", false), wire.OK)
	s.must("remove of the one that was read again", s.del("g1", false), wire.ErrObjectHasLease)
	// With half or less left, all are renewed.
	s.get("g1")
	s.clock.Add(9999)
	s.must("remove of a member", s.del("g3", false), wire.ErrObjectHasLease)
	s.check()
	s.clock.Add(1)
	s.must("remove of g3", s.del("g3", false), wire.OK)
	s.must("remove of g1", s.del("g1", false), wire.OK)
	if n := len(s.groups.byName); n != 0 {
		t.Errorf("%d groups are left without members", n)
	}
	s.check()
}

func TestBatchGetKeepsOrderAndLeases(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, 8*mib, clientA)
	req := wire.KeysRequest{Tenant: "default"}
	const n = 700 // more than one piece
	for i := range n {
		k := fmt.Sprintf("key-%d", i)
		if i%3 != 0 {
			s.put(k, uint64(1+i))
		}
		req.Keys = append(req.Keys, k)
	}
	var out []wire.Result[wire.ReplicaList]
	for range 2 { // the second time into reused answers
		s.BatchGetReplicaList(&req, &out)
		if len(out) != n {
			t.Fatalf("%d answers to %d keys", len(out), n)
		}
		for i, r := range out {
			if i%3 == 0 {
				s.must(req.Keys[i], r.Code, wire.ErrObjectNotFound)
			} else if r.Code != wire.OK || len(r.Value.Replicas) != 1 || r.Value.Replicas[0].Size != uint64(1+i) {
				t.Fatalf("%s: %+v", req.Keys[i], r)
			}
		}
	}
	s.must("remove", s.del("key-1", false), wire.ErrObjectHasLease)
	c := s.Counters()
	if c.BatchGetReplicaList.Requests.Load() != 2 || c.BatchGetReplicaList.Items.Load() != 2*n || c.BatchGetReplicaList.PartialSuccesses.Load() != 2 {
		t.Errorf("counters of the batch call: %d calls, %d items, %d partial", c.BatchGetReplicaList.Requests.Load(), c.BatchGetReplicaList.Items.Load(), c.BatchGetReplicaList.PartialSuccesses.Load())
	}
}
