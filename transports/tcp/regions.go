package tcp

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// registry holds the registered regions. The engine's own index decides what peers may reach and keeps
// the memory; this one exists so that a Registration can refuse and wait by itself, for served requests
// and for our own, whose local memory the engine's index is not asked for.
type registry struct {
	mu   sync.RWMutex
	regs []*registration // sorted by addr
}

// registration is one region's use by this transport.
type registration struct {
	t         *Transport
	addr, end uint64
	refs      atomic.Int64
	closing   atomic.Bool
	quiet     chan struct{} // holds a token when refs fell to 0 while closing; capacity 1
}

func (g *registry) search(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(g.regs, addr, func(r *registration, a uint64) int {
		switch {
		case r.addr < a:
			return -1
		case r.addr > a:
			return 1
		}
		return 0
	})
}

func (g *registry) add(r *registration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, same := g.search(r.addr)
	if same || (i > 0 && g.regs[i-1].end > r.addr) || (i < len(g.regs) && g.regs[i].addr < r.end) {
		return fmt.Errorf("tcp: region [%#x, %#x) overlaps a registered one", r.addr, r.end)
	}
	g.regs = slices.Insert(g.regs, i, r)
	return nil
}

// acquire returns the registration that contains [addr, addr+n), counted as in use, or nil. closing
// tells that there is one whose end has begun.
func (g *registry) acquire(addr, n uint64) (r *registration, closing bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	i, same := g.search(addr)
	if !same {
		i--
	}
	if i < 0 || i >= len(g.regs) {
		return nil, false
	}
	r = g.regs[i]
	if addr-r.addr > r.end-r.addr || n > r.end-addr {
		return nil, false
	}
	if r.closing.Load() { // changes only under the write lock
		return nil, true
	}
	r.refs.Add(1)
	return r, false
}

// release undoes acquire. r may be nil.
func (r *registration) release() {
	if r != nil && r.refs.Add(-1) == 0 && r.closing.Load() {
		r.wakeOne()
	}
}

func (r *registration) wakeOne() {
	select {
	case r.quiet <- struct{}{}:
	default:
	}
}

// Close implements transports.Registration. A TCP transfer can always be stopped by dropping its
// connection: when ctx ends, the connections that still use the region are dropped, and an error is
// returned only if even that does not help within a second.
func (r *registration) Close(ctx context.Context) error {
	g := &r.t.regions
	g.mu.Lock()
	r.closing.Store(true)
	g.mu.Unlock()
	if !r.wait(ctx.Done()) {
		r.t.dropUsers(r)
		grace := make(chan struct{})
		stop := time.AfterFunc(time.Second, func() { close(grace) })
		defer stop.Stop()
		if !r.wait(grace) {
			return fmt.Errorf("tcp: region [%#x, %#x) has %d users left: %w: %w", r.addr, r.end, r.refs.Load(), transports.ErrUnquiet, context.Cause(ctx))
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i, ok := g.search(r.addr); ok && g.regs[i] == r {
		g.regs = slices.Delete(g.regs, i, i+1)
	}
	return nil
}

// wait is true when nothing uses the region, false when end was closed first.
func (r *registration) wait(end <-chan struct{}) bool {
	for r.refs.Load() != 0 {
		select {
		case <-r.quiet:
		case <-end:
			return r.refs.Load() == 0
		}
	}
	r.wakeOne() // another Close may wait too
	return true
}
