package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func runRoot(args ...string) (string, error) {
	var out strings.Builder
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.Execute()
	return out.String(), err
}

func TestPolicyNewWritesAProject(t *testing.T) {
	for lang, want := range map[string][]string{
		"c":    {"mine.c", "policy.h", "mooncake.h"},
		"go":   {"mine.go", "go.mod", "policy/abi.go", "policy/order.go"},
		"rust": {"mine.rs", "mooncake.rs", "abi.rs"},
		"as":   {"mine.ts", "mooncake.ts", "abi.ts"},
	} {
		t.Run(lang, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "projects", "mine")
			out, err := runRoot("policy", "new", "--lang", lang, dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range append(want, "Makefile", "README.md", ".gitignore") {
				text, err := os.ReadFile(filepath.Join(dir, f))
				if err != nil {
					t.Error(err)
				}
				if strings.Contains(string(text), "mooncake-agent/mooncake/plugins") {
					t.Errorf("%s names the agent's own module", f)
				}
				if f == "Makefile" && !strings.Contains(string(text), "?= mine\n") {
					t.Errorf("the Makefile does not say what to build:\n%s", text)
				}
			}
			if !strings.Contains(out, "make -C "+dir) {
				t.Errorf("what comes next is not said:\n%s", out)
			}
			if _, err := runRoot("policy", "new", "--lang", lang, dir); err == nil || !strings.Contains(err.Error(), "there already") {
				t.Errorf("a second time: error %v", err)
			}
		})
	}
}

func TestPolicyNewRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"--lang", "cobol", filepath.Join(dir, "a")}, {filepath.Join(dir, "b")}, {"--lang", "c", filepath.Join(dir, "My Policy")},
		{"--lang", "rust", filepath.Join(dir, "mooncake")}, {"--lang", "c"},
	} {
		if _, err := runRoot(append([]string{"policy", "new"}, args...)...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%d files are left, error %v", len(left), err)
	}
}

// A new project builds and is a good policy, in each language whose compiler is here.
func TestPolicyNewBuilds(t *testing.T) {
	for lang, needs := range map[string]string{"c": "clang-22", "go": "go", "rust": "/usr/bin/wasm-ld-14", "as": "npm"} {
		t.Run(lang, func(t *testing.T) {
			fresh := os.Getenv("MOONCAKE_PLUGINS") != ""
			if !fresh && lang != "go" {
				t.Skip("make test-plugins runs this: it installs the compilers")
			}
			if _, err := exec.LookPath(needs); err != nil {
				t.Fatalf("make setup-plugins did not install it: %v", err)
			}
			dir := filepath.Join(t.TempDir(), "my-policy")
			if _, err := runRoot("policy", "new", "--lang", lang, dir); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "make", "-C", dir)
			cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "MAKEFLAGS=")
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("make: %v\n%s", err, text)
			}
		})
	}
}
