package telemetry

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func TestCatalogueKnowsTypesWithoutSamples(t *testing.T) {
	r := NewRegistry(BuildVersion())
	part := r.With(prometheus.Labels{"transport": "tcp"})
	part.MustRegister(
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mooncake_test_bytes_total", Help: `Bytes | "moved".`}, []string{"op"}),
		prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "mooncake_test_seconds", Help: "Time."}, []string{"op", "peer"}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "mooncake_test_lanes", Help: "Lanes."}),
		prometheus.NewHistogram(prometheus.HistogramOpts{Name: "mooncake_test_wait_seconds", Help: "Wait."}),
	)
	r.MustRegister(
		prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "mooncake_test_peers", Help: "Peers."}, []string{"state"}),
		prometheus.NewSummaryVec(prometheus.SummaryOpts{Name: "mooncake_test_summary", Help: "S."}, []string{"a"}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "mooncake_test_calls_total", Help: "Calls."}, func() float64 { return 0 }),
	)
	other := r.With(prometheus.Labels{"transport": "shm"})
	other.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "mooncake_test_lanes", Help: "Lanes."}))
	all, err := r.Catalogue()
	if err != nil {
		t.Fatal(err)
	}
	var got []Metric
	for _, m := range all {
		if strings.HasPrefix(m.Name, "mooncake_") {
			got = append(got, m)
		}
		if m.Type == "unknown" || m.Help == "" {
			t.Errorf("%s: type %q, help %q", m.Name, m.Type, m.Help)
		}
	}
	want := []Metric{
		{"mooncake_build_info", "gauge", "What this binary was built from, in the labels; the value is always 1.", []string{"commit", "go", "version"}},
		{"mooncake_test_bytes_total", "counter", `Bytes | "moved".`, []string{"op", "transport"}},
		{"mooncake_test_calls_total", "counter", "Calls.", nil},
		{"mooncake_test_lanes", "gauge", "Lanes.", []string{"transport"}},
		{"mooncake_test_peers", "gauge", "Peers.", []string{"state"}},
		{"mooncake_test_seconds", "histogram", "Time.", []string{"op", "peer", "transport"}},
		{"mooncake_test_summary", "summary", "S.", []string{"a"}},
		{"mooncake_test_wait_seconds", "histogram", "Wait.", []string{"transport"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(all) < len(want)+20 {
		t.Errorf("%d metrics in all: the Go and process collectors are missing", len(all))
	}
	if s := MetricsTable(got); !strings.Contains(s, "\n| `mooncake_test_bytes_total` | counter | op, transport | Bytes \\| \"moved\". |\n") {
		t.Errorf("table:\n%s", s)
	}
}

func TestRegistryRefusesDuplicates(t *testing.T) {
	r := NewRegistry(Version{})
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mooncake_x_total", Help: "X."}, nil)
	r.MustRegister(c)
	if err := r.Register(c); err == nil {
		t.Error("the same collector was registered twice")
	}
	if err := r.With(nil).Register(c); err == nil {
		t.Error("the same collector was registered twice through With")
	}
	if !r.With(nil).Unregister(c) {
		t.Error("Unregister through With failed")
	}
}

func TestVersion(t *testing.T) {
	v := versionOf(&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.modified", Value: "true"},
		{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "-tags", Value: "noetcd,noredis"},
	}})
	if d := cmp.Diff([]string{"noetcd", "noredis"}, v.Tags); d != "" || v.Time != "2026-01-02T03:04:05Z" {
		t.Errorf("tags or time: %+v", v)
	}
	s := v.String()
	for _, part := range []string{"mooncake v1.2.3, commit 0123456789ab with local changes, go1.", "tags noetcd,noredis"} {
		if !strings.Contains(s, part) {
			t.Errorf("%q is missing in %q", part, s)
		}
	}
	if s := versionOf(nil).String(); !strings.HasPrefix(s, "mooncake devel, go") {
		t.Errorf("without build info: %q", s)
	}
	if versionOf(&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}).Version != "devel" {
		t.Error("(devel) is not shown as devel")
	}
}
