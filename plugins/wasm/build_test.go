package wasm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The committed guests are what their sources say. Debian 12's wabt and clang-22 build them bit by bit alike.
func TestGuestsAreBuiltFromTheirSources(t *testing.T) {
	tool := func(name string) string {
		path, err := exec.LookPath(name)
		if err != nil {
			if os.Getenv("MOONCAKE_PLUGINS") != "" {
				t.Fatalf("%s is not installed (make setup-plugins)", name)
			}
			t.Skipf("skipped: %s is not installed; make test-plugins installs it and runs this", name)
		}
		return path
	}
	compare := func(t *testing.T, out string) {
		t.Helper()
		got, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		committed := filepath.Join("testdata", filepath.Base(out))
		want, err := os.ReadFile(committed)
		if os.Getenv("UPDATE") != "" {
			if err = os.WriteFile(committed, got, 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what its source makes (UPDATE=1 go test -run %s writes it): %v", committed, strings.Split(t.Name(), "/")[0], err)
		}
	}
	sources, err := filepath.Glob("testdata/*.wat")
	if err != nil || len(sources) < 30 {
		t.Fatalf("%d sources, %v", len(sources), err)
	}
	t.Run("wat", func(t *testing.T) {
		wat := tool("wat2wasm")
		for _, src := range sources {
			out := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(src), ".wat")+".wasm")
			args := []string{src, "-o", out}
			if strings.HasSuffix(src, "fuel_global.wat") {
				args = append(args, "--no-check")
			}
			if text, err := exec.Command(wat, args...).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", src, err, text)
				continue
			}
			compare(t, out)
		}
	})
	t.Run("c", func(t *testing.T) {
		clang := tool("clang-22")
		tool("wasm-ld-22")
		for _, name := range []string{"lru", "abilities"} {
			out := filepath.Join(t.TempDir(), name+".wasm")
			cmd := exec.Command(clang, "--target=wasm32-unknown-unknown", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O3", "-nostdlib", "-ffreestanding",
				"-I../abi", "-Wl,--no-entry", "-Wl,-z,stack-size=65536", "-Wl,--strip-all", "-o", out, filepath.Join("testdata", name+".c"))
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", name, err, text)
				continue
			}
			compare(t, out)
		}
	})
}
