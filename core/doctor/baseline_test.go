package doctor

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/bench"
	"github.com/mooncake-agent/mooncake/core/units"
)

// measured is a baseline with these results for every transport.
func measured(peer string, gbps float64, latency time.Duration, err error) func(*Host) {
	return func(h *Host) {
		h.Setup.Baseline = &Baseline{Peer: peer, Transports: []string{"tcp", "shm", "verbs"}, Duration: time.Second,
			Measure: func(_ context.Context, transport string, o bench.Options) (*bench.Result, error) {
				if err := errors.Join(o.Validate(), err); err != nil {
					return nil, err
				}
				if o.Op != "read" || o.Duration != time.Second || o.Transport != transport {
					return nil, fmt.Errorf("measures %+v", o)
				}
				us := float64(latency) / float64(time.Microsecond)
				return &bench.Result{BytesPerSecond: gbps * 1e9, LatencyUS: bench.Latency{P50: us, P99: 2 * us}}, nil
			}}
	}
}

func TestBaselineTCP(t *testing.T) {
	const far = "10.10.1.99:15428"
	run := func(ctx context.Context, h *Host) Result { return h.baseline(ctx, "tcp") }
	try(t, run, []situation{
		{"as the link gives", none, measured(far, 1.1, 80*time.Microsecond, nil), Pass, []string{"1.10 GB/s, 4 KiB in 80µs (p50), 160 us (p99), expected 0.62 GB/s (50% of eno1, 10 Gb/s"}, nil},
		{"slow", none, measured(far, 0.4, 80*time.Microsecond, nil), Warn, []string{"expected 0.62 GB/s"}, []string{"iperf3"}},
		{"very slow", none, measured(far, 0.1, 80*time.Microsecond, nil), Fail, nil, nil},
		{"late", none, measured(far, 1.1, 3*time.Millisecond, nil), Warn, []string{"latency 3ms, expected 1ms"}, []string{"cpupower"}},
		{"as asked", none, both(measured(far, 1.1, time.Microsecond, nil), func(h *Host) { h.Setup.Baseline.Expect = map[string]units.Size{"tcp": 2 * units.GiB} }), Warn, []string{"expected 2.15 GB/s (as asked)"}, nil},
		{"a fast link", none, both(measured(far, 2.6, time.Microsecond, nil), func(h *Host) { h.put("sys/class/net/eno1/speed", "200000") }), Pass, []string{"expected 2.50 GB/s"}, nil},
		{"speed not known", none, both(measured(far, 0.01, time.Microsecond, nil), func(h *Host) { h.put("sys/class/net/eno1/speed", "-1") }), Pass, []string{"no expectation"}, nil},
		{"on this machine", none, measured("10.10.1.11:15428", 0.6, time.Microsecond, nil), Pass, []string{"loopback"}, nil},
		{"no transfer", none, measured(far, 0, 0, errors.New("no route to host")), Fail, []string{"no route to host"}, []string{"mooncake bench transfer --target " + far}},
	})
}

func TestBaselineOthers(t *testing.T) {
	shm := func(ctx context.Context, h *Host) Result { return h.baseline(ctx, "shm") }
	try(t, shm, []situation{
		{"on this machine", none, measured("localhost:15428", 9, 5*time.Microsecond, nil), Pass, []string{"memory of one host"}, nil},
		{"another machine", none, measured("10.0.0.9:15428", 0, 0, errors.New("other host")), Pass, []string{"not a path to 10.0.0.9:15428"}, nil},
		{"on this machine, broken", none, measured("127.0.0.1:15428", 0, 0, errors.New("no token")), Fail, []string{"no token"}, nil},
	})
	verbs := func(ctx context.Context, h *Host) Result { return h.baseline(ctx, "verbs") }
	try(t, verbs, []situation{
		{"line rate", roce, measured("10.0.0.9:15428", 11, 5*time.Microsecond, nil), Pass, []string{"expected 10.00 GB/s (80% of 100 Gb/s)"}, nil},
		{"half", roce, measured("10.0.0.9:15428", 6, 5*time.Microsecond, nil), Warn, nil, []string{"ib_read_bw"}},
		{"late", roce, measured("10.0.0.9:15428", 11, 90*time.Microsecond, nil), Warn, []string{"expected 50µs"}, nil},
		{"no ports", none, measured("10.0.0.9:15428", 1, time.Microsecond, nil), Pass, []string{"no expectation"}, nil},
		{"no transfer", roce, measured("10.0.0.9:15428", 0, 0, errors.New("unreachable")), Warn, []string{"unreachable"}, nil},
		{"no transfer, required", roce, both(required, measured("10.0.0.9:15428", 0, 0, errors.New("unreachable"))), Fail, nil, nil},
	})
}

func TestBaselineCountsFailedBatches(t *testing.T) {
	h := healthy(t, none)
	measured("127.0.0.1:1", 9, time.Microsecond, nil)(h)
	ok := h.Setup.Baseline.Measure
	h.Setup.Baseline.Measure = func(ctx context.Context, transport string, o bench.Options) (*bench.Result, error) {
		r, err := ok(ctx, transport, o)
		r.Errors, r.FirstError = 2, errors.New("rejected")
		return r, err
	}
	if r := h.baseline(t.Context(), "tcp"); r.Level != Fail {
		t.Errorf("%+v", r)
	}
}

func TestParseExpect(t *testing.T) {
	got, err := ParseExpect([]string{"tcp=1GB", "verbs=10GB"})
	if err != nil || got["tcp"] != units.GiB || got["verbs"] != 10*units.GiB {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"tcp", "=1GB", "tcp=fast", "tcp="} {
		if _, err := ParseExpect([]string{bad}); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}
