package master

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// A writer that dies between start and end blocks its key for the discard timeout and its bytes for the
// release timeout; when it wakes up, it is refused (S22).
func TestPutZombie(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Config.ClientTTL = 1 << 40 })
	s.mount(0, 64<<10, clientB)
	old, code := s.start(clientA, "k", 30<<10)
	s.must("put", code, wire.OK)
	s.clock.Add(1000)
	_, code = s.start(clientB, "k", 30<<10)
	s.must("put after 1 s", code, wire.ErrObjectAlreadyExists)
	_, code = s.get("k")
	s.must("get meanwhile", code, wire.ErrReplicaIsNotReady)
	s.clock.Add(30_000)
	rs, code := s.start(clientB, "k", 30<<10)
	s.must("put after 31 s", code, wire.OK)
	if rs[0].Address == old[0].Address {
		t.Error("the new writer got the bytes that the old one may still write to")
	}
	s.check()
	s.must("late end", s.end(clientA, "k"), wire.ErrIllegalClient)
	s.must("late revoke", s.revokePut(clientA, "k"), wire.ErrIllegalClient)
	s.must("end", s.end(clientB, "k"), wire.OK)
	s.must("later end of the first writer", s.end(clientA, "k"), wire.ErrIllegalClient)
	if got := s.Counters().LateWriters.Load(); got != 3 {
		t.Errorf("%d late calls counted, want 3", got)
	}
	_, code = s.start(clientB, "other", 30<<10)
	s.must("put while both ranges are held", code, wire.OK) // evicts k, which nobody reads
	s.must("revoke", s.revokePut(clientB, "other"), wire.OK)
	_, code = s.start(clientB, "whole", 60<<10)
	s.must("put of the whole segment before the release timeout", code, wire.ErrNoAvailableHandle)
	if d, r := s.Counters().Discarded.Load(), s.Counters().DiscardedBytes.Load(); d != 1 || r != 30<<10 {
		t.Errorf("discarded %d, %d bytes", d, r)
	}
	s.clock.Add(600_000 - 31_000)
	s.pass(1)
	_, code = s.start(clientB, "whole", 60<<10)
	s.must("put of the whole segment after the release timeout", code, wire.OK)
	s.check()
}

// A zombie whose key nobody wants is given up after the release timeout.
func TestForgottenPutIsReaped(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Config.ClientTTL = 1 << 40 })
	s.mount(0, mib, clientB)
	s.start(clientA, "k", 1000)
	s.upsert(clientA, "u", 1000)
	s.pass(600_000)
	if n := s.Counters().Keys.Load(); n != 2 {
		t.Fatalf("%d keys just before the release timeout", n)
	}
	s.pass(1)
	if n := s.Counters().Keys.Load(); n != 0 {
		t.Errorf("%d keys after the release timeout", n)
	}
	s.must("late end", s.end(clientA, "k"), wire.ErrObjectNotFound)
	s.check()
	if got := s.Counters().AllocatedBytes.Load(); got != 0 {
		t.Errorf("%d bytes are still allocated", got)
	}
}

// Two writes of one client cannot be told apart on the wire. A revoke may be the old one's, so the bytes
// of the new one, which may be being written, are not used again.
func TestSameClientRetakesItsPut(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Config.ClientTTL = 1 << 40 })
	s.mount(0, 64<<10, clientB)
	s.start(clientA, "k", 20<<10)
	s.clock.Add(31_000)
	_, code := s.start(clientA, "k", 20<<10)
	s.must("put again", code, wire.OK)
	s.must("revoke of one of the two", s.revokePut(clientA, "k"), wire.OK)
	if got := s.Counters().QuarantinedBytes.Load(); got != 40<<10 {
		t.Errorf("%d bytes are held, want those of both writes", got)
	}
	s.check()
}

// 64 concurrent puts of one key: one wins, the others are told that it exists (S25).
func TestConcurrentPutsOfOneKey(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, 64*mib, clientA)
	var won, lost atomic.Int32
	var winner atomic.Value
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			client := wire.UUID{uint64(i) + 1, 7}
			_, code := s.start(client, "k", uint64(1000+i))
			switch code {
			case wire.OK:
				won.Add(1)
				winner.Store(uint64(1000 + i))
				s.get("k")
				s.must("end of the winner", s.end(client, "k"), wire.OK)
			case wire.ErrObjectAlreadyExists:
				lost.Add(1)
				if code := s.end(client, "k"); code != wire.ErrIllegalClient {
					t.Errorf("end by a loser: %v", code)
				}
			default:
				t.Errorf("put: %v", code)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 63 {
		t.Fatalf("%d won, %d lost", won.Load(), lost.Load())
	}
	list, code := s.get("k")
	if code != wire.OK || list.Replicas[0].Size != winner.Load() {
		t.Errorf("get: %v, %+v; the winner put %d bytes", code, list, winner.Load())
	}
	s.check()
}

