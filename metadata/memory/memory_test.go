package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/metadatatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	metadatatest.Run(t, func(testing.TB) metadatatest.Service {
		store := NewStore()
		return metadatatest.Service{
			Open:     func(testing.TB) metadata.Backend { return store.Open() },
			Wipe:     func(testing.TB) { store.Reset() },
			MaxValue: 32 << 20,
		}
	}, metadatatest.Declared{Lister: true, Committer: true, Watcher: true, Leaser: true})
}

// clock fires timers when it is told to.
type clock struct {
	mu     sync.Mutex
	now    time.Duration
	timers map[*timer]struct{}
}

type timer struct {
	at time.Duration
	f  func()
}

func (c *clock) after(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	tm := &timer{c.now + d, f}
	c.timers[tm] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, pending := c.timers[tm]
		delete(c.timers, tm)
		return pending
	}
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	c.now += d
	var due []func()
	for tm := range c.timers {
		if tm.at <= c.now {
			due = append(due, tm.f)
			delete(c.timers, tm)
		}
	}
	c.mu.Unlock()
	for _, f := range due {
		f()
	}
}

func TestLeaseRunsOutByTheInjectedClock(t *testing.T) {
	ctx := context.Background()
	c := &clock{timers: map[*timer]struct{}{}}
	store := NewStore(WithAfterFunc(c.after))
	owner, other := store.Open(), store.Open()
	defer other.Close()
	l, err := owner.Lease(ctx, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Put(ctx, "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	c.advance(time.Hour) // the owner lives
	if _, err := other.Get(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	owner.Close()
	c.advance(10*time.Second - 1)
	if _, err := other.Get(ctx, "k"); err != nil {
		t.Fatalf("gone before its ttl: %v", err)
	}
	c.advance(1)
	if _, err := other.Get(ctx, "k"); !errors.Is(err, metadata.ErrNotFound) {
		t.Fatalf("after its ttl: %v", err)
	}
}

// The node of a test may be started again under the same name before the old lease ran out.
func TestOrphanedLeaseDoesNotTakeARepublishedKey(t *testing.T) {
	ctx := context.Background()
	c := &clock{timers: map[*timer]struct{}{}}
	store := NewStore(WithAfterFunc(c.after))
	first, second := store.Open(), store.Open()
	defer second.Close()
	old, _ := first.Lease(ctx, time.Second)
	old.Put(ctx, "k", []byte("old"))
	first.Close()
	now, _ := second.Lease(ctx, time.Second)
	if err := now.Put(ctx, "k", []byte("new")); err != nil {
		t.Fatal(err)
	}
	c.advance(time.Minute)
	if e, err := second.Get(ctx, "k"); err != nil || string(e.Value) != "new" {
		t.Fatalf("%q, %v", e.Value, err)
	}
}

func TestASlowWatcherIsReset(t *testing.T) {
	store := NewStore()
	b := store.Open()
	defer b.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var got []metadata.EventType
	for ev, err := range b.Watch(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ev.Type)
		if len(got) == 1 {
			for i := range 2 * backlog {
				if err := b.Put(ctx, fmt.Sprint(i), nil); err != nil {
					t.Fatal(err)
				}
			}
			continue
		}
		break
	}
	if len(got) != 2 || got[1] != metadata.EventReset {
		t.Fatalf("events %v, want two resets", got)
	}
}

func build(t *testing.T, c Config) metadata.Backend {
	t.Helper()
	b, err := New(context.Background(), module.Env{}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestNamedStoresAreShared(t *testing.T) {
	ctx := context.Background()
	a, b := build(t, Config{URL: "memory://x"}), build(t, Config{Name: "x"})
	own, other := build(t, Config{}), build(t, Config{URL: "memory://"})
	if err := a.Put(ctx, "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	for _, x := range []metadata.Backend{own, other} {
		if _, err := x.Get(ctx, "k"); !errors.Is(err, metadata.ErrNotFound) {
			t.Fatal(err)
		}
	}
	a.Close()
	b.Close()
	if _, err := build(t, Config{Name: "x"}).Get(ctx, "k"); !errors.Is(err, metadata.ErrNotFound) {
		t.Fatalf("a store outlived its backends: %v", err)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, ""},
		{Config{URL: "memory://a", Name: "a"}, ""},
		{Config{URL: "MEMORY://a"}, ""},
		{Config{URL: "memory://a", Name: "b"}, `url and name: both are given and they differ: "a" and "b"`},
		{Config{URL: "etcd://h:1"}, "url:"},
		{Config{URL: "x"}, "url:"},
	} {
		err := c.config.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want %q", c.config, err, c.want)
		}
	}
}

func TestKindBuildsIt(t *testing.T) {
	b, err := metadata.Kind.Build(context.Background(), "Memory", module.Env{}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
