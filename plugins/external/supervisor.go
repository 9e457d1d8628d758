package external

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrUnavailable is answered at once by calls while no process of the plugin is ready.
var ErrUnavailable = errors.New("plugin not ready")

// State of a plugin.
type State string

// The states.
const (
	StateNew      State = "new"      // not started yet
	StateStarting State = "starting" // a process is getting ready
	StateReady    State = "ready"    // calls are answered
	StateBackoff  State = "back-off" // the last process failed; the next one starts soon
	StateTripped  State = "tripped"  // too many failed in a row; one attempt in ten minutes
	StateRefused  State = "refused"  // the plugin refused its configuration: it is not tried again
	StateStopped  State = "stopped"
)

const (
	firstPause     = time.Second
	maxPause       = time.Minute
	resetAfter     = time.Minute // a process that was ready for so long clears the failures before it
	tripAfter      = 8           // failures in a row
	trippedPause   = 10 * time.Minute
	healthInterval = time.Second
)

// generation is what the supervisor knows of a process; *Process is one.
type generation interface {
	Dead() <-chan struct{}
	Faulted() <-chan struct{}
	Fault(error)
	reason() error // why it ended or is to end, after Dead or Faulted
	health(context.Context) (problem string, err error)
	shutdown(context.Context, time.Duration)
	destroy()
}

// supervisor keeps one process of a plugin running. T is the generation.
type supervisor[T generation] struct {
	log           *slog.Logger
	metrics       *metrics
	startTimeout  time.Duration
	healthTimeout time.Duration
	grace         time.Duration
	// launch makes the next generation ready, or leaves nothing behind.
	launch func(ctx context.Context, generation uint64) (T, error)

	restart chan struct{} // holds a token when an operator wants a new process

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change of what follows
	state   State
	cur     T // while ready
	gen     uint64
	since   time.Time
	retryAt time.Time // while in back-off or tripped
	last    error     // of the last failure, nil once an operator has restarted it
	lastAt  time.Time
	problem string // what the plugin says it lacks
	everRan bool   // the first start is decided
}

func newSupervisor[T generation](log *slog.Logger, m *metrics, c *Config, launch func(context.Context, uint64) (T, error)) *supervisor[T] {
	return &supervisor[T]{
		log: log, metrics: m, startTimeout: c.StartTimeout, healthTimeout: c.HealthTimeout, grace: c.Grace, launch: launch,
		restart: make(chan struct{}, 1), changed: make(chan struct{}), state: StateNew, since: time.Now(),
	}
}

// update changes what callers see, under the lock.
func (s *supervisor[T]) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.state
	f()
	if s.state != was {
		s.since = time.Now()
		s.metrics.moved(was, s.state)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// run starts processes until ctx ends. It returns when the last one is dead.
func (s *supervisor[T]) run(ctx context.Context) {
	var none T
	failures := 0
	for ctx.Err() == nil {
		began := time.Time{}
		s.update(func() { s.state = StateStarting; s.gen++ })
		s.metrics.starts.Inc()
		g, err := s.start(ctx)
		if err == nil {
			began = time.Now()
			s.update(func() { s.state, s.cur, s.everRan, s.problem = StateReady, g, true, "" })
			s.log.Info("plugin is ready", "generation", s.gen)
			err = s.watch(ctx, g)
			s.update(func() {
				s.cur = none
				switch {
				case ctx.Err() != nil:
					s.state = StateStopped
				case err == nil: // an operator wants a new one
					s.state, s.last = StateStarting, nil
				default: // pause says until when
					s.state, s.last, s.lastAt, s.retryAt = StateBackoff, err, time.Now(), time.Time{}
				}
			})
			if ctx.Err() != nil || err == nil {
				s.drain(g)
				failures = 0
				continue
			}
			g.destroy()
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, ErrConfigRefused) && !s.ranBefore() {
			s.update(func() { s.state, s.last, s.lastAt, s.everRan = StateRefused, err, time.Now(), true })
			s.metrics.failures.Inc()
			s.log.Error("plugin refuses its configuration and is not started again", "error", err)
			return
		}
		if !began.IsZero() && time.Since(began) >= resetAfter {
			failures = 0
		}
		failures++
		if s.pause(ctx, failures, err) {
			failures = 0
			s.update(func() { s.last = nil })
		}
	}
	s.update(func() { s.state, s.everRan = StateStopped, true })
}

func (s *supervisor[T]) ranBefore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen > 1
}

