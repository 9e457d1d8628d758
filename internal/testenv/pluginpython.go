package testenv

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// PluginPython is the interpreter with the libraries that plugins in Python need (plugins/sdk/python), which "make
// setup" installed. Without it the test is skipped (see [MustNotSkip]).
func PluginPython(t testing.TB) string {
	t.Helper()
	cache, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(cache, "plugin-python", "bin", "python")
	if out, err := exec.Command(python, "-c", "import cryptography, google.protobuf, grpc").CombinedOutput(); err != nil {
		MustNotSkip(t, "Python with grpcio, protobuf and cryptography: %v (make setup installs it)\n%s", err, out)
	}
	return python
}
