package testenv

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a running program of a test. It leads a process group of its own, which is killed as a
// whole when the test ends, and dies with the test process. Its methods may be called from one
// goroutine at a time, except Stderr, Signal and Kill.
type Process struct {
	// Cmd is the started command. Do not call Wait on it.
	Cmd *exec.Cmd

	t      testing.TB
	name   string
	stdin  io.WriteCloser
	lines  chan string   // stdout, one line each; closed at EOF
	exited chan struct{} // closed once the process was reaped
	err    error         // of exec.Cmd.Wait, valid after exited
	errOut tail
}

// Start runs a program and gives the test its standard input, lines of its standard output and its
// standard error, whose last part is shown when the test fails. The process is killed at the test's
// cleanup if it is still there.
func Start(t testing.TB, argv ...string) *Process {
	t.Helper()
	return StartCmd(t, exec.Command(argv[0], argv[1:]...))
}

// StartCmd is Start for a command with an environment or a directory of its own. Its standard
// streams must not be set.
func StartCmd(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{
		Cmd: cmd, t: t, name: filepath.Base(cmd.Path),
		lines: make(chan string, 1<<14), exited: make(chan struct{}),
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	// A pipe of our own: exec's StdoutPipe must not be read concurrently with Wait.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, &p.errOut
	// A grandchild that keeps stderr open must not hold Wait up for ever.
	cmd.WaitDelay = 5 * time.Second
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	err = parent.start(cmd)
	w.Close()
	if err != nil {
		r.Close()
		t.Fatalf("start %s: %v", strings.Join(cmd.Args, " "), err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		in := bufio.NewReaderSize(r, 1<<16)
		for {
			line, err := in.ReadString('\n')
			if line != "" {
				p.lines <- strings.TrimRight(line, "\r\n")
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		p.err = cmd.Wait()
		syscall.Kill(-p.PID(), syscall.SIGKILL) // what the leader left behind
		parent.done()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.killGroup()
		<-p.exited
		r.SetReadDeadline(time.Now().Add(time.Second)) // in case something escaped from the group
		for range p.lines {                            // the reader may be blocked on a full channel
		}
		<-read
		r.Close()
		if t.Failed() {
			t.Logf("%s (pid %d): %v\n%s", strings.Join(cmd.Args, " "), cmd.Process.Pid, cmd.ProcessState, p.Stderr())
		}
	})
	return p
}

// PID is the process id, which is also the process group's.
func (p *Process) PID() int { return p.Cmd.Process.Pid }

// Stderr is the last part (64 KiB) of what the process wrote to standard error so far.
func (p *Process) Stderr() string { return p.errOut.String() }

// Exited is closed once the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// NextLine returns the next line of standard output, or an error at the deadline or at EOF.
func (p *Process) NextLine(within time.Duration) (string, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case line, ok := <-p.lines:
		if !ok {
			return "", fmt.Errorf("%s ended its output; last of stderr:\n%s", p.name, p.Stderr())
		}
		return line, nil
	case <-timer.C:
		return "", fmt.Errorf("%s: no line on stdout within %v; last of stderr:\n%s", p.name, within, p.Stderr())
	}
}

// Line is NextLine that fails the test on an error.
func (p *Process) Line(within time.Duration) string {
	p.t.Helper()
	line, err := p.NextLine(within)
	if err != nil {
		p.t.Fatal(err)
	}
	return line
}

// JSON reads the next line of standard output into v and fails the test if that does not work.
func (p *Process) JSON(within time.Duration, v any) {
	p.t.Helper()
	line := p.Line(within)
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		p.t.Fatalf("%s: %v in %q", p.name, err, line)
	}
}

// Send writes one line to standard input.
func (p *Process) Send(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.stdin, format+"\n", args...); err != nil {
		p.t.Fatalf("%s: %v; last of stderr:\n%s", p.name, err, p.Stderr())
	}
}

// CloseStdin closes standard input, which ends the drivers cleanly.
func (p *Process) CloseStdin() { p.stdin.Close() }

// Signal sends a signal to the process itself, not to its children.
func (p *Process) Signal(sig syscall.Signal) error { return p.Cmd.Process.Signal(sig) }

// Kill ends the whole group with SIGKILL and waits for the process.
func (p *Process) Kill() {
	p.killGroup()
	<-p.exited
}

// Wait waits for the end of the process and returns its error: nil for exit status 0, an
// *exec.ExitError otherwise. At the deadline it returns an error and leaves the process running.
func (p *Process) Wait(within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.exited:
		return p.err
	case <-timer.C:
		return fmt.Errorf("%s (pid %d) still runs after %v; last of stderr:\n%s", p.name, p.PID(), within, p.Stderr())
	}
}

// Stop asks the process to end, by closing its standard input and, if given, by a signal, and fails
// the test unless it ends with status 0 in time.
func (p *Process) Stop(within time.Duration, sig ...syscall.Signal) {
	p.t.Helper()
	p.CloseStdin()
	for _, s := range sig {
		if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			p.t.Fatalf("%s: %v: %v", p.name, s, err)
		}
	}
	if err := p.Wait(within); err != nil {
		p.t.Fatalf("%s: stop: %v; last of stderr:\n%s", p.name, err, p.Stderr())
	}
}

func (p *Process) killGroup() {
	select {
	case <-p.exited: // the id may belong to somebody else by now
	default:
		syscall.Kill(-p.PID(), syscall.SIGKILL)
	}
}

// tail keeps the last part of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 64 << 10

func (b *tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf = append(b.buf, p...)
	if n := len(b.buf) - tailSize; n > tailSize {
		b.buf = append(b.buf[:0], b.buf[n:]...)
	}
	return len(p), nil
}

func (b *tail) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.buf
	if n := len(p) - tailSize; n > 0 {
		p = p[n:]
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			p = p[i+1:]
		}
	}
	return string(p)
}
