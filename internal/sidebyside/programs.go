package sidebyside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mooncake-agent/mooncake/internal/procstat"
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 10 * time.Second
)

// Command is a program in an environment without settings of Mooncake and proxies. It is interrupted when ctx ends.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		n, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(n, "MC_") || strings.HasPrefix(n, "MOONCAKE_") || strings.HasSuffix(strings.ToLower(n), "_proxy")
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the terminal's interrupt goes to the script only
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = stopTimeout
	return cmd
}

// Run is a program that has ended.
type Run struct {
	Stdout, Stderr string
	CPU            time.Duration // processor time of the program and of those it was measured with
	Foreign        float64       // processors that all others used meanwhile
}

// Measure runs cmd to its end. with are processes that work for it. An error has the end of what cmd wrote to stderr.
func Measure(cmd *exec.Cmd, with ...int) (r Run, err error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	busy, err := procstat.Busy()
	if err != nil {
		return r, err
	}
	own, err := cpuOf(with)
	if err != nil {
		return r, err
	}
	start := time.Now()
	runErr := cmd.Run()
	wall := time.Since(start)
	busyAfter, err := procstat.Busy()
	if err != nil {
		return r, err
	}
	after, err := cpuOf(with)
	if err != nil {
		return r, fmt.Errorf("a process that served the measurement is gone: %w", err)
	}
	r.CPU = after - own
	if s := cmd.ProcessState; s != nil {
		r.CPU += s.UserTime() + s.SystemTime()
	}
	r.Stdout, r.Stderr, r.Foreign = out.String(), errOut.String(), max(0, (busyAfter-busy-r.CPU).Seconds()/wall.Seconds())
	if runErr != nil {
		runErr = fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), runErr, Tail(r.Stderr))
	}
	return r, runErr
}

func cpuOf(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		p, err := procstat.Read(pid)
		if err != nil {
			return 0, err
		}
		sum += p.CPU
	}
	return sum, nil
}

// Tail is the end of a long text.
func Tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-600):]
}

// Program is a running program that the measured ones need.
type Program struct {
	cmd    *exec.Cmd
	log    lastBytes
	exited chan struct{}
}

// Start starts cmd and waits until ready is nil, or a minute. cmd's stderr is kept for messages.
func Start(ctx context.Context, cmd *exec.Cmd, ready func() error) (*Program, error) {
	p := &Program{cmd: cmd, exited: make(chan struct{})}
	cmd.Stderr = &p.log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait()
	}()
	name := filepath.Base(cmd.Path)
	for deadline := time.Now().Add(startTimeout); ; {
		err := ready()
		if err == nil {
			return p, nil
		}
		select {
		case <-p.exited:
			return nil, fmt.Errorf("%s ended: %s", name, &p.log)
		case <-ctx.Done():
			p.Stop()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.Stop()
			return nil, fmt.Errorf("%s is not ready: %w: %s", name, err, &p.log)
		}
	}
}

// PID of the program.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Stop ends the program; its exit status says nothing about the measurement.
func (p *Program) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// Listens tells whether something accepts connections at an address.
func Listens(addr string) func() error {
	return func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// FreePort is a port of loopback that nobody uses now.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// FindWheel looks for a file of an installed wheel where the tests look: pattern is relative to the folders
// wheel-VERSION of $MOONCAKE_CACHE.
func FindWheel(pattern ...string) (string, error) {
	cache := os.Getenv("MOONCAKE_CACHE")
	if cache == "" {
		cache = ".cache"
	}
	found, err := filepath.Glob(filepath.Join(append([]string{cache}, pattern...)...))
	if err != nil || len(found) == 0 {
		return "", errors.Join(fmt.Errorf("no wheel in %s (%s): run make setup", cache, filepath.Join(pattern...)), err)
	}
	return found[len(found)-1], nil
}

// lastBytes keeps the end of what is written to it. It is read after the writer has ended.
type lastBytes struct{ b []byte }

func (l *lastBytes) Write(p []byte) (int, error) {
	const most = 4096
	l.b = append(l.b, p...)
	if n := len(l.b) - most; n > 0 {
		l.b = l.b[n:]
	}
	return len(p), nil
}

func (l *lastBytes) String() string { return Tail(string(l.b)) }
