package master

import (
	"testing"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func TestPutGetRemove(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, 64*mib, clientA)
	rs, code := s.start(clientA, "k1", 1000)
	s.must("PutStart", code, wire.OK)
	if len(rs) != 1 || rs[0].ID != 1 || rs[0].Status != wire.StatusProcessing || rs[0].Size != 1000 || rs[0].Endpoint != "10.0.0.0:15001" || rs[0].Protocol != "tcp" || rs[0].Address != 1<<40 {
		t.Fatalf("PutStart: %+v", rs)
	}
	_, code = s.start(clientA, "k1", 1000)
	s.must("PutStart again", code, wire.ErrObjectAlreadyExists)
	if s.exists("k1") {
		t.Error("exists before its end")
	}
	_, code = s.get("k1")
	s.must("get before its end", code, wire.ErrReplicaIsNotReady)
	s.must("remove before its end", s.del("k1", true), wire.ErrReplicaIsNotReady)
	s.must("end by another client", s.end(clientB, "k1"), wire.ErrIllegalClient)
	s.must("end", s.end(clientA, "k1"), wire.OK)
	s.must("end again", s.end(clientA, "k1"), wire.OK)
	s.must("revoke after end", s.revokePut(clientA, "k1"), wire.ErrInvalidWrite)
	if !s.exists("k1") {
		t.Error("does not exist")
	}
	list, code := s.get("k1")
	s.must("get", code, wire.OK)
	if len(list.Replicas) != 1 || list.Replicas[0].Status != wire.StatusComplete || list.LeaseTTLMS != 10000 || list.Checksum.OK {
		t.Fatalf("get: %+v", list)
	}
	s.check()
	s.must("remove while leased", s.del("k1", false), wire.ErrObjectHasLease)
	s.must("remove by force", s.del("k1", true), wire.OK)
	s.must("remove again", s.del("k1", true), wire.ErrObjectNotFound)
	s.check()
	if got := s.Counters().QuarantinedBytes.Load(); got != 1024 {
		t.Errorf("a read may be running, but %d bytes wait", got)
	}
	s.pass(10001)
	s.check()
	if got := s.Counters().AllocatedBytes.Load(); got != 0 {
		t.Errorf("%d bytes allocated in an empty store", got)
	}
}
