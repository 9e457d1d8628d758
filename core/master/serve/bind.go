package serve

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Bind registers every function of the master, in all versions, on a server that does not listen yet. Functions
// that look at every object leave the event loop; all others answer on it.
func Bind(s *rpc.Server, r wire.Resolver, m master.RPC) {
	// Life cycle. A ping touches nothing but the liveness of its client.
	fast(s, r, wire.ServiceReady, m.ServiceReady)
	fast(s, r, wire.GetStorageConfig, m.GetStorageConfig)
	fast(s, r, wire.GetFsdir, m.GetFsdir)
	fast(s, r, wire.Ping, m.Ping)

	// Segments.
	fast(s, r, wire.MountSegment, m.MountSegment)
	fast(s, r, wire.MountNoFSegment, m.MountNoFSegment)
	fast(s, r, wire.ReMountSegment, m.ReMountSegment)
	fast(s, r, wire.ReMountNoFSegment, m.ReMountNoFSegment)
	fast(s, r, wire.UnmountSegment, m.UnmountSegment)
	fast(s, r, wire.GracefulUnmountSegment, m.GracefulUnmountSegment)
	fast(s, r, wire.UnmountNoFSegment, m.UnmountNoFSegment)
	fast(s, r, wire.QuerySegmentStatus, m.QuerySegmentStatus)
	fast(s, r, wire.QuerySegmentStatusByID, m.QuerySegmentStatusByID)
	fast(s, r, wire.GetAllNoFSegments, m.GetAllNoFSegments)
	fast(s, r, wire.GetNoFSegmentsByName, m.GetNoFSegmentsByName)
	fast(s, r, wire.BatchQueryIP, m.BatchQueryIP)

	// Reading.
	fast(s, r, wire.ExistKey, m.ExistKey)
	fast(s, r, wire.BatchExistKey, m.BatchExistKey)
	unsure := undecided(r)
	wire.Handle(s, wire.GetReplicaList, r, func(c *wire.Call, req *wire.KeyRequest, resp *wire.Result[wire.ReplicaList]) {
		if unsure(c.Call) && c.Leave() {
			return
		}
		m.GetReplicaList(req, resp)
		readable(c.Version, resp)
	})
	wire.Handle(s, wire.BatchGetReplicaList, r, func(c *wire.Call, req *wire.KeysRequest, resp *[]wire.Result[wire.ReplicaList]) {
		if unsure(c.Call) && c.Leave() {
			return
		}
		m.BatchGetReplicaList(req, resp)
		for i := range *resp {
			readable(c.Version, &(*resp)[i])
		}
	})
	slow(s, r, wire.GetReplicaListByRegex, m.GetReplicaListByRegex)

	// Writing.
	fast(s, r, wire.PutStart, m.PutStart)
	fast(s, r, wire.UpsertStart, m.UpsertStart)
	fast(s, r, wire.BatchPutStart, m.BatchPutStart)
	fast(s, r, wire.BatchUpsertStart, m.BatchUpsertStart)
	fast(s, r, wire.PutEnd, m.PutEnd)
	fast(s, r, wire.UpsertEnd, m.UpsertEnd)
	fast(s, r, wire.PutRevoke, m.PutRevoke)
	fast(s, r, wire.UpsertRevoke, m.UpsertRevoke)
	fast(s, r, wire.BatchPutEnd, m.BatchPutEnd)
	fast(s, r, wire.BatchUpsertEnd, m.BatchUpsertEnd)
	fast(s, r, wire.BatchPutRevoke, m.BatchPutRevoke)
	fast(s, r, wire.BatchUpsertRevoke, m.BatchUpsertRevoke)

	// Removing.
	fast(s, r, wire.Remove, m.Remove)
	slow(s, r, wire.RemoveByRegex, m.RemoveByRegex)
	slow(s, r, wire.RemoveAll, m.RemoveAll)
	fast(s, r, wire.BatchRemove, m.BatchRemove)
	fast(s, r, wire.BatchReplicaClear, m.BatchReplicaClear)

	// Local disks, offload, promotion.
	fast(s, r, wire.MountLocalDiskSegment, m.MountLocalDiskSegment)
	fast(s, r, wire.UnmountLocalDiskSegment, m.UnmountLocalDiskSegment)
	fast(s, r, wire.PollRemoveAll, m.PollRemoveAll)
	fast(s, r, wire.OffloadObjectHeartbeat, m.OffloadObjectHeartbeat)
	fast(s, r, wire.PromotionObjectHeartbeat, m.PromotionObjectHeartbeat)
	fast(s, r, wire.ReportSSDCapacity, m.ReportSSDCapacity)
	fast(s, r, wire.NotifyOffloadSuccess, m.NotifyOffloadSuccess)
	fast(s, r, wire.PromotionAllocStart, m.PromotionAllocStart)
	fast(s, r, wire.NotifyPromotionSuccess, m.NotifyPromotionSuccess)
	fast(s, r, wire.NotifyPromotionFailure, m.NotifyPromotionFailure)
	fast(s, r, wire.EvictDiskReplica, m.EvictDiskReplica)
	fast(s, r, wire.BatchEvictDiskReplica, m.BatchEvictDiskReplica)

	// Copies, moves and the tasks that order them.
	fast(s, r, wire.CopyStart, m.CopyStart)
	fast(s, r, wire.DynamicReplicaCopyStart, m.DynamicReplicaCopyStart)
	fast(s, r, wire.CopyEnd, m.CopyEnd)
	fast(s, r, wire.DynamicReplicaCopyEnd, m.DynamicReplicaCopyEnd)
	fast(s, r, wire.CopyRevoke, m.CopyRevoke)
	fast(s, r, wire.DynamicReplicaCopyRevoke, m.DynamicReplicaCopyRevoke)
	fast(s, r, wire.MoveStart, m.MoveStart)
	fast(s, r, wire.MoveEnd, m.MoveEnd)
	fast(s, r, wire.MoveRevoke, m.MoveRevoke)
	fast(s, r, wire.CreateCopyTask, m.CreateCopyTask)
	fast(s, r, wire.CreateMoveTask, m.CreateMoveTask)
	fast(s, r, wire.QueryTask, m.QueryTask)
	fast(s, r, wire.FetchTasks, m.FetchTasks)
	fast(s, r, wire.MarkTaskToComplete, m.MarkTaskToComplete)
}

