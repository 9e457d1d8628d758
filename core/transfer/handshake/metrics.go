package handshake

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the collectors of a Server. A nil *Metrics counts nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	limited  *prometheus.CounterVec
}

// NewMetrics registers the collectors on r:
//
//	mooncake_handshake_requests_total{type,result}     result: answered, closed
//	mooncake_handshake_limited_connections_total{what} what: dropped (idle, for a new one), refused
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mooncake_handshake_requests_total",
			Help: "Requests of peers to the handshake daemon."}, []string{"type", "result"}),
		limited: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mooncake_handshake_limited_connections_total",
			Help: "Connections to the handshake daemon that its limits ended."}, []string{"what"}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.limited} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) request(typ, result string) {
	if m != nil {
		m.requests.WithLabelValues(typ, result).Inc()
	}
}

func (m *Metrics) dropped() {
	if m != nil {
		m.limited.WithLabelValues("dropped").Inc()
	}
}

func (m *Metrics) refused() {
	if m != nil {
		m.limited.WithLabelValues("refused").Inc()
	}
}
