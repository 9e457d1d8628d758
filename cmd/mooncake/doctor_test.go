package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/core/bench"
	"github.com/mooncake-agent/mooncake/metadata"
)

// doctorLine is one check as scripts read it.
type doctorLine struct{ Name, Result, Seen, Advice *string }

// doctorJSON runs the doctor and returns the report and the exit code.
func doctorJSON(t *testing.T, args ...string) (map[string]doctorLine, int) {
	t.Helper()
	out, err := command(t, append([]string{"doctor", "--json"}, args...)...)
	code := 0
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		code = exit.code
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	}
	var report map[string][]doctorLine
	dec := json.NewDecoder(strings.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&report); err != nil || len(report) != 1 || report["checks"] == nil {
		t.Fatalf("%v in %s", err, out)
	}
	lines := map[string]doctorLine{}
	failed := false
	for _, l := range report["checks"] {
		if l.Name == nil || l.Result == nil || l.Seen == nil || l.Advice == nil {
			t.Fatalf("a key is missing in %s", out)
		}
		if !slices.Contains([]string{"pass", "warn", "fail"}, *l.Result) || *l.Seen == "" || (*l.Result == "pass") != (*l.Advice == "") {
			t.Errorf("%s: %s %q %q", *l.Name, *l.Result, *l.Seen, *l.Advice)
		}
		failed = failed || *l.Result == "fail"
		lines[*l.Name] = l
	}
	if failed != (code == 1) || code > 1 {
		t.Errorf("exit code %d, failed checks: %v\n%s", code, failed, out)
	}
	return lines, code
}

func doctorConfig(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "mooncake.json")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDoctorPasses(t *testing.T) {
	t.Setenv("MOONCAKE_CACHE", "") // brought back at the end; the doctor would warn of it
	os.Unsetenv("MOONCAKE_CACHE")
	f := doctorConfig(t, `{"local_hostname": "127.0.0.1", "global_segment_size": "1MB", "local_buffer_size": "1MB", "admin": {"listen": "127.0.0.1:0"}}`)
	lines, _ := doctorJSON(t, "--config", f)
	for _, name := range []string{"config", "rdma-devices", "numa", "memlock", "huge-pages", "memory", "files", "ports", "kernel", "clock", "metadata"} {
		if _, there := lines[name]; !there {
			t.Errorf("no check %s", name)
		}
	}
	if l := lines["config"]; *l.Result != "pass" || !strings.Contains(*l.Seen, f) {
		t.Errorf("%s %s", *l.Result, *l.Seen)
	}
	if _, code := doctorJSON(t, "--config", f, "--only", "config,memory,metadata"); code != 0 {
		t.Errorf("exit code %d", code)
	}
	out, err := command(t, "doctor", "--config", f, "--only", "config,memory")
	if err != nil || !strings.Contains(out, "PASS") || !strings.Contains(out, "2 checks: 2 pass, 0 warn, 0 fail") {
		t.Errorf("%v\n%s", err, out)
	}
}

// What the configuration asks for and is not there fails, each check by itself.
func TestDoctorFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := gone.Addr().String()
	gone.Close()
	f := doctorConfig(t, fmt.Sprintf(`{"local_hostname": "127.0.0.1", "global_segment_size": "900TB", "admin": {"listen": %q},
		"metadata_server": "http://%s/metadata", "master_server_address": %q, "segment": {"huge_pages": "1GB"}}`, ln.Addr(), nobody, nobody))
	lines, code := doctorJSON(t, "--config", f, "--timeout", "5s")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, name := range []string{"huge-pages", "ports", "metadata", "master"} {
		if l, there := lines[name]; !there || *l.Result != "fail" {
			t.Errorf("%s: %+v", name, l)
		}
	}
	if !strings.Contains(*lines["ports"].Seen, fmt.Sprintf("(pid %d)", os.Getpid())) {
		t.Errorf("the holder is not named: %s", *lines["ports"].Seen)
	}
	if _, err := command(t, "doctor", "--config", f, "--only", "ports"); err == nil {
		t.Error("a failing check, but no error")
	}
}

