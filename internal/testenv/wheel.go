package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// WheelVersion is the version of mooncake-transfer-engine-non-cuda that the tests are written for.
const WheelVersion = "0.3.13.post1"

// WheelEnv is an installed, unmodified Mooncake wheel.
type WheelEnv struct {
	// Python is the interpreter of the virtual environment.
	Python string
	// PackageDir is the directory of the Python package "mooncake", which also holds the binaries.
	PackageDir string
}

var findWheel = sync.OnceValues(func() (*WheelEnv, error) {
	python := os.Getenv("MOONCAKE_WHEEL_PYTHON")
	if python == "" {
		cache, err := CacheDir()
		if err != nil {
			return nil, err
		}
		python = filepath.Join(cache, "wheel-"+WheelVersion, "bin", "python")
	}
	if _, err := os.Stat(python); err != nil {
		return nil, fmt.Errorf("%w (make setup installs it; MOONCAKE_WHEEL_PYTHON names another)", err)
	}
	cmd := exec.Command(python, "-c", "import os, mooncake, mooncake.engine; print(os.path.dirname(mooncake.__file__))")
	out, err := cmd.Output()
	if err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			err = fmt.Errorf("%w: %s", err, ee.Stderr)
		}
		return nil, fmt.Errorf("%s cannot import mooncake.engine: %w", python, err)
	}
	return &WheelEnv{Python: python, PackageDir: strings.TrimSpace(string(out))}, nil
})

// Wheel returns the real Mooncake wheel: the one of the interpreter MOONCAKE_WHEEL_PYTHON, else the
// one that "make setup" installed. Without it the test is skipped (see [MustNotSkip]).
func Wheel(t testing.TB) *WheelEnv {
	t.Helper()
	w, err := findWheel()
	if err != nil {
		MustNotSkip(t, "the Mooncake wheel %s: %v", WheelVersion, err)
	}
	return w
}

// Bin is the path of one of the wheel's own programs: transfer_engine_bench, mooncake_master,
// mooncake_client. These are the binaries themselves, which can be stopped with SIGINT, not the
// wrappers in the virtual environment's bin, which kill them.
func (w *WheelEnv) Bin(name string) string { return filepath.Join(w.PackageDir, name) }

// Env is a clean environment for the wheel: this process's, without proxies and without any MC_ or
// MOONCAKE_ setting, on loopback, plus the given KEY=value pairs.
func (w *WheelEnv) Env(extra ...string) []string {
	env := CleanEnv()
	env = append(env, "PYTHONUNBUFFERED=1", "MC_TCP_BIND_ADDRESS=127.0.0.1", "GLOG_logtostderr=1")
	return append(env, extra...)
}

// Command is a command of the wheel's interpreter with its environment.
func (w *WheelEnv) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(w.Python, args...)
	cmd.Env = w.Env()
	return cmd
}

// CleanEnv is this process's environment without proxies and without the variables that change the
// behaviour of Mooncake engines, theirs or ours.
func CleanEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(name, "MC_") || strings.HasPrefix(name, "MOONCAKE_") ||
			strings.HasSuffix(strings.ToLower(name), "_proxy")
	})
}
