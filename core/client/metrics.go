package client

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	ops        *prometheus.CounterVec
	bytes      *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	renewals   *prometheus.CounterVec
	heartbeats *prometheus.CounterVec
	remounts   prometheus.Counter
	tasks      *prometheus.CounterVec
	mounted    prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	const p = "mooncake_store_client_"
	m := &metrics{
		ops: prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "ops_total",
			Help: "Objects that operations of the Store client were asked for, by operation and result."}, []string{"op", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "bytes_total",
			Help: "Bytes of objects that were put and read; each replica of a put counts once."}, []string{"op"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: p + "op_seconds",
			Help:    "Duration of calls of the Store client that move data; a batch is one call.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2.5, 14)}, []string{"op"}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "lease_renewals_total",
			Help: "Attempts to renew the lease of a long read: renewed, lost (the object is gone or another one), failed (no answer)."}, []string{"result"}),
		heartbeats: prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "heartbeats_total",
			Help: "Heartbeats to the master by answer: ok, remount, failed."}, []string{"result"}),
		remounts: prometheus.NewCounter(prometheus.CounterOpts{Name: p + "remounts_total",
			Help: "Segments that the master had lost and that were mounted again, at a new address."}),
		tasks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "tasks_total",
			Help: "Copy and move tasks of the master that were done here."}, []string{"type", "result"}),
		mounted: prometheus.NewGauge(prometheus.GaugeOpts{Name: p + "mounted_bytes",
			Help: "Memory that the master has accepted from this client."}),
	}
	for _, c := range []prometheus.Collector{m.ops, m.bytes, m.seconds, m.renewals, m.heartbeats, m.remounts, m.tasks, m.mounted} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	for _, op := range []string{"put", "upsert", "get"} {
		m.bytes.WithLabelValues(op)
		m.seconds.WithLabelValues(op)
		m.ops.WithLabelValues(op, "ok")
	}
	for _, r := range []string{"renewed", "lost", "failed"} {
		m.renewals.WithLabelValues(r)
	}
	for _, r := range []string{"ok", "remount", "failed"} {
		m.heartbeats.WithLabelValues(r)
	}
	m.tasks.WithLabelValues("copy", "ok")
	m.tasks.WithLabelValues("move", "ok")
	return m, nil
}

// done counts one operation.
func (m *metrics) done(op string, err error) {
	m.ops.WithLabelValues(op, outcome(err)).Inc()
}

// call counts one call that moves data: n bytes if it succeeded.
func (m *metrics) call(op string, n uint64, start time.Time, err error) {
	if err == nil {
		m.bytes.WithLabelValues(op).Add(float64(n))
	}
	m.seconds.WithLabelValues(op).Observe(time.Since(start).Seconds())
}
