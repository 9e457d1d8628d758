//go:build !noverbs

package ibv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

var _ device.CQ = (*cq)(nil)

// pollBatch is how many completions one call takes out of the queue.
const pollBatch = 64

type cq struct {
	dev    *dev
	waiter *waiter
	poll   uintptr // functions of the device's table
	notify uintptr

	mu      sync.Mutex // not held while waiting
	cq      uintptr    // *ibv_cq, 0 = closed
	channel uintptr    // *ibv_comp_channel
	wc      *[pollBatch]cWC
	fast    fast
}

func (d *dev) NewCQ(depth int) (_ device.CQ, err error) {
	done, err := d.use()
	if err != nil {
		return nil, err
	}
	defer done()
	ops := &at[cContext](d.ctx).Ops
	c := &cq{dev: d, poll: ops.PollCQ, notify: ops.ReqNotifyCQ, wc: new([pollBatch]cWC)}
	r, errno := d.lib.call(d.lib.createCompChannel, d.ctx)
	if c.channel, err = pointer("ibv_create_comp_channel on "+d.name, r, errno); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	if c.waiter, err = newWaiter(int(at[cCompChannel](c.channel).FD), d.name+" completions"); err != nil {
		return nil, fmt.Errorf("verbs: completion channel of %s: %w", d.name, err)
	}
	r, errno = d.lib.call(d.lib.createCQ, d.ctx, uintptr(depth), 0, c.channel, 0)
	if c.cq, err = pointer(fmt.Sprintf("ibv_create_cq of %d entries on %s", depth, d.name), r, errno); err != nil {
		return nil, err
	}
	d.child(1)
	return c, nil
}

func (c *cq) closed() error {
	return fmt.Errorf("verbs: completion queue of %s: %w", c.dev.name, device.ErrClosed)
}

func (c *cq) Poll(dst []device.Completion) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cq == 0 {
		return 0, c.closed()
	}
	for n < len(dst) {
		ask := min(len(dst)-n, pollBatch)
		got := c.fast.pollCQ(c.poll, c.cq, ask, &c.wc[0])
		if got < 0 {
			return n, fail("ibv_poll_cq on "+c.dev.name, unix.Errno(-got))
		}
		for i := range c.wc[:got] {
			w := &c.wc[i]
			dst[n] = device.Completion{ID: w.ID, Status: device.Status(w.Status), QP: w.QPNum, Vendor: w.VendorErr}
			n++
		}
		if got < ask {
			break
		}
	}
	return n, nil
}

func (c *cq) Arm() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cq == 0 {
		return c.closed()
	}
	r, errno := c.dev.lib.call(c.notify, c.cq, 0)
	return status("ibv_req_notify_cq on "+c.dev.name, r, errno)
}

func (c *cq) Wait(ctx context.Context) error {
	var failed error
	err := c.waiter.until(ctx, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.cq == 0 {
			failed = c.closed()
			return true
		}
		out := new([2]uintptr) // the queue, which is this one, and its context
		r, errno := c.dev.lib.call(c.dev.lib.getCQEvent, c.channel, uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])))
		if int32(r) != 0 {
			failed = again("ibv_get_cq_event on "+c.dev.name, errno)
			return failed != nil
		}
		// ibv_destroy_cq waits for events that are not acknowledged.
		c.dev.lib.call(c.dev.lib.ackCQEvents, c.cq, 1)
		return true
	})
	if errors.Is(err, os.ErrClosed) {
		err = c.closed()
	}
	if err == nil {
		err = failed
	}
	return err
}

func (c *cq) Close() error {
	c.mu.Lock()
	if c.cq == 0 {
		c.mu.Unlock()
		return nil
	}
	r, errno := c.dev.lib.call(c.dev.lib.destroyCQ, c.cq)
	if err := status("ibv_destroy_cq on "+c.dev.name, r, errno); err != nil {
		c.mu.Unlock()
		return err
	}
	c.cq = 0
	c.mu.Unlock()
	err := c.release()
	c.dev.child(-1)
	return err
}

// release ends the channel. Not under mu: it ends Wait, which may be about to take it.
func (c *cq) release() error {
	if c.waiter != nil {
		c.waiter.Close()
	}
	r, errno := c.dev.lib.call(c.dev.lib.destroyCompChannel, c.channel)
	return status("ibv_destroy_comp_channel on "+c.dev.name, r, errno)
}
