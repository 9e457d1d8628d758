package wasm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Compiling cannot be cancelled and a small module can make it take minutes and gigabytes. So it runs in a
// child process: this program again, under a name that makes init end up in childMain before anything of the
// program itself has run. A test binary works the same, so no test has to do anything for it.
const childName = "mooncake-wasm-compile"

func init() {
	if len(os.Args) == 4 && os.Args[0] == childName {
		os.Exit(childMain(os.Args[1:], os.Stdin, os.Stdout))
	}
}

// limits of a compilation.
type limits struct {
	cpu    time.Duration // whole seconds
	memory uint64        // bytes of data, beyond what the program needs for itself
	wall   time.Duration
}

var defaultLimits = limits{cpu: 20 * time.Second, memory: 1 << 30, wall: time.Minute}

const (
	childFileMax = 256 << 20 // of the machine code
	childFiles   = 64
	childThreads = 2
)

// ErrCompile is wrapped by the errors for a module that could not be compiled within its limits.
var ErrCompile = errors.New("compilation failed")

// childResult is what the child prints.
type childResult struct {
	Metered string `json:"metered_sha256,omitempty"`
	Refused string `json:"refused,omitempty"` // the module is at fault
	Error   string `json:"error,omitempty"`   // something else is
}

// compileAside lets a child validate, rewrite and compile a module into the folder dir. It returns the SHA-256
// of the rewritten module.
func compileAside(ctx context.Context, module []byte, dir string, l limits) (metered string, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.wall)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{childName, dir, strconv.Itoa(int(l.cpu / time.Second)), strconv.FormatUint(l.memory, 10)}
	cmd.Env = []string{fmt.Sprintf("GOMAXPROCS=%d", childThreads), "GOTRACEBACK=none"}
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(module)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	runtime.LockOSThread() // the child dies with the thread that made it
	err = cmd.Run()
	runtime.UnlockOSThread()
	var r childResult
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &r)
	}
	switch {
	case err == nil && r.Refused != "":
		return "", &refusedError{r.Refused}
	case err == nil && r.Error != "":
		return "", fmt.Errorf("%w: %s", ErrCompile, r.Error)
	case err == nil:
		return r.Metered, nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", fmt.Errorf("%w: not done within %s", ErrCompile, l.wall)
	case ctx.Err() != nil:
		return "", fmt.Errorf("%w: %w", ErrCompile, ctx.Err())
	}
	return "", fmt.Errorf("%w: %s", ErrCompile, howItEnded(cmd.ProcessState, l, errs.Bytes(), err))
}

// howItEnded explains the end of a child that said nothing.
func howItEnded(s *os.ProcessState, l limits, stderr []byte, err error) string {
	if s != nil {
		used := s.SystemTime() + s.UserTime()
		if st, ok := s.Sys().(syscall.WaitStatus); ok && st.Signaled() && used > l.cpu-l.cpu/10 {
			return fmt.Sprintf("it took more than %s of CPU time", l.cpu)
		}
	}
	text := string(stderr)
	// Go 1.26's collector does not look whether it got the memory for its queues.
	if strings.Contains(text, "cannot allocate memory") || strings.Contains(text, "out of memory") || strings.Contains(text, "pthread_create failed") ||
		strings.Contains(text, "failed to allocate") || strings.HasPrefix(text, "SIGSEGV") && strings.Contains(text, "runtime.(*spanQueue)") {
		return fmt.Sprintf("it needed more than %d MiB of memory", l.memory>>20)
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSuffix(fmt.Sprintf("%v: %s", err, clean(line, 200)), ": ")
}

// refusedError is a module that is not what a policy may be.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return e.why }

// childMain is the child: arguments are the folder and the limits, the module comes by in.
func childMain(args []string, in io.Reader, out io.Writer) (code int) {
	r := childCompile(args, in)
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return 1
	}
	return 0
}

func childCompile(args []string, in io.Reader) (r childResult) {
	cpu, err1 := strconv.ParseUint(args[1], 10, 32)
	memory, err2 := strconv.ParseUint(args[2], 10, 63)
	err := errors.Join(err1, err2)
	if err == nil {
		err = limitSelf(cpu, memory)
	}
	if err != nil {
		r.Error = err.Error()
		return r
	}
	module, err := io.ReadAll(in)
	if err != nil {
		r.Error = err.Error()
		return r
	}
	sum, err := compileInto(context.Background(), module, args[0])
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		r.Refused = refused.why
	case err != nil:
		r.Error = err.Error()
	default:
		r.Metered = sum
	}
	return r
}

// limitSelf sets the limits of this process. It runs code of ours only, so it can be trusted to do so.
func limitSelf(cpu, memory uint64) error {
	debug.SetMemoryLimit(int64(memory - memory/8)) // collect garbage before it is too late
	own, err := dataBytes()
	if err != nil {
		return err
	}
	for _, l := range []struct {
		name string
		what int
		most uint64
	}{
		{"RLIMIT_CPU", unix.RLIMIT_CPU, cpu},
		{"RLIMIT_DATA", unix.RLIMIT_DATA, own + memory},
		{"RLIMIT_FSIZE", unix.RLIMIT_FSIZE, childFileMax},
		{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, childFiles},
		{"RLIMIT_CORE", unix.RLIMIT_CORE, 0},
	} {
		var old unix.Rlimit
		if err := unix.Getrlimit(l.what, &old); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		most := min(l.most, old.Max)
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("%s %d: %w", l.name, most, err)
		}
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 10) // a wish
	return nil
}

// dataBytes is the private memory that this process has mapped already: a program under the race detector starts
// with terabytes of it.
func dataBytes() (uint64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmData:"); ok {
			n, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 50)
			return n << 10, err
		}
	}
	return 0, errors.New("no VmData in /proc/self/status")
}
