package rdma

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// A node that is configured for rdma runs, and the doctor sees the devices as they are and reads the node's memory over
// each transport.
func TestDoctor(t *testing.T) {
	machine(t)
	n := testenv.StartNode(t, testenv.Config{
		"local_hostname": host, "bind_address": host, "advertise_host": host, "protocol": "rdma", "device_name": "rxe0",
		"transports": testenv.Config{"verbs": testenv.Config{"required": true}},
	})
	config := testenv.WriteConfig(t, testenv.Config{
		"local_hostname": host, "bind_address": host, "advertise_host": host, "protocol": "rdma", "device_name": "rxe0",
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Mooncake(t), "doctor", "--config", config, "--json", "--baseline", n.Segment, "--duration", "1s", "--timeout", soon.String(),
		"--only", "rdma-devices,gid,mtu,baseline")
	cmd.Env = testenv.CleanEnv()
	out, err := cmd.Output() // exit code 1 is for checks that failed, which are told apart below
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var report struct {
		Checks []struct{ Name, Result, Seen string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v: %v in %q", cmd.Args, err, out)
	}
	want := map[string]string{
		"rdma-devices": "rxe0", "gid": host, "mtu": "rxe0/1: active MTU 4096 (told by the device)",
		"baseline-verbs": "software RDMA is for tests", "baseline-shm": n.Segment, "baseline-tcp": n.Segment,
	}
	for _, c := range report.Checks {
		t.Logf("%s: %s: %s", c.Name, c.Result, c.Seen)
		seen, wanted := want[c.Name]
		if !wanted {
			t.Errorf("check %s was not asked for", c.Name)
		}
		delete(want, c.Name)
		slow := c.Name == "baseline-shm" || c.Name == "baseline-tcp" // on emulated processors
		if c.Result == "fail" && !slow || !strings.Contains(c.Seen, seen) {
			t.Errorf("%s: %s: %q, want %q in it", c.Name, c.Result, c.Seen, seen)
		}
	}
	for name := range want {
		t.Errorf("no check %s", name)
	}
	n.Alive(t)
}
