package shm

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTestTransport(t testing.TB, change func(*Config)) *Transport {
	t.Helper()
	cfg := defaultConfig()
	if change != nil {
		change(&cfg)
	}
	tr, err := newTransport(module.Env{Name: "shm", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestConformance(t *testing.T) {
	dir := t.TempDir() + "/run"
	for name, change := range map[string]func(*Config){
		"defaults":     nil,
		"one copier":   func(c *Config) { c.Copiers = 1 },
		"run folder":   func(c *Config) { c.SocketDir = dir },
		"many copiers": func(c *Config) { c.Copiers = 16 },
	} {
		t.Run(name, func(t *testing.T) {
			h := transporttest.Harness{Access: true, New: func(t testing.TB) transports.Transport { return newTestTransport(t, change) }}
			if change != nil {
				h.Largest = 4 << 20
			}
			transporttest.Run(t, h)
		})
	}
}
