package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/master"
)

// Collector is the master's own metrics; see the package comment for their names.
type Collector struct {
	store  Store
	static []own
}

// own is a metric with a fixed set of series.
type own struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels []string
	value  func(*master.Counters, *master.Stats) float64
}

// NewCollector makes the collector of a store.
func NewCollector(store Store) *Collector {
	c := &Collector{store: store}
	add := func(kind prometheus.ValueType, name, help string, label string, series ...any) {
		var names []string
		if label != "" {
			names = []string{label}
		}
		desc := prometheus.NewDesc("mooncake_master_"+name, help, names, nil)
		for i := 0; i < len(series); i++ {
			m := own{desc: desc, kind: kind}
			if label != "" {
				m.labels = []string{series[i].(string)}
				i++
			}
			switch v := series[i].(type) {
			case func(*master.Counters) *master.Gauge:
				m.value = func(c *master.Counters, _ *master.Stats) float64 { return float64(v(c).Load()) }
			case func(*master.Counters) *master.Counter:
				m.value = func(c *master.Counters, _ *master.Stats) float64 { return float64(v(c).Load()) }
			case func(*master.Stats) uint64:
				m.value = func(_ *master.Counters, s *master.Stats) float64 { return float64(v(s)) }
			}
			c.static = append(c.static, m)
		}
	}
	type (
		counters = master.Counters
		g        = *master.Gauge
		n        = *master.Counter
	)
	const level, total = prometheus.GaugeValue, prometheus.CounterValue
	add(level, "requested_bytes", "Bytes that puts asked for and that are held.", "", func(c *counters) g { return &c.RequestedBytes })
	add(level, "allocated_bytes", "Bytes really taken, after rounding up to a size class.", "", func(c *counters) g { return &c.AllocatedBytes })
	add(level, "capacity_bytes", "Capacity of all segments.", "", func(c *counters) g { return &c.CapacityBytes })
	add(level, "quarantined_bytes", "Bytes freed but not used again yet, because a reader or a late writer may still use them.", "", func(c *counters) g { return &c.QuarantinedBytes })
	add(level, "free_bytes", "Free bytes of the segments that take new objects.", "", func(s *master.Stats) uint64 { return s.TotalFree })
	add(level, "largest_free_bytes", "The largest put that would fit somewhere.", "", func(s *master.Stats) uint64 { return s.LargestFree })
	add(level, "objects", "Objects by state; all includes the others.", "state",
		"all", func(c *counters) g { return &c.Keys }, "processing", func(c *counters) g { return &c.ProcessingKeys },
		"soft_pinned", func(c *counters) g { return &c.SoftPinnedKeys }, "hard_pinned", func(c *counters) g { return &c.HardPinnedKeys })
	add(level, "clients", "Clients that ping, by state.", "state",
		"ok", func(c *counters) g { return &c.ActiveClients }, "suspected", func(c *counters) g { return &c.SuspectedClients })
	add(level, "segments", "Mounted segments.", "", func(c *counters) g { return &c.Segments })
	add(total, "transitions_total", "Clients and segments that became worse.", "what",
		"client_expired", func(c *counters) n { return &c.ClientsExpired }, "client_suspected", func(c *counters) n { return &c.ClientsSuspected },
		"segment_suspected", func(c *counters) n { return &c.SegmentsSuspected })
	add(total, "late_writers_total", "Ends and revokes of puts that somebody else had taken over.", "", func(c *counters) n { return &c.LateWriters })
	add(total, "quota_rejects_total", "Puts refused for a tenant's quota.", "", func(c *counters) n { return &c.QuotaRejects })
	var reasons []any
	for _, reason := range []string{"leased", "probed", "pinned", "busy", "used", "unknown", "duplicate", "elsewhere"} {
		reasons = append(reasons, reason, func(s *master.Stats) (sum uint64) {
			for i := range s.Domains {
				sum += s.Domains[i].Refused[reason]
			}
			return sum
		})
	}
	add(total, "eviction_refused_total", "Victims that a policy named and the master kept, by reason.", "reason", reasons...)
	add(total, "eviction_policy_faults_total", "Errors of eviction policies; each costs the instance.", "", func(c *counters) n { return &c.PolicyFaults })
	add(total, "eviction_guard_alarms_total", "How often a policy was worse than the built-in LRU for ten minutes.", "", func(c *counters) n { return &c.GuardAlarms })
	add(total, "eviction_policy_rebuilds_total", "Instances made to get more handles.", "", func(c *counters) n { return &c.PolicyRebuilds })
	add(total, "eviction_events_dropped_total", "Reads that a policy was not told of.", "", func(c *counters) n { return &c.EventsDropped })
	add(level, "tasks", "Copy and move tasks by state.", "state",
		"pending", func(s *master.Stats) uint64 { return uint64(s.Tasks.Pending) }, "processing", func(s *master.Stats) uint64 { return uint64(s.Tasks.Processing) },
		"finished", func(s *master.Stats) uint64 { return uint64(s.Tasks.Finished) })
	return c
}

