package master

import "github.com/mooncake-agent/mooncake/core/rpc/wire"

// What the administrator sees.

// KeyDetail is what the service knows of one object, for people.
type KeyDetail struct {
	Tenant, Key         string
	Size                uint64
	Writer              wire.UUID
	PutStartMS          int64
	LeaseMS, ProbeMS    int64 // ends of the read lease and of the probe's, Unix milliseconds; 0 none
	SoftPinMS           int64 // end of the soft pin, 0 none
	HardPin, Processing bool
	Group               string
	DataType            uint8
	Epoch               uint32
	Replicas            []wire.Replica // readable or not
	Segments            []string       // segment name of each replica, "" if it has none
	Busy                int            // running copies, moves, offloads, promotions
}

// SegmentDetail is one segment of /get_segments_detail and more.
type SegmentDetail struct {
	wire.Segment
	Client          wire.UUID
	Status          wire.SegmentStatus
	Requested, Used uint64 // bytes: asked for by puts; really taken after rounding
	Largest         uint64 // the largest put that would fit now
	Objects         int
	Quarantined     uint64  // bytes freed but not used again yet
	Suspect         string  // why it is avoided, "" if it is not
	WarmUp          float64 // share of its puts that it takes now, 1 = all
	MountedMS       int64
}

// ClientDetail is one client that pings or owns segments.
type ClientDetail struct {
	ID         wire.UUID
	State      string // "ok", "needs remount", "suspected"
	HostID     string
	LastPingMS int64
	Segments   []wire.UUID
	LocalDisk  bool
	SSDBytes   int64 // reported capacity, 0 unknown
}

// Stats are numbers that are computed when asked for.
type Stats struct {
	TotalFree   uint64 // bytes, all segments that take new objects
	LargestFree uint64 // largest put that would fit somewhere
	Eviction    EvictionReport
	Domains     []DomainStats
	Tenants     []TenantStats
	Tasks       TaskStats
}

// EvictionReport says what stood in the way of the last eviction that freed too little:
// "0 of N evictable: N leased, P pinned".
type EvictionReport struct {
	AtMS                                         int64
	Need                                         uint64 // bytes
	Looked, Evicted, Objects                     int
	Leased, Probed, SoftPinned, HardPinned, Busy int
	TotalFree, LargestFree                       uint64
}

// TenantStats describe one tenant: bytes by rounded size.
type TenantStats struct {
	Name                   string
	Used, Quota, Requested uint64
	Objects                int
	EvictedBytes, Rejects  uint64
}

// TaskStats count copy and move tasks.
type TaskStats struct{ Pending, Processing, Finished int }

// Drain jobs (HTTP only).

// JobStatus is upstream's JobStatus.
type JobStatus int32

// The job states.
const (
	JobCreated JobStatus = iota
	JobPlanning
	JobRunning
	JobSucceeded
	JobFailed
	JobCanceled
)

// DrainJob is the record of /api/v1/drain_jobs/query.
type DrainJob struct {
	ID                                 wire.UUID
	Status                             JobStatus
	CreatedMS, UpdatedMS               int64
	Segments, Targets                  []string
	MaxConcurrency                     int
	Succeeded, Failed, Blocked, Active int
	MigratedBytes                      uint64
	Message                            string
}
