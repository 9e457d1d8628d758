package remote

import (
	"context"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

// Life bounds the calls and owns the goroutines of one backend. The zero value is not usable; see
// [NewLife]. All methods may be called concurrently.
type Life struct {
	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// NewLife returns the life of a backend that was just built.
func NewLife() *Life {
	ctx, cancel := context.WithCancel(context.Background())
	return &Life{ctx: ctx, cancel: cancel}
}

// Context ends at Close.
func (l *Life) Context() context.Context { return l.ctx }

// Closed tells whether Close was called.
func (l *Life) Closed() bool { return l.ctx.Err() != nil }

// Call derives the context of one call: it ends with ctx, at Close (its cause is then
// metadata.ErrClosed), and after timeout if ctx has no deadline of its own; a timeout of 0 sets none.
func (l *Life) Call(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(metadata.ErrClosed) })
	done := func() { stop(); cancel(nil) }
	if _, ok := ctx.Deadline(); ok || timeout == 0 {
		return ctx, done
	}
	ctx, cancelTimeout := context.WithTimeout(ctx, timeout)
	return ctx, func() { cancelTimeout(); done() }
}

// Go runs f in a goroutine that Close waits for. f must end soon after its context. It reports false,
// and does not run f, after Close.
func (l *Life) Go(f func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.wg.Go(func() { f(l.ctx) })
	return true
}

// Close ends all contexts and waits for the goroutines. It reports whether this was the first Close.
func (l *Life) Close() bool {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.wg.Wait()
	return first
}

// Sleep waits for d or the end of ctx, whichever is first, and tells whether the full time has passed.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
