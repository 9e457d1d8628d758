package policy

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
)

var scratch string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mooncake-policy")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	scratch = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// builds are the programs of the tests, each built once, without the race detector: they are other processes.
var builds sync.Map

func program(t *testing.T, pkg string) string {
	t.Helper()
	build, _ := builds.LoadOrStore(pkg, sync.OnceValues(func() (string, error) {
		out := filepath.Join(scratch, filepath.Base(pkg))
		if text, err := exec.Command("go", "build", "-o", out, pkg).CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build %s: %w: %s", pkg, err, text)
		}
		return out, nil
	}))
	path, err := build.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	example = "../../examples/external-eviction"
	faulty  = "../internal/faulty"
)

func configOf(t *testing.T, pkg string) Config {
	c := DefaultConfig()
	c.Command, c.RunDir = []string{program(t, pkg)}, filepath.Join(scratch, "run")
	c.CallTimeout = 20 * time.Second // the machine may be busy
	c.HealthTimeout = 20 * time.Second
	return c
}

func factory(t *testing.T, c Config) *Factory {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	f, err := Open(t.Context(), environment(t), c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func environment(t *testing.T) module.Env {
	return module.Env{Name: "test", Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)), Metrics: prometheus.NewRegistry()}
}

// quietEnvironment is for plugins that write much.
func quietEnvironment() module.Env {
	return module.Env{Name: "test", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p[:max(0, len(p)-1)]))
	return len(p), nil
}

func closed(t *testing.T, p eviction.Policy) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
