package fake

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// CQ is a fake completion queue.
type CQ struct {
	d     *Device
	depth int

	mu      sync.Mutex
	q       []device.Completion
	overrun bool
	armed   bool
	qps     int
	closed  bool
	event   chan struct{}
	done    chan struct{}
}

// NewCQ implements device.Device.
func (d *Device) NewCQ(depth int) (device.CQ, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch l := d.spec.Limits; {
	case d.usable() != nil:
		return nil, d.usable()
	case depth < 1 || depth > l.MaxCQE:
		return nil, d.errorf(unix.EINVAL, "completion queue of %d entries", depth)
	case len(d.cqs) >= l.MaxCQ:
		return nil, d.errorf(unix.ENOMEM, "completion queue")
	}
	c := &CQ{d: d, depth: depth, event: make(chan struct{}, 1), done: make(chan struct{})}
	d.cqs[c] = true
	return c, nil
}

func (c *CQ) push(w device.Completion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.q) >= c.depth {
		c.overrun = true
	} else {
		c.q = append(c.q, w)
	}
	if c.armed {
		c.armed = false
		select {
		case c.event <- struct{}{}:
		default:
		}
	}
}

// Poll implements device.CQ.
func (c *CQ) Poll(dst []device.Completion) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, fmt.Errorf("fake: completion queue: %w", device.ErrClosed)
	}
	if c.overrun {
		return 0, c.d.errorf(unix.EIO, "completion queue overrun")
	}
	n := copy(dst, c.q)
	c.q = c.q[:copy(c.q, c.q[n:])]
	return n, nil
}

// Arm implements device.CQ.
func (c *CQ) Arm() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("fake: completion queue: %w", device.ErrClosed)
	}
	c.armed = true
	return nil
}

// Wait implements device.CQ.
func (c *CQ) Wait(ctx context.Context) error {
	select {
	case <-c.event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return fmt.Errorf("fake: completion queue: %w", device.ErrClosed)
	}
}

// Close implements device.CQ.
func (c *CQ) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.qps > 0 {
		return c.d.errorf(unix.EBUSY, "close of a completion queue with %d queue pairs", c.qps)
	}
	c.closed = true
	close(c.done)
	c.d.mu.Lock()
	delete(c.d.cqs, c)
	c.d.mu.Unlock()
	return nil
}

func (c *CQ) use(n int) {
	c.mu.Lock()
	c.qps += n
	c.mu.Unlock()
}
