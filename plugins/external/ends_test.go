package external

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/module"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// hostEnv names the plugin that the test binary is to be the host of.
const hostEnv = "EXTERNAL_TEST_HOST"

// beHost runs a plugin and says its number.
func beHost() error {
	c := DefaultConfig()
	c.Command, c.RunDir = []string{os.Getenv(hostEnv)}, os.Getenv("EXTERNAL_TEST_RUN")
	c.Config = map[string]any{"fault": "child"}
	g, err := Open(context.Background(), pluginv1.Kind_KIND_EVICTION, c, module.Env{Name: "test", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	p := g.Plugin()
	if err := p.Run(context.Background(), nil); err != nil {
		return err
	}
	fmt.Println(p.Status().PID)
	return nil
}

// gone tells that no process has the number, or only one that is waiting to be waited for.
func gone(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	return strings.HasPrefix(rest, "Z")
}

// A host that is killed leaves no plugin behind, and its folder is removed by the next host.
func TestHostKilled(t *testing.T) {
	plugin, err := faultyBinary()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(scratch, "killed")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), hostEnv+"="+plugin, "EXTERNAL_TEST_RUN="+run)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, _ := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid == 0 {
		t.Fatalf("the host said %q, %v", line, errors.Join(err, cmd.Process.Kill(), cmd.Wait()))
	}
	if gone(pid) {
		t.Fatal("the plugin is gone before its host")
	}
	began := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	eventually(t, "the plugin ends with its host", func() bool { return gone(pid) })
	t.Logf("the plugin was gone %v after its host was killed", time.Since(began))

	left, err := os.ReadDir(run)
	if err != nil || len(left) != 1 {
		t.Fatalf("%d folders of the killed host, %v", len(left), err)
	}
	c := faulty(t, "", nil)
	c.RunDir = run
	open(t, c)
	if left, err = os.ReadDir(run); err != nil || len(left) != 0 {
		t.Errorf("%d folders are left, %v", len(left), err)
	}
}

// What a plugin started is killed with it.
func TestChildrenOfAPluginEndWithIt(t *testing.T) {
	p := open(t, faulty(t, "", map[string]any{"fault": "child"})).Plugin()
	if err := p.Run(within(t, time.Minute), nil); err != nil {
		t.Fatal(err)
	}
	child := 0
	eventually(t, "the plugin says what it started", func() bool {
		for _, l := range p.Logs(keptLines) {
			if l.Text == "started a child" {
				child = childOf(t, p.Status().PID)
			}
		}
		return child != 0
	})
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child is gone", func() bool { return gone(child) })
}

// childOf finds a process by its parent.
func childOf(t *testing.T, parent int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if err != nil || len(raw) == 0 { // the kernel lists the children of one thread, or does not have this file
		entries, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			stat, err := os.ReadFile(e)
			if err != nil {
				continue
			}
			_, rest, _ := strings.Cut(string(stat), ") ")
			if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(parent) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(e)))
				return pid
			}
		}
		return 0
	}
	pid, _ := strconv.Atoi(strings.Fields(string(raw))[0])
	return pid
}

// Once a child was waited for, its number may be anybody's: nothing is sent to it any more.
func TestNoSignalToADeadChildsNumber(t *testing.T) {
	c := DefaultConfig()
	c.Command = []string{"/bin/true"}
	prog, err := openProgram(&c)
	if err != nil {
		t.Fatal(err)
	}
	defer prog.close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	child, err := startChild(prog.argv, nil, append([]*os.File{null, null, null, null}, prog.files...), 0, 1024)
	if err != nil {
		t.Fatal(err)
	}
	<-child.dead
	if child.exit != "exited with status 0" {
		t.Errorf("true: %s", child.exit)
	}
	if err := child.proc.Kill(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal to a child that was waited for: %v", err)
	}
	child.kill()
}

func TestConfigIsRefused(t *testing.T) {
	p := open(t, faulty(t, "", map[string]any{"fault": "refuse"})).Plugin()
	defer p.Stop()
	err := p.Run(within(t, time.Minute), nil)
	if err == nil || !strings.Contains(err.Error(), "refused as told") {
		t.Fatalf("got %v", err)
	}
	if s := p.Status(); s.State != StateRefused {
		t.Errorf("state %s", s.State)
	}
}

func TestUnavailableIsTriedAgain(t *testing.T) {
	p := open(t, faulty(t, "", map[string]any{"fault": "unavailable"})).Plugin()
	defer p.Stop()
	if err := p.Start(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Process(within(t, time.Minute)); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	eventually(t, "a second start", func() bool { return p.Status().Generation > 1 })
}

// A plugin that is not ready is unavailable at once, and the next process gets to where the last one was.
func TestRestartAfterKill(t *testing.T) {
	p := open(t, faulty(t, "", nil)).Plugin()
	defer p.Stop()
	joined := make(chan uint64, 10)
	join := func(_ context.Context, proc *Process) error {
		joined <- proc.Generation()
		return nil
	}
	if err := p.Run(within(t, time.Minute), join); err != nil {
		t.Fatal(err)
	}
	first := p.Status()
	began := time.Now()
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the host sees it", func() bool { return p.Status().State != StateReady })
	at := time.Now()
	if _, err := p.Process(context.Background()); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("a call meanwhile: %v", err)
	}
	if took := time.Since(at); took > time.Second {
		t.Errorf("it took %v to say so", took)
	}
	eventually(t, "the next process is ready", func() bool { return p.Status().State == StateReady })
	t.Logf("ready again %v after SIGKILL", time.Since(began).Round(time.Millisecond))
	if a, b := <-joined, <-joined; a != 1 || b != 2 {
		t.Errorf("joined generations %d, %d", a, b)
	}
	if !gone(first.PID) {
		t.Error("the first process is still there")
	}
}

func TestHangingProcessIsKilled(t *testing.T) {
	c := faulty(t, "", nil)
	c.HealthTimeout = 500 * time.Millisecond
	p := open(t, c).Plugin()
	defer p.Stop()
	if err := p.Run(within(t, time.Minute), nil); err != nil {
		t.Fatal(err)
	}
	pid := p.Status().PID
	began := time.Now()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another process is ready", func() bool { s := p.Status(); return s.State == StateReady && s.PID != pid })
	t.Logf("ready again %v after SIGSTOP", time.Since(began).Round(time.Millisecond))
	if !gone(pid) {
		t.Error("the stopped process is still there")
	}
	if s := p.Status(); !strings.Contains(s.LastError, "health_timeout") {
		t.Errorf("last error %q", s.LastError)
	}
}

// Stop kills what does not end by itself.
func TestStopOfAHangingProcess(t *testing.T) {
	c := faulty(t, "", nil)
	c.Grace = 300 * time.Millisecond
	p := open(t, c).Plugin()
	if err := p.Run(within(t, time.Minute), nil); err != nil {
		t.Fatal(err)
	}
	pid := p.Status().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if !gone(pid) {
		t.Error("the process is still there")
	}
}

func TestCrashLoop(t *testing.T) {
	p := open(t, faulty(t, "", map[string]any{"fault": "loop"})).Plugin()
	defer p.Stop()
	if err := p.Start(nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "three starts", func() bool { return p.Status().Generation >= 3 })
	if s := p.Status(); !strings.Contains(s.LastError, "exit status 9") {
		t.Errorf("status %+v", s)
	}
}
