package backend

import (
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/metadatatest"
)

// A plugin that passes on what redis can do has to do all that redis does, through the process boundary.
func TestConformance(t *testing.T) {
	metadatatest.Run(t, func(t testing.TB) metadatatest.Service {
		server := testenv.Redis(t)
		return metadatatest.Service{
			Open: func(t testing.TB) metadata.Backend {
				return open(t, configOf(t, "redis", map[string]any{"type": "redis", "url": "redis://" + server.Addr + "/3"}))
			},
			Timeout:  5 * time.Second,
			MaxValue: 8 << 20,
			Stop:     func(testing.TB) { server.Stop() },
			Start:    func(testing.TB) { server.Start() },
			Pause:    func(testing.TB) { server.Signal(syscall.SIGSTOP) },
			Resume:   func(testing.TB) { server.Signal(syscall.SIGCONT) },
		}
	}, metadatatest.Declared{Lister: true, Committer: true, Watcher: true, Leaser: true})
}

// A plugin without features is a backend without abilities.
func TestPlainConformance(t *testing.T) {
	metadatatest.Run(t, func(t testing.TB) metadatatest.Service {
		server := testenv.Redis(t)
		return metadatatest.Service{
			Open: func(t testing.TB) metadata.Backend {
				return open(t, configOf(t, "plain", map[string]any{"type": "redis", "url": "redis://" + server.Addr + "/4"}))
			},
			Timeout:  5 * time.Second,
			MaxValue: 8 << 20,
		}
	}, metadatatest.Declared{})
}
