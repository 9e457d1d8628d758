package serve

import (
	"testing"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// zeroRequest is the body of a request with zero values, as version v spells it.
func zeroRequest(t testing.TB, id uint32, v wire.Version, literal bool) []byte {
	t.Helper()
	m, ok := zeroRequests[id]
	if !ok {
		t.Fatalf("no function %08x", id)
	}
	b, err := m(v, literal)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var zeroRequests = map[uint32]func(wire.Version, bool) ([]byte, error){}

func zero[Req, Resp any](m *wire.Method[Req, Resp]) {
	zeroRequests[m.ID()] = func(v wire.Version, literal bool) ([]byte, error) {
		return m.AppendRequest(nil, v, new(Req), literal)
	}
}

func init() {
	zero(wire.ServiceReady)
	zero(wire.GetStorageConfig)
	zero(wire.GetFsdir)
	zero(wire.Ping)
	zero(wire.MountSegment)
	zero(wire.MountNoFSegment)
	zero(wire.ReMountSegment)
	zero(wire.ReMountNoFSegment)
	zero(wire.UnmountSegment)
	zero(wire.GracefulUnmountSegment)
	zero(wire.UnmountNoFSegment)
	zero(wire.QuerySegmentStatus)
	zero(wire.QuerySegmentStatusByID)
	zero(wire.GetAllNoFSegments)
	zero(wire.GetNoFSegmentsByName)
	zero(wire.BatchQueryIP)
	zero(wire.ExistKey)
	zero(wire.BatchExistKey)
	zero(wire.GetReplicaList)
	zero(wire.BatchGetReplicaList)
	zero(wire.GetReplicaListByRegex)
	zero(wire.PutStart)
	zero(wire.UpsertStart)
	zero(wire.BatchPutStart)
	zero(wire.BatchUpsertStart)
	zero(wire.PutEnd)
	zero(wire.UpsertEnd)
	zero(wire.PutRevoke)
	zero(wire.UpsertRevoke)
	zero(wire.BatchPutEnd)
	zero(wire.BatchUpsertEnd)
	zero(wire.BatchPutRevoke)
	zero(wire.BatchUpsertRevoke)
	zero(wire.Remove)
	zero(wire.RemoveByRegex)
	zero(wire.RemoveAll)
	zero(wire.BatchRemove)
	zero(wire.BatchReplicaClear)
	zero(wire.MountLocalDiskSegment)
	zero(wire.UnmountLocalDiskSegment)
	zero(wire.PollRemoveAll)
	zero(wire.OffloadObjectHeartbeat)
	zero(wire.PromotionObjectHeartbeat)
	zero(wire.ReportSSDCapacity)
	zero(wire.NotifyOffloadSuccess)
	zero(wire.PromotionAllocStart)
	zero(wire.NotifyPromotionSuccess)
	zero(wire.NotifyPromotionFailure)
	zero(wire.EvictDiskReplica)
	zero(wire.BatchEvictDiskReplica)
	zero(wire.CopyStart)
	zero(wire.DynamicReplicaCopyStart)
	zero(wire.CopyEnd)
	zero(wire.DynamicReplicaCopyEnd)
	zero(wire.CopyRevoke)
	zero(wire.DynamicReplicaCopyRevoke)
	zero(wire.MoveStart)
	zero(wire.MoveEnd)
	zero(wire.MoveRevoke)
	zero(wire.CreateCopyTask)
	zero(wire.CreateMoveTask)
	zero(wire.QueryTask)
	zero(wire.FetchTasks)
	zero(wire.MarkTaskToComplete)
}