// A broken configuration is a finding, and the machine is looked at all the same.
func TestDoctorBrokenConfig(t *testing.T) {
	f := doctorConfig(t, "{\n \"protocol\": \"rmda\",\n \"tansports\": {}\n}")
	lines, code := doctorJSON(t, "--config", f)
	l := lines["config"]
	if code != 1 || *l.Result != "fail" || !strings.Contains(*l.Seen, f+":2:") || !strings.Contains(*l.Seen, "did you mean transports?") {
		t.Errorf("exit code %d, %s", code, *l.Seen)
	}
	if _, there := lines["kernel"]; !there {
		t.Error("the machine was not looked at")
	}
	lines, code = doctorJSON(t, "--config", filepath.Join(t.TempDir(), "none.json"))
	if code != 1 || *lines["config"].Result != "fail" {
		t.Errorf("a file that is not there: %d", code)
	}
}

// RDMA that must be there and is not fails in its own check too, and everything else is looked at with the configuration.
func TestDoctorRequiredRDMA(t *testing.T) {
	if entries, _ := os.ReadDir("/sys/class/infiniband"); len(entries) > 0 {
		t.Skip("skipped: this machine has RDMA devices")
	}
	f := doctorConfig(t, `{"local_hostname": "127.0.0.1", "protocol": "rdma", "global_segment_size": "900TB", "transports": {"verbs": {"required": true}}}`)
	lines, code := doctorJSON(t, "--config", f)
	if code != 1 || *lines["rdma-devices"].Result != "fail" || !strings.Contains(*lines["rdma-devices"].Seen, "no RDMA devices") || *lines["memory"].Result != "fail" {
		t.Errorf("exit code %d, %s; %s", code, *lines["rdma-devices"].Seen, *lines["memory"].Seen)
	}
	f = doctorConfig(t, `{"local_hostname": "127.0.0.1", "protocol": "rdma"}`)
	if lines, _ = doctorJSON(t, "--config", f, "--only", "rdma-devices"); *lines["rdma-devices"].Result != "warn" {
		t.Errorf("%s", *lines["rdma-devices"].Result)
	}
}

func TestDoctorFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--only", "gids"}, `no check "gids"`},
		{[]string{"--timeout", "0s"}, "--timeout"},
		{[]string{"--duration", "-1s", "--baseline", "a:1"}, "--duration"},
		{[]string{"--expect", "tcp=1GB"}, "need --baseline"},
		{[]string{"--baseline", "a:1", "--expect", "tcp"}, "TRANSPORT=BYTES"},
		{[]string{"--set", "nothing"}, "key=value"},
	} {
		if _, err := command(t, append([]string{"doctor"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}

// startBenchTarget runs an engine with 16 MiB of memory and returns its segment name.
func startBenchTarget(t *testing.T) string {
	t.Helper()
	in, stop := io.Pipe()
	lines, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- bench.ServeTarget(context.Background(), bench.Endpoint{Transport: "tcp", Metadata: metadata.P2P}, 16<<20, in, out)
		out.Close()
	}()
	t.Cleanup(func() {
		stop.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	var info struct{ Segment string }
	if err := json.NewDecoder(lines).Decode(&info); err != nil {
		t.Fatal(err)
	}
	return info.Segment
}

// Real measurements of a real engine, and a peer that is not there.
func TestDoctorBaseline(t *testing.T) {
	target := startBenchTarget(t)
	lines, _ := doctorJSON(t, "--only", "baseline", "--baseline", target, "--duration", "100ms", "--transport", "tcp", "--expect", "tcp=1KB")
	if l := lines["baseline-tcp"]; *l.Result == "fail" || !strings.Contains(*l.Seen, "GB/s") || !strings.Contains(*l.Seen, "as asked") {
		t.Errorf("%s %s", *l.Result, *l.Seen)
	}
	lines, code := doctorJSON(t, "--only", "baseline-tcp", "--baseline", "127.0.0.1:1", "--duration", "100ms", "--transport", "tcp")
	if code != 1 || *lines["baseline-tcp"].Result != "fail" {
		t.Errorf("%d: %v", code, lines)
	}
	if lines, code = doctorJSON(t, "--only", "peers", "--peer", target); code != 0 || *lines["peers"].Result != "pass" {
		t.Errorf("%d: %v", code, lines)
	}
}
