package telemetry

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Registry is a Prometheus registry that remembers its collectors, because a plain one cannot tell the
// type of a metric without samples. It is a prometheus.Registerer and a prometheus.Gatherer.
type Registry struct {
	*prometheus.Registry
	seen *seen
}

type seen struct {
	mu    sync.Mutex
	kinds map[string]string // metric name → type, kept after Unregister: the name stays documented
}

// NewRegistry returns a registry with the collectors of the Go runtime, of the process and
// mooncake_build_info.
func NewRegistry(v Version) *Registry {
	r := &Registry{Registry: prometheus.NewRegistry(), seen: &seen{kinds: map[string]string{}}}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), v.buildInfo())
	return r
}

// Register implements prometheus.Registerer.
func (r *Registry) Register(c prometheus.Collector) error { return r.register(r.Registry, c) }

// MustRegister implements prometheus.Registerer.
func (r *Registry) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// With returns a registerer that adds constant labels to everything registered through it (the
// instance name of a part). Use it instead of prometheus.WrapRegistererWith, which hides the types.
func (r *Registry) With(labels prometheus.Labels) prometheus.Registerer {
	return &labelled{r, prometheus.WrapRegistererWith(labels, r.Registry)}
}

type labelled struct {
	registry *Registry
	prometheus.Registerer
}

func (l *labelled) Register(c prometheus.Collector) error {
	return l.registry.register(l.Registerer, c)
}

func (l *labelled) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := l.Register(c); err != nil {
			panic(err)
		}
	}
}

func (r *Registry) register(to prometheus.Registerer, c prometheus.Collector) error {
	if err := to.Register(c); err != nil {
		return err
	}
	kind := kindOf(c)
	if kind == "" {
		return nil
	}
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	for _, d := range descs(c) {
		r.seen.kinds[d.name] = kind
	}
	return nil
}

// kindOf tells the type of the library's vectors. The others always have a sample, which tells it.
func kindOf(c prometheus.Collector) string {
	switch c.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.GaugeVec:
		return "gauge"
	case *prometheus.HistogramVec:
		return "histogram"
	case *prometheus.SummaryVec:
		return "summary"
	}
	return ""
}

// Metric is one entry of the catalogue.
type Metric struct {
	Name   string   `json:"name"`
	Type   string   `json:"type"` // counter, gauge, histogram, summary, untyped
	Help   string   `json:"help"`
	Labels []string `json:"labels,omitempty"` // names, constant ones included, sorted
}

// Catalogue lists every metric that is registered, sorted by name, also those without a sample yet. The
// type of a metric of a foreign collector that has no sample is told by its name: _total is a counter.
func (r *Registry) Catalogue() ([]Metric, error) {
	byName := map[string]*Metric{}
	for _, d := range descs(r.Registry) {
		m := byName[d.name]
		if m == nil {
			m = &Metric{Name: d.name, Type: "gauge", Help: d.help}
			if strings.HasSuffix(d.name, "_total") {
				m.Type = "counter"
			}
			byName[d.name] = m
		}
		m.Labels = append(m.Labels, d.labels...)
	}
	r.seen.mu.Lock()
	for name, kind := range r.seen.kinds {
		if m := byName[name]; m != nil {
			m.Type = kind
		}
	}
	r.seen.mu.Unlock()
	families, err := r.Gather()
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	for _, f := range families {
		if m := byName[f.GetName()]; m != nil {
			m.Type = strings.ToLower(f.GetType().String())
		}
	}
	out := make([]Metric, 0, len(byName))
	for _, m := range byName {
		slices.Sort(m.Labels)
		m.Labels = slices.Compact(m.Labels)
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// MetricsTable writes a catalogue as a Markdown table: the body of docs/metrics.md.
func MetricsTable(ms []Metric) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range ms {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, strings.Join(m.Labels, ", "), strings.ReplaceAll(m.Help, "|", "\\|"))
	}
	return b.String()
}

type desc struct {
	name, help string
	labels     []string
}

// descPattern reads prometheus.Desc's own text: the library gives no other access to its parts.
var (
	descPattern  = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"),.* constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constPattern = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\.)*"`)
)

// descs collects the descriptions of c.
func descs(c prometheus.Collector) (out []*desc) {
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		c.Describe(ch)
	}()
	for d := range ch {
		if p := parseDesc(d.String()); p != nil {
			out = append(out, p)
		}
	}
	return out
}

func parseDesc(text string) *desc {
	m := descPattern.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	d := &desc{}
	d.name, _ = strconv.Unquote(m[1])
	d.help, _ = strconv.Unquote(m[2])
	labels := map[string]bool{}
	for _, c := range constPattern.FindAllStringSubmatch(m[3], -1) {
		labels[c[1]] = true
	}
	for v := range strings.SplitSeq(m[4], ",") {
		if v = strings.TrimSuffix(strings.TrimPrefix(v, "c("), ")"); v != "" {
			labels[v] = true
		}
	}
	d.labels = slices.Sorted(maps.Keys(labels))
	return d
}
