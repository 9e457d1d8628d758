package tcp

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the transport's collectors. All carry the label transport with the instance's name. The
// hot ones are resolved to single counters once.
type metrics struct {
	bytes       [2][2]prometheus.Counter // [role][op]
	requests    [2][2]prometheus.Counter
	latency     [2]prometheus.Observer // [op]
	rejected    *prometheus.CounterVec // reason
	failed      *prometheus.CounterVec // reason
	stalled     [2]prometheus.Counter  // [role]
	connections prometheus.Gauge
	accepted    prometheus.Counter
	evicted     prometheus.Counter
	refused     prometheus.Counter
	lanes       prometheus.Gauge
	retries     *prometheus.CounterVec // reason
	connectErrs prometheus.Counter
}

const (
	roleClient = 0
	roleServer = 1
)

var (
	roles = [2]string{"client", "server"}
	ops   = [2]string{"read", "write"}
)

func opIndex(write bool) int {
	if write {
		return 1
	}
	return 0
}

func newMetrics(reg prometheus.Registerer, name string) (*metrics, error) {
	m := &metrics{}
	var errs []error
	label := prometheus.Labels{"transport": name}
	add := func(c prometheus.Collector) {
		if err := reg.Register(c); err != nil {
			errs = append(errs, err)
		}
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mooncake_tcp_" + name, Help: help, ConstLabels: label}, labels)
		add(v)
		return v
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "mooncake_tcp_" + name, Help: help, ConstLabels: label})
		add(g)
		return g
	}
	bytes := vec("bytes_total", "Payload bytes moved by completed requests.", "role", "op")
	requests := vec("requests_total", "Completed requests.", "role", "op")
	stalled := vec("stalled_total", "Connections dropped because a request made no progress.", "role")
	latency := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "mooncake_tcp_request_seconds", Help: "Time from submission to completion of successful requests.",
		ConstLabels: label, Buckets: prometheus.ExponentialBuckets(16e-6, 4, 10),
	}, []string{"op"})
	add(latency)
	for o, op := range ops {
		m.latency[o] = latency.WithLabelValues(op)
		for r, role := range roles {
			m.bytes[r][o] = bytes.WithLabelValues(role, op)
			m.requests[r][o] = requests.WithLabelValues(role, op)
			m.stalled[r] = stalled.WithLabelValues(role)
		}
	}
	m.rejected = vec("rejected_total", "Requests of peers that were refused.", "reason")
	m.failed = vec("failed_total", "Own requests that ended with an error.", "reason")
	m.retries = vec("lane_retries_total", "Own requests sent again on another connection.", "reason")
	m.connections = gauge("connections", "Open served connections.")
	m.lanes = gauge("lanes", "Open connections to peers.")
	m.accepted = vec("connections_accepted_total", "Served connections accepted.").WithLabelValues()
	m.evicted = vec("connections_evicted_total", "Idle served connections closed to make room.").WithLabelValues()
	m.refused = vec("connections_refused_total", "Connections closed at once because none could make room.").WithLabelValues()
	m.connectErrs = vec("connect_failures_total", "Failed attempts to connect to a peer.").WithLabelValues()
	return m, errors.Join(errs...)
}

// moved counts one completed request.
func (m *metrics) moved(role int, write bool, n uint64) {
	o := opIndex(write)
	m.bytes[role][o].Add(float64(n))
	m.requests[role][o].Inc()
}
