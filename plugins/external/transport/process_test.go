package transport

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/plugins/external"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

var scratch string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mooncake-transport")
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

// The programs of the tests, built once.
var (
	moverProgram  = program("mover", "../../examples/external-transport")
	faultyProgram = program("faulty", "./internal/faulty")
)

func program(name, source string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		out := filepath.Join(scratch, name)
		if text, err := exec.Command("go", "build", "-o", out, source).CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w: %s", source, err, text)
		}
		return out, nil
	})
}

// section is the configuration of a program.
func section(t testing.TB, program func() (string, error), config map[string]any) external.Config {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	c := external.DefaultConfig()
	c.Command, c.RunDir, c.Config = []string{path}, filepath.Join(scratch, "run"), config
	c.HealthTimeout = time.Second
	return c
}

// outside returns a transport whose plugin runs in a process of its own.
func outside(t testing.TB, c external.Config) *Transport {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	tr, err := transports.Kind.Build(t.Context(), "external", module.Env{Name: "mover", Log: log}, built{c})
	if err != nil {
		t.Fatal(err)
	}
	return tr.(*Transport)
}

// built is a section that was filled in by a test.
type built struct{ c external.Config }

func (b built) Decode(into any) error {
	*into.(*external.Config) = b.c
	return nil
}

func TestConformanceOutside(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{Access: true, New: func(t testing.TB) transports.Transport {
		return outside(t, section(t, moverProgram, nil))
	}})
}