// A put is refused for the first thing that is wrong with it, in upstream's order.
func TestPutChecks(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.put("there", 100)
	ttl := func(action wire.SoftPinAction, ms uint64) func(*wire.ReplicateConfig) {
		return func(c *wire.ReplicateConfig) {
			c.SoftPin, c.SoftPinTTLMS = action, wire.Opt[uint64]{Value: ms, OK: true}
		}
	}
	for _, tc := range []struct {
		name string
		key  string
		size uint64
		c    func(*wire.ReplicateConfig)
		want wire.ErrorCode
	}{
		{"empty key", "", 1, replicas(1), wire.ErrInvalidParams},
		{"no bytes", "k", 0, replicas(1), wire.ErrInvalidParams},
		{"no replicas", "k", 1, replicas(0), wire.ErrInvalidParams},
		{"no bytes of a key that exists", "there", 0, replicas(1), wire.ErrInvalidParams},
		{"two DFS replicas", "k", 1, func(c *wire.ReplicateConfig) { c.DFSReplicas = 2 }, wire.ErrInvalidParams},
		{"DFS alone", "k", 1, func(c *wire.ReplicateConfig) { c.DFSReplicas, c.Replicas = 1, 0 }, wire.ErrInvalidParams},
		{"DFS", "k", 1, func(c *wire.ReplicateConfig) { c.DFSReplicas = 1 }, wire.ErrDFSServiceUnavailable},
		{"NoF", "k", 1, func(c *wire.ReplicateConfig) { c.NoFReplicas = 1 }, wire.ErrInvalidParams},
		{"ttl without enable", "k", 1, ttl(wire.SoftPinPreserve, 5), wire.ErrInvalidParams},
		{"ttl with disable", "k", 1, ttl(wire.SoftPinDisable, 5), wire.ErrInvalidParams},
		{"ttl above the limit", "k", 1, ttl(wire.SoftPinEnable, 86400001), wire.ErrInvalidParams},
		{"ttl at the limit", "k0", 1, ttl(wire.SoftPinEnable, 86400000), wire.OK},
		{"unknown soft pin action", "k", 1, func(c *wire.ReplicateConfig) { c.SoftPin = 7 }, wire.ErrInvalidParams},
		{"two groups for one key", "k", 1, func(c *wire.ReplicateConfig) {
			c.GroupIDs = wire.Opt[[]string]{Value: []string{"a", "b"}, OK: true}
		}, wire.ErrInvalidParams},
		{"exists", "there", 1, replicas(1), wire.ErrObjectAlreadyExists},
		{"too large for any segment", "k", 2 * mib, replicas(1), wire.ErrNoAvailableHandle},
		{"more replicas than segments", "k1", 1, replicas(1 << 60), wire.OK},
		{"unknown preferred segment", "k2", 1, preferred("nowhere"), wire.OK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, code := s.start(clientA, tc.key, tc.size, tc.c)
			s.must("PutStart", code, tc.want)
		})
	}
	s.check()
	if got := s.Counters().EvictedKeys.Load(); got != 0 {
		t.Errorf("%d objects were evicted for puts that can never fit", got)
	}
}

func TestBatchPut(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.put("there", 100)
	var out []wire.Result[[]wire.Replica]
	req := wire.BatchPutStartRequest{Client: clientA, Keys: []string{"b1", "there", "b2", ""}, Lengths: []uint64{10, 20, 30, 40}, Config: config(), Tenant: "default"}
	s.BatchPutStart(&req, &out)
	for i, want := range []wire.ErrorCode{wire.OK, wire.ErrObjectAlreadyExists, wire.OK, wire.ErrInvalidParams} {
		s.must(req.Keys[i], out[i].Code, want)
	}
	var ends []wire.Result[wire.Void]
	s.BatchPutEnd(&wire.BatchPutEndRequest{Client: clientA, Metas: []wire.ObjectMeta{{Key: "b1"}, {Key: "b2", Checksum: wire.Opt[uint64]{Value: 5, OK: true}}, {Key: "nope"}, {Key: "b1"}}, Type: wire.ReplicaAll, Tenant: "default"}, &ends)
	for i, want := range []wire.ErrorCode{wire.OK, wire.OK, wire.ErrObjectNotFound, wire.OK} {
		s.must("end", ends[i].Code, want)
	}
	if list, _ := s.get("b2"); !list.Checksum.OK || list.Checksum.Value != 5 {
		t.Errorf("checksum: %+v", list.Checksum)
	}
	s.check()
	for name, change := range map[string]func(*wire.BatchPutStartRequest){
		"fewer lengths than keys": func(r *wire.BatchPutStartRequest) { r.Lengths = r.Lengths[:1] },
		"fewer groups than keys": func(r *wire.BatchPutStartRequest) {
			r.Config.GroupIDs = wire.Opt[[]string]{Value: []string{"g"}, OK: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := req
			r.Keys = []string{"n1", "n2"}
			change(&r)
			s.BatchPutStart(&r, &out)
			for i := range r.Keys {
				s.must("PutStart", out[i].Code, wire.ErrInvalidParams)
			}
		})
	}
	c := &s.Counters().BatchPutStart
	if c.Requests.Load() != 3 || c.Failures.Load() != 2 || c.PartialSuccesses.Load() != 1 || c.FailedItems.Load() != 6 {
		t.Errorf("counters: %d requests, %d failures, %d partial, %d failed items", c.Requests.Load(), c.Failures.Load(), c.PartialSuccesses.Load(), c.FailedItems.Load())
	}
}

// 0.3.7 asks for parts and has no client id.
func TestPutOfParts(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	var r wire.Result[[]wire.Replica]
	s.PutStart(&wire.PutStartRequest{Key: "k", Length: 30, Slices: []uint64{10, 20}, Config: config(), Tenant: "default"}, &r)
	s.must("put", r.Code, wire.OK)
	if got := r.Value[0].Slices; len(got) != 2 || got[0] != 10 || got[1] != 20 {
		t.Errorf("parts: %v", got)
	}
	s.must("end", s.end(wire.UUID{}, "k"), wire.OK)
	s.PutStart(&wire.PutStartRequest{Key: "k2", Length: 30, Config: config(), Tenant: "default"}, &r)
	if got := r.Value[0].Slices; len(got) != 0 {
		t.Errorf("a put without parts answers %v", got)
	}
}
