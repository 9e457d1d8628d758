package verbs

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// metrics are the transport's collectors. All carry the label transport with the instance's name.
type metrics struct {
	bytes    [2]prometheus.Counter // by opIndex
	requests [2]prometheus.Counter
	latency  [2]prometheus.Observer
	failed   *prometheus.CounterVec // reason

	slices       *prometheus.CounterVec // device, op
	work         *prometheus.CounterVec // status: how work requests failed
	retries      *prometheus.CounterVec // reason
	connects     *prometheus.CounterVec // role, result
	railPauses   prometheus.Counter
	deviceEvents *prometheus.CounterVec // device, event
	deviceUp     *prometheus.GaugeVec   // device
	endpoints    *prometheus.GaugeVec   // device
	evicted      prometheus.Counter
	regions      prometheus.Gauge
	sleeps       prometheus.Counter
}

var opNames = [2]string{"read", "write"}

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
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mooncake_verbs_" + name, Help: help, ConstLabels: label}, labels)
		add(v)
		return v
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "mooncake_verbs_" + name, Help: help, ConstLabels: label}, labels)
		add(v)
		return v
	}
	bytes := vec("bytes_total", "Payload bytes moved by completed requests.", "op")
	requests := vec("requests_total", "Completed requests.", "op")
	latency := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "mooncake_verbs_request_seconds",
		Help: "Time from submission to completion of successful requests.", ConstLabels: label,
		Buckets: prometheus.ExponentialBuckets(4e-6, 4, 11)}, []string{"op"})
	add(latency)
	for i, op := range opNames {
		m.bytes[i] = bytes.WithLabelValues(op)
		m.requests[i] = requests.WithLabelValues(op)
		m.latency[i] = latency.WithLabelValues(op)
	}
	m.failed = vec("failed_total", "Requests that ended with an error.", "reason")
	m.slices = vec("work_total", "Completed work requests.", "device", "op")
	m.work = vec("work_failures_total", "Work requests that a device reported as failed.", "device", "status")
	m.retries = vec("work_retries_total", "Work requests tried again.", "reason")
	m.connects = vec("connects_total", "Connections of queue pairs to a peer's device.", "role", "result")
	m.railPauses = vec("rail_pauses_total", "Pairs of devices that were paused after repeated failures.").WithLabelValues()
	m.deviceEvents = vec("device_events_total", "Asynchronous events of devices.", "device", "event")
	m.deviceUp = gauges("device_up", "1 while the device can be used.", "device")
	m.endpoints = gauges("endpoints", "Connections to devices of peers.", "device")
	m.evicted = vec("endpoints_evicted_total", "Idle connections closed to make room.").WithLabelValues()
	m.regions = gauges("memory_regions", "Memory regions registered with devices.").WithLabelValues()
	m.sleeps = vec("poll_sleeps_total", "Times that polling a completion queue gave way to waiting for an event.").WithLabelValues()
	return m, errors.Join(errs...)
}

// moved counts one completed request.
func (m *metrics) moved(write bool, n uint64, seconds float64) {
	i := opIndex(write)
	m.bytes[i].Add(float64(n))
	m.requests[i].Inc()
	m.latency[i].Observe(seconds)
}

// eventNames are the events that come up in metrics and logs.
var eventNames = map[device.EventKind]string{
	device.EventCQError: "cq_error", device.EventQPFatal: "qp_fatal", device.EventQPRequestError: "qp_request_error",
	device.EventQPAccessError: "qp_access_error", device.EventCommEstablished: "comm_established",
	device.EventDeviceFatal: "device_fatal", device.EventPortActive: "port_active", device.EventPortError: "port_error",
	device.EventLIDChange: "lid_change", device.EventPKeyChange: "pkey_change", device.EventSMChange: "sm_change",
	device.EventClientReregister: "client_reregister", device.EventGIDChange: "gid_change",
}

func eventName(k device.EventKind) string {
	if s := eventNames[k]; s != "" {
		return s
	}
	return "other"
}