func fast[Req, Resp any](s *rpc.Server, r wire.Resolver, m *wire.Method[Req, Resp], f func(*Req, *Resp)) {
	unsure := undecided(r)
	if !ambiguous(m) {
		unsure = never
	}
	wire.Handle(s, m, r, func(c *wire.Call, req *Req, resp *Resp) {
		if unsure(c.Call) && c.Leave() {
			return
		}
		f(req, resp)
	})
}

// undecided is the resolver's question whether a request should leave the loop so that it can look closer.
func undecided(r wire.Resolver) func(*rpc.Call) bool {
	if u, ok := r.(interface{ Undecided(*rpc.Call) bool }); ok {
		return u.Undecided
	}
	return never
}

func never(*rpc.Call) bool { return false }

// ambiguous reports whether some request of a function does not tell the form of its answer.
func ambiguous(m wire.AnyMethod) bool {
	for _, v := range m.Versions().Versions() {
		l, _ := m.Layout(v)
		if _, yes := m.Candidates(l.RequestCode); yes {
			return true
		}
	}
	return false
}

func slow[Req, Resp any](s *rpc.Server, r wire.Resolver, m *wire.Method[Req, Resp], f func(context.Context, *Req, *Resp)) {
	wire.HandleSlow(s, m, r, func(c *wire.Call, req *Req, resp *Resp) { f(c.Context(), req, resp) })
}

// readable turns a list in which nothing is of a kind that the caller's version knows into the error for an
// object that cannot be read now; the list would arrive empty.
func readable(v wire.Version, r *wire.Result[wire.ReplicaList]) {
	if v == wire.Newest || r.Code != wire.OK {
		return
	}
	for i := range r.Value.Replicas {
		if r.Value.Replicas[i].Kind.Known(v) {
			return
		}
	}
	r.Code = wire.ErrReplicaIsNotReady
}
