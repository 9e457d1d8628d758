package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/master/flags"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func TestProgramName(t *testing.T) {
	for _, c := range []struct{ argv, want []string }{
		{[]string{"/usr/bin/mooncake", "node"}, []string{"node"}},
		{[]string{"/usr/local/bin/mooncake_master", "--port=1"}, []string{"master", "--port=1"}},
		{[]string{"mooncake_master"}, []string{"master"}},
		{[]string{"mooncake"}, []string{}},
		{nil, nil},
	} {
		if got := programArgs(c.argv); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.argv, got, c.want)
		}
	}
}

func TestMasterHelp(t *testing.T) {
	for _, form := range []string{"--help", "-h", "-helpfull"} {
		out, err := command(t, "master", form)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range flags.All() {
			if !strings.Contains(out, "  --"+f.Name+" ") && !strings.Contains(out, "  --"+f.Name+",") {
				t.Errorf("%s: --%s is missing", form, f.Name)
			}
		}
	}
	out, err := command(t, "master", "--version")
	if err != nil || !strings.HasPrefix(out, "mooncake_master version ") {
		t.Errorf("%q, %v", out, err)
	}
}

func TestMasterRefuses(t *testing.T) {
	for _, c := range []struct{ arg, want string }{
		{"--enable_ha", "not in this version"}, {"--rpc_prot=1", "did you mean --rpc_port?"}, {"--eviction_policy=nope", "eviction_policy: no eviction policy of type \"nope\""},
		{"--config_path=/nonexistent", "no such file"},
	} {
		if _, err := command(t, "master", c.arg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.arg, err, c.want)
		}
	}
}

const masterPatience = 60 * time.Second

// A link named mooncake_master is a master: it says when it is ready, answers HTTP on both ports, reads its file again
// after SIGHUP and ends with 0 after SIGTERM.
func TestMasterLife(t *testing.T) {
	link := filepath.Join(t.TempDir(), masterName)
	if err := os.Symlink(testenv.Mooncake(t), link); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(t.TempDir(), "master.yaml")
	write := func(level string, ttl int) {
		if err := os.WriteFile(conf, fmt.Appendf(nil, "log_level: %s\nclient_ttl: %d\n", level, ttl), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("info", 10)
	rpc, admin, pinned := testenv.FreePort(t), testenv.FreePort(t), testenv.FreePort(t)
	cmd := exec.Command(link, "--bind=127.0.0.1", "--port", fmt.Sprint(rpc), "-metrics-port", fmt.Sprint(admin), "--config_path="+conf,
		fmt.Sprintf("--rpc_compat=0.3.7:%d", pinned), "--etcd-endpoints", "http://127.0.0.1:1", "--noenable_metric_reporting")
	cmd.Env = testenv.CleanEnv()
	p := testenv.StartCmd(t, cmd)
	var ready masterReady
	p.JSON(masterPatience, &ready)
	want := masterReady{Ready: true, Master: fmt.Sprintf("127.0.0.1:%d", rpc), Admin: fmt.Sprintf("http://127.0.0.1:%d", admin), Compat: []string{fmt.Sprintf("127.0.0.1:%d", pinned)}}
	if fmt.Sprint(ready) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", ready, want)
	}
	for _, base := range []string{ready.Admin, "http://" + ready.Master} {
		if body := get(t, base+"/metrics"); !strings.Contains(body, "\nmaster_key_count 0\n") {
			t.Errorf("%s/metrics: %.200s", base, body)
		}
	}
	out, err := command(t, "clients", "--admin", ready.Admin)
	if err != nil || out != "no clients\n" {
		t.Errorf("%q, %v", out, err)
	}
	out, err = command(t, "clients", "--json", "--admin", strings.TrimPrefix(ready.Admin, "http://"))
	if err != nil || !json.Valid([]byte(out)) {
		t.Errorf("%q, %v", out, err)
	}
	logged := func(text string) {
		t.Helper()
		testenv.Eventually(t, masterPatience, func() error {
			if !strings.Contains(p.Stderr(), text) {
				return fmt.Errorf("%q is not in the log:\n%s", text, p.Stderr())
			}
			return nil
		})
	}
	logged("--etcd-endpoints: no effect without enable_ha")
	write("debug", 20)
	if err := p.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	logged(`"log_level":"debug"`)
	logged(`"flags":"client_ttl"`)
	if err := os.WriteFile(conf, []byte("log_level: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	logged("nothing was changed")

	second := testenv.StartCmd(t, exec.Command(link, "--bind=127.0.0.1", "--port", fmt.Sprint(rpc), "--metrics_port=0"))
	if err := second.Wait(masterPatience); err == nil {
		t.Error("a second master on the port ends with 0")
	}
	if want := fmt.Sprintf("mooncake: port: 127.0.0.1:%d is in use by another process", rpc); !strings.Contains(second.Stderr(), want) {
		t.Errorf("%s\nwant %s", second.Stderr(), want)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(masterPatience); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, p.Stderr())
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	c := http.Client{Timeout: masterPatience}
	defer c.CloseIdleConnections()
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestClientsOfNobody(t *testing.T) {
	for _, c := range []struct{ admin, want string }{
		{fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), "no answer from the master's admin server"},
		{"http://[", "--admin"},
	} {
		if _, err := command(t, "clients", "--admin", c.admin); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.admin, err)
		}
	}
}
