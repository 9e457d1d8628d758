// Package conform runs the checks of conformance suites outside of go test, for commands that try a part which
// somebody else wrote. A check takes a [T], which *testing.T is too.
package conform

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// T is told what is wrong: *testing.T, or whatever collects findings. Fatal, Fatalf and Skip do not return and are
// called only from the goroutine of the check; the other methods from any.
type T interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	// Cleanup calls f when the check has ended, the last one first.
	Cleanup(f func())
	// Skip ends the check, which does not apply.
	Skip(args ...any)
}

// Outcome of one check.
type Outcome struct {
	Name     string        `json:"name"`
	Took     time.Duration `json:"took_ns"`
	Skipped  string        `json:"skipped,omitempty"`  // why it does not apply
	Failures []string      `json:"failures,omitempty"` // none: it passed
}

// Run runs one check and returns what it found. A panic of its goroutine is a failure too. A check that has not ended
// after limit is left behind, its goroutine with it, and fails; 0 is no limit.
func Run(name string, limit time.Duration, check func(T)) Outcome {
	r := &recorder{}
	begin := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.cleanUp()
		r.guard(func() { check(r) })
	}()
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-done:
	case <-late:
		r.Errorf("not finished after %v", limit)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return Outcome{Name: name, Took: time.Since(begin), Skipped: r.skipped, Failures: append([]string(nil), r.failures...)}
}

// maxFailures is how many messages of one check are kept: the first ones tell most.
const maxFailures = 10

// recorder is a T that notes the first failures.
type recorder struct {
	mu       sync.Mutex
	failures []string
	skipped  string
	cleanups []func()
}

// guard runs f and takes a panic as a failure. f may end its goroutine: the deferred calls above run then.
func (r *recorder) guard(f func()) {
	defer func() {
		if p := recover(); p != nil {
			r.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	f()
}

func (r *recorder) cleanUp() {
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return
		}
		f := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		// A goroutine of its own, since a cleanup may end its goroutine with Fatal while others wait their turn.
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.guard(f)
		}()
		<-done
	}
}

func (r *recorder) Helper() {}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }

func (r *recorder) Errorf(f string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) < maxFailures {
		r.failures = append(r.failures, fmt.Sprintf(f, args...))
	}
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(f string, args ...any) {
	r.Errorf(f, args...)
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any) {
	r.mu.Lock()
	r.skipped = fmt.Sprint(args...)
	r.mu.Unlock()
	runtime.Goexit()
}