func named(name, help, label string) *prometheus.Desc {
	return prometheus.NewDesc("mooncake_master_"+name, help, []string{label}, nil)
}

var (
	domainObjects  = named("eviction_domain_objects", "Objects of an eviction domain.", "domain")
	domainBacklog  = named("eviction_domain_backlog", "Events that the domain's policy has not seen yet.", "domain")
	domainEvicted  = named("eviction_domain_evicted_total", "Objects evicted in the domain.", "domain")
	domainMemory   = named("eviction_domain_policy_bytes", "Memory of the domain's policy.", "domain")
	domainFallback = named("eviction_domain_fallback", "1 while the built-in LRU stands in for the domain's policy.", "domain")
	domainRegret   = named("eviction_domain_regret_total", "Objects evicted and asked for again within eviction_regret_window, estimated by a sample.", "domain")
	domainAsked    = named("request_blocks_total", "Blocks that requests asked for, each request once: by a batch exist, or by a read that follows none.", "domain")
	domainFound    = named("request_found_blocks_total", "Blocks of requests that were there.", "domain")
	domainPrefix   = named("request_prefix_hit_blocks_total", "Blocks of requests that were there with all blocks before them, by the order in the batch: those that save prefill.", "domain")
	domainGuard    = prometheus.NewDesc("mooncake_master_eviction_guard_hit_ratio", "Useful hits of the last ten minutes in the guard's sample: of the store, and of a shadow LRU.", []string{"domain", "of"}, nil)
	domainAdmitted = prometheus.NewDesc("mooncake_master_admission_total", "Puts that needed an eviction and about which the policy was asked, by what came of it: asked, refused, late (stored), asked_again (refused and asked for soon).", []string{"domain", "result"}, nil)
	tenantUsed     = named("tenant_used_bytes", "Bytes taken by a tenant, rounded.", "tenant")
	tenantQuota    = named("tenant_quota_bytes", "Quota of a tenant that is in force: its part of the store if not all quotas fit.", "tenant")
	tenantAsked    = named("tenant_requested_quota_bytes", "Quota that was requested for a tenant.", "tenant")
	tenantObjects  = named("tenant_objects", "Objects of a tenant.", "tenant")
)

// Describe is part of [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range c.static {
		if i == 0 || c.static[i].desc != c.static[i-1].desc {
			ch <- c.static[i].desc
		}
	}
	for _, d := range guestCollection {
		ch <- d
	}
	for _, d := range []*prometheus.Desc{domainObjects, domainBacklog, domainEvicted, domainMemory, domainFallback, domainRegret, domainAsked, domainFound, domainPrefix, domainGuard, domainAdmitted, tenantUsed, tenantQuota, tenantAsked, tenantObjects} {
		ch <- d
	}
}

// Collect is part of [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	counters, stats := c.store.Counters(), c.store.Stats()
	for i := range c.static {
		m := &c.static[i]
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(counters, &stats), m.labels...)
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, label string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, label)
	}
	for i := range stats.Domains {
		d := &stats.Domains[i]
		send(domainObjects, prometheus.GaugeValue, float64(d.Objects), d.Name)
		send(domainBacklog, prometheus.GaugeValue, float64(d.Backlog), d.Name)
		send(domainEvicted, prometheus.CounterValue, float64(d.Evicted), d.Name)
		send(domainMemory, prometheus.GaugeValue, float64(d.PolicyMemory), d.Name)
		fallback := 0.0
		if d.Fallback {
			fallback = 1
		}
		send(domainFallback, prometheus.GaugeValue, fallback, d.Name)
		if d.Supervision != nil {
			collectGuest(ch, d.Name, d.Supervision)
		}
		send(domainRegret, prometheus.CounterValue, float64(d.Regret), d.Name)
		send(domainAsked, prometheus.CounterValue, float64(d.Requests.Asked), d.Name)
		send(domainFound, prometheus.CounterValue, float64(d.Requests.Found), d.Name)
		send(domainPrefix, prometheus.CounterValue, float64(d.Requests.Prefix), d.Name)
		ch <- prometheus.MustNewConstMetric(domainGuard, prometheus.GaugeValue, d.Guard.Store, d.Name, "store")
		ch <- prometheus.MustNewConstMetric(domainGuard, prometheus.GaugeValue, d.Guard.LRU, d.Name, "lru")
		for _, a := range []struct {
			result string
			n      uint64
		}{{"asked", d.AdmitAsked}, {"refused", d.AdmitRefused}, {"late", d.AdmitLate}, {"asked_again", d.RefusedAsked}} {
			ch <- prometheus.MustNewConstMetric(domainAdmitted, prometheus.CounterValue, float64(a.n), d.Name, a.result)
		}
	}
	for i := range stats.Tenants {
		t := &stats.Tenants[i]
		send(tenantUsed, prometheus.GaugeValue, float64(t.Used), t.Name)
		send(tenantQuota, prometheus.GaugeValue, float64(t.Quota), t.Name)
		send(tenantAsked, prometheus.GaugeValue, float64(t.Requested), t.Name)
		send(tenantObjects, prometheus.GaugeValue, float64(t.Objects), t.Name)
	}
}
