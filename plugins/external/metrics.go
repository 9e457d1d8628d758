package external

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/module"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// metrics are the collectors of one plugin. Instances of the same name share them.
type metrics struct {
	ready, tripped           prometheus.Gauge
	starts, failures, silent prometheus.Counter
}

// RegisterMetrics registers the metrics that a plugin of this kind has, for a list of all metrics.
func RegisterMetrics(kind pluginv1.Kind, env module.Env) error {
	_, err := newMetrics(env.Metrics, kindName(kind), env.Name)
	return err
}

func newMetrics(reg prometheus.Registerer, kind, name string) (*metrics, error) {
	var errs []error
	labels := prometheus.Labels{"kind": kind, "plugin": name}
	gauge := func(name, help string) prometheus.Gauge {
		return register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: "mooncake_plugin_" + name, Help: help, ConstLabels: labels}), &errs)
	}
	counter := func(name, help string) prometheus.Counter {
		return register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: "mooncake_plugin_" + name, Help: help, ConstLabels: labels}), &errs)
	}
	m := &metrics{
		ready:    gauge("ready", "Processes of the plugin that answer calls."),
		tripped:  gauge("tripped", "1 while the plugin is off because it failed too often in a row."),
		starts:   counter("starts_total", "Starts of the plugin's program."),
		failures: counter("failures_total", "Processes that failed: to start, by exit, by hanging, by what they answered."),
		silent:   counter("log_lines_dropped_total", "Lines of the plugin that were left out because there were too many."),
	}
	return m, errors.Join(errs...)
}

// register adds a collector, or finds the one that is there already.
func register[C prometheus.Collector](reg prometheus.Registerer, c C, errs *[]error) C {
	err := reg.Register(c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if old, ok := there.ExistingCollector.(C); ok {
			return old
		}
	}
	if err != nil {
		*errs = append(*errs, err)
	}
	return c
}

// moved follows the state of one plugin.
func (m *metrics) moved(from, to State) {
	switch from {
	case StateReady:
		m.ready.Dec()
	case StateTripped:
		m.tripped.Dec()
	}
	switch to {
	case StateReady:
		m.ready.Inc()
	case StateTripped:
		m.tripped.Inc()
	}
}
