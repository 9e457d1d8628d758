package admin

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"

	"github.com/mooncake-agent/mooncake/core/master"
)

// metrics answers upstream's families and then ours, always in the text format 0.0.4 as upstream.
func (h *Handler) metrics(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	writeUpstream(&b, h.o.Store)
	if h.o.Metrics != nil {
		families, err := h.o.Metrics.Gather()
		if err != nil { // what could be gathered is served
			h.log.Warn("some metrics could not be gathered", "error", err)
		}
		for _, f := range families {
			if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
				h.log.Warn("a metric could not be written", "metric", f.GetName(), "error", err)
			}
		}
	}
	send(w, metricsType, http.StatusOK, b.Bytes())
}

// family is one of upstream's metrics.
type family struct {
	name, kind, help string
	value            func(*snapshot) uint64
	write            func(*bytes.Buffer, *family, *snapshot) // instead of one value
}

// snapshot is what the families are read from.
type snapshot struct {
	*master.Counters
	config   master.Config
	segments []segmentUse
	stats    *master.Stats // only with tenants
}

type segmentUse struct {
	name                string
	requested, capacity uint64
}

func gauge(name, help string, value func(*snapshot) uint64) family {
	return family{name: name, kind: "gauge", help: help, value: value}
}

func count(name, help string, value func(*snapshot) uint64) family {
	return family{name: name, kind: "counter", help: help, value: value}
}

func nothing(*snapshot) uint64 { return 0 }

// level reads a gauge, which may be below 0 for a moment.
func level(g *master.Gauge) uint64 { return uint64(max(g.Load(), 0)) }

// upstreamFamilies are all families of mooncake_master in the order in which it prints them.
var upstreamFamilies = buildFamilies()

