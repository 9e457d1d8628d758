package wire

import (
	"fmt"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// The Go forms of arguments and results. Strings and slices of a request that a server decodes share
// memory with the connection's buffer and are valid only until the handler returns: copy what is kept
// ([strings.Clone]).

// DefaultTenant is the tenant of versions before 0.3.12, which have none.
const DefaultTenant = "default"

// UUID identifies clients, segments and tasks: two words in wire order.
type UUID [2]uint64

// String is upstream's text form, both words in decimal.
func (u UUID) String() string { return fmt.Sprintf("%d-%d", u[0], u[1]) }

// IsZero reports whether the id is unset (0.3.7 puts carry no client id).
func (u UUID) IsZero() bool { return u == UUID{} }

// Opt, Pair, Void and Result are the struct_pack forms used in this package.
type (
	// Opt is an optional value.
	Opt[T any] = structpack.Opt[T]
	// Pair is one entry of a map.
	Pair[K, V any] = structpack.Pair[K, V]
	// Void is the value of a result that only succeeds or fails.
	Void = structpack.Void
	// Result is a value or an error code; Code OK means Value.
	Result[T any] = structpack.Expected[T, ErrorCode]
)

// ReplicaType selects replicas in put, upsert and evict calls.
type ReplicaType int32

// The replica types; ReplicaAll means every replica that a put waits for (memory, NoF, DFS).
const (
	ReplicaMemory    ReplicaType = 0
	ReplicaDisk      ReplicaType = 1
	ReplicaLocalDisk ReplicaType = 2
	ReplicaNoF       ReplicaType = 3
	ReplicaAll       ReplicaType = 4
	ReplicaDFS       ReplicaType = 100
)

// ReplicaStatus is the state of a replica.
type ReplicaStatus int32

// The replica states.
const (
	StatusUndefined ReplicaStatus = iota
	StatusInitialized
	StatusProcessing
	StatusComplete
	StatusRemoved
	StatusFailed
)

// ReplicaKind tells where a replica lies and so which fields of [Replica] count. It is ours; its
// index on the wire differs between versions.
type ReplicaKind uint8

// The replica kinds and the versions that know them: memory and disk all, local disk from 0.3.8, NoF
// from 0.3.11, DFS from 0.3.13.
const (
	KindMemory ReplicaKind = iota
	KindDisk
	KindLocalDisk
	KindNoF
	KindDFS
)

// Known reports whether version v has the kind. Lists written for v leave other kinds out; a server
// should not pick a caller's only replica among them.
func (k ReplicaKind) Known(v Version) bool {
	switch k {
	case KindMemory, KindDisk:
		return true
	case KindLocalDisk:
		return v >= V0_3_8
	case KindNoF:
		return v >= V0_3_11
	case KindDFS:
		return v >= V0_3_13
	}
	return false
}

// Replica describes one copy of an object.
type Replica struct {
	ID     uint64 // from 0.3.9
	Kind   ReplicaKind
	Status ReplicaStatus
	Shard  int32  // DFS
	Size   uint64 // bytes of the object, every kind

	// Memory and NoF: a contiguous range. Protocol from 0.3.9.
	Address  uint64
	Protocol string
	Endpoint string // also LocalDisk

	Path        string // Disk, DFS
	Offset      uint64 // DFS
	AlignedSize uint64 // DFS
	Client      UUID   // LocalDisk

	// Slices are the lengths of the parts into which 0.3.7 cuts a memory replica; they must add up to
	// Size. Empty means one part. A 0.3.7 writer needs the parts it asked for in PutStart.
	Slices []uint64
}

// SoftPinAction is what a put does to an object's soft pin.
type SoftPinAction uint8

// The actions. Versions before 0.3.13 have a flag: true is read as SoftPinEnable, false as
// SoftPinPreserve.
const (
	SoftPinPreserve SoftPinAction = iota
	SoftPinEnable
	SoftPinDisable
)

// ReplicateConfig says how a put places its object.
type ReplicateConfig struct {
	Replicas             uint64
	NoFReplicas          uint64 // from 0.3.11
	DFSReplicas          uint64 // from 0.3.13
	SoftPin              SoftPinAction
	SoftPinTTLMS         Opt[uint64] // from 0.3.13
	HardPin              bool        // from 0.3.10
	PreferredSegments    []string    // from 0.3.8
	PreferredSegment     string      // deprecated upstream; replaces the list if not empty
	PreferredNoFSegments []string    // from 0.3.11
	PreferSameNode       bool
	DataType             uint8         // from 0.3.11
	HostID               string        // from 0.3.12
	GroupIDs             Opt[[]string] // from 0.3.12; one for each key
}

// Segment is a piece of memory or of an NVMe-oF device that a client lends to the store.
type Segment struct {
	ID         UUID
	Name       string
	Base, Size uint64
	TEEndpoint string
	Protocol   string // from 0.3.9; not for NoF
	HostID     string // from 0.3.12; not for NoF
}

// ObjectMeta names an object whose put ends.
type ObjectMeta struct {
	Key      string
	Checksum Opt[uint64] // from 0.3.13
}

// ReplicaList is the answer of GetReplicaList.
type ReplicaList struct {
	Replicas   []Replica
	LeaseTTLMS uint64
	Checksum   Opt[uint64] // from 0.3.13
}

// ClientStatus is what a ping answers.
type ClientStatus int32

// The client states.
const (
	ClientUndefined ClientStatus = iota
	ClientOK
	ClientNeedRemount
)

// PingReply is the answer of Ping.
type PingReply struct {
	ViewVersion int64
	Status      ClientStatus
}

// StorageConfig is the answer of GetStorageConfig.
type StorageConfig struct {
	FSDir              string
	EnableDiskEviction bool
	QuotaBytes         uint64
}

// SegmentStatus is the state of a segment.
type SegmentStatus int32

// The segment states.
const (
	SegmentUndefined SegmentStatus = iota
	SegmentOK
	SegmentDraining
	SegmentDrained
	SegmentGracefullyUnmounting
	SegmentUnmounting
)

// SegmentOwner names the client that owns an NoF segment.
type SegmentOwner struct{ Segment, Client UUID }

// CopyTargets is the answer of CopyStart.
type CopyTargets struct {
	Source  Replica
	Targets []Replica
}

// MoveTarget is the answer of MoveStart; no target means that it holds the object already.
type MoveTarget struct {
	Source Replica
	Target Opt[Replica]
}

// OffloadTask asks a client to write an object to its disk, or to read it back (promotion).
type OffloadTask struct {
	Tenant string // from 0.3.12
	Key    string
	Size   int64 // absent in NotifyOffloadSuccess before 0.3.12
}

// StorageMeta is where a client put an object on its disk; DataSize < 0 means that it did not.
type StorageMeta struct {
	Bucket, Offset, KeySize, DataSize int64
	TEEndpoint                        string
}

// TaskType and TaskStatus describe copy and move tasks.
type (
	TaskType   int32
	TaskStatus int32
)

// The task types and states.
const (
	TaskCopy TaskType = 0
	TaskMove TaskType = 1

	TaskPending    TaskStatus = 0
	TaskProcessing TaskStatus = 1
	TaskFailed     TaskStatus = 2
	TaskSuccess    TaskStatus = 3
)

// TaskState is the answer of QueryTask.
type TaskState struct {
	ID                   UUID
	Type                 TaskType
	Status               TaskStatus
	CreatedMS, UpdatedMS int64 // Unix milliseconds
	Client               UUID
	Message              string
}

// TaskAssignment is a task handed to a client.
type TaskAssignment struct {
	ID         UUID
	Type       TaskType
	Payload    string // JSON
	CreatedMS  int64
	MaxRetries uint32 // from 0.3.10
}

// Requests, named after their functions. Several functions share a type.
type (
	// NoArgs is the request of functions without arguments.
	NoArgs struct{}

	// KeyRequest: ExistKey, GetReplicaList; GetReplicaListByRegex with a pattern as Key.
	KeyRequest struct{ Key, Tenant string }

	// KeysRequest: BatchExistKey, BatchGetReplicaList.
	KeysRequest struct {
		Keys   []string
		Tenant string
	}

	// PutStartRequest: PutStart, UpsertStart.
	PutStartRequest struct {
		Client UUID // zero from 0.3.7
		Key    string
		Length uint64
		Slices []uint64 // 0.3.7 only: the parts of Length
		Config ReplicateConfig
		Tenant string
	}

	// BatchPutStartRequest: BatchPutStart, BatchUpsertStart. Keys and Lengths need not have one length.
	BatchPutStartRequest struct {
		Client  UUID
		Keys    []string
		Lengths []uint64
		Slices  [][]uint64 // 0.3.7 only
		Config  ReplicateConfig
		Tenant  string
	}

	// PutEndRequest: PutEnd, UpsertEnd.
	PutEndRequest struct {
		Client UUID
		Meta   ObjectMeta
		Type   ReplicaType
		Tenant string
	}

	// PutRevokeRequest: PutRevoke, UpsertRevoke.
	PutRevokeRequest struct {
		Client UUID
		Key    string
		Type   ReplicaType
		Tenant string
	}

	// BatchPutEndRequest: BatchPutEnd (without a type before 0.3.11: memory), BatchUpsertEnd (all).
	BatchPutEndRequest struct {
		Client UUID
		Metas  []ObjectMeta
		Type   ReplicaType
		Tenant string
	}

	// BatchPutRevokeRequest: BatchPutRevoke, BatchUpsertRevoke; types as in BatchPutEndRequest.
	BatchPutRevokeRequest struct {
		Client UUID
		Keys   []string
		Type   ReplicaType
		Tenant string
	}

	// RemoveRequest: Remove; RemoveByRegex with a pattern as Key.
	RemoveRequest struct {
		Key    string
		Force  bool
		Tenant string
	}

	// RemoveAllRequest: RemoveAll; an empty tenant means all.
	RemoveAllRequest struct {
		Force  bool
		Tenant string
	}

	// BatchRemoveRequest: BatchRemove.
	BatchRemoveRequest struct {
		Keys   []string
		Force  bool
		Tenant string
	}

	// BatchReplicaClearRequest: BatchReplicaClear; an empty segment means the whole object.
	BatchReplicaClearRequest struct {
		Keys    []string
		Client  UUID
		Segment string
	}

	// MountSegmentRequest: MountSegment, MountNoFSegment.
	MountSegmentRequest struct {
		Segment Segment
		Client  UUID
	}

	// ReMountSegmentRequest: ReMountSegment, ReMountNoFSegment.
	ReMountSegmentRequest struct {
		Segments []Segment
		Client   UUID
	}

	// UnmountSegmentRequest: UnmountSegment, UnmountNoFSegment, GracefulUnmountSegment.
	UnmountSegmentRequest struct {
		Segment UUID
		Client  UUID
		GraceMS uint64 // GracefulUnmountSegment
	}

	// ClientRequest: Ping, PollRemoveAll, PromotionObjectHeartbeat, UnmountLocalDiskSegment.
	ClientRequest struct{ Client UUID }

	// IDRequest: QuerySegmentStatusById, QueryTask.
	IDRequest struct{ ID UUID }

	// NameRequest: QuerySegmentStatus, GetNoFSegmentsByName.
	NameRequest struct{ Name string }

	// BatchQueryIPRequest: BatchQueryIp.
	BatchQueryIPRequest struct{ Clients []UUID }

	// LocalDiskRequest: MountLocalDiskSegment, OffloadObjectHeartbeat.
	LocalDiskRequest struct {
		Client UUID
		Enable bool
	}

	// ReportSSDCapacityRequest: ReportSsdCapacity.
	ReportSSDCapacityRequest struct {
		Client UUID
		Bytes  int64
	}

	// NotifyOffloadRequest: NotifyOffloadSuccess.
	NotifyOffloadRequest struct {
		Client UUID
		Tasks  []OffloadTask
		Metas  []StorageMeta
	}

	// PromotionAllocRequest: PromotionAllocStart.
	PromotionAllocRequest struct {
		Client            UUID
		Key, Tenant       string
		Size              uint64
		PreferredSegments []string
	}

	// ObjectTaskRequest: CopyEnd, CopyRevoke, MoveEnd, MoveRevoke, NotifyPromotionSuccess,
	// NotifyPromotionFailure; DynamicReplicaCopyEnd and -Revoke also fill LeaseID and Epoch.
	ObjectTaskRequest struct {
		Client      UUID
		Key, Tenant string
		LeaseID     UUID
		Epoch       uint64
	}

	// CopyStartRequest: CopyStart; DynamicReplicaCopyStart also fills LeaseID and Epoch.
	CopyStartRequest struct {
		Client              UUID
		Key, Tenant, Source string
		Targets             []string
		LeaseID             UUID
		Epoch               uint64
	}

	// MoveStartRequest: MoveStart.
	MoveStartRequest struct {
		Client                      UUID
		Key, Tenant, Source, Target string
	}

	// EvictDiskRequest: EvictDiskReplica.
	EvictDiskRequest struct {
		Client      UUID
		Key, Tenant string
		Type        ReplicaType
	}

	// BatchEvictDiskRequest: BatchEvictDiskReplica.
	BatchEvictDiskRequest struct {
		Client UUID
		Keys   []string
		Tenant string
		Type   ReplicaType
	}

	// CreateCopyTaskRequest: CreateCopyTask.
	CreateCopyTaskRequest struct {
		Key, Tenant string
		Targets     []string
	}

	// CreateMoveTaskRequest: CreateMoveTask.
	CreateMoveTaskRequest struct{ Key, Tenant, Source, Target string }

	// FetchTasksRequest: FetchTasks.
	FetchTasksRequest struct {
		Client UUID
		Limit  uint64
	}

	// CompleteTaskRequest: MarkTaskToComplete.
	CompleteTaskRequest struct {
		Client  UUID
		ID      UUID
		Status  TaskStatus
		Message string
	}
)
