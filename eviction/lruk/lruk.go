// Package lruk is the policy "lru-k": the block whose k-th last use lies farthest back goes first. Blocks with
// fewer than k uses go before all others, least recently used first.
//
// It resists scans: one use proves nothing. On chains it wins only when the cache is much smaller than the
// working set. Uses within one batch count once (the paper's correlated references). Keys that were evicted
// are remembered with their last uses, as many as share says.
// Config keys: k, share. Memory: with k = 2 about 69 bytes a handle, ghosts included.
//
// E. J. O'Neil, P. E. O'Neil, G. Weikum, "The LRU-K page replacement algorithm for database disk buffering",
// ACM SIGMOD 1993.
package lruk

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "lru-k", "least recent k-th last use first", Config{K: 2, Share: 0.5}, New)
}

// Config of the policy.
type Config struct {
	K     int     `koanf:"k" doc:"how many uses back to look" range:"2..4"`
	Share float64 `koanf:"share" doc:"evicted keys whose last uses are remembered, as a share of the blocks that fit" range:"0..1"`
}

// New makes the factory.
func New(_ context.Context, _ module.Env, c Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, _ *order.Totals) (order.Order, error) {
		ghosts := uint32(float64(s.MaxHandles) * c.Share)
		l := &lruk{
			k: c.K, heap: order.NewHeap(s.MaxHandles), uses: make([]uint64, (int(s.MaxHandles)+1)*c.K),
			batch: make([]uint32, int(s.MaxHandles)+1),
		}
		if ghosts > 0 {
			l.ghosts = order.NewGhosts(ghosts, 1)
			l.old = make([]uint64, (int(ghosts)+1)*c.K)
		}
		return l, nil
	}), nil
}

type lruk struct {
	k      int
	now    uint64       // number of uses so far: the clock of the policy
	heap   order.Heap   // by k-th last use, then by last use
	uses   []uint64     // k per handle, last use first; 0 = none
	batch  []uint32     // batch of the last use by handle
	ghosts order.Ghosts // keys that were evicted
	old    []uint64     // their uses, k per slot
}

func (l *lruk) of(h eviction.Handle) []uint64 { return l.uses[int(h)*l.k : (int(h)+1)*l.k] }

func (l *lruk) Insert(e *eviction.Event) {
	u := l.of(e.Handle)
	clear(u)
	if l.old != nil {
		if slot := l.ghosts.Find(e.KeyHash); slot != 0 && e.Kind == eviction.Insert {
			copy(u, l.old[int(slot)*l.k:])
			l.ghosts.Remove(slot)
		}
	}
	l.use(e)
}

func (l *lruk) Touch(e *eviction.Event) {
	if e.Req == 0 || e.Req != l.batch[e.Handle] {
		l.use(e)
	}
}

func (l *lruk) use(e *eviction.Event) {
	l.now++
	u := l.of(e.Handle)
	copy(u[1:], u)
	u[0] = l.now
	l.batch[e.Handle] = e.Req
	l.heap.Set(e.Handle, float64(u[l.k-1]), u[0])
}

func (l *lruk) Remove(e *eviction.Event, evicted bool) {
	l.heap.Remove(e.Handle)
	if evicted && l.old != nil {
		slot := int(l.ghosts.Add(0, e.KeyHash))
		copy(l.old[slot*l.k:(slot+1)*l.k], l.of(e.Handle))
	}
}

func (l *lruk) Victims(w *order.Walk) { l.heap.Offer(w) }

func (l *lruk) MemoryBytes() uint64 {
	n := l.heap.MemoryBytes() + uint64(cap(l.uses)+cap(l.old))*8 + uint64(cap(l.batch))*4
	if l.old != nil {
		n += l.ghosts.MemoryBytes()
	}
	return n
}