func buildFamilies() []family {
	out := []family{
		gauge("master_allocated_bytes", "Bytes that puts asked for and that are held in memory segments.", func(s *snapshot) uint64 { return level(&s.RequestedBytes) }),
		gauge("master_total_capacity_bytes", "Capacity of all memory segments.", func(s *snapshot) uint64 { return level(&s.CapacityBytes) }),
		{name: "segment_allocated_bytes", kind: "gauge", help: "Bytes that puts asked for, by segment name.",
			write: perSegment(func(u *segmentUse) uint64 { return u.requested })},
		{name: "segment_total_capacity_bytes", kind: "gauge", help: "Capacity, by segment name.",
			write: perSegment(func(u *segmentUse) uint64 { return u.capacity })},
		gauge("master_nof_allocated_bytes", "Bytes held in NVMe-oF segments.", nothing),
		gauge("master_total_nof_capacity_bytes", "Capacity of all NVMe-oF segments.", nothing),
		gauge("master_allocated_file_size_bytes", "Bytes of disk replicas in the shared file system.", func(s *snapshot) uint64 { return level(&s.FileBytes) }),
		gauge("master_total_file_capacity_bytes", "Capacity of the shared file system.", func(s *snapshot) uint64 {
			if s.config.FSDir == "" {
				return 0
			}
			return uint64(s.config.FSCapacity)
		}),
		gauge("master_key_count", "Objects, unfinished puts included.", func(s *snapshot) uint64 { return level(&s.Keys) }),
		gauge("master_soft_pin_key_count", "Objects with a soft pin.", func(s *snapshot) uint64 { return level(&s.SoftPinnedKeys) }),
		gauge("master_active_clients", "Clients that ping.", func(s *snapshot) uint64 { return level(&s.ActiveClients) }),
		{name: "master_value_size_bytes", kind: "histogram", help: "Sizes of objects that were put.", write: writeSizes},
	}
	calls := func(name, what string, c func(*master.Counters) *master.Calls) {
		out = append(out,
			count("master_"+name+"_requests_total", what+" requests.", func(s *snapshot) uint64 { return c(s.Counters).Requests.Load() }),
			count("master_"+name+"_failures_total", what+" requests that failed.", func(s *snapshot) uint64 { return c(s.Counters).Failures.Load() }))
	}
	calls("exist_key", "ExistKey", func(c *master.Counters) *master.Calls { return &c.ExistKey })
	calls("put_start", "PutStart and UpsertStart", func(c *master.Counters) *master.Calls { return &c.PutStart })
	out = append(out,
		count("master_put_start_alloc_failures_total", "PutStart requests for which there was no space.", func(s *snapshot) uint64 { return s.PutStartAllocFailures.Load() }),
		count("master_put_start_partial_allocations_total", "PutStart requests that got fewer replicas than they asked for.", func(s *snapshot) uint64 { return s.PutStartPartial.Load() }))
	calls("put_end", "PutEnd and UpsertEnd", func(c *master.Counters) *master.Calls { return &c.PutEnd })
	calls("put_revoke", "PutRevoke and UpsertRevoke", func(c *master.Counters) *master.Calls { return &c.PutRevoke })
	calls("get_replica_list", "GetReplicaList", func(c *master.Counters) *master.Calls { return &c.GetReplicaList })
	calls("get_replica_list_by_regex", "GetReplicaListByRegex", func(c *master.Counters) *master.Calls { return &c.GetReplicaListByRegex })
	calls("remove", "Remove", func(c *master.Counters) *master.Calls { return &c.Remove })
	calls("remove_by_regex", "RemoveByRegex", func(c *master.Counters) *master.Calls { return &c.RemoveByRegex })
	calls("remove_all", "RemoveAll", func(c *master.Counters) *master.Calls { return &c.RemoveAll })
	calls("mount_segment", "MountSegment", func(c *master.Counters) *master.Calls { return &c.MountSegment })
	calls("unmount_segment", "UnmountSegment", func(c *master.Counters) *master.Calls { return &c.UnmountSegment })
	calls("remount_segment", "ReMountSegment", func(c *master.Counters) *master.Calls { return &c.ReMountSegment })
	calls("mount_nof_segment", "MountNoFSegment", func(c *master.Counters) *master.Calls { return &c.MountNoFSegment })
	calls("unmount_nof_segment", "UnmountNoFSegment", func(c *master.Counters) *master.Calls { return &c.UnmountNoFSegment })
	calls("remount_nof_segment", "ReMountNoFSegment", func(c *master.Counters) *master.Calls { return &c.ReMountNoFSegment })
	calls("ping", "Ping", func(c *master.Counters) *master.Calls { return &c.Ping })
	calls("copy_start", "CopyStart", func(c *master.Counters) *master.Calls { return &c.CopyStart })
	calls("copy_end", "CopyEnd", func(c *master.Counters) *master.Calls { return &c.CopyEnd })
	calls("copy_revoke", "CopyRevoke", func(c *master.Counters) *master.Calls { return &c.CopyRevoke })
	calls("move_start", "MoveStart", func(c *master.Counters) *master.Calls { return &c.MoveStart })
	calls("move_end", "MoveEnd", func(c *master.Counters) *master.Calls { return &c.MoveEnd })
	calls("move_revoke", "MoveRevoke", func(c *master.Counters) *master.Calls { return &c.MoveRevoke })
	calls("evict_disk_replica", "EvictDiskReplica", func(c *master.Counters) *master.Calls { return &c.EvictDiskReplica })
	calls("create_copy_task", "CreateCopyTask", func(c *master.Counters) *master.Calls { return &c.CreateCopyTask })
	calls("create_move_task", "CreateMoveTask", func(c *master.Counters) *master.Calls { return &c.CreateMoveTask })
	calls("update_task", "MarkTaskToComplete", func(c *master.Counters) *master.Calls { return &c.UpdateTask })
	calls("query_task", "QueryTask", func(c *master.Counters) *master.Calls { return &c.QueryTask })
	calls("fetch_tasks", "FetchTasks", func(c *master.Counters) *master.Calls { return &c.FetchTasks })

	batch := func(name, what string, c func(*master.Counters) *master.BatchCalls) {
		out = append(out,
			count("master_"+name+"_requests_total", what+" requests.", func(s *snapshot) uint64 { return c(s.Counters).Requests.Load() }),
			count("master_"+name+"_failures_total", what+" requests of which every item failed.", func(s *snapshot) uint64 { return c(s.Counters).Failures.Load() }),
			count("master_"+name+"_partial_successes_total", what+" requests of which some items failed.", func(s *snapshot) uint64 { return c(s.Counters).PartialSuccesses.Load() }),
			count("master_"+name+"_items_total", "Items of "+what+" requests.", func(s *snapshot) uint64 { return c(s.Counters).Items.Load() }),
			count("master_"+name+"_failed_items_total", "Items of "+what+" requests that failed.", func(s *snapshot) uint64 { return c(s.Counters).FailedItems.Load() }))
	}
	batch("batch_exist_key", "BatchExistKey", func(c *master.Counters) *master.BatchCalls { return &c.BatchExistKey })
	batch("batch_query_ip", "BatchQueryIp", func(c *master.Counters) *master.BatchCalls { return &c.BatchQueryIP })
	batch("batch_replica_clear", "BatchReplicaClear", func(c *master.Counters) *master.BatchCalls { return &c.BatchReplicaClear })
	batch("batch_get_replica_list", "BatchGetReplicaList", func(c *master.Counters) *master.BatchCalls { return &c.BatchGetReplicaList })
	batch("batch_put_start", "BatchPutStart and BatchUpsertStart", func(c *master.Counters) *master.BatchCalls { return &c.BatchPutStart })
	batch("batch_put_end", "BatchPutEnd and BatchUpsertEnd", func(c *master.Counters) *master.BatchCalls { return &c.BatchPutEnd })
	batch("batch_put_revoke", "BatchPutRevoke and BatchUpsertRevoke", func(c *master.Counters) *master.BatchCalls { return &c.BatchPutRevoke })

	out = append(out,
		count("mem_cache_hit_nums_", "Reads whose first replica was in memory.", func(s *snapshot) uint64 { return s.MemHits.Load() }),
		count("file_cache_hit_nums_", "Reads whose first replica was on disk.", func(s *snapshot) uint64 { return s.FileHits.Load() }),
		count("mem_cache_hit_bytes_total", "Bytes of those in memory.", func(s *snapshot) uint64 { return s.MemHitBytes.Load() }),
		count("file_cache_hit_bytes_total", "Bytes of those on disk.", func(s *snapshot) uint64 { return s.FileHitBytes.Load() }),
		gauge("mem_cache_nums_", "Memory replicas.", func(s *snapshot) uint64 { return level(&s.MemReplicas) }),
		gauge("file_cache_nums_", "Disk replicas.", func(s *snapshot) uint64 { return level(&s.FileReplicas) }),
		count("valid_get_nums_", "Reads that found a replica.", func(s *snapshot) uint64 { return s.ValidGets.Load() }),
		count("total_get_nums_", "Reads.", func(s *snapshot) uint64 { return s.TotalGets.Load() }))
	for _, medium := range []string{"", "_mem", "_nof"} {
		of := func(f func(*snapshot) uint64) func(*snapshot) uint64 {
			if medium == "_nof" {
				return nothing
			}
			return f
		}
		total := "_total"
		if medium != "" {
			total = medium
		}
		out = append(out,
			count("master_successful_evictions"+total, "Evictions that freed something.", of(func(s *snapshot) uint64 { return s.EvictionSuccesses.Load() })),
			count("master_attempted_evictions"+total, "Evictions.", of(func(s *snapshot) uint64 { return s.EvictionAttempts.Load() })),
			count("master_evicted_key_count"+medium, "Objects that were evicted.", of(func(s *snapshot) uint64 { return s.EvictedKeys.Load() })),
			count("master_evicted_size_bytes"+medium, "Bytes that were evicted.", of(func(s *snapshot) uint64 { return s.EvictedBytes.Load() })))
	}
	out = append(out,
		count("master_put_start_discard_cnt", "Unfinished puts that were taken over or reaped.", func(s *snapshot) uint64 { return s.Discarded.Load() }),
		count("master_put_start_release_cnt", "Those whose space was given back.", func(s *snapshot) uint64 { return s.Released.Load() }),
		gauge("master_put_start_discarded_staging_size", "Bytes of those that wait for that.", func(s *snapshot) uint64 { return level(&s.DiscardedBytes) }),
		gauge("master_promotion_in_flight", "Promotions that run.", func(s *snapshot) uint64 { return level(&s.PromotionInFlight) }))
	for _, p := range promotions {
		out = append(out, count("master_promotion_"+p.name+"_total", "Promotions from disk to memory: "+strings.ReplaceAll(p.name, "_", " ")+".", p.value))
	}
	for _, name := range []string{"recorded", "admitted", "admission_rejected", "expired_evaluated", "expired_unevaluated", "dropped_limit"} {
		out = append(out, count("master_promotion_candidate_"+name+"_total", "Retries of rejected promotions, which this master leaves to the next read.", nothing))
	}
	out = append(out, count("master_promotion_execution_gave_up_total", "Promotions that clients gave up; counted as failed here.", nothing))
	for _, name := range []string{"master_nof_heartbeat_success_total", "master_nof_heartbeat_failure_total", "master_nof_heartbeat_timeout_total",
		"master_nof_segments_unmounted_by_heartbeat_total", "master_snapshot_success", "master_snapshot_fail"} {
		out = append(out, count(name, "Not in this version.", nothing))
	}
	out = append(out,
		family{name: "mooncake_tenant_quota_reject_total", kind: "counter", help: "Puts refused for a tenant's quota.",
			write: perTenant(`,reason="quota"`, func(t *master.TenantStats) uint64 { return t.Rejects })},
		family{name: "mooncake_tenant_evict_bytes_total", kind: "counter", help: "Bytes evicted of a tenant's objects.",
			write: perTenant("", func(t *master.TenantStats) uint64 { return t.EvictedBytes })})
	for _, name := range []string{"ha_oplog_last_sequence_id", "ha_oplog_applied_sequence_id", "ha_oplog_standby_lag", "ha_oplog_pending_entries",
		"ha_pending_mutation_queue_size", "ha_standby_state"} {
		out = append(out, gauge(name, "Not in this version.", nothing))
	}
	return out
}