// start makes the next process ready within the time for it.
func (s *supervisor[T]) start(ctx context.Context) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.startTimeout, fmt.Errorf("not ready within %v (start_timeout): %w", s.startTimeout, context.DeadlineExceeded))
	defer cancel()
	s.mu.Lock()
	gen := s.gen
	s.mu.Unlock()
	g, err := s.launch(ctx, gen)
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return g, err
}

// watch returns when the process has failed, with the reason; nil when an operator or ctx wants it to end.
func (s *supervisor[T]) watch(ctx context.Context, g T) error {
	probing, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { s.probe(probing, g) })
	select {
	case <-g.Faulted():
	case <-g.Dead():
	case <-s.restart:
		s.log.Info("plugin is restarted as asked")
		return nil
	case <-ctx.Done():
		return nil
	}
	return g.reason()
}

// probe asks for the plugin's health until ctx ends; no answer is a fault.
func (s *supervisor[T]) probe(ctx context.Context, g T) {
	t := time.NewTicker(healthInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		limited, cancel := context.WithTimeout(ctx, s.healthTimeout)
		problem, err := g.health(limited)
		late := limited.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case late:
			g.Fault(fmt.Errorf("it did not answer for %v (health_timeout)", s.healthTimeout))
		case err != nil:
			g.Fault(fmt.Errorf("health: %w", err))
		default:
			s.setProblem(problem)
		}
	}
}

func (s *supervisor[T]) setProblem(problem string) {
	s.mu.Lock()
	was := s.problem
	s.problem = problem
	s.mu.Unlock()
	switch {
	case problem != "" && was == "":
		s.log.Warn("plugin has a problem", "problem", problem)
	case problem == "" && was != "":
		s.log.Info("plugin has no problem any more")
	}
}

// drain lets the plugin finish, and kills it at the end of its time.
func (s *supervisor[T]) drain(g T) {
	if s.grace > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), s.grace)
		g.shutdown(ctx, s.grace)
		cancel()
	}
	g.destroy()
}

// pause waits before the next start. It is true when an operator ended it.
func (s *supervisor[T]) pause(ctx context.Context, failures int, err error) (asked bool) {
	s.metrics.failures.Inc()
	wait, state := pauseAfter(failures), StateBackoff
	if failures >= tripAfter {
		wait, state = trippedPause, StateTripped
	}
	s.update(func() {
		s.state, s.last, s.lastAt, s.retryAt, s.everRan = state, err, time.Now(), time.Now().Add(wait), true
	})
	if state == StateTripped {
		s.log.Error("plugin failed too often in a row: it is tried again in ten minutes, or at once by mooncake plugins restart",
			"failures", failures, "error", err)
	} else {
		s.log.Warn("plugin failed", "failures", failures, "retry_in", wait.Round(time.Millisecond).String(), "error", err)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.restart:
		return true
	case <-ctx.Done():
	}
	return false
}

// pauseAfter is 1 s after the first failure, doubled each time up to 60 s, give or take a fifth.
func pauseAfter(failures int) time.Duration {
	d := maxPause
	if n := failures - 1; n < 6 {
		d = min(maxPause, firstPause<<n)
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// current returns the ready generation. It waits only while the very first start is under way.
func (s *supervisor[T]) current(ctx context.Context) (T, error) {
	var none T
	for {
		s.mu.Lock()
		state, cur, last, retryAt, decided, changed := s.state, s.cur, s.last, s.retryAt, s.everRan, s.changed
		s.mu.Unlock()
		switch {
		case state == StateReady:
			return cur, nil
		case decided || state == StateStopped:
			return none, notReady(state, last, retryAt)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return none, fmt.Errorf("its first process is not ready: %w: %w", ErrUnavailable, context.Cause(ctx))
		}
	}
}

func notReady(state State, last error, retryAt time.Time) error {
	switch {
	case state == StateRefused:
		return fmt.Errorf("%w: %w", ErrUnavailable, last)
	case (state == StateBackoff || state == StateTripped) && !retryAt.IsZero():
		return fmt.Errorf("%w (%s until %s): %s", ErrUnavailable, state, retryAt.Format(time.TimeOnly), last)
	case last != nil:
		return fmt.Errorf("%w (%s): %s", ErrUnavailable, state, last)
	}
	return fmt.Errorf("%w (%s)", ErrUnavailable, state)
}

// ready waits for the first ready process. The error is for good, unless it is ctx's.
func (s *supervisor[T]) ready(ctx context.Context) error {
	for {
		s.mu.Lock()
		state, last, changed := s.state, s.last, s.changed
		s.mu.Unlock()
		switch state {
		case StateReady:
			return nil
		case StateRefused:
			return last
		case StateStopped:
			return notReady(state, last, time.Time{})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		}
	}
}
