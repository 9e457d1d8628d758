package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// targetInfo is the first line that a target process prints, as JSON.
type targetInfo struct {
	Segment string `json:"segment"` // the name to open
	Bytes   uint64 `json:"bytes"`   // of its one region
}

// cpuInfo answers the line "cpu".
type cpuInfo struct {
	CPUSeconds float64 `json:"cpu_seconds"`
}

// ServeTarget is the second process of a benchmark: an engine with one region of the given size. It
// prints where it is on out, answers each line "cpu" on in with the processor time used, and ends when
// in ends, so that it never outlives the process that started it.
func ServeTarget(ctx context.Context, e Endpoint, size uint64, in io.Reader, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan string)
	go func() { // ends with in, at the latest when the process does
		defer cancel()
		for sc := bufio.NewScanner(in); sc.Scan(); {
			select {
			case lines <- strings.TrimSpace(sc.Text()):
			case <-ctx.Done():
				return
			}
		}
	}()
	s, err := open(ctx, e, "bench-target", size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	enc := json.NewEncoder(out)
	if err := enc.Encode(targetInfo{s.engine.Name(), size}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-lines:
			if l != "cpu" {
				return fmt.Errorf("bench target: %q is not a command", l)
			}
			if err := enc.Encode(cpuInfo{CPUTime().Seconds()}); err != nil {
				return err
			}
		}
	}
}

// Target is a running target process.
type Target struct {
	targetInfo

	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // what it prints, closed at its end
	errs  *lastBytes
	mu    sync.Mutex // one question at a time
	stop  func() error
}

// targetWait bounds every answer of a target process. Its start includes taking memory.
const (
	targetWait = 5 * time.Second
	startWait  = 2 * time.Minute
)

// SpawnTarget starts cmd, whose process must call [ServeTarget] on its stdin and stdout, and waits until
// it is ready. Close ends it.
func SpawnTarget(ctx context.Context, cmd *exec.Cmd) (*Target, error) {
	t := &Target{cmd: cmd, lines: make(chan string, 1), errs: &lastBytes{}}
	cmd.Stderr = t.errs
	// The interrupt of a terminal must reach only this process, which then ends the target in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("bench target: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("bench target: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench target: %w", err)
	}
	t.in = in
	go func() {
		defer close(t.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			t.lines <- sc.Text()
		}
	}()
	t.stop = sync.OnceValue(t.end)
	if err := t.read(ctx, startWait, &t.targetInfo); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Target) read(ctx context.Context, wait time.Duration, v any) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case l, ok := <-t.lines:
		if !ok {
			return errors.New("bench target: the process ended")
		}
		if err := json.Unmarshal([]byte(l), v); err != nil {
			return fmt.Errorf("bench target: %w in %q", err, l)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("bench target: no answer within %v", wait)
	case <-ctx.Done():
		return fmt.Errorf("bench target: %w", ctx.Err())
	}
}

// CPU is the processor time that the target has used so far.
func (t *Target) CPU() (time.Duration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := io.WriteString(t.in, "cpu\n"); err != nil {
		return 0, fmt.Errorf("bench target: %w", err)
	}
	var c cpuInfo
	err := t.read(context.Background(), targetWait, &c)
	return time.Duration(c.CPUSeconds * float64(time.Second)), err
}

// Close ends the process and waits for it. It is idempotent. The error holds the last of what the
// process wrote to stderr if it did not end by itself.
func (t *Target) Close() error { return t.stop() }

func (t *Target) end() error {
	_ = t.in.Close() // the process may be gone already; Wait tells
	killer := time.AfterFunc(targetWait, func() { _ = t.cmd.Process.Kill() })
	defer killer.Stop()
	for range t.lines { // until its stdout is closed: Wait must not come earlier
	}
	if err := t.cmd.Wait(); err != nil {
		return fmt.Errorf("bench target: %w: %s", err, t.errs)
	}
	return nil
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	mu sync.Mutex
	b  []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	l.b = l.b[max(0, len(l.b)-2000):]
	return len(p), nil
}

func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.b))
}
