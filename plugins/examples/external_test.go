package examples

import (
	"log/slog"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/metadatatest"
	"github.com/mooncake-agent/mooncake/plugins/external"
	"github.com/mooncake-agent/mooncake/plugins/external/backend"
)

// slow gives the plugins time on a machine that does other things too.
func slow(t testing.TB, command ...string) external.Config {
	t.Helper()
	c := external.DefaultConfig()
	c.Command, c.RunDir = command, filepath.Join(t.TempDir(), "run")
	c.Env = []string{"PYTHONPATH=" + filepath.Join(testenv.RepoRoot(t), "plugins", "sdk", "python")}
	c.StartTimeout, c.HealthTimeout, c.CallTimeout = time.Minute, 30*time.Second, 30*time.Second
	return c
}

func pluginEnv() module.Env {
	return module.Env{Name: "example", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}
}

// pythonExample is the configuration of an example in Python.
func pythonExample(t testing.TB, file string) external.Config {
	t.Helper()
	script, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	return slow(t, testenv.PluginPython(t), script)
}

func suiteOfMetadata(t *testing.T, c external.Config, want metadatatest.Declared) {
	metadatatest.Run(t, func(testing.TB) metadatatest.Service {
		return metadatatest.Service{Timeout: c.CallTimeout, Open: func(t testing.TB) metadata.Backend {
			b, err := backend.New(t.Context(), pluginEnv(), backend.Config{Config: c})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}}
	}, want)
}

func TestExternalMetadataInPython(t *testing.T) {
	c := pythonExample(t, "external-metadata-python/sqlite_metadata.py")
	c.Config = map[string]any{"path": filepath.Join(t.TempDir(), "meta.db")}
	suiteOfMetadata(t, c, metadatatest.Declared{Lister: true, Committer: true, Watcher: true, Leaser: true})
}

func TestExternalMetadataInGo(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "folder")
	if text, err := exec.Command("go", "build", "-o", bin, "./external-metadata").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	c := slow(t, bin)
	c.Config = map[string]any{"folder": filepath.Join(t.TempDir(), "meta")}
	suiteOfMetadata(t, c, metadatatest.Declared{Lister: true})
}
