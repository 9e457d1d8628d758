package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// StoreVersions are the releases of the wheel that the Store master serves, oldest first.
var StoreVersions = []string{"0.3.7.post2", "0.3.8.post1", "0.3.9", "0.3.10.post2", "0.3.11.post1", "0.3.12.post1", "0.3.13.post1"}

// StoreWheelEnv is one release of the unmodified wheel, installed without its dependencies.
type StoreWheelEnv struct {
	Version string
	// Python is the interpreter of the virtual environment.
	Python string
	// PackageDir is the directory of the Python package "mooncake", which also holds the binaries.
	PackageDir string

	quirks []string // environment that this release needs on one host
}

var storeWheels sync.Map // version -> func() (*StoreWheelEnv, error)

// StoreWheel returns a release that "make setup-store" installed, or for [WheelVersion] the wheel of
// "make setup"; without it the test is skipped (see [MustNotSkip]).
func StoreWheel(t testing.TB, version string) *StoreWheelEnv {
	t.Helper()
	find, _ := storeWheels.LoadOrStore(version, sync.OnceValues(func() (*StoreWheelEnv, error) { return findStoreWheel(version) }))
	w, err := find.(func() (*StoreWheelEnv, error))()
	if err != nil {
		MustNotSkip(t, "the Mooncake wheel %s for the Store: %v", version, err)
	}
	return w
}

func findStoreWheel(version string) (*StoreWheelEnv, error) {
	if version == WheelVersion {
		w, err := findWheel()
		if err != nil {
			return nil, err
		}
		return &StoreWheelEnv{Version: version, Python: w.Python, PackageDir: w.PackageDir}, nil
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	venv := filepath.Join(cache, "store-wheel-"+version)
	if _, err := os.Stat(filepath.Join(venv, ".complete")); err != nil {
		return nil, fmt.Errorf("%w (make setup-store installs it)", err)
	}
	w := &StoreWheelEnv{Version: version, Python: filepath.Join(venv, "bin", "python")}
	site := func(dir string) (string, error) {
		found, err := filepath.Glob(filepath.Join(venv, "lib", "python3*", "site-packages", dir))
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("%s: %d folders %s in its site-packages", venv, len(found), dir)
		}
		return strings.Join(found, " "), err
	}
	if w.PackageDir, err = site("mooncake"); err != nil {
		return nil, err
	}
	switch version {
	case "0.3.10.post2":
		// It takes every process with its own IP for itself and copies to foreign addresses.
		w.quirks = []string{"MC_STORE_MEMCPY=0"}
	case "0.3.12.post1":
		// It is linked with the CUDA runtime although it is the build without CUDA.
		libs, err := site("nvidia/cuda_runtime/lib")
		if err != nil {
			return nil, err
		}
		w.quirks = []string{"LD_LIBRARY_PATH=" + libs}
	}
	cmd := w.Command("-c", "import mooncake.store")
	if _, err := cmd.Output(); err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			err = fmt.Errorf("%w: %s", err, ee.Stderr)
		}
		return nil, fmt.Errorf("%s cannot import mooncake.store: %w", w.Python, err)
	}
	return w, nil
}

// Bin is the path of one of the wheel's own programs; see [WheelEnv.Bin].
func (w *StoreWheelEnv) Bin(name string) string { return filepath.Join(w.PackageDir, name) }

// Master is the path of the wheel's mooncake_master.
func (w *StoreWheelEnv) Master() string { return w.Bin("mooncake_master") }

// Env is a clean environment for the wheel (see [CleanEnv]), on loopback, with what this release needs
// beside others on one host, plus the given KEY=value pairs.
func (w *StoreWheelEnv) Env(extra ...string) []string {
	env := append(CleanEnv(), "PYTHONUNBUFFERED=1", "MC_TCP_BIND_ADDRESS=127.0.0.1", "GLOG_logtostderr=1")
	return append(append(env, w.quirks...), extra...)
}

// Command is a command of the wheel's interpreter with its environment.
func (w *StoreWheelEnv) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(w.Python, args...)
	cmd.Env = w.Env()
	return cmd
}

// AtLeast tells whether the release is version or a later one.
func (w *StoreWheelEnv) AtLeast(version string) bool {
	for _, v := range StoreVersions {
		if v == version || strings.HasPrefix(v, version+".post") {
			return true
		}
		if v == w.Version {
			return false
		}
	}
	return false
}
