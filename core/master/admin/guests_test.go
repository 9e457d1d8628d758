package admin

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/mooncake-agent/mooncake/eviction"
)

type guestOnly struct{ s eviction.Supervision }

func (g *guestOnly) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range guestCollection {
		ch <- d
	}
}
func (g *guestOnly) Collect(ch chan<- prometheus.Metric) { collectGuest(ch, "team-a", &g.s) }

func TestGuestMetrics(t *testing.T) {
	g := &guestOnly{eviction.Supervision{
		State: eviction.GuestRunning, Instances: 2, Events: 512, Batches: 2, Questions: 3, Nanos: 5e9, EventNanos: 4e9, Fuel: 700, EventFuel: 600,
		Fallbacks: 4, Protected: 1, MemoryBytes: 99, Faults: map[string]uint64{"trap": 1, "out_of_fuel": 0}, Strikes: map[string]uint64{"unknown": 7},
	}}
	const p = "mooncake_master_eviction_guest_"
	want := map[string]float64{
		"running": 1, "instances_total": 2, "events_total": 512, "batches_total": 2, "questions_total": 3, "seconds_total": 5, "event_seconds_total": 4,
		"fuel_total": 700, "event_fuel_total": 600, "fallback_victims_total": 4, "protected_victims_total": 1, "memory_bytes": 99,
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(g)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != len(want)+2 {
		t.Errorf("%d families, want %d", len(families), len(want)+2)
	}
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), p)
		m := f.GetMetric()[0]
		if v, ok := want[name]; ok && m.GetGauge().GetValue()+m.GetCounter().GetValue() != v {
			t.Errorf("%s = %v, want %v", name, m, v)
		}
	}
	for _, text := range []string{
		p + `faults_total{domain="team-a",kind="trap"} 1`,
		p + `faults_total{domain="team-a",kind="out_of_fuel"} 0`,
		p + `strikes_total{domain="team-a",reason="unknown"} 7`,
	} {
		out, err := testutil.CollectAndFormat(g, expfmt.TypeTextPlain, p+"faults_total", p+"strikes_total")
		if err != nil || !strings.Contains(string(out), text) {
			t.Errorf("%s is missing in\n%s (%v)", text, out, err)
		}
	}
}
