package shm

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/transports"
)

// metrics are the transport's collectors, all with the label transport.
type metrics struct {
	bytes, ops   [2]prometheus.Counter  // by op
	failed       *prometheus.CounterVec // reason
	dialFailures *prometheus.CounterVec // reason
	refused      *prometheus.CounterVec // reason
	links        prometheus.Gauge
	serving      prometheus.Gauge
	mapped       prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, name string) (*metrics, error) {
	m := &metrics{}
	var errs []error
	label := prometheus.Labels{"transport": name}
	vec := func(name, help, by string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mooncake_shm_" + name, Help: help, ConstLabels: label}, []string{by})
		errs = append(errs, reg.Register(v))
		return v
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "mooncake_shm_" + name, Help: help, ConstLabels: label})
		errs = append(errs, reg.Register(g))
		return g
	}
	bytes := vec("bytes_total", "Bytes copied to and from mapped memory of peers.", "op")
	ops := vec("requests_total", "Completed requests.", "op")
	for i, op := range []string{"read", "write"} {
		m.bytes[i], m.ops[i] = bytes.WithLabelValues(op), ops.WithLabelValues(op)
	}
	m.failed = vec("failed_total", "Own requests that ended with an error here; not_shareable ones take the next path.", "reason")
	m.dialFailures = vec("connect_failures_total", "Why memory of a peer on this host is not used: connect, uid, proof, memory.", "reason")
	m.refused = vec("refused_total", "Peers that were not let in: uid, version, instance, token, memory, protocol, full.", "reason")
	m.links = gauge("links", "Peers whose memory this node can use.")
	m.serving = gauge("peers", "Peers that can use this node's memory.")
	m.mapped = gauge("mapped_bytes", "Memory of peers that is mapped.")
	return m, errors.Join(errs...)
}

// count counts the end of one request.
func (m *metrics) count(write bool, n uint64, err error) {
	if err == nil {
		i := 0
		if write {
			i = 1
		}
		m.bytes[i].Add(float64(n))
		m.ops[i].Inc()
		return
	}
	reason := "canceled"
	for _, r := range []struct {
		target error
		label  string
	}{
		{transports.ErrNotShareable, "not_shareable"},
		{transports.ErrRejected, "rejected"},
		{transports.ErrTimeout, "no_answer"},
		{transports.ErrClosed, "closed"},
		{transports.ErrInterrupted, "interrupted"},
		{transports.ErrUnreachable, "unreachable"},
	} {
		if errors.Is(err, r.target) {
			reason = r.label
			break
		}
	}
	m.failed.WithLabelValues(reason).Inc()
}
