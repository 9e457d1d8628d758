package external

import (
	"context"
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
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

var scratch string

// The test binary is also a host that is to be killed: see TestHostKilled.
func TestMain(m *testing.M) {
	if os.Getenv(hostEnv) != "" {
		if err := beHost(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {}
	}
	dir, err := os.MkdirTemp("", "mooncake-external")
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

var faultyBinary = sync.OnceValues(func() (string, error) {
	out := filepath.Join(scratch, "faulty")
	if text, err := exec.Command("go", "build", "-o", out, "./internal/faulty").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the test plugin: %w: %s", err, text)
	}
	return out, nil
})

// faulty is the configuration of the test plugin.
func faulty(t testing.TB, mode string, config map[string]any) Config {
	t.Helper()
	path, err := faultyBinary()
	if err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	c.Command, c.RunDir, c.Config = []string{path}, filepath.Join(scratch, "run"), config
	if mode != "" {
		c.Env = []string{"FAULTY=" + mode}
	}
	return c
}

func environmentOf(t testing.TB, name string) module.Env {
	return module.Env{Name: name, Log: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})), Metrics: prometheus.NewRegistry()}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p[:max(0, len(p)-1)]))
	return len(p), nil
}

// open accepts the test plugin as an eviction policy.
func open(t testing.TB, c Config) *Program {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	g, err := Open(t.Context(), pluginv1.Kind_KIND_EVICTION, c, environmentOf(t, "test"))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition; what is told if it never holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
