package testenv

import (
	"os/exec"
	"runtime"
	"sync"
)

// parent starts all processes from one operating system thread, because Pdeathsig fires when the
// thread that forked ends, not when the process does. The thread's goroutine lives while there are
// processes, so that a leak check at the end of a package finds nothing.
var parent forker

type forker struct {
	mu    sync.Mutex
	alive int
	todo  chan func()
}

func (f *forker) start(cmd *exec.Cmd) error {
	f.mu.Lock()
	if f.alive == 0 {
		f.todo = make(chan func())
		go runLocked(f.todo)
	}
	f.alive++
	todo := f.todo
	f.mu.Unlock()
	res := make(chan error, 1)
	todo <- func() { res <- cmd.Start() }
	err := <-res
	if err != nil {
		f.done()
	}
	return err
}

func (f *forker) done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.alive--; f.alive == 0 {
		close(f.todo)
	}
}

// runLocked runs the functions on one thread and gives the thread back alive (an exit of a locked
// goroutine would end it and, by Pdeathsig, every process it started).
func runLocked(todo <-chan func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for f := range todo {
		f()
	}
}