var promotions = []struct {
	name  string
	value func(*snapshot) uint64
}{
	{"admitted", func(s *snapshot) uint64 { return s.PromotionAdmitted.Load() }},
	{"completed", func(s *snapshot) uint64 { return s.PromotionCompleted.Load() }},
	{"completed_bytes", func(s *snapshot) uint64 { return s.PromotionCompletedBytes.Load() }},
	{"expired", func(s *snapshot) uint64 { return s.PromotionExpired.Load() }},
	{"failed", func(s *snapshot) uint64 { return s.PromotionFailed.Load() }},
	{"cancelled", func(s *snapshot) uint64 { return s.PromotionCancelled.Load() }},
	{"rejected_frequency", func(s *snapshot) uint64 { return s.PromotionRejectedFrequency.Load() }},
	{"rejected_watermark", func(s *snapshot) uint64 { return s.PromotionRejectedWatermark.Load() }},
	{"rejected_cap", func(s *snapshot) uint64 { return s.PromotionRejectedCap.Load() }},
}

func perSegment(value func(*segmentUse) uint64) func(*bytes.Buffer, *family, *snapshot) {
	return func(b *bytes.Buffer, f *family, s *snapshot) {
		for i := range s.segments {
			b.WriteString(f.name + `{segment="` + escapeLabel(s.segments[i].name) + `"} ` + strconv.FormatUint(value(&s.segments[i]), 10) + "\n")
		}
	}
}

