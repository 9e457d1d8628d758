package mover

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/mooncake-agent/mooncake/transports"
)

// regions are the registered ones, sorted by address.
type regions struct {
	mu  sync.Mutex
	all []*region
}

// region is one registered region with the connections that move its bytes right now.
type region struct {
	transports.Region
	of    *regions
	users map[*line]struct{}
	gone  bool
	quiet chan struct{} // closed once it is gone and has no users
}

func (g *regions) search(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(g.all, addr, func(r *region, a uint64) int { return cmp.Compare(r.Addr(), a) })
}

func (g *regions) add(r transports.Region) *region {
	n := &region{Region: r, of: g, users: map[*line]struct{}{}, quiet: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	i, _ := g.search(r.Addr())
	g.all = slices.Insert(g.all, i, n)
	return n
}

// has tells whether a region that starts at addr is registered.
func (g *regions) has(addr uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.search(addr)
	return ok
}

// hold returns the region that contains the whole range, in use by l until release, or nil.
func (g *regions) hold(l *line, addr, n uint64) *region {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, same := g.search(addr)
	if !same {
		i--
	}
	if i < 0 || n == 0 {
		return nil
	}
	r := g.all[i]
	if off := addr - r.Addr(); off >= r.Len() || n > r.Len()-off {
		return nil
	}
	r.users[l] = struct{}{}
	return r
}

// release ends a hold; r may be nil.
func (r *region) release(l *line) {
	if r == nil {
		return
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	delete(r.users, l)
	if r.gone && len(r.users) == 0 {
		close(r.quiet)
	}
}

// Close implements transports.Registration: it drops the connections that use the region and waits for them.
func (r *region) Close(ctx context.Context) error {
	g := r.of
	g.mu.Lock()
	if !r.gone {
		r.gone = true
		if i, ok := g.search(r.Addr()); ok && g.all[i] == r {
			g.all = slices.Delete(g.all, i, i+1)
		}
		if len(r.users) == 0 {
			close(r.quiet)
		}
	}
	for l := range r.users {
		l.abort(errLocalGone)
	}
	g.mu.Unlock()
	select {
	case <-r.quiet:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mover: region at %#x: %w: %w", r.Addr(), transports.ErrUnquiet, context.Cause(ctx))
	}
}

var errLocalGone = fmt.Errorf("the region is being unregistered: %w", transports.ErrClosed)
