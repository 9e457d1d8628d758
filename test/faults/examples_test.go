package faults

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// Every file in configs/examples is accepted, and the node it describes starts here or says exactly
// why not. Files with addresses of other hosts are only checked.
func TestExamples(t *testing.T) {
	const ready = "ready"
	expect := map[string][]string{
		"deployment-guide.json":        nil,
		"etcd-tcp.json":                nil,
		"prefill-decode.json":          nil,
		"redis-rdma.json":              nil,
		"store-node-ssd.json":          {"1TB", "available", "global_segment_size"},
		"etcd-cluster-fastdeploy.json": {"127.0.0.1:12379", "etcd"},
		"http-requester-only.json":     {"127.0.0.1:8092", "http"},
		"external-plugins.json":        {"external", "/opt/mooncake/", "no such file"},
		"ipv6.json":                    {"[::1]:8082", "http"},
		"kubernetes.json":              {ready},
		"p2p-vllm.json":                {ready},
		"sections.yaml":                {"127.0.0.1:2379", "etcd"},
	}
	dir := filepath.Join(testenv.RepoRoot(t), "configs", "examples")
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range append(files, filepath.Join(dir, "..", "mooncake.json")) {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			check := exec.Command(testenv.Mooncake(t), "config", "check", file)
			check.Env = testenv.CleanEnv()
			out, err := check.CombinedOutput()
			if name == "external-plugins.json" { // its programs are not installed, and nothing else is wrong
				for _, want := range []string{"metadata.command: /opt/mooncake/", "transports.mover.command: /opt/mooncake/", "2 error(s)"} {
					if err == nil || !strings.Contains(string(out), want) {
						t.Errorf("config check: %v, no %q in\n%s", err, want, out)
					}
				}
			} else if err != nil {
				t.Fatalf("config check: %v\n%s", err, out)
			}
			words, known := expect[name]
			if name == "mooncake.json" {
				words, known = []string{ready}, true
			}
			if !known {
				t.Fatal("say here what this file does on a machine with nothing but loopback")
			}
			if words == nil {
				return
			}
			cmd := testenv.NodeCommand(t, file)
			set := func(kv string) { cmd.Args = append(cmd.Args, "--set", kv) }
			set(fmt.Sprintf("admin.listen=127.0.0.1:%d", testenv.FreePort(t)))
			set("transfer.metadata_start_timeout=1s")
			set("bind_address=127.0.0.1")
			set("advertise_host=127.0.0.1")
			if name == "mooncake.json" {
				set(fmt.Sprintf("metadata_http.listen=127.0.0.1:%d", testenv.FreePort(t)))
			}
			if name != "store-node-ssd.json" { // whose point here is its size
				set("global_segment_size=4MB")
			}
			p := testenv.StartCmd(t, cmd)
			if words[0] == ready {
				var first struct{ Ready bool }
				if p.JSON(testenv.NodeReady, &first); !first.Ready {
					t.Error("not ready")
				}
				return
			}
			var ee *exec.ExitError
			if err := p.Wait(2 * soon); !errors.As(err, &ee) {
				t.Fatalf("exit: %v, want a failure\n%s", err, p.Stderr())
			}
			mentions(t, p.Stderr(), words...)
		})
	}
}
