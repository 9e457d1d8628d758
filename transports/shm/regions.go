package shm

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/mooncake-agent/mooncake/transports"
)

// registration is one region of this node, as local memory of own ops and as memory that peers may map.
type registration struct {
	t         *Transport
	id        uint64 // unique in the transport's life: a region registered again has another one
	addr, end uint64
	fd        int
	off       uint64 // in the memfd
	access    transports.Access

	gone bool // guarded by registry.use
}

// span is a range of addresses.
type span struct{ addr, end uint64 }

func (s span) contains(addr, n uint64) bool {
	return addr >= s.addr && addr <= s.end && n <= s.end-addr
}

// registry holds the registrations sorted by address. Who copies from or to local memory holds use for
// reading during a piece, so that holding it for writing means that no piece is under way.
type registry struct {
	use    sync.RWMutex
	regs   []*registration
	others []span // regions without a memfd; hints, checked at each use
	lastID uint64
}

// maxOthers bounds the hints: the oldest go.
const maxOthers = 4096

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
	g.use.Lock()
	defer g.use.Unlock()
	i, same := g.search(r.addr)
	if same || (i > 0 && g.regs[i-1].end > r.addr) || (i < len(g.regs) && g.regs[i].addr < r.end) {
		return fmt.Errorf("shm: region [%#x, %#x) overlaps a registered one", r.addr, r.end)
	}
	g.lastID++
	r.id = g.lastID
	g.regs = slices.Insert(g.regs, i, r)
	return nil
}

// shun remembers a region that cannot be shared.
func (g *registry) shun(addr, end uint64) {
	g.use.Lock()
	defer g.use.Unlock()
	s := span{addr, end}
	g.others = slices.DeleteFunc(g.others, func(o span) bool { return o.addr < s.end && s.addr < o.end })
	if len(g.others) == maxOthers {
		g.others = slices.Delete(g.others, 0, 1)
	}
	g.others = append(g.others, s)
}

// shunned returns the bounds of the region that cannot be shared and holds the range, or the range.
func (g *registry) shunned(addr, n uint64) span {
	g.use.RLock()
	defer g.use.RUnlock()
	for _, o := range g.others {
		if o.contains(addr, n) {
			return o
		}
	}
	return span{addr, addr + n}
}

// find returns the registration that contains the range, or nil. use is held.
func (g *registry) find(addr, n uint64) *registration {
	i, same := g.search(addr)
	if !same {
		i--
	}
	if i < 0 || !(span{g.regs[i].addr, g.regs[i].end}).contains(addr, n) {
		return nil
	}
	return g.regs[i]
}

// local is find for the local side of an op.
func (g *registry) local(addr, n uint64) *registration {
	g.use.RLock()
	defer g.use.RUnlock()
	return g.find(addr, n)
}

// remove ends access from this node and waits for the piece under way.
func (g *registry) remove(r *registration) {
	g.use.Lock()
	defer g.use.Unlock()
	if r.gone {
		return
	}
	r.gone = true
	if i, ok := g.search(r.addr); ok && g.regs[i] == r {
		g.regs = slices.Delete(g.regs, i, i+1)
	}
}

// Close implements transports.Registration. Own ops with the region end with ErrClosed. Peers are told to
// let go of it, and each is waited for until it has said so or has ended. A peer that is stopped does
// neither: then ctx's end is answered with ErrUnquiet.
func (r *registration) Close(ctx context.Context) error {
	t := r.t
	t.regs.remove(r)
	t.pool.drop(func(c *call) bool { return c.reg == r }, errLocalGone)
	for _, s := range t.served() {
		if err := s.revoke(ctx, r.id); err != nil {
			return fmt.Errorf("shm: region [%#x, %#x) is mapped by peer process %d, which does not let go of it: %w: %w", r.addr, r.end, s.pid, transports.ErrUnquiet, err)
		}
	}
	return nil
}

var errLocalGone = fmt.Errorf("shm: local region is being unregistered: %w", transports.ErrClosed)
