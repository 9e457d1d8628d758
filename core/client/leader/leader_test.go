package leader_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/client/leader"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	_ "github.com/mooncake-agent/mooncake/metadata/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 30 * time.Second

var quiet = slog.New(slog.DiscardHandler)

func memory(t *testing.T) metadata.Backend {
	b, err := metadata.Kind.Build(t.Context(), "memory", module.Env{}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// plain hides what a backend can do beyond the four calls, and may fail.
type plain struct {
	metadata.Backend
	down atomic.Bool
}

func (p *plain) Get(ctx context.Context, key string) (metadata.Entry, error) {
	if p.down.Load() {
		return metadata.Entry{}, metadata.ErrUnavailable
	}
	return p.Backend.Get(ctx, key)
}

func follow(t *testing.T, b metadata.Backend) *leader.Follower {
	f := leader.Follow(b, leader.Key("c"), quiet)
	t.Cleanup(f.Close)
	return f
}

// is waits until the follower knows a leader, or with "" until it knows of none.
func is(t *testing.T, f *leader.Follower, want string) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		got, err := f.Leader(t.Context())
		if want == "" && errors.Is(err, leader.ErrNone) {
			return nil
		}
		if got != want || err != nil {
			return errors.Join(errors.New("the leader is "+got), err)
		}
		return nil
	})
}

func put(t *testing.T, b metadata.Backend, addr string) {
	t.Helper()
	if err := b.Put(t.Context(), "mooncake-store/c/master_view", []byte(addr)); err != nil {
		t.Fatal(err)
	}
}

func TestFollow(t *testing.T) {
	for name, hide := range map[string]bool{"watched": false, "polled": true} {
		t.Run(name, func(t *testing.T) {
			b := memory(t)
			seen := b
			if hide {
				seen = &plain{Backend: b}
			}
			f := follow(t, seen)
			if _, err := f.Leader(t.Context()); !errors.Is(err, leader.ErrNone) || !strings.Contains(err.Error(), "mooncake-store/c/master_view") {
				t.Errorf("before the election: %v", err)
			}
			put(t, b, "10.0.0.1:50051")
			is(t, f, "10.0.0.1:50051")
			put(t, b, "10.0.0.2:50051\n")
			is(t, f, "10.0.0.2:50051")
			if err := b.Delete(t.Context(), leader.Key("c")); err != nil {
				t.Fatal(err)
			}
			is(t, f, "")
			put(t, b, "[::1]:50051")
			is(t, f, "[::1]:50051")
			put(t, b, "nonsense")
			is(t, f, "")
			if _, err := f.Leader(t.Context()); !strings.Contains(err.Error(), `"nonsense"`) {
				t.Errorf("a value that is no address: %v", err)
			}
			put(t, b, "10.0.0.1:50051")
			is(t, f, "10.0.0.1:50051")
		})
	}
}

// While the service is down the leader known last stays; before there was one, callers hear why.
func TestServiceIsDown(t *testing.T) {
	b := &plain{Backend: memory(t)}
	b.down.Store(true)
	f := follow(t, b)
	if _, err := f.Leader(t.Context()); !errors.Is(err, metadata.ErrUnavailable) || errors.Is(err, leader.ErrNone) {
		t.Errorf("nothing known: %v", err)
	}
	put(t, b, "10.0.0.1:1")
	b.down.Store(false)
	is(t, f, "10.0.0.1:1")
	b.down.Store(true)
	put(t, b, "10.0.0.2:1")
	for range 10 {
		if a, err := f.Leader(t.Context()); a != "10.0.0.1:1" || err != nil {
			t.Fatalf("%q, %v", a, err)
		}
	}
	b.down.Store(false)
	is(t, f, "10.0.0.2:1")
}

// hung never answers before its context ends.
type hung struct{ metadata.Backend }

func (hung) Get(ctx context.Context, _ string) (metadata.Entry, error) {
	<-ctx.Done()
	return metadata.Entry{}, ctx.Err()
}

func TestServiceHangs(t *testing.T) {
	f := leader.Follow(hung{memory(t)}, leader.Key(""), quiet)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := f.Leader(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	f.Close() // ends the look
	if _, err := f.Leader(t.Context()); err == nil {
		t.Error("a leader out of nowhere")
	}
}
