package conformance

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

// view is what a watcher that follows the contract knows: it lists at every reset and applies the events
// in between.
type view struct {
	mu     sync.Mutex
	keys   map[string]string
	resets int
	bad    error // a broken promise
	done   chan struct{}
	cancel context.CancelFunc
}

// follow watches prefix until the test or stop ends it.
func follow(t T, b metadata.Backend, prefix string) *view {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	v := &view{done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(v.done)
		for ev, err := range b.(metadata.Watcher).Watch(ctx, prefix) {
			if err == nil {
				v.apply(ctx, b, prefix, ev)
			}
		}
	}()
	t.Cleanup(v.stop)
	soon(t, func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.resets == 0 {
			return fmt.Errorf("no first reset from the watch of %q", prefix)
		}
		return nil
	})
	return v
}

func (v *view) stop() {
	v.cancel()
	<-v.done
}

func (v *view) apply(ctx context.Context, b metadata.Backend, prefix string, ev metadata.Event) {
	var now map[string]string
	if ev.Type == metadata.EventReset {
		now = v.list(ctx, b, prefix)
		if now == nil {
			return // the watch has ended
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.keys == nil && now == nil {
		v.bad = fmt.Errorf("the first event is %v, not a reset", ev.Type)
		return
	}
	switch ev.Type {
	case metadata.EventReset:
		v.keys = now
		v.resets++
	case metadata.EventPut:
		v.keys[ev.Entry.Key] = string(ev.Entry.Value)
	case metadata.EventDelete:
		delete(v.keys, ev.Entry.Key)
	default:
		v.bad = fmt.Errorf("unknown event type %v", ev.Type)
	}
	if ev.Type != metadata.EventReset && !strings.HasPrefix(ev.Entry.Key, prefix) {
		v.bad = fmt.Errorf("event for %q outside of the prefix %q", ev.Entry.Key, prefix)
	}
}

// list returns nil once ctx has ended; a service that is away is asked again.
func (v *view) list(ctx context.Context, b metadata.Backend, prefix string) map[string]string {
	for ctx.Err() == nil {
		entries, err := b.(metadata.Lister).List(ctx, prefix)
		if err == nil {
			m := map[string]string{}
			for _, e := range entries {
				m[e.Key] = string(e.Value)
			}
			return m
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

func (v *view) check(want map[string]string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.bad != nil {
		return v.bad
	}
	if d := differ(v.keys, want); d != "" {
		return fmt.Errorf("the watcher's view: %s", d)
	}
	return nil
}

func watchBeginsWithReset(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	put(t, b, p+"before", "1")
	v := follow(t, b, p)
	soon(t, func() error { return v.check(map[string]string{p + "before": "1"}) })
}

func watchFollows(t T, s *suite) {
	a, b, p := s.open(t), s.open(t), s.prefix()
	views := make([]*view, 8)
	for i := range views {
		views[i] = follow(t, a, p)
	}
	want := map[string]string{}
	for i := range 40 {
		k := fmt.Sprintf("%s%d", p, i)
		put(t, b, k, "v")
		want[k] = "v"
	}
	put(t, b, p+"3", "changed")
	want[p+"3"] = "changed"
	del(t, b, p+"4")
	delete(want, p+"4")
	if c, ok := b.(metadata.Committer); ok {
		if err := c.Commit(within(t), metadata.Write{Key: p + "5", Delete: true}, metadata.Write{Key: p + "c", Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
		delete(want, p+"5")
		want[p+"c"] = "v"
	}
	for _, v := range views {
		soon(t, func() error { return v.check(want) })
	}
}

// While the numbers 1 to 300 are written to one key, a watcher never sees one after a larger one, and it
// sees the last.
func watchKeepsOrder(t T, s *suite) {
	const last = 300
	a, b, key := s.open(t), s.open(t), s.prefix()+"k"
	put(t, b, key, "0")
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	first := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		<-first
		for i := 1; i <= last && ctx.Err() == nil; i++ {
			// The watcher may see the last number, and end the test, before its Put returns.
			if err := b.Put(ctx, key, []byte(strconv.Itoa(i))); err != nil && ctx.Err() == nil {
				t.Errorf("put: %v", err)
				cancel()
			}
		}
	})
	seen, begun := -1, false
	for ev, err := range a.(metadata.Watcher).Watch(ctx, key) {
		if err != nil {
			t.Errorf("watch: %v", err)
			break
		}
		value := ev.Entry.Value
		switch ev.Type {
		case metadata.EventReset:
			e, err := a.Get(ctx, key)
			if err != nil {
				t.Errorf("get: %v", err)
			}
			value = e.Value
			seen = -1 // events from before the reset may be repeated by it
		case metadata.EventDelete:
			t.Errorf("a delete that nobody made")
		}
		n, err := strconv.Atoi(string(value))
		if err != nil || n < seen {
			t.Errorf("saw %q after %d", value, seen)
			break
		}
		if ev.Type == metadata.EventReset && n < last {
			n = -1 // what Get saw may be ahead of the events that come next
		}
		if !begun {
			begun = true
			close(first)
		}
		if seen = n; seen == last {
			break
		}
	}
	cancel()
	if !begun {
		close(first)
	}
	writer.Wait()
	if seen != last {
		t.Fatalf("the last value seen is %d, want %d", seen, last)
	}
}

func watchPrefix(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	v := follow(t, b, p+"in/")
	put(t, b, p+"out/1", "v")
	put(t, b, p+"i", "v")
	put(t, b, p+"in/*", "v")
	put(t, b, p+"in/1", "v")
	soon(t, func() error { return v.check(map[string]string{p + "in/*": "v", p + "in/1": "v"}) })
}

func watchEnds(t T, s *suite) {
	closing, err := s.svc.Open(t), error(nil)
	b, p := s.open(t), s.prefix()
	ended := func(what string, v *view) {
		t.Helper()
		select {
		case <-v.done:
		case <-time.After(10 * time.Second):
			t.Fatalf("the watch goes on after %s", what)
		}
	}
	v := follow(t, b, p)
	v.cancel()
	ended("its context", v)
	v = follow(t, closing, p)
	if err = closing.Close(); err != nil {
		t.Fatal(err)
	}
	ended("close", v)
	for range b.(metadata.Watcher).Watch(within(t), p) {
		break // must not hang, nor be called again
	}
	put(t, b, p+"k", "the backend still works")
}
