package transfer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the engine's collectors; see the package comment for their meaning.
type metrics struct {
	tasks     *prometheus.CounterVec // op, result
	bytes     *prometheus.CounterVec // op
	failures  *prometheus.CounterVec // reason
	retries   *prometheus.CounterVec // reason
	refreshes *prometheus.CounterVec // result
	publishes *prometheus.CounterVec // result
	notifies  *prometheus.CounterVec // event
	paths     *prometheus.CounterVec // path, op
	switches  *prometheus.CounterVec // path, reason
	batches   prometheus.Counter
	inflight  prometheus.Gauge
	latency   prometheus.Histogram

	ok, moved, copies [2]prometheus.Counter // by opIndex, resolved once
}

func newMetrics(r prometheus.Registerer, e *Engine) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mooncake_transfer_" + name, Help: help}, labels)
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mooncake_transfer_" + name, Help: help}, f)
	}
	m := &metrics{
		tasks:     counter("tasks_total", "Finished requests of this engine as initiator.", "op", "result"),
		bytes:     counter("bytes_total", "Bytes moved by this engine as initiator.", "op"),
		failures:  counter("failures_total", "Requests that did not complete, by reason.", "reason"),
		retries:   counter("retries_total", "Second attempts, by what failed first.", "reason"),
		refreshes: counter("descriptor_refreshes_total", "Descriptors of opened segments read again.", "result"),
		publishes: counter("publishes_total", "Writes of this engine's own metadata entries.", "result"),
		notifies:  counter("notifies_total", "Notifications: received, sent, failed to send, dropped from the full queue.", "event"),
		paths:     counter("path_bytes_total", "Bytes moved by this engine as initiator, by the way they went: a transport, or copy inside the process.", "path", "op"),
		switches:  counter("path_switches_total", "Requests that left a path for the next one, by the path they left and why.", "path", "reason"),
		batches:   prometheus.NewCounter(prometheus.CounterOpts{Name: "mooncake_transfer_batches_total", Help: "Batches submitted."}),
		inflight:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "mooncake_transfer_inflight_bytes", Help: "Bytes handed to transports and not yet completed."}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "mooncake_transfer_task_completion_latency_us",
			Help: "Time from submission to completion of a request, in microseconds.",
			Buckets: []float64{10, 25, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10000, 20000, 50000,
				100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000}}),
	}
	for i, op := range []string{"read", "write"} {
		m.ok[i], m.moved[i] = m.tasks.WithLabelValues(op, "completed"), m.bytes.WithLabelValues(op)
	}
	m.copies = m.path(copyPath)
	for _, c := range []prometheus.Collector{m.tasks, m.bytes, m.failures, m.retries, m.refreshes, m.publishes, m.notifies, m.paths, m.switches,
		m.batches, m.inflight, m.latency,
		gauge("segments", "Remote segments opened.", func() float64 { return float64(e.segs.len()) }),
		gauge("regions", "Registered regions.", func() float64 { return float64(e.index.Len()) }),
		gauge("registered_bytes", "Bytes of all registered regions.", func() float64 { return float64(e.regs.bytes.Load()) }),
		gauge("batches_inflight", "Batches not yet complete.", func() float64 { return float64(e.open.Load()) }),
		gauge("notifies_queued", "Notifications waiting for the application.", func() float64 { return float64(e.inbox.len()) }),
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// path resolves the byte counters of a path.
func (m *metrics) path(name string) [2]prometheus.Counter {
	return [2]prometheus.Counter{m.paths.WithLabelValues(name, opName(false)), m.paths.WithLabelValues(name, opName(true))}
}

func opIndex(write bool) int {
	if write {
		return 1
	}
	return 0
}

func opName(write bool) string { return [...]string{"read", "write"}[opIndex(write)] }

func (m *metrics) completed(write bool, n uint64, took time.Duration) {
	i := opIndex(write)
	m.ok[i].Inc()
	m.moved[i].Add(float64(n))
	m.latency.Observe(float64(took) / float64(time.Microsecond))
}

func (m *metrics) failed(write bool, s State, n uint64, err error) {
	m.tasks.WithLabelValues(opName(write), s.String()).Inc()
	m.failures.WithLabelValues(reason(err)).Inc()
	if n > 0 {
		m.moved[opIndex(write)].Add(float64(n))
	}
}
