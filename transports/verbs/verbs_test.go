package verbs

import (
	"io/fs"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
	"github.com/mooncake-agent/mooncake/transports/verbs/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var hosts atomic.Uint32

// noSys is a machine whose kernel tells nothing.
var noSys fs.FS = fstest.MapFS{}

// newMachine returns a machine with some RoCE devices; how changes their descriptions.
func newMachine(f *fake.Fabric, nics int, how func(i int, s *fake.Spec)) *fake.Machine {
	host := byte(hosts.Add(1))
	var specs []fake.Spec
	for i := range nics {
		s := fake.RoCE([]string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}[i], host, byte(i+1))
		if how != nil {
			how(i, &s)
		}
		specs = append(specs, s)
	}
	return f.Machine(specs...)
}

// newOn returns a transport on the devices of m. When the test ends nothing may be open on them.
func newOn(t testing.TB, m *fake.Machine, change func(*Config)) *Transport {
	t.Helper()
	cfg := defaultConfig()
	cfg.RailPause, cfg.ConnectPause, cfg.ReopenPause = time.Second, 5*time.Millisecond, 10*time.Millisecond
	if change != nil {
		change(&cfg)
	}
	tr, err := newTransport(module.Env{Name: "verbs", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}, cfg, m, noSys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if c := m.Counts(); c != (fake.Counts{}) {
			t.Errorf("left open on the devices: %+v", c)
		}
		if n := m.Violations(); n != 0 {
			t.Errorf("%d times memory was unregistered that posted work could touch", n)
		}
	})
	return tr
}

func TestConformance(t *testing.T) {
	for name, c := range map[string]struct {
		nics   int
		how    func(int, *fake.Spec)
		change func(*Config)
	}{
		"defaults":    {nics: 1},
		"two devices": {nics: 2},
		"one queue pair, tiny queues": {nics: 1, change: func(c *Config) {
			c.QPs, c.MaxWork, c.MaxCQE, c.MaxQueued = 1, 4, 16, 16
		}},
		"pieces of a region": {nics: 2, how: func(_ int, s *fake.Spec) { s.Limits.MaxMRSize = 64 << 10 }, change: func(c *Config) {
			c.SliceSize = 40 * units.KiB
		}},
		"several completion queues, no busy polling": {nics: 2, change: func(c *Config) { c.CQs, c.BusyPoll, c.RoundRobin = 3, 0, true }},
	} {
		t.Run(name, func(t *testing.T) {
			fab := fake.New()
			h := transporttest.Harness{Access: true, Keyed: true, New: func(t testing.TB) transports.Transport {
				return newOn(t, newMachine(fab, c.nics, c.how), c.change)
			}}
			if name != "defaults" {
				h.Largest = 4 << 20
			}
			transporttest.Run(t, h)
		})
	}
}
