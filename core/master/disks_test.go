package master

import (
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func offloading(o *Options) { o.Config.Offload, o.Config.ClientTTL = true, time.Hour }

func (s *store) mountDisk(c wire.UUID) {
	s.Helper()
	var r wire.Result[wire.Void]
	s.MountLocalDiskSegment(&wire.LocalDiskRequest{Client: c, Enable: true}, &r)
	s.must("MountLocalDiskSegment", r.Code, wire.OK)
}

func (s *store) offloads(c wire.UUID, enable bool) ([]wire.OffloadTask, wire.ErrorCode) {
	var r wire.Result[[]wire.OffloadTask]
	s.OffloadObjectHeartbeat(&wire.LocalDiskRequest{Client: c, Enable: enable}, &r)
	return r.Value, r.Code
}

func (s *store) onDisk(c wire.UUID, size int64, keys ...string) wire.ErrorCode {
	req := wire.NotifyOffloadRequest{Client: c}
	for _, k := range keys {
		req.Tasks = append(req.Tasks, wire.OffloadTask{Tenant: "default", Key: k})
		req.Metas = append(req.Metas, wire.StorageMeta{DataSize: size, TEEndpoint: "10.0.0.9:16000"})
	}
	var r wire.Result[wire.Void]
	s.NotifyOffloadSuccess(&req, &r)
	return r.Code
}

func TestDiskCallsWithoutOffload(t *testing.T) {
	s := newStore(t, nil)
	var v wire.Result[wire.Void]
	s.MountLocalDiskSegment(&wire.LocalDiskRequest{Client: clientA}, &v)
	s.must("mount", v.Code, wire.ErrUnableOffload)
	s.UnmountLocalDiskSegment(&wire.ClientRequest{Client: clientA}, &v)
	s.must("unmount", v.Code, wire.ErrUnableOffload)
	_, code := s.offloads(clientA, true)
	s.must("heartbeat", code, wire.ErrSegmentNotFound)
	s.ReportSSDCapacity(&wire.ReportSSDCapacityRequest{Client: clientA, Bytes: 5}, &v)
	s.must("report", v.Code, wire.ErrSegmentNotFound)
	s.ReportSSDCapacity(&wire.ReportSSDCapacityRequest{Client: clientA, Bytes: -5}, &v)
	s.must("report of less than nothing", v.Code, wire.ErrInvalidParams)
	var b wire.Result[bool]
	s.PollRemoveAll(&wire.ClientRequest{Client: clientA}, &b)
	s.must("poll", b.Code, wire.ErrSegmentNotFound)
	var p wire.Result[[]wire.OffloadTask]
	s.PromotionObjectHeartbeat(&wire.ClientRequest{Client: clientA}, &p)
	s.must("promotions", p.Code, wire.ErrSegmentNotFound)
}

func TestOffload(t *testing.T) {
	s := newStore(t, offloading)
	s.mount(0, mib, clientA)
	s.mountDisk(clientA)
	s.mountDisk(clientA)
	s.put("k", 1000)
	s.put("gone", 1000)
	s.must("remove of what is queued", s.del("gone", true), wire.OK)
	s.check()
	tasks, code := s.offloads(clientA, true)
	if code != wire.OK || len(tasks) != 1 || tasks[0] != (wire.OffloadTask{Tenant: "default", Key: "k", Size: 1000}) {
		t.Fatalf("tasks: %v %+v", code, tasks)
	}
	if tasks, _ := s.offloads(clientA, true); len(tasks) != 0 {
		t.Errorf("handed out twice: %+v", tasks)
	}
	_, code = s.upsert(clientA, "k", 1000)
	s.must("upsert while a client reads it", code, wire.ErrObjectHasReplicationTask)
	s.must("notify", s.onDisk(clientA, 900, "k"), wire.OK)
	list, code := s.get("k")
	if code != wire.OK || len(list.Replicas) != 2 || list.Replicas[1].Kind != wire.KindLocalDisk || list.Replicas[1].Size != 900 || list.Replicas[1].Client != clientA || list.Replicas[1].Endpoint != "10.0.0.9:16000" {
		t.Fatalf("get: %v %+v", code, list)
	}
	if f := s.Counters(); f.FileReplicas.Load() != 1 || f.MemReplicas.Load() != 1 {
		t.Errorf("objects on disk %d, in memory %d", f.FileReplicas.Load(), f.MemReplicas.Load())
	}
	s.check()
	// Told again with another endpoint and size: that is what counts from then on.
	var v wire.Result[wire.Void]
	s.NotifyOffloadSuccess(&wire.NotifyOffloadRequest{Client: clientA, Tasks: []wire.OffloadTask{{Tenant: "default", Key: "k"}}, Metas: []wire.StorageMeta{{DataSize: 800, TEEndpoint: "moved:1"}}}, &v)
	if list, _ := s.get("k"); list.Replicas[1].Endpoint != "moved:1" || list.Replicas[1].Size != 800 {
		t.Errorf("after a move: %+v", list.Replicas[1])
	}
	// A queued offload does not stop an upsert; a failed one only lets the source go.
	s.put("q", 1000)
	_, code = s.upsert(clientA, "q", 1000)
	s.must("upsert of what is queued", code, wire.OK)
	s.must("end", s.end(clientA, "q"), wire.OK)
	s.offloads(clientA, true)
	s.must("notify of a failure", s.onDisk(clientA, -1, "q"), wire.OK)
	if d, _ := s.DescribeKey("default", "q"); d.Busy != 0 || len(d.Replicas) != 1 {
		t.Errorf("after a failure: %+v", d)
	}
	// Files that the service does not know create their objects.
	s.must("announce", s.onDisk(clientA, 70, "f1", "f2"), wire.OK)
	if list, code := s.get("f1"); code != wire.OK || list.Replicas[0].Kind != wire.KindLocalDisk {
		t.Errorf("announced file: %v %+v", code, list)
	}
	s.must("announce by a client without a disk", s.onDisk(clientB, 70, "f3"), wire.ErrSegmentNotFound)
	s.NotifyOffloadSuccess(&wire.NotifyOffloadRequest{Client: clientA, Tasks: make([]wire.OffloadTask, 2)}, &v)
	s.must("lists of different length", v.Code, wire.ErrInvalidParams)
	s.check()
	// Switching off takes tasks back.
	s.put("off", 1000)
	if tasks, _ := s.offloads(clientA, false); len(tasks) != 0 {
		t.Errorf("handed out while off: %+v", tasks)
	}
	if d, _ := s.DescribeKey("default", "off"); d.Busy != 0 {
		t.Error("a task that was taken back keeps its source busy")
	}
	s.put("off2", 1000)
	if d, _ := s.DescribeKey("default", "off2"); d.Busy != 0 {
		t.Error("an object was queued while offloading was off")
	}
	// The disk goes: what lies there alone goes, too.
	s.UnmountLocalDiskSegment(&wire.ClientRequest{Client: clientA}, &v)
	_, code = s.get("f1")
	s.must("get before the sweep", code, wire.ErrObjectNotFound)
	s.Poll()
	s.check()
	if got := s.Counters().FileReplicas.Load(); got != 0 {
		t.Errorf("%d objects on disk", got)
	}
	if list, code := s.get("k"); code != wire.OK || len(list.Replicas) != 1 {
		t.Errorf("k: %v %+v", code, list)
	}
}

func TestOffloadOnEvict(t *testing.T) {
	for _, force := range []bool{false, true} {
		t.Run(fmt.Sprintf("force %v", force), func(t *testing.T) {
			s := newStore(t, func(o *Options) { offloading(o); o.Config.OffloadEvict, o.Config.OffloadForce = true, force })
			s.mount(0, 16*mib, clientA)
			s.mountDisk(clientA)
			s.fill(16)
			_, code := s.start(clientA, "new", mib)
			s.must("put with everything queued", code, wire.ErrNoAvailableHandle)
			tasks, _ := s.offloads(clientA, true)
			if len(tasks) != 16 {
				t.Fatalf("%d queued", len(tasks))
			}
			s.must("notify", s.onDisk(clientA, int64(mib), "k0", "k1"), wire.OK)
			s.clock.Add(1001)
			_, code = s.start(clientA, "new", mib)
			s.must("put after two are on disk", code, wire.OK)
			if list, code := s.get("k0"); code != wire.OK || list.Replicas[0].Kind != wire.KindLocalDisk {
				t.Errorf("k0: %v %+v", code, list)
			}
			s.check()
		})
	}
	t.Run("no disk, force", func(t *testing.T) {
		s := newStore(t, func(o *Options) { offloading(o); o.Config.OffloadEvict, o.Config.OffloadForce = true, true })
		s.mount(0, 16*mib, clientA)
		s.fill(16)
		s.put("new", mib)
		if got := s.missing(16); got != "k0" {
			t.Errorf("gone: %s", got)
		}
	})
	t.Run("no disk", func(t *testing.T) {
		s := newStore(t, func(o *Options) { offloading(o); o.Config.OffloadEvict = true })
		s.mount(0, 16*mib, clientA)
		s.fill(16)
		_, code := s.start(clientA, "new", mib)
		s.must("put", code, wire.ErrNoAvailableHandle)
		s.check()
	})
}

func TestRemoveAllReachesDisks(t *testing.T) {
	s := newStore(t, offloading)
	s.mount(0, mib, clientA)
	s.mountDisk(clientA)
	s.mountDisk(clientB)
	poll := func(c wire.UUID) bool {
		var b wire.Result[bool]
		s.PollRemoveAll(&wire.ClientRequest{Client: c}, &b)
		return b.Value
	}
	s.must("announce", s.onDisk(clientA, 10, "f"), wire.OK)
	if poll(clientA) {
		t.Error("told to clear for nothing")
	}
	if n := s.RemoveEverything(t.Context(), "default", false); n != 1 {
		t.Errorf("removed %d", n)
	}
	if !poll(clientA) || poll(clientB) || poll(clientA) {
		t.Error("one tenant: not exactly its disk was cleared, once")
	}
	s.RemoveEverything(t.Context(), "", false)
	if !poll(clientA) || !poll(clientB) {
		t.Error("all tenants: not all disks were cleared")
	}
}

func TestPromotion(t *testing.T) {
	s := newStore(t, func(o *Options) {
		offloading(o)
		o.Config.Promotion, o.Config.PromoteAfter = true, 2
	})
	s.mount(0, mib, clientA)
	s.mountDisk(clientA)
	s.must("announce", s.onDisk(clientA, 500, "d", "e"), wire.OK)
	beat := func() []wire.OffloadTask {
		var p wire.Result[[]wire.OffloadTask]
		s.PromotionObjectHeartbeat(&wire.ClientRequest{Client: clientA}, &p)
		return p.Value
	}
	alloc := func(c wire.UUID, key string, size uint64) (wire.Replica, wire.ErrorCode) {
		var r wire.Result[wire.Replica]
		s.PromotionAllocStart(&wire.PromotionAllocRequest{Client: c, Key: key, Tenant: "default", Size: size, PreferredSegments: []string{"node0:1"}}, &r)
		return r.Value, r.Code
	}
	s.get("d")
	if got := beat(); len(got) != 0 {
		t.Errorf("after one read: %+v", got)
	}
	s.get("d")
	s.get("e")
	s.get("e")
	_, code := alloc(clientA, "none", 1)
	s.must("alloc of no key", code, wire.ErrObjectNotFound)
	if got := beat(); len(got) != 1 || got[0].Key != "d" || got[0].Size != 500 {
		t.Fatalf("promotions: %+v", got)
	}
	_, code = alloc(clientB, "d", 500)
	s.must("alloc by another", code, wire.ErrInvalidParams)
	_, code = alloc(clientA, "d", 400)
	s.must("alloc of another size", code, wire.ErrInvalidParams)
	r, code := alloc(clientA, "d", 500)
	if code != wire.OK || r.Kind != wire.KindMemory || r.Status != wire.StatusProcessing {
		t.Fatalf("alloc: %v %+v", code, r)
	}
	s.check()
	_, code = alloc(clientA, "d", 500)
	s.must("alloc again", code, wire.ErrReplicaIsNotReady)
	s.must("remove meanwhile", s.del("d", true), wire.ErrReplicaIsNotReady)
	notify := func(f func(*wire.ObjectTaskRequest, *wire.Result[wire.Void]), c wire.UUID, key string) wire.ErrorCode {
		return s.task(f, key, c)
	}
	s.must("success by another", notify(s.NotifyPromotionSuccess, clientB, "d"), wire.ErrInvalidParams)
	s.must("success", notify(s.NotifyPromotionSuccess, clientA, "d"), wire.OK)
	s.must("success again", notify(s.NotifyPromotionSuccess, clientA, "d"), wire.ErrReplicaIsNotReady)
	if list, _ := s.get("d"); len(list.Replicas) != 2 {
		t.Errorf("after the promotion: %+v", list)
	}
	s.check()
	beat()
	alloc(clientA, "e", 500)
	s.must("failure by another", notify(s.NotifyPromotionFailure, clientB, "e"), wire.ErrInvalidParams)
	s.must("failure", notify(s.NotifyPromotionFailure, clientA, "e"), wire.OK)
	s.must("failure again", notify(s.NotifyPromotionFailure, clientA, "e"), wire.OK)
	s.check()
	if c := s.Counters(); c.PromotionInFlight.Load() != 0 || c.PromotionCompleted.Load() != 1 || c.PromotionFailed.Load() != 1 || c.PromotionRejectedFrequency.Load() == 0 {
		t.Error("counters of promotion")
	}
}

func TestPromotionWaitsForRoom(t *testing.T) {
	s := newStore(t, func(o *Options) {
		offloading(o)
		o.Config.Promotion, o.Config.PromoteAfter = true, 1
	})
	s.mount(0, mib, clientA)
	s.mountDisk(clientA)
	s.put("fill", mib-1000)
	s.offloads(clientA, true)
	s.must("announce", s.onDisk(clientA, 500, "d"), wire.OK)
	s.get("d")
	if got := s.Counters().PromotionRejectedWatermark.Load(); got != 1 {
		t.Fatalf("%d rejected for the watermark", got)
	}
	s.must("remove", s.del("fill", true), wire.OK)
	for range 10 {
		s.pass(500)
	}
	if got := s.Counters().PromotionAdmitted.Load(); got != 1 {
		t.Errorf("%d admitted later", got)
	}
	s.pass(600_001)
	if got := s.Counters().PromotionExpired.Load(); got != 1 {
		t.Errorf("%d expired", got)
	}
	s.check()
}

// Disk replicas on a shared file system: paths as libstdc++'s hash spreads them.
func TestDiskReplica(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Config.FSDir, o.Config.ClientTTL = "/srv/mcfs", time.Hour })
	s.mount(0, mib, clientA)
	for key, path := range map[string]string{"o1": "o/f/o1", "o2": "c/m/o2", "d1": "k/c/d1", "g1": "m/f/g1"} {
		rs, code := s.start(clientA, key, 100)
		s.must("put", code, wire.OK)
		if want := "/srv/mcfs/mooncake_cluster/" + path; len(rs) != 2 || rs[1].Path != want || rs[1].Kind != wire.KindDisk || rs[1].Size != 100 {
			t.Errorf("%s: %+v, want path %s", key, rs, want)
		}
	}
	if got := s.diskPath([]byte("a/b:c*d?e\"f<g>h|i\\j\x00k")); got[len(got)-21:] != "a_b_c_d_e_f_g_h_i_j_k" {
		t.Errorf("%s", got)
	}
	s.must("end of all", s.end(clientA, "o1"), wire.OK)
	if list, code := s.get("o1"); code != wire.OK || len(list.Replicas) != 1 {
		t.Errorf("before the file is there: %v %+v", code, list)
	}
	s.must("remove while the file is written", s.del("o1", true), wire.ErrReplicaIsNotReady)
	s.must("end of the file", s.endType(clientA, "o1", wire.ReplicaDisk), wire.OK)
	if list, _ := s.get("o1"); len(list.Replicas) != 2 {
		t.Errorf("%+v", list)
	}
	s.must("end of memory alone", s.endType(clientA, "o2", wire.ReplicaMemory), wire.OK)
	s.check()
	var v wire.Result[wire.Void]
	s.EvictDiskReplica(&wire.EvictDiskRequest{Client: clientA, Key: "o1", Tenant: "default", Type: wire.ReplicaMemory}, &v)
	s.must("evict of memory", v.Code, wire.ErrInvalidParams)
	var out []wire.Result[wire.Void]
	s.BatchEvictDiskReplica(&wire.BatchEvictDiskRequest{Client: clientA, Keys: []string{"o1", "none", "o2"}, Tenant: "default", Type: wire.ReplicaDisk}, &out)
	for i, want := range []wire.ErrorCode{wire.OK, wire.ErrObjectNotFound, wire.OK} {
		s.must("evict", out[i].Code, want)
	}
	if list, _ := s.get("o1"); len(list.Replicas) != 1 {
		t.Errorf("%+v", list)
	}
	s.check()
	// A segment that goes leaves what is on the disk.
	s.must("end of the file", s.endType(clientA, "d1", wire.ReplicaDisk), wire.OK)
	s.must("unmount", s.unmount(0, clientA), wire.OK)
	s.Poll()
	if list, code := s.get("d1"); code != wire.OK || list.Replicas[0].Kind != wire.KindDisk {
		t.Errorf("after the segment went: %v %+v", code, list)
	}
	s.check()
}
