package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// checkTimeout is what one readiness check gets.
const checkTimeout = 2 * time.Second

// errLate is the reason of a check that has not answered.
var errLate = errors.New("the check did not answer in time")

// readiness asks all checks at once and answers with the reasons of those that fail.
type readiness struct {
	mu     sync.Mutex
	checks map[string]*check
}

// check runs at most once at a time: one that hangs costs one goroutine, not one per request.
type check struct {
	f       func(context.Context) error
	timeout time.Duration

	mu   sync.Mutex
	last *outcome
}

type outcome struct {
	done chan struct{}
	err  error // valid after done
}

// Reason is one failed check in the answer of /readyz.
type Reason struct {
	Check  string `json:"check"`
	Reason string `json:"reason"`
}

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []Reason `json:"reasons,omitempty"`
}

func (r *readiness) set(name string, f func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checks == nil {
		r.checks = map[string]*check{}
	}
	r.checks[name] = &check{f: f, timeout: checkTimeout}
}

// ask runs every check and waits for all of them, at most the time of one.
func (r *readiness) ask(ctx context.Context) Readiness {
	r.mu.Lock()
	runs := make(map[string]*outcome, len(r.checks))
	var limit time.Duration
	for name, c := range r.checks {
		runs[name] = c.start()
		limit = max(limit, c.timeout)
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out := Readiness{Ready: true}
	for name, o := range runs {
		if err := o.wait(ctx); err != nil {
			out.Ready = false
			out.Reasons = append(out.Reasons, Reason{name, scrub(err.Error())})
		}
	}
	slices.SortFunc(out.Reasons, func(a, b Reason) int { return strings.Compare(a.Check, b.Check) })
	return out
}

// start joins the run in progress or begins one.
func (c *check) start() *outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil && !c.last.over() {
		return c.last
	}
	o := &outcome{done: make(chan struct{})}
	c.last = o
	go func() {
		defer close(o.done)
		defer func() {
			if p := recover(); p != nil {
				o.err = fmt.Errorf("the check panicked: %v", p)
			}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
		defer cancel()
		o.err = c.f(ctx)
	}()
	return o
}

func (o *outcome) over() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// wait returns the check's error, or errLate when ctx ends first.
func (o *outcome) wait(ctx context.Context) error {
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		if o.over() {
			return o.err
		}
		return errLate
	}
}

// stop waits for the checks that run.
func (r *readiness) stop(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, c := range r.checks {
		c.mu.Lock()
		last := c.last
		c.mu.Unlock()
		if last == nil {
			continue
		}
		if err := last.wait(ctx); errors.Is(err, errLate) {
			return fmt.Errorf("admin: readiness check %s still runs: %w", name, err)
		}
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (r *readiness) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a := r.ask(req.Context())
	code := http.StatusOK
	if !a.Ready {
		code = http.StatusServiceUnavailable
	}
	WriteJSON(w, code, a)
}
