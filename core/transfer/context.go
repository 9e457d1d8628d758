package transfer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// batchContext is the context of a batch: what transports watch. It ends once, or never: then a batch that is
// used again keeps it. It allocates only for those who ask for Done or AfterFunc.
type batchContext struct {
	watches transports.Watches
	over    atomic.Bool

	mu    sync.Mutex
	cause error
	done  chan struct{}
	used  bool // somebody may wait for its end other than by a Watch
}

var _ transports.Watchable = (*batchContext)(nil)

// end ends the context; it is false when that has been done before.
func (c *batchContext) end(cause error) bool {
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return false
	}
	c.cause = cause
	if c.done != nil {
		close(c.done)
	}
	c.over.Store(true)
	c.mu.Unlock()
	c.watches.End()
	return true
}

// why is the cause of the end, nil before.
func (c *batchContext) why() error {
	if !c.over.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// clean tells that the context has not ended and that nobody can wait for it.
func (c *batchContext) clean() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause == nil && !c.used
}

// Watches implements transports.Watchable.
func (c *batchContext) Watches() *transports.Watches { return &c.watches }

// AfterFunc is used by the context package.
func (c *batchContext) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	c.used = true
	c.mu.Unlock()
	w := &transports.Watch{F: f}
	w.Start(c)
	return w.Stop
}

// Done implements context.Context.
func (c *batchContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.used = true
		c.done = make(chan struct{})
		if c.cause != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *batchContext) Err() error {
	if c.over.Load() {
		return context.Canceled
	}
	return nil
}

// Deadline implements context.Context. The engine keeps the deadline by ending the context.
func (c *batchContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context.
func (c *batchContext) Value(any) any { return nil }
