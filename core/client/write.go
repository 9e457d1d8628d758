package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/transports"
)

// delivery is what one peer gets in a put call.
type delivery struct {
	endpoint string
	reqs     []transfer.Request
	owners   []*writing // of each request
	started  func(*transfer.Batch)
}

// write moves the values to all replicas, to different peers in parallel. Failures are left in the objects.
func (c *Client) write(ctx context.Context, ws []*writing, progress func(moved, total uint64)) {
	var list []*delivery
	at := map[string]*delivery{}
	for _, w := range ws {
		for i := range w.replicas {
			r := &w.replicas[i]
			d := at[r.Endpoint]
			if d == nil {
				d = &delivery{endpoint: r.Endpoint}
				at[r.Endpoint] = d
				list = append(list, d)
			}
			off := r.Address
			for _, part := range w.Parts {
				if len(part) > 0 {
					d.reqs = append(d.reqs, transfer.Request{Write: true, Local: part, Remote: off})
					d.owners = append(d.owners, w)
					off += uint64(len(part))
				}
			}
		}
	}
	var wg sync.WaitGroup
	if progress != nil {
		watch := newWatch(list, progress)
		defer watch.stop()
		for _, d := range list {
			d.started = watch.add
		}
	}
	if c.opt.Checksum {
		wg.Go(func() {
			for _, w := range ws {
				w.sum = structpack.Some(checksumOf(w.Parts))
			}
		})
	}
	for i, d := range list {
		if i < len(list)-1 {
			wg.Go(func() { c.deliver(ctx, d) })
		} else {
			c.deliver(ctx, d)
		}
	}
	wg.Wait()
}

// deliver moves what one peer gets.
func (c *Client) deliver(ctx context.Context, d *delivery) {
	seg, err := c.open(ctx, d.endpoint)
	var b *transfer.Batch
	if err == nil {
		for i := range d.reqs {
			d.reqs[i].Segment = seg
		}
		b, err = c.engine.Submit(ctx, d.reqs)
	}
	if err != nil {
		for _, w := range d.owners {
			w.fail(fmt.Errorf("%w: replica at %s: %w", ErrTransfer, d.endpoint, err))
		}
		return
	}
	if d.started != nil {
		d.started(b)
	}
	if !b.Spin() {
		<-b.Done() // it ends with ctx, and by the engine's deadline
	}
	if b.Err() == nil {
		if d.started == nil { // otherwise it is still being watched
			b.Free()
		}
		return
	}
	for i, w := range d.owners {
		if s := b.Status(i); s.State != transfer.Completed {
			c.noteFailure(d.endpoint, s.Err)
			w.fail(fmt.Errorf("%w: replica at %s: %w", ErrTransfer, d.endpoint, s.Err))
		}
	}
}

// watch reports how far the transfers of a put are.
type watch struct {
	f     func(moved, total uint64)
	total uint64
	quit  chan struct{}
	done  chan struct{}

	mu      sync.Mutex
	batches []*transfer.Batch
}

const watchPeriod = 100 * time.Millisecond

func newWatch(list []*delivery, f func(moved, total uint64)) *watch {
	w := &watch{f: f, quit: make(chan struct{}), done: make(chan struct{})}
	for _, d := range list {
		for i := range d.reqs {
			w.total += uint64(len(d.reqs[i].Local))
		}
	}
	go func() {
		defer close(w.done)
		t := time.NewTicker(watchPeriod)
		defer t.Stop()
		for {
			select {
			case <-w.quit:
				return
			case <-t.C:
				w.report()
			}
		}
	}()
	return w
}

func (w *watch) add(b *transfer.Batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.batches = append(w.batches, b)
}

func (w *watch) report() {
	w.mu.Lock()
	defer w.mu.Unlock()
	moved := uint64(0)
	for _, b := range w.batches {
		for i := range b.Len() {
			moved += b.Status(i).Bytes
		}
	}
	w.f(moved, w.total)
}

func (w *watch) stop() {
	close(w.quit)
	<-w.done
	w.report()
}

// noteFailure avoids a peer for a while if it could not be reached or did not answer.
func (c *Client) noteFailure(endpoint string, err error) {
	for _, k := range []error{transports.ErrUnreachable, transports.ErrInterrupted, transports.ErrTimeout} {
		if errors.Is(err, k) {
			c.avoid.add(endpoint)
			break
		}
	}
	if errors.Is(err, transports.ErrUnreachable) {
		c.engine.Forget(endpoint) // its name may never come back
	}
}
