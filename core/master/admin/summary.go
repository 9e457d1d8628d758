package admin

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/master"
)

func (h *Handler) summary(w http.ResponseWriter, _ *http.Request) {
	send(w, metricsType, http.StatusOK, []byte(h.Summary()))
}

// rates remembers the counters of the last summary.
type rates struct {
	mu   sync.Mutex
	at   time.Time
	last map[string]uint64
}

// perSecond turns counters into rates since the call before; the first call has none.
func (r *rates) perSecond(now time.Time, counters map[string]uint64) map[string]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]float64{}
	if span := now.Sub(r.at).Seconds(); !r.at.IsZero() && span > 0 {
		for name, n := range counters {
			out[name] = float64(n-r.last[name]) / span
		}
	}
	r.at, r.last = now, counters
	return out
}

// Summary is the line of /metrics/summary, in upstream's form. Rates are those since the call before.
func (h *Handler) Summary() string {
	c := h.o.Store.Counters()
	state, ready := h.state()
	counters := map[string]uint64{}
	type call struct {
		name string
		c    *master.Calls
	}
	plain := []call{{"PutStart", &c.PutStart}, {"PutEnd", &c.PutEnd}, {"PutRevoke", &c.PutRevoke}, {"Get", &c.GetReplicaList}, {"Exist", &c.ExistKey},
		{"Del", &c.Remove}, {"DelAll", &c.RemoveAll}, {"Ping", &c.Ping}, {"CopyStart", &c.CopyStart}, {"CopyEnd", &c.CopyEnd}, {"CopyRevoke", &c.CopyRevoke},
		{"MoveStart", &c.MoveStart}, {"MoveEnd", &c.MoveEnd}, {"MoveRevoke", &c.MoveRevoke}, {"EvictDiskReplica", &c.EvictDiskReplica}}
	tasks := []call{{"CreateMoveTask", &c.CreateMoveTask}, {"CreateCopyTask", &c.CreateCopyTask}, {"QueryTask", &c.QueryTask},
		{"FetchTasks", &c.FetchTasks}, {"MarkTaskToComplete", &c.UpdateTask}}
	for _, x := range append(plain[:len(plain):len(plain)], tasks...) {
		n := x.c.Requests.Load()
		counters[x.name], counters[x.name+"+"] = n, n-min(x.c.Failures.Load(), n)
	}
	type batchCall struct {
		name string
		c    *master.BatchCalls
	}
	batches := []batchCall{{"PutStart", &c.BatchPutStart}, {"PutEnd", &c.BatchPutEnd}, {"PutRevoke", &c.BatchPutRevoke}, {"Get", &c.BatchGetReplicaList},
		{"ExistKey", &c.BatchExistKey}, {"QueryIp", &c.BatchQueryIP}, {"Clear", &c.BatchReplicaClear}}
	for _, x := range batches {
		n, items, partial := x.c.Requests.Load(), x.c.Items.Load(), x.c.PartialSuccesses.Load()
		bad := min(x.c.Failures.Load()+partial, n)
		counters["b"+x.name], counters["b"+x.name+"+"], counters["b"+x.name+"~"] = n, n-bad, partial
		counters["b"+x.name+"i"], counters["b"+x.name+"i+"] = items, items-min(x.c.FailedItems.Load(), items)
	}
	rate := h.rates.perSecond(time.Now(), counters)
	list := func(xs []call, form string) string {
		parts := make([]string, len(xs))
		for i, x := range xs {
			parts[i] = fmt.Sprintf(form, x.name, rate[x.name+"+"], rate[x.name])
		}
		return strings.Join(parts, ", ")
	}
	parts := make([]string, len(batches))
	for i, x := range batches {
		n := "b" + x.name
		parts[i] = fmt.Sprintf("%s:(Req=%.2f/%.2f/%.2f, Item=%.2f/%.2f)", x.name, rate[n+"+"], rate[n+"~"], rate[n], rate[n+"i+"], rate[n+"i"])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "role=leader, state=%s, service_ready=%t, master={", state, ready)
	fmt.Fprintf(&b, "Mem Storage: %s | NVMe-oF SSD: 0 B / 0 B | SSD Storage: %s", share(level(&c.RequestedBytes), level(&c.CapacityBytes)), share(level(&c.FileBytes), fileCapacity(h.o.Store.Config())))
	fmt.Fprintf(&b, " | Keys: %d (soft-pinned: %d) | Clients: %d", level(&c.Keys), level(&c.SoftPinnedKeys), level(&c.ActiveClients))
	fmt.Fprintf(&b, " | Requests (Success/Total per sec): %s", list(plain, "%s=%.2f/%.2f"))
	fmt.Fprintf(&b, " | Batch Requests (per sec, Req=Success/PartialSuccess/Total, Item=Success/Total): %s, %s", strings.Join(parts, ", "), list(tasks, "%s:(Req=%.2f/%.2f)"))
	evicted := fmt.Sprintf("keys=%d, size=%s", c.EvictedKeys.Load(), human(c.EvictedBytes.Load()))
	fmt.Fprintf(&b, " | Eviction: Success/Attempts=%d/%d, AllocFail=%d, PartialAlloc=%d, %s", c.EvictionSuccesses.Load(), c.EvictionAttempts.Load(),
		c.PutStartAllocFailures.Load(), c.PutStartPartial.Load(), evicted)
	fmt.Fprintf(&b, " | Mem Eviction: Success/Attempts=%d/%d, %s | NoF Eviction: Success/Attempts=0/0, keys=0, size=0 B", c.EvictionSuccesses.Load(), c.EvictionAttempts.Load(), evicted)
	fmt.Fprintf(&b, " | Discard: Released/Total=%d/%d, StagingSize=%s", c.Released.Load(), c.Discarded.Load(), human(level(&c.DiscardedBytes)))
	fmt.Fprintf(&b, " | Promotion: in_flight=%d, admitted=%d, completed=%d, failed=%d, cancelled=%d, expired=%d, bytes=%s, rejected(freq/wm/cap)=%d/%d/%d",
		level(&c.PromotionInFlight), c.PromotionAdmitted.Load(), c.PromotionCompleted.Load(), c.PromotionFailed.Load(), c.PromotionCancelled.Load(),
		c.PromotionExpired.Load(), human(c.PromotionCompletedBytes.Load()), c.PromotionRejectedFrequency.Load(), c.PromotionRejectedWatermark.Load(), c.PromotionRejectedCap.Load())
	b.WriteString(" | Snapshots: Success=0, Fail=0}")
	return b.String()
}

func fileCapacity(c master.Config) uint64 {
	if c.FSDir == "" {
		return 0
	}
	return uint64(c.FSCapacity)
}

// share is "3.91 KB / 64.00 MB (0.0%)", without the percentage of nothing.
func share(used, capacity uint64) string {
	if capacity == 0 {
		return human(used) + " / " + human(capacity)
	}
	return fmt.Sprintf("%s / %s (%.1f%%)", human(used), human(capacity), float64(used)/float64(capacity)*100)
}

// human is a size as upstream prints it.
func human(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	x := float64(n) / 1024
	for _, unit := range []string{"KB", "MB", "GB"} {
		if x < 1024 {
			return fmt.Sprintf("%.2f %s", x, unit)
		}
		x /= 1024
	}
	return fmt.Sprintf("%.2f TB", x)
}
