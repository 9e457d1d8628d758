package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func TestBenchTransferJSON(t *testing.T) {
	for _, transport := range []string{"tcp", "shm"} {
		t.Run(transport, func(t *testing.T) { testBenchTransferJSON(t, transport) })
	}
}

func testBenchTransferJSON(t *testing.T, transport string) {
	out, err := exec.Command(testenv.Mooncake(t), "bench", "transfer", "--json", "--transport", transport, "--op", "write", "--block", "4KB", "--batch", "2",
		"--threads", "2", "--duration", "200ms", "--verify").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	latency, _ := got["latency_us"].(map[string]any)
	want := []string{"batch", "block_bytes", "bytes_per_second", "cpu_seconds_per_gb", "errors", "latency_us", "op", "ops_per_second", "seconds", "threads", "transport"}
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(got))); d != "" {
		t.Errorf("keys: %s", d)
	}
	if d := cmp.Diff([]string{"p50", "p99", "p999"}, slices.Sorted(maps.Keys(latency))); d != "" {
		t.Errorf("keys of latency_us: %s", d)
	}
	if got["block_bytes"] != 4096.0 || got["op"] != "write" || got["transport"] != transport || got["errors"] != 0.0 || got["bytes_per_second"].(float64) <= 0 {
		t.Errorf("result: %s", out)
	}
}

func TestBenchTransferInterrupted(t *testing.T) {
	p := testenv.Start(t, testenv.Mooncake(t), "bench", "transfer", "--duration", "1h")
	var child int
	testenv.Eventually(t, 30*time.Second, func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil {
			return err
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		ticks, _ := strconv.Atoi(f[11])
		sys, _ := strconv.Atoi(f[12])
		if ticks+sys < 50 { // half a second of work: the measurement runs
			return errors.New("not measuring yet")
		}
		if child = childOf(t, p.PID()); child == 0 {
			return errors.New("no second process")
		}
		return nil
	})
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(30 * time.Second); err != nil {
		t.Fatalf("after an interrupt: %v: %s", err, p.Stderr())
	}
	if line := p.Line(time.Second); !strings.HasPrefix(line, "tcp read, 64 KiB x 32, 1 thread") {
		t.Errorf("first line of the result: %q", line)
	}
	if err := syscall.Kill(child, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the target process is still there: %v", err)
	}
}

// The target must not outlive a benchmark that is killed.
func TestBenchTargetEndsWithItsParent(t *testing.T) {
	p := testenv.Start(t, testenv.Mooncake(t), "bench", "transfer", "--duration", "1h")
	var child int
	testenv.Eventually(t, 30*time.Second, func() error {
		if child = childOf(t, p.PID()); child == 0 {
			return errors.New("no second process")
		}
		return nil
	})
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil || strings.Contains(string(b), ") Z ") { // gone, or waits for init to take note
			return nil
		}
		return fmt.Errorf("process %d still runs", child)
	})
}

// childOf finds a process whose parent is pid, 0 if there is none.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		n, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		if f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			return n
		}
	}
	return 0
}
