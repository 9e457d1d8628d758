package master

import (
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func (s *store) copyTo(key string, source string, targets ...string) (wire.CopyTargets, wire.ErrorCode) {
	var r wire.Result[wire.CopyTargets]
	s.CopyStart(&wire.CopyStartRequest{Client: clientA, Key: key, Tenant: "default", Source: source, Targets: targets}, &r)
	return r.Value, r.Code
}

func (s *store) task(f func(*wire.ObjectTaskRequest, *wire.Result[wire.Void]), key string, client wire.UUID) wire.ErrorCode {
	var r wire.Result[wire.Void]
	f(&wire.ObjectTaskRequest{Client: client, Key: key, Tenant: "default"}, &r)
	return r.Code
}

func TestCopy(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.mount(1, mib, clientB)
	s.mount(2, mib, clientB)
	s.put("k", 100, preferred("node0:1"))
	s.start(clientA, "p", 100)
	for _, tc := range []struct {
		name, key, source string
		targets           []string
		want              wire.ErrorCode
	}{
		{"unknown target", "k", "node0:1", []string{"nosuch"}, wire.ErrSegmentNotFound},
		{"unknown target of no key", "none", "node0:1", []string{"nosuch"}, wire.ErrSegmentNotFound},
		{"no key", "none", "node0:1", []string{"node1:1"}, wire.ErrObjectNotFound},
		{"not on the source", "k", "node1:1", []string{"node2:1"}, wire.ErrReplicaNotFound},
		{"not finished", "p", "node0:1", []string{"node1:1"}, wire.ErrReplicaNotFound},
	} {
		_, code := s.copyTo(tc.key, tc.source, tc.targets...)
		s.must(tc.name, code, tc.want)
	}
	s.must("end without a copy", s.task(s.CopyEnd, "k", clientA), wire.ErrObjectNoReplicationTask)
	got, code := s.copyTo("k", "node0:1", "node1:1", "node0:1", "node2:1", "node1:1")
	s.must("copy", code, wire.OK)
	if len(got.Targets) != 2 || got.Targets[0].Endpoint != node(1) || got.Targets[1].Endpoint != node(2) || got.Source.Endpoint != node(0) || got.Targets[0].Status != wire.StatusProcessing {
		t.Fatalf("copy: %+v", got)
	}
	s.check()
	_, code = s.copyTo("k", "node0:1", "node1:1")
	s.must("second copy", code, wire.ErrObjectHasReplicationTask)
	s.must("remove meanwhile", s.del("k", true), wire.ErrReplicaIsNotReady)
	_, code = s.upsert(clientA, "k", 100)
	s.must("upsert meanwhile", code, wire.ErrObjectHasReplicationTask)
	if list, code := s.get("k"); code != wire.OK || len(list.Replicas) != 1 {
		t.Errorf("get meanwhile: %v %+v", code, list)
	}
	s.must("end by another", s.task(s.CopyEnd, "k", clientB), wire.ErrIllegalClient)
	s.must("end of a move", s.task(s.MoveEnd, "k", clientA), wire.ErrInvalidParams)
	s.must("end", s.task(s.CopyEnd, "k", clientA), wire.OK)
	if list, _ := s.get("k"); len(list.Replicas) != 3 {
		t.Errorf("get: %+v", list)
	}
	s.must("end again", s.task(s.CopyEnd, "k", clientA), wire.ErrObjectNoReplicationTask)
	s.check()
	var dyn wire.Result[wire.CopyTargets]
	s.DynamicReplicaCopyStart(&wire.CopyStartRequest{Client: clientA, Key: "k", Tenant: "default", Source: "node0:1", Targets: []string{"node1:1"}, LeaseID: wire.UUID{1, 2}}, &dyn)
	s.must("copy of the master's own accord", dyn.Code, wire.ErrUnavailableInCurrentStatus)
}

// Every way a copy or move can end leaves the source evictable (S23).
func TestEveryEndLetsTheSourceGo(t *testing.T) {
	type ends = map[string]func(*store)
	common := ends{
		"source gone": func(s *store) { s.must("unmount", s.unmount(0, clientA), wire.OK) },
		"target gone": func(s *store) { s.must("unmount", s.unmount(1, clientB), wire.OK) },
		"client gone": func(s *store) { s.pass(600_001) },
	}
	for kind, calls := range map[string]struct {
		start       func(*store)
		end, revoke func(*store) wire.ErrorCode
	}{
		"copy": {
			func(s *store) { _, c := s.copyTo("k", "node0:1", "node1:1"); s.must("start", c, wire.OK) },
			func(s *store) wire.ErrorCode { return s.task(s.CopyEnd, "k", clientA) },
			func(s *store) wire.ErrorCode { return s.task(s.CopyRevoke, "k", clientA) },
		},
		"move": {
			func(s *store) { s.must("start", s.move("k"), wire.OK) },
			func(s *store) wire.ErrorCode { return s.task(s.MoveEnd, "k", clientA) },
			func(s *store) wire.ErrorCode { return s.task(s.MoveRevoke, "k", clientA) },
		},
	} {
		for name, happen := range common {
			for how, finish := range map[string]func(*store) wire.ErrorCode{"end": calls.end, "revoke": calls.revoke} {
				t.Run(fmt.Sprintf("%s, %s, %s", kind, name, how), func(t *testing.T) {
					s := newStore(t, func(o *Options) { o.Config.ClientTTL = time.Hour })
					s.mount(0, mib, clientA)
					s.mount(1, mib, clientB)
					s.put("k", 1000, preferred("node0:1"))
					calls.start(s)
					happen(s)
					finish(s)
					s.Poll()
					s.check()
					if d, code := s.DescribeKey("default", "k"); code == wire.OK {
						if d.Busy != 0 {
							t.Errorf("busy: %+v", d)
						}
						s.must("remove", s.del("k", true), wire.OK)
					}
					s.pass(600_001)
					if got := s.Counters().AllocatedBytes.Load(); got != 0 {
						t.Errorf("%d bytes are left", got)
					}
					s.check()
				})
			}
		}
	}
}

func (s *store) move(key string) wire.ErrorCode {
	var r wire.Result[wire.MoveTarget]
	s.MoveStart(&wire.MoveStartRequest{Client: clientA, Key: key, Tenant: "default", Source: "node0:1", Target: "node1:1"}, &r)
	return r.Code
}

func TestMove(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.mount(1, mib, clientB)
	s.put("k", 1000, preferred("node0:1"))
	var r wire.Result[wire.MoveTarget]
	s.MoveStart(&wire.MoveStartRequest{Client: clientA, Key: "k", Tenant: "default", Source: "node0:1", Target: "node0:1"}, &r)
	s.must("move to itself", r.Code, wire.ErrInvalidParams)
	s.get("k")
	s.must("move", s.move("k"), wire.OK)
	s.must("end", s.task(s.MoveEnd, "k", clientA), wire.OK)
	if list, _ := s.look("k"); len(list.Replicas) != 1 || list.Replicas[0].Endpoint != node(1) {
		t.Errorf("after the move: %+v", list)
	}
	s.check()
	// The source's bytes are held: for the read that runs, and as long as upstream does while there is room.
	if got := s.Counters().QuarantinedBytes.Load(); got != 1024 {
		t.Errorf("%d bytes are held", got)
	}
	s.clock.Add(10_001)
	_, code := s.start(clientA, "whole", mib, preferred("node0:1"))
	s.must("put that needs the bytes of the source", code, wire.OK)
	s.check()
}

// When the target already holds the object, its copy must still be there at the end of the move.
func TestMoveOntoACopyThatGoes(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.mount(1, mib, clientB)
	s.put("k", 1000, replicas(2))
	s.must("move", s.move("k"), wire.OK)
	s.must("unmount", s.unmount(1, clientB), wire.OK)
	s.must("end", s.task(s.MoveEnd, "k", clientA), wire.ErrReplicaIsGone)
	if !s.there("k") {
		t.Error("the last copy was given up")
	}
	s.check()
}

func TestTaskLife(t *testing.T) {
	s := newStore(t, func(o *Options) {
		o.Config.MaxPending, o.Config.MaxProcessing, o.Config.MaxFinished, o.Config.ClientTTL = 3, 2, 2, time.Hour
	})
	s.mount(0, mib, clientA)
	s.mount(1, mib, clientB)
	s.put("k", 100, preferred("node0:1"))
	order := func(key string, targets ...string) (wire.UUID, wire.ErrorCode) {
		var r wire.Result[wire.UUID]
		s.CreateCopyTask(&wire.CreateCopyTaskRequest{Key: key, Tenant: "default", Targets: targets}, &r)
		return r.Value, r.Code
	}
	for _, tc := range []struct {
		name, key string
		targets   []string
		want      wire.ErrorCode
	}{
		{"no targets", "k", nil, wire.ErrInvalidParams}, {"no key", "none", []string{"nosuch"}, wire.ErrObjectNotFound},
		{"unknown target", "k", []string{"nosuch"}, wire.ErrInvalidParams},
	} {
		_, code := order(tc.key, tc.targets...)
		s.must(tc.name, code, tc.want)
	}
	var ids []wire.UUID
	for range 3 {
		id, code := order("k", "node1:1")
		s.must("order", code, wire.OK)
		ids = append(ids, id)
	}
	_, code := order("k", "node1:1")
	s.must("one too many", code, wire.ErrTaskPendingLimitExceeded)
	fetch := func(c wire.UUID, n uint64) []wire.TaskAssignment {
		var r wire.Result[[]wire.TaskAssignment]
		s.FetchTasks(&wire.FetchTasksRequest{Client: c, Limit: n}, &r)
		return r.Value
	}
	if got := fetch(clientB, 16); len(got) != 0 {
		t.Errorf("another client fetched %+v", got)
	}
	got := fetch(clientA, 16)
	if len(got) != 2 || got[0].ID != ids[0] || got[0].MaxRetries != 10 || got[0].Type != wire.TaskCopy {
		t.Fatalf("fetched %+v", got)
	}
	if want := `{"tenant_id":"default","key":"k","source":"node0:1","targets":["node1:1"],"dynamic_replication_lease_id_high":0,"dynamic_replication_lease_id_low":0,"dynamic_replication_version_epoch":0}`; got[0].Payload != want {
		t.Errorf("payload %s", got[0].Payload)
	}
	mark := func(c, id wire.UUID, st wire.TaskStatus) wire.ErrorCode {
		var r wire.Result[wire.Void]
		s.MarkTaskToComplete(&wire.CompleteTaskRequest{Client: c, ID: id, Status: st, Message: "m"}, &r)
		return r.Code
	}
	s.must("complete with a state that is not final", mark(clientA, ids[0], wire.TaskPending), wire.ErrInvalidParams)
	s.must("complete what does not exist", mark(clientA, wire.UUID{1, 2}, wire.TaskFailed), wire.ErrTaskNotFound)
	s.must("complete by another", mark(clientB, ids[0], wire.TaskFailed), wire.ErrIllegalClient)
	s.must("complete", mark(clientA, ids[0], wire.TaskSuccess), wire.OK)
	s.must("complete again", mark(clientA, ids[0], wire.TaskFailed), wire.OK)
	query := func(id wire.UUID) wire.Result[wire.TaskState] {
		var r wire.Result[wire.TaskState]
		s.QueryTask(&wire.IDRequest{ID: id}, &r)
		return r
	}
	if q := query(ids[0]); q.Value.Status != wire.TaskSuccess || q.Value.Message != "m" || q.Value.Client != clientA {
		t.Errorf("query: %+v", q)
	}
	if st := s.Stats().Tasks; st != (TaskStats{Pending: 1, Processing: 1, Finished: 1}) {
		t.Errorf("counts: %+v", st)
	}
	s.pass(300_001)
	for _, id := range ids[1:] {
		if q := query(id); q.Value.Status != wire.TaskFailed || q.Value.Message == "" {
			t.Errorf("after the timeouts: %+v", q)
		}
	}
	s.must("the oldest outcome is forgotten", query(ids[0]).Code, wire.ErrTaskNotFound)
	if len(fetch(clientA, 16)) != 0 {
		t.Error("a task that failed was handed out")
	}
}

func TestPayloadIsJSON(t *testing.T) {
	if got := string(appendJSON(nil, "a\"\\\n\t\x01\u00e9")); got != `"a\"\\\n\t\u0001é"` {
		t.Errorf("%s", got)
	}
}

// work carries out the tasks of a client.
func (s *store) carryOut(client wire.UUID) int {
	var r wire.Result[[]wire.TaskAssignment]
	s.FetchTasks(&wire.FetchTasksRequest{Client: client, Limit: 100}, &r)
	for _, a := range r.Value {
		key, source, target := taskFields(a.Payload)
		var m wire.Result[wire.MoveTarget]
		s.MoveStart(&wire.MoveStartRequest{Client: client, Key: key, Tenant: "default", Source: source, Target: target}, &m)
		status := wire.TaskFailed
		if m.Code == wire.OK && s.task(s.MoveEnd, key, client) == wire.OK {
			status = wire.TaskSuccess
		}
		var v wire.Result[wire.Void]
		s.MarkTaskToComplete(&wire.CompleteTaskRequest{Client: client, ID: a.ID, Status: status}, &v)
		s.must("complete", v.Code, wire.OK)
	}
	return len(r.Value)
}

func TestDrain(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Config.ClientTTL = time.Hour })
	for n := range 3 {
		s.mount(n, 8*mib, clientA)
	}
	for i := range 300 {
		s.put(fmt.Sprintf("k%d", i), 1000, preferred("node0:1"))
	}
	for _, tc := range []struct {
		name              string
		segments, targets []string
		n                 int
		want              wire.ErrorCode
	}{
		{"nothing", nil, nil, 1, wire.ErrInvalidParams}, {"no concurrency", []string{"node0:1"}, nil, 0, wire.ErrInvalidParams},
		{"twice the same", []string{"node0:1", "node0:1"}, nil, 1, wire.ErrInvalidParams}, {"unknown", []string{"nosuch"}, nil, 1, wire.ErrSegmentNotFound},
		{"onto itself", []string{"node0:1"}, []string{"node0:1"}, 1, wire.ErrInvalidParams}, {"to nowhere", []string{"node0:1"}, []string{"nosuch"}, 1, wire.ErrSegmentNotFound},
	} {
		_, code := s.CreateDrainJob(tc.segments, tc.targets, tc.n)
		s.must(tc.name, code, tc.want)
	}
	s.get("k7") // is read: blocked for a while
	id, code := s.CreateDrainJob([]string{"node0:1"}, []string{"node1:1"}, 8)
	s.must("drain", code, wire.OK)
	_, code = s.CreateDrainJob([]string{"node0:1"}, nil, 8)
	s.must("drain again", code, wire.ErrUnavailableInCurrentStatus)
	if rs := s.put("new", 100, preferred("node0:1")); rs[0].Endpoint == node(0) {
		t.Error("a segment that is drained takes objects")
	}
	for i := range 400 {
		s.pass(100)
		n := s.carryOut(clientA)
		if n > 8 {
			t.Fatalf("%d moves at a time", n)
		}
		if i == 20 {
			if job, _ := s.QueryDrainJob(id); job.Status != JobRunning || job.Succeeded == 0 {
				t.Errorf("under way: %+v", job)
			}
		}
	}
	job, code := s.QueryDrainJob(id)
	if code != wire.OK || job.Status != JobSucceeded || job.Succeeded != 300 || job.Failed != 0 || job.MigratedBytes != 300_000 {
		t.Errorf("job: %v %+v", code, job)
	}
	var st wire.Result[wire.SegmentStatus]
	if s.QuerySegmentStatus(&wire.NameRequest{Name: "node0:1"}, &st); st.Value != wire.SegmentDrained {
		t.Errorf("status %d", st.Value)
	}
	for i := range 300 {
		if list, code := s.look(fmt.Sprintf("k%d", i)); code != wire.OK || list.Replicas[0].Endpoint != node(1) {
			t.Fatalf("k%d: %v %+v", i, code, list)
		}
	}
	s.must("cancel what has ended", s.CancelDrainJob(id), wire.ErrUnavailableInCurrentStatus)
	s.must("cancel what does not exist", s.CancelDrainJob(wire.UUID{}), wire.ErrJobNotFound)
	s.check()

	id, code = s.CreateDrainJob([]string{"node1:1"}, nil, 1)
	s.must("drain", code, wire.OK)
	s.must("cancel", s.CancelDrainJob(id), wire.OK)
	if job, _ := s.QueryDrainJob(id); job.Status != JobCanceled {
		t.Errorf("job: %+v", job)
	}
	if rs := s.put("new2", 100, preferred("node1:1")); rs[0].Endpoint != node(1) {
		t.Error("a segment does not take objects after its drain was cancelled")
	}

	// Moves that fail again and again are given up, and with them the job.
	id, code = s.CreateDrainJob([]string{"node2:1"}, nil, 100)
	s.must("drain", code, wire.OK)
	for range 60 {
		s.pass(100)
		var r wire.Result[[]wire.TaskAssignment]
		s.FetchTasks(&wire.FetchTasksRequest{Client: clientA, Limit: 100}, &r)
		for _, a := range r.Value {
			var v wire.Result[wire.Void]
			s.MarkTaskToComplete(&wire.CompleteTaskRequest{Client: clientA, ID: a.ID, Status: wire.TaskFailed}, &v)
		}
	}
	if job, _ := s.QueryDrainJob(id); job.Status != JobFailed && job.Status != JobSucceeded {
		t.Errorf("job whose moves fail: %+v", job)
	}
	s.check()
}
