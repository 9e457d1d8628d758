package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 20 * time.Second

func TestProcessTalksInLines(t *testing.T) {
	p := Start(t, "cat")
	p.Send("one %d", 1)
	p.Send(`{"n": 18446744073709551615}`)
	if got := p.Line(soon); got != "one 1" {
		t.Fatalf("got %q", got)
	}
	var v struct{ N uint64 }
	p.JSON(soon, &v)
	if v.N != 1<<64-1 {
		t.Fatalf("got %d", v.N)
	}
	if line, err := p.NextLine(10 * time.Millisecond); err == nil {
		t.Fatalf("got %q without input", line)
	}
	p.Stop(soon)
	if line, err := p.NextLine(soon); err == nil {
		t.Fatalf("got %q after the end", line)
	}
}

func TestProcessReportsStatusAndStderr(t *testing.T) {
	p := Start(t, "sh", "-c", "echo sad >&2; exit 3")
	var ee *exec.ExitError
	if err := p.Wait(soon); !errors.As(err, &ee) || ee.ExitCode() != 3 {
		t.Fatalf("got %v", err)
	}
	if got := p.Stderr(); got != "sad\n" {
		t.Fatalf("stderr %q", got)
	}
	q := Start(t, "sleep", "100")
	if err := q.Wait(10 * time.Millisecond); err == nil {
		t.Fatal("Wait returned although the process runs")
	}
	q.Signal(syscall.SIGTERM)
	if err := q.Wait(soon); !errors.As(err, &ee) {
		t.Fatalf("got %v", err)
	}
}

// A grandchild must be gone with the test, whatever the child did.
func TestCleanupKillsTheGroup(t *testing.T) {
	var grandchild int
	t.Run("inner", func(t *testing.T) {
		p := Start(t, "sh", "-c", "sleep 1000 & echo $!; wait")
		if _, err := fmt.Sscan(p.Line(soon), &grandchild); err != nil {
			t.Fatal(err)
		}
	})
	Eventually(t, soon, True("grandchild gone", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", grandchild))
		return err != nil || strings.Contains(string(stat), ") Z ")
	}))
}

func TestTailKeepsTheEnd(t *testing.T) {
	var b tail
	for i := range 100000 {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	got := b.String()
	if len(got) > tailSize || !strings.HasPrefix(got, "line ") || !strings.HasSuffix(got, "line 99999\n") {
		t.Fatalf("%d bytes, %q...", len(got), got[:20])
	}
}

func TestFreePortsAreFreeAndDistinct(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		p := FreePort(t)
		if seen[p] {
			t.Fatalf("%d twice", p)
		}
		seen[p] = true
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			t.Fatal(err)
		}
		ln.Close()
	}
	first := FreePorts(t, 5)
	for i := range 5 {
		if !portFree(first + i) {
			t.Fatalf("%d of 5 from %d is taken", i, first)
		}
	}
}

func TestBlackholeNeitherAcceptsNorRefuses(t *testing.T) {
	addr := Blackhole(t)
	c, err := net.DialTimeout("tcp", addr, 300*time.Millisecond)
	if err == nil {
		c.Close()
		t.Fatal("accepted")
	}
	if ne, ok := err.(net.Error); !ok || !ne.Timeout() {
		t.Fatalf("refused: %v", err)
	}
}

func TestPollKeepsTheLastReason(t *testing.T) {
	n := 0
	err := Poll(50*time.Millisecond, func() error { n++; return fmt.Errorf("try %d", n) })
	if n < 2 || err == nil || err.Error() != fmt.Sprintf("try %d", n) {
		t.Fatalf("%d tries, %v", n, err)
	}
	if err := Poll(time.Second, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestNetNSIsSilentWhenBlackholed(t *testing.T) {
	ns := NetNS(t)
	ping := func() error {
		out, err := ns.A.Command("python3", "-c", `
import socket, sys
s = socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])); s.close()`, ns.B.Addr, "2").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	srv := StartCmd(t, ns.B.Command("python3", "-u", "-c", `
import socket
s = socket.create_server(("10.99.0.2", 7000)); print("up")
while True: s.accept()[0].close()`))
	srv.Line(soon)
	Eventually(t, soon, ping)
	ns.Blackhole()
	if err := ping(); err == nil || !strings.Contains(err.Error(), "timed out") {
		t.Fatalf("blackholed: %v", err)
	}
	ns.Heal()
	Eventually(t, soon, ping)
}

func TestWheelRunsWithACleanEnvironment(t *testing.T) {
	w := Wheel(t)
	t.Setenv("MC_FORCE_HCA", "1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	for _, kv := range w.Env() {
		if strings.HasPrefix(kv, "MC_FORCE_HCA=") || strings.HasPrefix(kv, "http_proxy=") {
			t.Fatalf("kept %s", kv)
		}
	}
	out, err := w.Command("-c", "import mooncake.engine as e; print(e.TransferEngine)").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(w.Bin("transfer_engine_bench")); err != nil {
		t.Fatal(err)
	}
}
