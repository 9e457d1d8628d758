package testenv

import (
	"syscall"
	"testing"
	"time"
)

// Freeze stops a process with SIGSTOP and waits until no thread of it runs: the signal alone leaves the other
// threads running for a moment. SIGCONT thaws it.
func Freeze(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatalf("stop process %d: %v", pid, err)
	}
	Eventually(t, 30*time.Second, func() error { return stopped(pid) })
}

// Freeze stops the process and waits until no thread of it runs; Thaw undoes it.
func (p *Process) Freeze() {
	p.t.Helper()
	Freeze(p.t, p.PID())
}

// Thaw undoes Freeze.
func (p *Process) Thaw() {
	p.t.Helper()
	if err := p.Signal(syscall.SIGCONT); err != nil {
		p.t.Fatalf("continue %s: %v", p.name, err)
	}
}
