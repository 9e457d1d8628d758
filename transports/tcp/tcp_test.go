package tcp

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"defaults":             nil,
		"one lane":             func(c *Config) { c.LanesPerPeer = 1 },
		"no pool":              func(c *Config) { c.ConnectionPool = false },
		"tiny windows":         func(c *Config) { c.PipelineWindow, c.PipelineBytes, c.MaxQueued = 2, 64<<10, 3 },
		"small socket buffers": func(c *Config) { c.SendBuffer, c.ReceiveBuffer = 8<<10, 8<<10 },
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
