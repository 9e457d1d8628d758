package external

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fake is a process that does as it is told, in the time of a bubble.
type fake struct {
	gen       uint64
	dead      chan struct{}
	faulted   chan struct{}
	once      sync.Once
	why       error
	end       sync.Once
	deaf      atomic.Bool // to Health
	problem   atomic.Value
	shutdowns atomic.Int32
	destroyed atomic.Int32
}

func newFake(gen uint64) *fake {
	f := &fake{gen: gen, dead: make(chan struct{}), faulted: make(chan struct{})}
	f.problem.Store("")
	return f
}

func (f *fake) Dead() <-chan struct{}    { return f.dead }
func (f *fake) Faulted() <-chan struct{} { return f.faulted }
func (f *fake) Fault(err error)          { f.once.Do(func() { f.why = err; close(f.faulted) }) }
func (f *fake) exit()                    { f.end.Do(func() { close(f.dead) }) }
func (f *fake) destroy()                 { f.destroyed.Add(1); f.exit() }

func (f *fake) reason() error {
	select {
	case <-f.faulted:
		return f.why
	default:
		return errors.New("exit status 2")
	}
}

func (f *fake) health(ctx context.Context) (string, error) {
	if f.deaf.Load() {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return f.problem.Load().(string), nil
}

func (f *fake) shutdown(ctx context.Context, _ time.Duration) {
	f.shutdowns.Add(1)
	if f.deaf.Load() {
		<-ctx.Done()
		return
	}
	f.exit()
}

// bench is a supervisor over fakes. It must be made inside of a bubble.
type bench struct {
	*supervisor[*fake]
	mu     sync.Mutex
	all    []*fake
	starts []time.Time
	failed func(gen uint64) error // of a start
	stop   func()
}

func newBench(t *testing.T, failed func(uint64) error) *bench {
	t.Helper()
	m, err := newMetrics(prometheus.NewRegistry(), "eviction", "test")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{failed: failed}
	c := DefaultConfig()
	b.supervisor = newSupervisor(slog.New(slog.DiscardHandler), m, &c, func(ctx context.Context, gen uint64) (*fake, error) {
		b.mu.Lock()
		b.starts = append(b.starts, time.Now())
		b.mu.Unlock()
		if b.failed != nil {
			if err := b.failed(gen); err != nil {
				return nil, err
			}
		}
		f := newFake(gen)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.all = append(b.all, f)
		return f, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.run(ctx)
	}()
	b.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(b.stop)
	return b
}

func (b *bench) now(t *testing.T) *fake {
	t.Helper()
	f, err := b.current(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRestartAfterExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		first := b.now(t)
		first.exit()
		synctest.Wait()
		if _, err := b.current(context.Background()); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("while it is down: %v", err)
		}
		if first.destroyed.Load() != 1 {
			t.Error("what the host has of a dead process was not freed")
		}
		time.Sleep(1300 * time.Millisecond) // 1 s and a fifth at most
		if next := b.now(t); next.gen != 2 {
			t.Fatalf("generation %d", next.gen)
		}
	})
}

// The pauses double from 1 s to 60 s, give or take a fifth, until the breaker trips; it lets one try in ten minutes.
func TestPausesAndBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(uint64) error { return errors.New("as told") })
		time.Sleep(13 * time.Minute)
		synctest.Wait()
		b.mu.Lock()
		starts := b.starts
		b.mu.Unlock()
		if len(starts) != 9 {
			t.Fatalf("%d starts in 13 minutes", len(starts))
		}
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 600} {
			got, want := starts[i+1].Sub(starts[i]), want*time.Second
			least, most := want*8/10, want*12/10
			if i == 7 {
				least, most = want, want
			}
			if got < least || got > most {
				t.Errorf("pause %d was %v, want about %v", i+1, got, want)
			}
		}
		b.supervisor.mu.Lock()
		state := b.state
		b.supervisor.mu.Unlock()
		if state != StateTripped || testutil.ToFloat64(b.metrics.tripped) != 1 {
			t.Errorf("state %s, metric tripped %v", state, testutil.ToFloat64(b.metrics.tripped))
		}
		b.failed = nil
		b.restart <- struct{}{} // an operator
		synctest.Wait()
		if f := b.now(t); f.gen != 10 {
			t.Errorf("generation %d after a restart by hand", f.gen)
		}
		b.supervisor.mu.Lock()
		last := b.last
		b.supervisor.mu.Unlock()
		if last != nil {
			t.Errorf("a failure before a restart by hand is still told: %v", last)
		}
		if n := testutil.ToFloat64(b.metrics.tripped); n != 0 {
			t.Errorf("metric tripped is %v", n)
		}
	})
}

func TestResetAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		for range 4 { // short lives: the pauses grow
			b.now(t).exit()
			synctest.Wait()
			time.Sleep(15 * time.Second)
		}
		b.now(t)
		time.Sleep(61 * time.Second)
		b.now(t).exit()
		synctest.Wait()
		time.Sleep(1300 * time.Millisecond)
		if f := b.now(t); f.gen != 6 {
			t.Fatalf("generation %d", f.gen)
		}
	})
}

func TestAHundredCallersRestartOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		f := b.now(t)
		for i := range 100 {
			go f.Fault(fmt.Errorf("caller %d", i))
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		if next := b.now(t); next.gen != 2 {
			t.Fatalf("generation %d after a hundred faults of the first", next.gen)
		}
		f.Fault(errors.New("late"))
		synctest.Wait()
		if next := b.now(t); next.gen != 2 {
			t.Fatalf("generation %d: a late fault of an old process counted", next.gen)
		}
	})
}

func TestHangingIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		f := b.now(t)
		f.deaf.Store(true)
		began := time.Now()
		<-f.dead
		if took := time.Since(began); took > healthInterval+DefaultConfig().HealthTimeout {
			t.Errorf("found after %v", took)
		}
		time.Sleep(2 * time.Second)
		if next := b.now(t); next.gen != 2 {
			t.Fatalf("generation %d", next.gen)
		}
	})
}

func TestProblemsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		f := b.now(t)
		for _, want := range []string{"no database", ""} {
			f.problem.Store(want)
			time.Sleep(2 * healthInterval)
			b.supervisor.mu.Lock()
			got := b.problem
			b.supervisor.mu.Unlock()
			if got != want {
				t.Errorf("problem %q, want %q", got, want)
			}
		}
		if b.now(t) != f {
			t.Error("a problem restarted the plugin")
		}
	})
}

func TestRefusedConfigIsForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(uint64) error { return fmt.Errorf("no: %w", ErrConfigRefused) })
		if err := b.ready(context.Background()); !errors.Is(err, ErrConfigRefused) {
			t.Fatalf("ready: %v", err)
		}
		time.Sleep(time.Hour)
		if len(b.starts) != 1 {
			t.Errorf("%d starts", len(b.starts))
		}
		if _, err := b.current(context.Background()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a call: %v", err)
		}
	})
}

// Only the very first start is waited for, and no longer than the caller wants.
func TestCallersWaitForTheFirstStartOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(uint64) error { time.Sleep(5 * time.Second); return nil })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := b.current(ctx); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a caller with a second: %v", err)
		}
		began := time.Now()
		f := b.now(t)
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("the first start took %v more", took)
		}
		f.exit()
		synctest.Wait()
		time.Sleep(2 * time.Second) // the next one is starting
		began = time.Now()
		if _, err := b.current(context.Background()); !errors.Is(err, ErrUnavailable) || time.Since(began) != 0 {
			t.Errorf("while the second starts: %v after %v", err, time.Since(began))
		}
	})
}

func TestStopDrainsAndKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		f := b.now(t)
		f.deaf.Store(true) // it does not finish
		began := time.Now()
		b.stop()
		if f.shutdowns.Load() != 1 || f.destroyed.Load() != 1 {
			t.Errorf("asked to end %d times, killed %d times", f.shutdowns.Load(), f.destroyed.Load())
		}
		if took := time.Since(began); took != DefaultConfig().Grace {
			t.Errorf("it got %v to finish", took)
		}
		if _, err := b.current(context.Background()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a call after the end: %v", err)
		}
		if n := testutil.ToFloat64(b.metrics.ready); n != 0 {
			t.Errorf("metric ready is %v", n)
		}
	})
}

func TestRestartByHandForgetsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		f := b.now(t)
		b.restart <- struct{}{}
		synctest.Wait()
		if next := b.now(t); next.gen != 2 || f.shutdowns.Load() != 1 {
			t.Errorf("generation %d, the first was asked to end %d times", next.gen, f.shutdowns.Load())
		}
	})
}
