package master

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// Config is the part of the master's configuration that its semantics depend on. Keys that upstream has
// carry upstream's names and defaults (store-wheels, mooncake_master 0.3.13); the rest is ours.
type Config struct {
	ClusterID string `koanf:"cluster_id" doc:"name of the cluster; part of the file path of disk replicas" env:"MC_STORE_CLUSTER_ID"`

	LeaseTTL        time.Duration `koanf:"default_kv_lease_ttl" doc:"how long a read keeps its object from being removed and its space from being reused" range:"0s..24h"`
	SoftPinTTL      time.Duration `koanf:"default_kv_soft_pin_ttl" doc:"life of a soft pin whose put names none" range:"0s.."`
	MaxSoftPinTTL   time.Duration `koanf:"max_kv_soft_pin_ttl" doc:"longest life of a soft pin that a put may ask for" range:"0s.."`
	EvictSoftPinned bool          `koanf:"allow_evict_soft_pinned_objects" doc:"evict soft-pinned objects when nothing else is left"`
	ProbeLease      string        `koanf:"probe_lease" doc:"what ExistKey grants. capped: removal is refused as after a read, and eviction takes such objects only when nothing else is left; upstream: a full lease, so that probing can stop eviction; none: nothing" enum:"capped|upstream|none"`

	EvictionMode     string        `koanf:"eviction_mode" doc:"on_demand: when a put finds no room, exactly as much as it needs; watermark: upstream's periodic rounds" enum:"on_demand|watermark"`
	EvictionRatio    float64       `koanf:"eviction_ratio" doc:"watermark mode: least share of the objects that a round evicts" range:"0..1"`
	Watermark        float64       `koanf:"eviction_high_watermark_ratio" doc:"watermark mode: used share of the store above which a round runs; also stops promotion" range:"0..1"`
	FreeReserve      units.Size    `koanf:"eviction_free_reserve" doc:"on_demand mode: bytes that a background task keeps free, at most 2% of the store; 0 = none" range:"0.."`
	VictimReserve    int           `koanf:"eviction_victim_reserve" doc:"victims asked from the policy at a time; 0 = ask for each eviction anew, which gives the policy's exact order" range:"0..4096"`
	RegretWindow     time.Duration `koanf:"eviction_regret_window" doc:"how soon an evicted object must be asked for again to count as regretted" range:"1s.."`
	Admission        string        `koanf:"eviction_admission" doc:"ask policies that can judge it whether a put is worth an eviction" enum:"off|on"`
	AdmissionRefused string        `koanf:"eviction_refused" doc:"what a put is answered that the policy does not want: no_space, as when nothing can be evicted; evict: it is stored all the same and counted" enum:"no_space|evict"`
	Guard            string        `koanf:"eviction_guard" doc:"a policy that is worse than the built-in LRU by more than a point for ten minutes: fallback: the LRU takes its place; alarm: only the log and metrics say so; off: it is not compared" enum:"fallback|alarm|off"`
	EvictionMaxBatch int           `koanf:"eviction_max_batch" doc:"objects that one put may evict before it fails" range:"1..16777216"`

	ClientTTL        time.Duration `koanf:"client_ttl" doc:"a client that has not pinged for so long is expired: its segments go, and its objects with them" range:"1ms.."`
	ClientSuspectTTL time.Duration `koanf:"client_suspect_ttl" doc:"a client that has not pinged for so long is suspected: nothing new is placed on its segments; 0 = half of client_ttl" range:"0s.."`
	PutDiscard       time.Duration `koanf:"put_start_discard_timeout_sec" doc:"age at which an unfinished put may be taken over by another" range:"0s.."`
	PutRelease       time.Duration `koanf:"put_start_release_timeout_sec" doc:"age at which the space of an unfinished or replaced put is used again: its writer may still be writing" range:"0s.."`
	UpsertInPlace    string        `koanf:"upsert_in_place" doc:"rewrite a value of the same size where it is. unleased: only when no read of it is running, else beside it if there is room; always: as upstream does, so that a running read may see both" enum:"unleased|always"`
	UnownedUnmount   bool          `koanf:"compat_unowned_unmount" doc:"upstream's behaviour: any client may unmount any segment"`

	Allocator       string        `koanf:"memory_allocator" doc:"accepted for upstream's sake: cachelib is served by the offset allocator too, without its limit of 16 MiB an object" enum:"offset|cachelib"`
	Strategy        string        `koanf:"allocation_strategy" doc:"how segments are chosen for a put" enum:"random|free_ratio_first|local_first|ssd_free_ratio_first"`
	WarmUp          time.Duration `koanf:"segment_warm_up" doc:"a segment that joins a store with data takes a growing share of the puts for so long; 0 = full share at once" range:"0s.."`
	PreferredFull   string        `koanf:"preferred_segment_full" doc:"when a put's preferred segment is full: spill to another as upstream does, or evict there first" enum:"spill|evict"`
	SuspectRevokes  int           `koanf:"segment_suspect_revokes" doc:"failed puts to a segment in a row after which it is avoided for segment_suspect_time; 0 = never" range:"0.."`
	SuspectTime     time.Duration `koanf:"segment_suspect_time" doc:"how long a segment is avoided after failed puts" range:"0s.."`
	MultiTenants    bool          `koanf:"enable_multi_tenants" doc:"keep tenants apart and hold them to quotas; off = every tenant is default"`
	DefaultQuota    units.Size    `koanf:"tenant_default_quota" doc:"quota of tenants that are not registered; 0 = such tenants are refused, as upstream does" range:"0.."`
	MaxPending      int           `koanf:"max_total_pending_tasks" doc:"copy and move tasks that wait" range:"0.."`
	MaxProcessing   int           `koanf:"max_total_processing_tasks" doc:"copy and move tasks that run" range:"0.."`
	MaxFinished     int           `koanf:"max_total_finished_tasks" doc:"finished tasks whose outcome is kept" range:"0.."`
	PendingTimeout  time.Duration `koanf:"pending_task_timeout_sec" doc:"a task that no client fetches fails after so long; 0 = never" range:"0s.."`
	ProcessTimeout  time.Duration `koanf:"processing_task_timeout_sec" doc:"a task that no client completes fails after so long; 0 = never" range:"0s.."`
	MaxRetries      int           `koanf:"max_retry_attempts" doc:"attempts that a client is told to make for a task" range:"0.."`
	MaxRegexMatches int           `koanf:"max_regex_matches" doc:"most objects in the answer of GetReplicaListByRegex" range:"1.."`

	FSDir         string     `koanf:"root_fs_dir" doc:"shared file system folder for disk replicas; empty = none"`
	FSCapacity    units.Size `koanf:"global_file_segment_size" doc:"capacity of the shared file system, for metrics" range:"0.."`
	DiskEviction  bool       `koanf:"enable_disk_eviction" doc:"passed to clients"`
	DiskQuota     units.Size `koanf:"quota_bytes" doc:"passed to clients" range:"0.."`
	Offload       bool       `koanf:"enable_offload" doc:"clients may keep objects on their local disks"`
	OffloadEvict  bool       `koanf:"offload_on_evict" doc:"offload when an object is evicted, not when it is put"`
	OffloadForce  bool       `koanf:"offload_force_evict" doc:"offload_on_evict: drop objects that cannot be queued instead of keeping them"`
	OffloadQueue  int        `koanf:"offloading_queue_limit" doc:"objects that wait for one client's disk" range:"1..100000000"`
	OffloadCap    float64    `koanf:"offload_cap_ratio" doc:"offload_on_evict: share of the queue that one round may fill" range:"0..1"`
	Promotion     bool       `koanf:"promotion_on_hit" doc:"bring objects that are read from disk back to memory"`
	PromoteAfter  int        `koanf:"promotion_admission_threshold" doc:"reads before an object is brought back" range:"1..255"`
	PromoteQueue  int        `koanf:"promotion_queue_limit" doc:"promotions at a time" range:"0.."`
	PromotePerHB  int        `koanf:"promotion_max_per_heartbeat" doc:"promotions handed out in one heartbeat" range:"1.."`
	DynamicCopies string     `koanf:"dynamic_replication_mode" doc:"upstream's automatic copies of hot objects; only off is built" enum:"off"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		ClusterID: "mooncake_cluster",
		LeaseTTL:  10 * time.Second, SoftPinTTL: 30 * time.Minute, MaxSoftPinTTL: 24 * time.Hour, EvictSoftPinned: true,
		ProbeLease:   "capped",
		EvictionMode: "on_demand", EvictionRatio: 0.05, Watermark: 0.9, FreeReserve: 64 * units.MiB, VictimReserve: 32,
		EvictionMaxBatch: 1 << 16, RegretWindow: DefaultRegretWindow,
		Admission: "off", AdmissionRefused: RefusedNoSpace, Guard: GuardFallback,
		ClientTTL: 10 * time.Second, PutDiscard: 30 * time.Second, PutRelease: 600 * time.Second,
		UpsertInPlace: "unleased",
		Allocator:     "offset", Strategy: "random", WarmUp: time.Minute, PreferredFull: "spill", SuspectRevokes: 3, SuspectTime: 10 * time.Second,
		MaxPending: 10000, MaxProcessing: 10000, MaxFinished: 10000,
		PendingTimeout: 300 * time.Second, ProcessTimeout: 300 * time.Second, MaxRetries: 10, MaxRegexMatches: 1 << 20,
		FSCapacity: math.MaxInt64, DiskEviction: true,
		OffloadQueue: 50000, OffloadCap: 0.5, PromoteAfter: 2, PromoteQueue: 50000, PromotePerHB: 1, DynamicCopies: "off",
	}
}

var clusterName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// Validate implements module.Validator.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	oneOf := func(key, v string, known ...string) {
		for _, k := range known {
			if v == k {
				return
			}
		}
		bad("%s: %q is not known here; it is one of %q", key, v, known)
	}
	if c.ClusterID != "" && !clusterName.MatchString(c.ClusterID) {
		bad("cluster_id: %q has other characters than letters, digits, '_', '.', '-', or more than 128", c.ClusterID)
	}
	if c.SoftPinTTL > c.MaxSoftPinTTL {
		bad("default_kv_soft_pin_ttl: %v is more than max_kv_soft_pin_ttl, %v", c.SoftPinTTL, c.MaxSoftPinTTL)
	}
	if !(c.EvictionRatio >= 0 && c.EvictionRatio <= 1) {
		bad("eviction_ratio: %v is outside 0..1", c.EvictionRatio)
	}
	if !(c.Watermark >= 0 && c.Watermark <= 1) {
		bad("eviction_high_watermark_ratio: %v is outside 0..1", c.Watermark)
	}
	if c.ClientTTL <= 0 {
		bad("client_ttl: %v is not positive", c.ClientTTL)
	}
	if c.ClientSuspectTTL > c.ClientTTL {
		bad("client_suspect_ttl: %v is more than client_ttl, %v", c.ClientSuspectTTL, c.ClientTTL)
	}
	if c.Offload && c.OffloadQueue < 1 {
		bad("offloading_queue_limit: %d is less than 1", c.OffloadQueue)
	}
	if c.Promotion && (c.PromoteAfter < 1 || c.PromoteAfter > 255) {
		bad("promotion_admission_threshold: %d is outside 1..255", c.PromoteAfter)
	}
	oneOf("probe_lease", c.ProbeLease, "capped", "upstream", "none")
	oneOf("eviction_mode", c.EvictionMode, "on_demand", "watermark")
	oneOf("eviction_admission", c.Admission, "off", "on")
	oneOf("eviction_refused", c.AdmissionRefused, RefusedNoSpace, RefusedEvict)
	oneOf("eviction_guard", c.Guard, GuardFallback, GuardAlarm, GuardOff)
	oneOf("memory_allocator", c.Allocator, "offset", "cachelib")
	oneOf("allocation_strategy", c.Strategy, "random", "free_ratio_first", "local_first", "ssd_free_ratio_first")
	oneOf("preferred_segment_full", c.PreferredFull, "spill", "evict")
	oneOf("upsert_in_place", c.UpsertInPlace, "unleased", "always")
	oneOf("dynamic_replication_mode", c.DynamicCopies, "off")
	return errors.Join(errs...)
}
