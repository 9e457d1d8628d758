package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/plugins/external"
)

// load writes keys until it is told to stop, and notes which were written.
type load struct {
	b       metadata.Backend
	stop    chan struct{}
	wg      sync.WaitGroup
	mu      sync.Mutex
	written []string
	errs    []error
	slowest time.Duration
	n       atomic.Int64
}

func startLoad(b metadata.Backend) *load {
	l := &load{b: b, stop: make(chan struct{})}
	for w := range 4 {
		l.wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-l.stop:
					return
				default:
				}
				key, began := fmt.Sprintf("load/%d/%d", w, i), time.Now()
				err := b.Put(context.Background(), key, []byte(key))
				took := time.Since(began)
				l.mu.Lock()
				l.slowest = max(l.slowest, took)
				if err == nil {
					l.written = append(l.written, key)
					l.n.Add(1)
				} else {
					l.errs = append(l.errs, err)
				}
				l.mu.Unlock()
				if err != nil {
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
	return l
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// The process is killed, or stops, while the backend is used: calls fail at once or by their time with ErrUnavailable, leases
// of the process are lost, watches begin anew, nothing that was written is lost, and all goes on with the next process.
// A plugin that refuses its configuration does not come: whoever waits for the service is told so.
func TestRefusedConfigIsNotWaitedFor(t *testing.T) {
	b := open(t, configOf(t, "full", map[string]any{"type": "no such backend"}))
	defer b.Close()
	_, err := b.Get(t.Context(), "k")
	if !errors.Is(err, metadata.ErrRefused) || errors.Is(err, metadata.ErrUnavailable) || !strings.Contains(err.Error(), "no such backend") {
		t.Errorf("got %v", err)
	}
}

func TestFaultsUnderLoad(t *testing.T) {
	server := testenv.Redis(t)
	for name, sig := range map[string]syscall.Signal{"SIGKILL": syscall.SIGKILL, "SIGSTOP": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			c := configOf(t, "redis", map[string]any{"type": "redis", "url": "redis://" + server.Addr + "/5"})
			c.HealthTimeout, c.CallTimeout = 2*time.Second, 20*time.Second
			b := open(t, c)
			defer b.Close()
			l := startLoad(b)
			stopped := sync.OnceFunc(func() { close(l.stop); l.wg.Wait() })
			defer stopped()
			eventually(t, "the load runs", func() bool { return l.n.Load() > 50 })

			lease, err := b.(metadata.Leaser).Lease(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var resets atomic.Int64
			var watch sync.WaitGroup
			watch.Go(func() {
				for e, err := range b.(metadata.Watcher).Watch(ctx, "watched/") {
					if err == nil && e.Type == metadata.EventReset {
						resets.Add(1)
					}
				}
			})
			defer watch.Wait()
			defer cancel()
			eventually(t, "the watch has begun", func() bool { return resets.Load() > 0 })

			pid := processOf(t, b)
			before, began := l.n.Load(), time.Now()
			if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
			select {
			case <-lease.Alive():
			case <-time.After(time.Minute):
				t.Fatal("the lease of a dead process is alive")
			}
			if err := lease.Put(t.Context(), "leased", nil); !errors.Is(err, metadata.ErrLeaseLost) {
				t.Errorf("put on the lost lease: %v", err)
			}
			begun := resets.Load()
			eventually(t, "writes pass again", func() bool { return l.n.Load() > before+50 && processOf(t, b) != pid })
			t.Logf("50 more writes had passed %v after %s", time.Since(began).Round(time.Millisecond), name)
			eventually(t, "the watch begins anew", func() bool { return resets.Load() > begun || begun > 1 })
			stopped()
			for _, err := range l.errs {
				if !errors.Is(err, metadata.ErrUnavailable) {
					t.Errorf("an error of another class: %v", err)
					break
				}
			}
			if len(l.errs) == 0 {
				t.Error("no call failed")
			}
			for _, key := range l.written {
				e, err := b.Get(t.Context(), key)
				if err != nil || string(e.Value) != key {
					t.Fatalf("%s was written and reads %q, %v", key, e.Value, err)
				}
			}
			t.Logf("%d writes, %d failed, the slowest call took %v", len(l.written), len(l.errs), l.slowest.Round(time.Millisecond))
		})
	}
}

// processOf is the number of the process that serves a backend, 0 while there is none.
func processOf(t *testing.T, b metadata.Backend) int {
	t.Helper()
	running := external.Running()
	if len(running) != 1 {
		t.Fatalf("%d plugins run", len(running))
	}
	return running[0].Status().PID
}

// Answers that the protocol does not allow cost the process its life and the caller one error.
func TestGarbage(t *testing.T) {
	b := open(t, configOf(t, "liar", map[string]any{"type": "memory"}))
	defer b.Close()
	for name, c := range map[string]struct {
		call func(context.Context) error
		want string
	}{
		"another key": {func(ctx context.Context) error { _, err := b.Get(ctx, "k"); return err }, "answered \"another\""},
		"not sorted":  {func(ctx context.Context) error { _, err := b.(metadata.Lister).List(ctx, ""); return err }, "not in order"},
		"no class":    {func(ctx context.Context) error { return b.Put(ctx, "k", nil) }, "of no class"},
		"no reset": {func(ctx context.Context) error {
			for _, err := range b.(metadata.Watcher).Watch(ctx, "") {
				return err
			}
			return nil
		}, "before the first reset"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			generation := uint64(0)
			eventually(t, "a process that answers", func() bool {
				err := b.Delete(ctx, "k")
				if r := external.Running(); len(r) == 1 {
					generation = r[0].Status().Generation
				}
				return err == nil
			})
			err := c.call(ctx)
			if !errors.Is(err, metadata.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
			eventually(t, "the next process", func() bool { return external.Running()[0].Status().Generation > generation })
		})
	}
}

func TestArguments(t *testing.T) {
	b := open(t, configOf(t, "redis", map[string]any{"type": "memory"}))
	defer b.Close()
	ctx := t.Context()
	huge := make([]byte, maxValue+1)
	for what, c := range map[string]struct{ got, want error }{
		"a huge value":  {b.Put(ctx, "k", huge), metadata.ErrTooLarge},
		"no key":        {b.Delete(ctx, ""), metadata.ErrRefused},
		"a huge commit": {b.(metadata.Committer).Commit(ctx, metadata.Write{Key: "a", Value: huge[:maxValue-10]}, metadata.Write{Key: "b", Value: huge[:100]}), metadata.ErrTooLarge},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v", what, c.got)
		}
	}
}
