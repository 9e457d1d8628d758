package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func TestPluginNewWritesAProject(t *testing.T) {
	for _, tmpl := range pluginTemplates {
		t.Run(tmpl.kind+" "+tmpl.lang, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "projects", "mine")
			args := []string{"plugin", "new", "--kind", tmpl.kind, "--lang", tmpl.lang, dir}
			out, err := runRoot(args...)
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"Makefile", "README.md", ".gitignore"}
			if tmpl.lang == "go" {
				want = append(want, "main.go", "go.mod", "go.sum")
			} else {
				want = append(want, "mine.py", "requirements.txt", "mooncake_plugin/serve.py", "mooncake_plugin/protocol.binpb", "protocol/mooncake_plugin/v1/"+tmpl.kind+".proto")
			}
			for _, f := range want {
				text, err := os.ReadFile(filepath.Join(dir, f))
				if err != nil {
					t.Error(err)
				}
				if strings.Contains(string(text), "plugins/examples/"+tmpl.dir) {
					t.Errorf("%s names the example that it was", f)
				}
			}
			if !strings.Contains(out, "make -C "+dir+" check") {
				t.Errorf("what comes next is not said:\n%s", out)
			}
			if _, err := runRoot(args...); err == nil || !strings.Contains(err.Error(), "there already") {
				t.Errorf("a second time: error %v", err)
			}
		})
	}
}

func TestPluginNewRefuses(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--kind", "transport", "--lang", "cobol", in("a")}, "choose transport, metadata or eviction"},
		{[]string{"--kind", "policy", "--lang", "go", in("b")}, "choose transport, metadata or eviction"},
		{[]string{"--kind", "transport", in("c")}, `"lang" not set`},
		{[]string{"--kind", "eviction", "--lang", "go", in("My Policy")}, "a plugin's name is"},
		{[]string{"--kind", "eviction", "--lang", "python", in("mooncake_plugin")}, "choose another"},
		{[]string{"--kind", "eviction", "--lang", "go", "--source", dir, in("d")}, "not the source tree"},
		{[]string{"--kind", "eviction", "--lang", "python", "--source", dir, in("e")}, "--source is for --lang go"},
	} {
		if _, err := runRoot(append([]string{"plugin", "new"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %q", c.args, err, c.want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%d files are left, error %v", len(left), err)
	}
}

func TestPluginNewAsksForTheGoOfThisModule(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testenv.RepoRoot(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\ngo "+goVersion+"\n") {
		t.Errorf("go.mod does not ask for Go %s: change goVersion", goVersion)
	}
}

// A new project of each kind and language builds, and its plugin keeps the contract: all of it where no other test tries
// the same source, else one check.
func TestPluginNewBuilds(t *testing.T) {
	for _, tmpl := range pluginTemplates {
		t.Run(tmpl.kind+" "+tmpl.lang, func(t *testing.T) {
			if os.Getenv("MOONCAKE_PLUGINS") == "" {
				t.Skip("skipped: make test-plugins runs this, which takes minutes")
			}
			t.Parallel() // each waits for its processes most of the time
			dir := filepath.Join(t.TempDir(), "mine")
			if _, err := runRoot("plugin", "new", "--kind", tmpl.kind, "--lang", tmpl.lang, dir); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "make", "-C", dir, "check", "MOONCAKE="+testenv.Mooncake(t))
			if tmpl.lang == "go" || tmpl.kind == "metadata" { // tried in plugins/examples and plugins/external
				cmd.Args = append(cmd.Args, "FLAGS=--run '^(put then get|swap by RESTORE|unaligned)$$'")
			}
			cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "MAKEFLAGS=")
			text, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(text), verdictGood+": it keeps the contract") && !strings.Contains(string(text), verdictRemarks+": ") {
				t.Fatalf("make check: %v\n%s", err, text)
			}
		})
	}
}
