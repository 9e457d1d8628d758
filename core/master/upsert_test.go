package master

import (
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func TestUpsert(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	rs, code := s.upsert(clientA, "k", 100)
	s.must("upsert of a new key", code, wire.OK)
	_, code = s.start(clientB, "k", 100)
	s.must("put meanwhile", code, wire.ErrObjectAlreadyExists)
	s.must("end", s.end(clientA, "k"), wire.OK)
	// Same size, nobody reads: in place.
	again, code := s.upsert(clientB, "k", 100)
	s.must("upsert of the same size", code, wire.OK)
	if len(again) != 1 || again[0].ID != rs[0].ID || again[0].Address != rs[0].Address || again[0].Status != wire.StatusProcessing {
		t.Errorf("in place: %+v, before %+v", again, rs)
	}
	_, code = s.get("k")
	s.must("get during the rewrite", code, wire.ErrReplicaIsNotReady)
	s.must("end by the first writer", s.end(clientA, "k"), wire.ErrIllegalClient)
	s.must("end", s.end(clientB, "k"), wire.OK)
	s.check()
	// Another size: new bytes, and the old ones are held.
	more, code := s.upsert(clientA, "k", 5000)
	s.must("upsert of another size", code, wire.OK)
	if more[0].ID == rs[0].ID || more[0].Address == rs[0].Address || more[0].Size != 5000 {
		t.Errorf("another size: %+v", more)
	}
	s.check()
	s.must("revoke", s.revokePut(clientA, "k"), wire.OK)
	if s.exists("k") {
		t.Error("a revoked upsert left something")
	}
	s.check()
}

func TestUpsertWhileRead(t *testing.T) {
	for _, mode := range []string{"unleased", "always"} {
		t.Run(mode, func(t *testing.T) {
			s := newStore(t, func(o *Options) { o.Config.UpsertInPlace = mode })
			s.mount(0, 4096, clientA)
			old := s.put("k", 2048)
			s.get("k")
			rs, code := s.upsert(clientA, "k", 2048)
			s.must("upsert", code, wire.OK)
			if inPlace := rs[0].Address == old[0].Address; inPlace != (mode == "always") {
				t.Errorf("in place: %v", inPlace)
			}
			s.must("end", s.end(clientA, "k"), wire.OK)
			s.check()
			s.get("k")
			// No room for a copy beside: in place all the same, as upstream.
			rs2, code := s.upsert(clientA, "k", 2048)
			s.must("upsert without room", code, wire.OK)
			if rs2[0].Address != rs[0].Address {
				t.Errorf("%x, want %x", rs2[0].Address, rs[0].Address)
			}
			s.must("end", s.end(clientA, "k"), wire.OK)
			s.check()
		})
	}
}

func TestUpsertPushesAnUnfinishedWriteAside(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Config.ClientTTL = time.Hour })
	s.mount(0, mib, clientA)
	old, _ := s.start(clientA, "k", 1000)
	rs, code := s.upsert(clientB, "k", 1000)
	s.must("upsert", code, wire.OK)
	if rs[0].Address == old[0].Address {
		t.Error("the bytes of the first writer were handed out")
	}
	s.must("late end", s.end(clientA, "k"), wire.ErrIllegalClient)
	s.must("end", s.end(clientB, "k"), wire.OK)
	s.check()
	if got := s.Counters().QuarantinedBytes.Load(); got != 1024 {
		t.Errorf("%d bytes are held", got)
	}
	s.pass(600_001)
	if got := s.Counters().QuarantinedBytes.Load(); got != 0 {
		t.Errorf("%d bytes are held after the release timeout", got)
	}
}

func TestUpsertKeepsWhatTheObjectIs(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.put("k", 1000, withHardPin, withSoftPin(60_000), inGroup("g"))
	_, code := s.upsert(clientA, "k", 1000, inGroup("other"))
	s.must("change of the group", code, wire.ErrInvalidParams)
	s.must("same group", func() wire.ErrorCode { _, c := s.upsert(clientA, "k", 2000, inGroup("g")); return c }(), wire.OK)
	s.must("end", s.end(clientA, "k"), wire.OK)
	d, _ := s.DescribeKey("default", "k")
	if !d.HardPin || d.SoftPinMS != t0+60_000 || d.Group != "g" || d.Size != 2000 {
		t.Errorf("after an upsert of another size: %+v", d)
	}
	s.check()
}

// A failed upsert leaves the old value, where upstream loses it.
func TestUpsertWithoutRoomKeepsTheOldValue(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.put("k", 1000, withHardPin)
	_, code := s.upsert(clientA, "k", 2*mib)
	s.must("upsert", code, wire.ErrNoAvailableHandle)
	if list, code := s.get("k"); code != wire.OK || list.Replicas[0].Size != 1000 {
		t.Errorf("get: %v %+v", code, list)
	}
	s.check()
}

func TestBatchUpsert(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.put("a", 100)
	var out []wire.Result[[]wire.Replica]
	s.BatchUpsertStart(&wire.BatchPutStartRequest{Client: clientA, Keys: []string{"a", "b", ""}, Lengths: []uint64{100, 50, 1}, Config: config(), Tenant: "default"}, &out)
	for i, want := range []wire.ErrorCode{wire.OK, wire.OK, wire.ErrInvalidParams} {
		s.must("start", out[i].Code, want)
	}
	var ends []wire.Result[wire.Void]
	s.BatchUpsertEnd(&wire.BatchPutEndRequest{Client: clientA, Metas: []wire.ObjectMeta{{Key: "a"}}, Tenant: "default"}, &ends)
	s.must("end", ends[0].Code, wire.OK)
	s.BatchUpsertRevoke(&wire.BatchPutRevokeRequest{Client: clientA, Keys: []string{"b", "a"}, Tenant: "default"}, &ends)
	s.must("revoke", ends[0].Code, wire.OK)
	s.must("revoke of a finished one", ends[1].Code, wire.ErrInvalidWrite)
	s.check()
}
