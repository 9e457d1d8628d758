package rpc

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counter is padded to a cache line of its own: loops count without disturbing each other.
type counter struct {
	atomic.Uint64
	_ [56]byte
}

// stats are the server's numbers, read by Prometheus when it asks.
type stats struct {
	server         *Server
	accepted       atomic.Uint64
	received, sent atomic.Uint64
	refused        map[string]*atomic.Uint64
	paused         map[string]*atomic.Uint64
	closed         map[CloseReason]*atomic.Uint64
	errorAnswers   [int(codeInBody) + 1]atomic.Uint64
	slowSeconds    prometheus.Histogram
	d              descs
}

type descs struct {
	connections, accepted, refused, closed, requests, errors, received, sent, slow, paused, buffered *prometheus.Desc
}

func newStats(s *Server) *stats {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("mooncake_rpc_"+name, help, labels, nil)
	}
	st := &stats{server: s, refused: map[string]*atomic.Uint64{}, paused: map[string]*atomic.Uint64{}, closed: map[CloseReason]*atomic.Uint64{},
		slowSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "mooncake_rpc_slow_request_seconds",
			Help: "Time of slow requests, waiting for a worker included.", Buckets: prometheus.ExponentialBuckets(1e-4, 4, 10)}),
		d: descs{
			connections: desc("connections", "Open RPC connections."),
			accepted:    desc("connections_accepted_total", "Accepted RPC connections."),
			refused:     desc("connections_refused_total", "Connections closed at once because of a limit.", "reason"),
			closed:      desc("connections_closed_total", "Ended RPC connections.", "reason"),
			requests:    desc("requests_total", "Requests by function.", "function"),
			errors:      desc("error_answers_total", "Answers with an RPC error code.", "code"),
			received:    desc("received_bytes_total", "Bytes received."),
			sent:        desc("sent_bytes_total", "Bytes sent."),
			slow:        desc("slow_requests", "Requests on or waiting for a worker."),
			paused:      desc("paused_total", "How often a connection was not read for a while.", "reason"),
			buffered:    desc("buffered_bytes", "Memory of partial requests and unsent answers."),
		}}
	for _, r := range []string{"total", "address", "descriptors"} {
		st.refused[r] = new(atomic.Uint64)
	}
	for _, r := range []string{"address", "workers", "output"} {
		st.paused[r] = new(atomic.Uint64)
	}
	for _, r := range closeReasons {
		st.closed[r] = new(atomic.Uint64)
	}
	return st
}

func (st *stats) refuse(reason string) { st.refused[reason].Add(1) }

func (st *stats) countError(code Code) { st.errorAnswers[min(code, codeInBody)].Add(1) }

// Describe is part of prometheus.Collector.
func (st *stats) Describe(ch chan<- *prometheus.Desc) {
	d := &st.d
	for _, x := range []*prometheus.Desc{d.connections, d.accepted, d.refused, d.closed, d.requests, d.errors, d.received, d.sent, d.slow, d.paused, d.buffered} {
		ch <- x
	}
	st.slowSeconds.Describe(ch)
}

// Collect is part of prometheus.Collector.
func (st *stats) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
	s, d := st.server, &st.d
	gauge(d.connections, s.connections.Load())
	gauge(d.slow, s.slow.Load())
	gauge(d.buffered, s.buffered.Load())
	count(d.accepted, st.accepted.Load())
	count(d.received, st.received.Load())
	count(d.sent, st.sent.Load())
	for r, n := range st.refused {
		count(d.refused, n.Load(), r)
	}
	for r, n := range st.paused {
		count(d.paused, n.Load(), r)
	}
	for r, n := range st.closed {
		count(d.closed, n.Load(), string(r))
	}
	for code := range st.errorAnswers {
		if n := st.errorAnswers[code].Load(); n > 0 {
			label := strconv.Itoa(code)
			if Code(code) == codeInBody {
				label = "application"
			}
			count(d.errors, n, label)
		}
	}
	count(d.requests, s.unknown.total(), s.unknown.Name)
	s.mu.Lock() // functions may still be registered
	defer s.mu.Unlock()
	for _, f := range s.functions {
		count(d.requests, f.total(), f.Name)
	}
	st.slowSeconds.Collect(ch)
}

func (f *function) total() (n uint64) {
	for i := range f.calls {
		n += f.calls[i].Load()
	}
	return n
}
