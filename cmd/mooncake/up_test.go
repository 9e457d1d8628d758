package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func TestUpDefaultsAreTheShippedConfig(t *testing.T) {
	b, err := os.ReadFile("../../configs/mooncake.json")
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for k, v := range m {
			if sub, ok := v.(map[string]any); ok {
				walk(prefix+k+".", sub)
			} else {
				got[prefix+k] = fmt.Sprint(v)
			}
		}
	}
	walk("", tree)
	if d := cmp.Diff(got, upDefaults); d != "" {
		t.Errorf("configs/mooncake.json, defaults of mooncake up: %s", d)
	}
}

func TestUpTakesWhatIsSet(t *testing.T) {
	t.Setenv("MOONCAKE_CONFIG_PATH", "")
	file := filepath.Join(t.TempDir(), "c.json")
	if err := os.WriteFile(file, []byte(`{"global_segment_size": "1MB", "master": {"listen": "127.0.0.1:7"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		flags configFlags
		env   string
		want  map[string]string
	}{
		{"nothing", configFlags{}, "", map[string]string{"master.listen": "127.0.0.1:50051", "global_segment_size": "256MB", "metadata.type": "memory"}},
		{"--set", configFlags{set: []string{"global_segment_size=2MB", "master.listen=127.0.0.1:8"}}, "", map[string]string{"master.listen": "127.0.0.1:8", "global_segment_size": "2MB"}},
		{"environment", configFlags{}, "3MB", map[string]string{"global_segment_size": "3MB"}},
		{"P2P", configFlags{set: []string{"metadata_server=P2PHANDSHAKE"}}, "", map[string]string{"metadata_server": "P2PHANDSHAKE"}},
		{"file", configFlags{path: file}, "", map[string]string{"master.listen": "127.0.0.1:7", "global_segment_size": "1MB", "metadata_server": "P2PHANDSHAKE"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.env != "" {
				t.Setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", c.env)
			}
			l, err := loadUp(&c.flags)
			if err != nil {
				t.Fatal(err)
			}
			have := map[string]string{}
			for _, v := range l.Effective() {
				have[v.Key] = fmt.Sprint(v.Value)
			}
			for k, v := range c.want {
				if have[k] != v {
					t.Errorf("%s = %q, want %q", k, have[k], v)
				}
			}
		})
	}
}

// What "make run" starts: a wheel stores and reads with the lines that are printed, and the command line reads the
// same object; then everything ends in order.
func TestUpServesTheWheel(t *testing.T) {
	w := testenv.StoreWheel(t, "0.3.13.post1")
	cmd := exec.Command(testenv.Mooncake(t), "up", "--hints")
	cmd.Env = testenv.CleanEnv()
	for _, key := range []string{"master.listen", "master.admin", "metadata_http.listen", "admin.listen"} {
		cmd.Args = append(cmd.Args, "--set", fmt.Sprintf("%s=127.0.0.1:%d", key, testenv.FreePort(t)))
	}
	p := testenv.StartCmd(t, cmd)
	var ready struct {
		Ready, Mounted         bool
		Master, Segment, Admin string
		MetadataHTTP           string `json:"metadata_http"`
	}
	p.JSON(testenv.NodeReady, &ready)
	if !ready.Ready || !ready.Mounted || ready.Master == "" || !strings.Contains(ready.Segment, ":") {
		t.Fatalf("%+v", ready)
	}
	var program []string
	testenv.Eventually(t, time.Minute, func() error {
		program = nil
		for line := range strings.SplitSeq(p.Stderr(), "\n") {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "from mooncake") || strings.HasPrefix(line, "print(") {
				program = append(program, line)
			}
		}
		if len(program) != 2 {
			return fmt.Errorf("%d lines of Python in\n%s", len(program), p.Stderr())
		}
		return nil
	})
	python := func(lines ...string) string {
		t.Helper()
		c := w.Command("-c", strings.Join(append(lines, "import os, sys; sys.stdout.flush(); os._exit(0)"), "\n"))
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%v: %s\n%s", err, out, p.Stderr())
		}
		return string(out)
	}
	if got := python(program...); !strings.Contains(got, "0 b'hello'") {
		t.Errorf("Python printed %q", got)
	}
	// Over the HTTP metadata server as well.
	program[0] = strings.Replace(program[0], "P2PHANDSHAKE", ready.MetadataHTTP, 1)
	if got := python(program[0], `print(s.put("two", b"2"), s.get("from-python"))`); !strings.Contains(got, "0 b'hello'") {
		t.Errorf("over the metadata server, Python printed %q", got)
	}
	if out, errOut, code := kv(t, ready.Master, "", "get", "from-python"); out != "hello" || code != 0 {
		t.Errorf("kv get: %q, %s, exit %d", out, errOut, code)
	}
	if _, errOut, code := kv(t, ready.Master, "from Go", "put", "from-go"); code != 0 {
		t.Errorf("kv put: %s", errOut)
	}
	if got := python(program[0], `print(s.put("three", b"3"), s.get("from-go"), s.get("two"))`); !strings.Contains(got, "0 b'from Go' b'2'") {
		t.Errorf("Python printed %q", got)
	}
	p.Stop(time.Minute, syscall.SIGTERM)
}
