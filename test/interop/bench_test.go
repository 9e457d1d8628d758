package interop

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

var benchResult = regexp.MustCompile(`Test completed: duration [0-9.]+, batch count ([0-9]+), throughput [0-9.]+ GB/s`)

// The wheel's own benchmark runs against a node.
func TestBenchToolAgainstNode(t *testing.T) {
	for _, m := range services {
		t.Run(m.name, func(t *testing.T) {
			w := testenv.Wheel(t)
			meta := m.start(t)
			n := startNode(t, nameFor(meta, "bench-target"), meta, nil)
			for _, operation := range []string{"write", "read"} {
				cmd := exec.Command(w.Bin("transfer_engine_bench"), "--mode=initiator", "--protocol=tcp",
					"--metadata_server="+meta, "--local_server_name="+nameFor(meta, "bench-init"), "--segment_id="+n.Segment,
					"--operation="+operation, fmt.Sprintf("--buffer_size=%d", 64<<20),
					"--batch_size=4", "--block_size=65536", "--threads=2", "--duration=1")
				cmd.Env = w.Env()
				p := testenv.StartCmd(t, cmd)
				if err := p.Wait(2 * soon); err != nil {
					t.Fatalf("%s: %v\n%s", operation, err, p.Stderr())
				}
				match := benchResult.FindStringSubmatch(p.Stderr())
				if match == nil {
					t.Fatalf("%s: no result line:\n%s", operation, p.Stderr())
				}
				if batches, _ := strconv.Atoi(match[1]); batches == 0 {
					t.Errorf("%s: %s", operation, match[0])
				}
			}
			n.Alive(t)
		})
	}
}

// Our benchmark runs against a wheel, checks every block, and prints what it promises.
func TestOurBenchAgainstWheel(t *testing.T) {
	for _, m := range services {
		t.Run(m.name, func(t *testing.T) {
			meta := m.start(t)
			w := startWheel(t, nameFor(meta, "wheel-a"), meta, memSize)
			for _, operation := range []string{"write", "read"} {
				cmd := exec.Command(testenv.Mooncake(t), "bench", "transfer", "--metadata", meta, "--target", w.name(),
					"--op", operation, "--block", "64KB", "--batch", "16", "--threads", "2", "--duration", "500ms", "--verify", "--json")
				cmd.Env = testenv.CleanEnv()
				p := testenv.StartCmd(t, cmd)
				var got map[string]any
				p.JSON(2*soon, &got)
				if err := p.Wait(soon); err != nil {
					t.Fatalf("%s: %v\n%s", operation, err, p.Stderr())
				}
				for _, key := range []string{"transport", "op", "block_bytes", "batch", "threads", "seconds", "bytes_per_second",
					"ops_per_second", "latency_us", "cpu_seconds_per_gb", "errors"} {
					if _, ok := got[key]; !ok {
						t.Errorf("no %q in %v", key, got)
					}
				}
				if got["op"] != operation || fmt.Sprint(got["errors"]) != "0" || fmt.Sprint(got["ops_per_second"]) == "0" {
					t.Errorf("%v", got)
				}
			}
		})
	}
}
