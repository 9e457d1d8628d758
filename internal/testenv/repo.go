package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// RepoRoot is the directory of the module's go.mod. Tests run in their package's directory, so it is
// the nearest one above.
func RepoRoot(t testing.TB) string {
	t.Helper()
	dir, err := repoRoot()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func repoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", errors.New("no go.mod above " + dir)
		}
	}
}

// CacheDir is where "make test" keeps what it installed: MOONCAKE_CACHE, or .cache in the repository.
func CacheDir() (string, error) {
	if d := os.Getenv("MOONCAKE_CACHE"); d != "" {
		return d, nil
	}
	root, err := repoRoot()
	return filepath.Join(root, ".cache"), err
}

var buildMooncake = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("MOONCAKE_TEST_BINARY"); bin != "" {
		return bin, nil
	}
	root, err := repoRoot()
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// Test processes of several packages build at the same time; a rename lets those that already
	// run the old file keep it.
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	bin, fresh := filepath.Join(dir, "mooncake"), filepath.Join(dir, "mooncake.new")
	args := []string{"build", "-buildvcs=false", "-o", fresh}
	env := append(os.Environ(), "CGO_ENABLED=0")
	if os.Getenv("MOONCAKE_TEST_RACE") != "" {
		args, env = append(args, "-race"), append(os.Environ(), "CGO_ENABLED=1")
	}
	cmd := exec.Command("go", append(args, "./cmd/mooncake")...)
	cmd.Dir, cmd.Env = root, env
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return bin, os.Rename(fresh, bin)
})

// Mooncake builds cmd/mooncake, once per test process, and returns the path of the binary.
// MOONCAKE_TEST_BINARY names a finished one instead; MOONCAKE_TEST_RACE=1 builds it with the race
// detector.
func Mooncake(t testing.TB) string {
	t.Helper()
	bin, err := buildMooncake()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}
