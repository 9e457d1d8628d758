package policies

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/module"
	_ "github.com/mooncake-agent/mooncake/plugins/wasm"
)

const examples = "../../../plugins/examples/testdata/"

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Callers name modules in the configured folder and nowhere else; the old policy stays when one is not taken.
func TestModulesFromTheirFolderOnly(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	base := t.TempDir()
	dir, other := filepath.Join(base, "modules"), filepath.Join(base, "other")
	for _, d := range []string{dir, other, filepath.Join(dir, "team")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(t, examples+"lru-c.wasm", filepath.Join(dir, "lru.wasm"))
	copyFile(t, examples+"lru-c.wasm", filepath.Join(dir, "team", "lru.wasm"))
	copyFile(t, examples+"lru-c.wasm", filepath.Join(other, "out.wasm"))
	for from, to := range map[string]string{"leaves.wasm": filepath.Join(other, "out.wasm"), "stays.wasm": "lru.wasm"} {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	s := service(t, Named{"*", "lru"})
	m := NewManager(s, module.Env{}, "")
	refused := func(text string, module bool, want ...string) {
		t.Helper()
		err := m.Set(t.Context(), "", text)
		if err == nil || errors.Is(err, ErrModule) != module {
			t.Fatalf("%s: %v", text, err)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q in it", text, err, w)
			}
		}
		if got := inForce(s); got != "*=lru" {
			t.Fatalf("in force after %s: %s", text, got)
		}
	}
	refused("lru.wasm", true, "no folder for modules is configured", "--eviction_module_dir", "eviction.module_dir")
	m.SetModuleDir(filepath.Join(base, "none"))
	refused("lru.wasm", true, "no such file or directory", "make the folder")
	m.SetModuleDir(dir)
	refused(filepath.Join(other, "out.wasm"), true, "is not in eviction.module_dir", "cp "+filepath.Join(other, "out.wasm")+" "+dir+"/", "mooncake policy set out.wasm")
	refused("wasm:module="+filepath.Join(other, "out.wasm"), true, "is not in eviction.module_dir")
	refused("../other/out.wasm", true, "is not in eviction.module_dir")
	refused("/proc/self/environ.wasm", true, "is not in eviction.module_dir")
	refused("leaves.wasm", true, "is not in eviction.module_dir")
	refused("nothing.wasm", true, "there is no file nothing.wasm in eviction.module_dir", "lru.wasm", "copy it there")
	refused("team", false, "no eviction")
	refused("lru.wasm:sha256="+strings.Repeat("0", 64), false, "its SHA-256 is ", "not 0000")
	refused("lru.wasm:cache_dir=/tmp", false, "cache_dir: ", "only the configuration may name it")
	refused("lru.wasm:module=x", false, "the file is named already")
	refused("lru.wasm:fuel_per_evnt=1", false, "did you mean fuel_per_event?")
	for _, text := range []string{"lru.wasm", "team/lru.wasm", "stays.wasm", filepath.Join(dir, "lru.wasm"), "wasm:module=lru.wasm,fuel_per_event=2000"} {
		if err := m.Set(t.Context(), "", text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if d := s.Policies()[0]; d.Supervision == nil || !strings.Contains(d.Policy, ".wasm") || d.Supervision.Module != "lru.wasm" {
			t.Errorf("%s: in force: %+v", text, d)
		}
	}
	if got := inForce(s); got != "*=lru.wasm:fuel_per_event=2000" {
		t.Errorf("in force: %s", got)
	}
	if err := m.Rollback(""); err != nil || inForce(s) != "*=lru.wasm" {
		t.Errorf("after a rollback: %s, %v", inForce(s), err)
	}
	// The configuration is the operator's: its modules may lie anywhere.
	if _, err := m.Reload(t.Context(), nil, []Named{{Everyone, filepath.Join(other, "out.wasm")}}); err != nil || inForce(s) != "*=out.wasm" {
		t.Errorf("after a reload: %s, %v", inForce(s), err)
	}
	if got := m.ModuleDir(); got != dir {
		t.Errorf("folder %s", got)
	}
}

func TestFileNames(t *testing.T) {
	for text, want := range map[string]bool{"a.wasm": true, "/x/a.wasm:k=v.wasm": true, "lru": false, "wasm:module=a.wasm": false, ".wasm": true} {
		if IsFile(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
	var p master.Policy
	if _, _, p, _ = parse("/x/a.wasm:sha256=00,fuel_per_event=1,guard=off"); p.Name != "a.wasm:fuel_per_event=1,guard=off" || p.Guard != "off" {
		t.Errorf("%+v", p)
	}
}
