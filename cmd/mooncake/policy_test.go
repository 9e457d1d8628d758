package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/admin"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// A module of a third party goes into a running master: from its folder, with the digest of the file that was named.
func TestPolicySetFile(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir, work := t.TempDir(), t.TempDir()
	code, err := os.ReadFile(goodGuests + "lru-c.wasm")
	if err != nil {
		t.Fatal(err)
	}
	binary := testenv.Mooncake(t)
	t.Chdir(work)
	write := func(path string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("mine.wasm", code)
	cmd := exec.Command(binary, "master", "--bind=127.0.0.1", "--port", fmt.Sprint(testenv.FreePort(t)), "--metrics_port", fmt.Sprint(testenv.FreePort(t)),
		"--eviction_module_dir="+dir, "--noenable_metric_reporting")
	cmd.Env = append(testenv.CleanEnv(), "XDG_CACHE_HOME="+os.Getenv("XDG_CACHE_HOME"))
	p := testenv.StartCmd(t, cmd)
	var ready masterReady
	p.JSON(masterPatience, &ready)
	policy := func(args ...string) (string, error) {
		return command(t, append([]string{"policy", "--admin", ready.Admin}, args...)...)
	}
	for _, step := range []struct {
		args string
		want string // in the answer, or after "!" in the error
	}{
		{"set ./mine.wasm", "!cp " + filepath.Join(work, "mine.wasm") + " " + dir + "/ and then mooncake policy set mine.wasm"},
		{"set mine.wasm", "!there is no file mine.wasm in eviction.module_dir " + dir},
		{"COPY", ""},
		{"set mine.wasm", "module: mine.wasm, SHA-256 "},
		{"status", "*: guest: running, 1 instances"},
		{"set " + filepath.Join(dir, "mine.wasm") + ":fuel_per_event=2000", "mine.wasm:fuel_per_event=2000"},
		{"rollback", "rollback brings mine.wasm:fuel_per_event=2000 back"},
		{"CHANGE", ""}, // built again, not copied
		{"set mine.wasm", "!its SHA-256 is "},
		{"set lru", "rollback brings mine.wasm back"},
		{"status --json", `"policy": "lru"`},
	} {
		switch step.args {
		case "COPY":
			write(filepath.Join(dir, "mine.wasm"), code)
			continue
		case "CHANGE":
			write("mine.wasm", append(code[:len(code):len(code)], 0, 2, 1, 'x'))
			continue
		}
		out, err := policy(strings.Fields(step.args)...)
		if why, bad := strings.CutPrefix(step.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v, want %s", step.args, err, why)
			}
			continue
		}
		if err != nil || !strings.Contains(out, step.want) {
			t.Errorf("%s: %v, want %s\n%s", step.args, err, step.want, out)
		}
	}
}

// A newcomer's way: see the policy, change it, go back, record, and change it by the file.
func TestPolicyCommands(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "master.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("eviction_policy: lru\nenable_multi_tenants: true\n")
	cmd := exec.Command(testenv.Mooncake(t), "master", "--bind=127.0.0.1", "--port", fmt.Sprint(testenv.FreePort(t)), "--metrics_port", fmt.Sprint(testenv.FreePort(t)),
		"--config_path="+conf, "--record_dir="+dir, "--noenable_metric_reporting")
	cmd.Env = testenv.CleanEnv()
	p := testenv.StartCmd(t, cmd)
	var ready masterReady
	p.JSON(masterPatience, &ready)
	run := func(args ...string) string {
		t.Helper()
		out, err := command(t, append([]string{"policy", "--admin", ready.Admin}, args...)...)
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return out
	}
	refused := func(want string, args ...string) {
		t.Helper()
		if _, err := command(t, append([]string{"policy", "--admin", ready.Admin}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
	contains := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%q is missing in\n%s", w, out)
			}
		}
	}
	contains(run("status"), "PREFIX HIT", "lru", "running")
	contains(run("set", "adaptive"), "adaptive", "rollback brings lru back")
	contains(run("status", "--json"), `"policy": "adaptive"`, `"guard"`, `"following"`)
	contains(run("rollback"), "rollback brings adaptive back")
	contains(run("set", "lru-k:k=3", "--tenant", "team-a"), "team-a", "lru-k:k=3")
	contains(run("status", "--tenant", "team-b"), "no policy of its own")
	contains(run("drop", "--tenant", "team-a"), "no policy of its own")
	refused("did you mean lru?", "set", "lur")
	refused("from 2 to 4", "set", "lru-k:k=9")
	refused("--tenant", "drop")
	refused("no eviction domain", "rollback", "--tenant", "x")

	contains(run("record", "status"), "nothing has been recorded")
	contains(run("record", "start", "a.trace"), "recording "+filepath.Join(dir, "a.trace"))
	refused("stop it first", "record", "start", "b.trace")
	contains(run("record", "stop", "--json"), `"dropped": 0`)
	refused("nothing is being recorded", "record", "stop")
	refused("plain file name", "record", "start", "../b.trace")

	write("eviction_policy: [\"adaptive\", \"team-a=lru\"]\nenable_multi_tenants: true\n")
	if err := p.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, masterPatience, func() error {
		if out := run("status"); !strings.Contains(out, "team-a") || !strings.Contains(out, "adaptive") {
			return fmt.Errorf("after SIGHUP:\n%s", out)
		}
		return nil
	})
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(masterPatience); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, p.Stderr())
	}
	refused("no answer from the master's admin server", "status")
}

// Faults that a guest's host deals with are in the table as well as those that reach the master.
func TestPolicyStatusCountsFaults(t *testing.T) {
	var out bytes.Buffer
	p := admin.Policies{Policies: []master.DomainStats{{
		Name: "*", Policy: "bad.wasm", State: "running", Admission: "off", Faults: 4,
		Supervision: &eviction.Supervision{Faults: map[string]uint64{"trap": 300, "out_of_fuel": 3}},
	}}}
	if err := (&policyClient{}).show(&out, &p); err != nil {
		t.Fatal(err)
	}
	if row := strings.Split(out.String(), "\n")[1]; !strings.Contains(row, " 307 ") {
		t.Errorf("no 307 faults in\n%s", out.String())
	}
}
