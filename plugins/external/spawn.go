package external

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawner starts all processes from one thread, because the kernel sends the parent-death signal when the thread ends that
// started the child. The thread lives as long as any child does.
var spawner struct {
	mu    sync.Mutex
	users int
	jobs  chan func()
	ended chan struct{}
}

// spawn runs f on the spawner's thread. After a success the caller owes a releaseSpawner, once the child is dead.
func spawn(f func() error) error {
	s := &spawner
	s.mu.Lock()
	if s.users++; s.users == 1 {
		s.jobs, s.ended = make(chan func()), make(chan struct{})
		go func(jobs <-chan func(), ended chan<- struct{}) {
			defer close(ended)
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			for job := range jobs {
				job()
			}
		}(s.jobs, s.ended)
	}
	jobs := s.jobs
	s.mu.Unlock()
	result := make(chan error)
	jobs <- func() { result <- f() }
	err := <-result
	if err != nil {
		releaseSpawner()
	}
	return err
}

func releaseSpawner() {
	s := &spawner
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		close(s.jobs)
		<-s.ended
	}
}

// child is a started process. It is waited for in its own goroutine.
type child struct {
	proc *os.Process
	dead chan struct{} // closed when it was waited for
	exit string        // how it ended; after dead
}

// startChild executes files[0] with files from number 0 on: standard input, output, error, the side socket and those
// of the program.
func startChild(argv, env []string, files []*os.File, memory, open uint64) (*child, error) {
	c := &child{dead: make(chan struct{})}
	err := spawn(func() (err error) {
		c.proc, err = os.StartProcess(inChild(0), argv, &os.ProcAttr{
			Env: env, Files: files,
			Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true},
		})
		return err
	})
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, err
	}
	go c.wait()
	limits := map[int]uint64{unix.RLIMIT_NOFILE: open, unix.RLIMIT_CORE: 0}
	if memory > 0 {
		limits[unix.RLIMIT_DATA] = memory
	}
	for what, n := range limits {
		if err := unix.Prlimit(c.proc.Pid, what, &unix.Rlimit{Cur: n, Max: n}, nil); err != nil && !errors.Is(err, unix.ESRCH) {
			c.kill()
			<-c.dead
			return nil, fmt.Errorf("limit %d of the process to %d: %w", what, n, err)
		}
	}
	return c, nil
}

// wait ends the process group of a dead child before it frees the child's number, which is also the group's: until then
// the kernel gives it to nobody else.
func (c *child) wait() {
	defer close(c.dead)
	defer releaseSpawner()
	for {
		err := unix.Waitid(unix.P_PID, c.proc.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Kill(-c.proc.Pid, unix.SIGKILL) // what it has started; usually there is nobody
	st, err := c.proc.Wait()
	switch {
	case err != nil:
		c.exit = err.Error()
	case st.Success():
		c.exit = "exited with status 0"
	default:
		c.exit = st.String()
	}
}

// kill sends SIGKILL by the pid descriptor; it does nothing when the child was waited for. It does not wait.
func (c *child) kill() { _ = c.proc.Kill() }
