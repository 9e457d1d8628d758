package master

import "sync/atomic"

// Counter only grows; Gauge goes both ways.
type (
	Counter = atomic.Uint64
	Gauge   = atomic.Int64
)

// Calls counts one function: upstream's master_X_requests_total and master_X_failures_total.
type Calls struct{ Requests, Failures Counter }

// BatchCalls counts one batch function: upstream's master_batch_X_{requests, failures,
// partial_successes, items, failed_items}_total.
type BatchCalls struct{ Requests, Failures, PartialSuccesses, Items, FailedItems Counter }

// Counters are the numbers behind upstream's metrics and ours. All fields may be read at any time.
// Numbers that are computed when asked for are in [Stats].
type Counters struct {
	// Functions. UpdateTask is MarkTaskToComplete. Upserts count as puts, as upstream does.
	ExistKey, GetReplicaList, GetReplicaListByRegex                     Calls
	PutStart, PutEnd, PutRevoke                                         Calls
	Remove, RemoveByRegex, RemoveAll                                    Calls
	MountSegment, UnmountSegment, ReMountSegment                        Calls
	MountNoFSegment, UnmountNoFSegment, ReMountNoFSegment               Calls
	Ping                                                                Calls
	CopyStart, CopyEnd, CopyRevoke, MoveStart, MoveEnd, MoveRevoke      Calls
	EvictDiskReplica                                                    Calls
	CreateCopyTask, CreateMoveTask, QueryTask, FetchTasks, UpdateTask   Calls
	BatchExistKey, BatchQueryIP, BatchReplicaClear, BatchGetReplicaList BatchCalls
	BatchPutStart, BatchPutEnd, BatchPutRevoke                          BatchCalls
	PutStartAllocFailures                                               Counter // master_put_start_alloc_failures_total
	PutStartPartial                                                     Counter // master_put_start_partial_allocations_total

	// ValueSize is the histogram master_value_size_bytes of finished puts: observations per bound of
	// [ValueSizeBounds], then above; and their sum.
	ValueSize    [len(ValueSizeBounds) + 1]Counter
	ValueSizeSum Counter

	// Reads: mem_cache_hit_nums_, file_cache_hit_nums_, mem_cache_hit_bytes_total,
	// file_cache_hit_bytes_total, valid_get_nums_, total_get_nums_.
	MemHits, FileHits, MemHitBytes, FileHitBytes, ValidGets, TotalGets Counter

	// Eviction: master_{successful,attempted}_evictions_total, master_evicted_key_count,
	// master_evicted_size_bytes; all of them are of memory (the _mem families are the same numbers).
	EvictionSuccesses, EvictionAttempts, EvictedKeys, EvictedBytes Counter
	// PolicyFaults are errors of policies (each costs the instance), EventsDropped the reads that a policy
	// was not told of because its ring was full, PolicyRebuilds the instances made to get more handles or after
	// a fault, GuardAlarms how often a policy was found worse than the built-in LRU.
	PolicyFaults, EventsDropped, PolicyRebuilds, GuardAlarms Counter

	// Discarded: master_put_start_discard_cnt, master_put_start_release_cnt; DiscardedBytes is
	// master_put_start_discarded_staging_size.
	Discarded, Released Counter
	DiscardedBytes      Gauge

	// Promotion: master_promotion_*_total.
	PromotionAdmitted, PromotionCompleted, PromotionCompletedBytes, PromotionExpired, PromotionFailed, PromotionCancelled Counter
	PromotionRejectedFrequency, PromotionRejectedWatermark, PromotionRejectedCap                                          Counter
	// Candidates: master_promotion_candidate_{recorded, admitted, admission_rejected, expired_evaluated,
	// expired_unevaluated, dropped_limit}_total.
	PromotionCandidateRecorded, PromotionCandidateAdmitted, PromotionCandidateRejected                  Counter
	PromotionCandidateExpiredEvaluated, PromotionCandidateExpiredUnevaluated, PromotionCandidateDropped Counter
	PromotionInFlight                                                                                   Gauge

	// ClientsExpired and ClientsSuspected count transitions; SegmentsSuspected those by failed puts.
	ClientsExpired, ClientsSuspected, SegmentsSuspected Counter
	// LateWriters are ends and revokes refused because the put had been taken over or was somebody else's.
	LateWriters Counter
	// QuotaRejects are puts refused for a tenant's quota.
	QuotaRejects Counter

	// Gauges. Sizes named Requested count what puts asked for (upstream's master_allocated_bytes), the
	// others the rounded size that is really taken.
	Keys, SoftPinnedKeys, HardPinnedKeys, ProcessingKeys Gauge
	MemReplicas, FileReplicas                            Gauge // mem_cache_nums_, file_cache_nums_
	RequestedBytes, AllocatedBytes, CapacityBytes        Gauge
	FileBytes, FileCapacityBytes                         Gauge // master_{allocated_file_size,total_file_capacity}_bytes
	ActiveClients, SuspectedClients, Segments            Gauge
	QuarantinedBytes                                     Gauge // freed, but not used again yet (leases, late writers)
}

// ValueSizeBounds are the upper bounds of master_value_size_bytes.
var ValueSizeBounds = [...]uint64{4096, 65536, 262144, 1048576, 4194304, 16777216, 67108864}

func (c *Counters) observeSize(n uint64) {
	i := 0
	for i < len(ValueSizeBounds) && n > ValueSizeBounds[i] {
		i++
	}
	c.ValueSize[i].Add(1)
	c.ValueSizeSum.Add(n)
}