func perTenant(more string, value func(*master.TenantStats) uint64) func(*bytes.Buffer, *family, *snapshot) {
	return func(b *bytes.Buffer, f *family, s *snapshot) {
		if s.stats == nil {
			return
		}
		for i := range s.stats.Tenants {
			t := &s.stats.Tenants[i]
			b.WriteString(f.name + `{tenant_id="` + escapeLabel(t.Name) + `"` + more + `} ` + strconv.FormatUint(value(t), 10) + "\n")
		}
	}
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func escapeLabel(s string) string { return labelEscapes.Replace(strings.ToValidUTF8(s, "\uFFFD")) }

// writeSizes prints bounds as upstream does, with six decimals.
func writeSizes(b *bytes.Buffer, f *family, s *snapshot) {
	var total uint64
	for i := range s.ValueSize {
		total += s.ValueSize[i].Load()
		bound := "+Inf"
		if i < len(master.ValueSizeBounds) {
			bound = strconv.FormatUint(master.ValueSizeBounds[i], 10) + ".000000"
		}
		b.WriteString(f.name + `_bucket{le="` + bound + `"} ` + strconv.FormatUint(total, 10) + "\n")
	}
	b.WriteString(f.name + "_sum " + strconv.FormatUint(s.ValueSizeSum.Load(), 10) + "\n")
	b.WriteString(f.name + "_count " + strconv.FormatUint(total, 10) + "\n")
}

// writeUpstream prints all families.
func writeUpstream(b *bytes.Buffer, store Store) {
	s := &snapshot{Counters: store.Counters(), config: store.Config()}
	for _, name := range store.SegmentNames() {
		if requested, _, capacity, ok := store.SegmentUse(name); ok {
			s.segments = append(s.segments, segmentUse{name, requested, capacity})
		}
	}
	if s.config.MultiTenants {
		stats := store.Stats()
		s.stats = &stats
	}
	for i := range upstreamFamilies {
		f := &upstreamFamilies[i]
		b.WriteString("# HELP " + f.name + " " + f.help + "\n# TYPE " + f.name + " " + f.kind + "\n")
		if f.write != nil {
			f.write(b, f, s)
			continue
		}
		b.WriteString(f.name + " " + strconv.FormatUint(f.value(s), 10) + "\n")
	}
}
