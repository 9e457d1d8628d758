package admin

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Figures of policies that run code from outside. They start again with each new policy of a domain.
var (
	guestRunning    = named("eviction_guest_running", "1 while the domain's WebAssembly policy runs, 0 while it waits or is quarantined.", "domain")
	guestInstances  = named("eviction_guest_instances_total", "Instances of the domain's WebAssembly policy that were started.", "domain")
	guestEvents     = named("eviction_guest_events_total", "Events told to the domain's WebAssembly policy.", "domain")
	guestBatches    = named("eviction_guest_batches_total", "Calls that told them.", "domain")
	guestQuestions  = named("eviction_guest_questions_total", "Questions for victims.", "domain")
	guestSeconds    = named("eviction_guest_seconds_total", "Time in calls of the guest.", "domain")
	guestEventTime  = named("eviction_guest_event_seconds_total", "The part of it spent on events.", "domain")
	guestFuel       = named("eviction_guest_fuel_total", "Instructions that the guest was charged.", "domain")
	guestEventFuel  = named("eviction_guest_event_fuel_total", "The part of them spent on events.", "domain")
	guestFallbacks  = named("eviction_guest_fallback_victims_total", "Victims that the guest left to the built-in order.", "domain")
	guestProtected  = named("eviction_guest_protected_victims_total", "Victims of the guest that were pinned or not what was asked for.", "domain")
	guestMemory     = named("eviction_guest_memory_bytes", "Memory of the guest, its code and the order beside it.", "domain")
	guestFaults     = prometheus.NewDesc("mooncake_master_eviction_guest_faults_total", "Faults that cost the guest its instance, by kind.", []string{"domain", "kind"}, nil)
	guestStrikes    = prometheus.NewDesc("mooncake_master_eviction_guest_strikes_total", "Victims that were not there or were named twice.", []string{"domain", "reason"}, nil)
	guestCollection = []*prometheus.Desc{
		guestRunning, guestInstances, guestEvents, guestBatches, guestQuestions, guestSeconds, guestEventTime, guestFuel, guestEventFuel,
		guestFallbacks, guestProtected, guestMemory, guestFaults, guestStrikes,
	}
)

// collectGuest sends what a supervised policy says.
func collectGuest(ch chan<- prometheus.Metric, domain string, s *eviction.Supervision) {
	running := 0.0
	if s.State == eviction.GuestRunning {
		running = 1
	}
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, domain)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{domain}, labels...)...)
	}
	gauge(guestRunning, running)
	gauge(guestMemory, float64(s.MemoryBytes))
	count(guestInstances, float64(s.Instances))
	count(guestEvents, float64(s.Events))
	count(guestBatches, float64(s.Batches))
	count(guestQuestions, float64(s.Questions))
	count(guestSeconds, float64(s.Nanos)/1e9)
	count(guestEventTime, float64(s.EventNanos)/1e9)
	count(guestFuel, float64(s.Fuel))
	count(guestEventFuel, float64(s.EventFuel))
	count(guestFallbacks, float64(s.Fallbacks))
	count(guestProtected, float64(s.Protected))
	for _, kind := range slices.Sorted(maps.Keys(s.Faults)) {
		count(guestFaults, float64(s.Faults[kind]), kind)
	}
	for _, reason := range slices.Sorted(maps.Keys(s.Strikes)) {
		count(guestStrikes, float64(s.Strikes[reason]), reason)
	}
}
