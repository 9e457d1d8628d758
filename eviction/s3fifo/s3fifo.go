// Package s3fifo is the policy "s3fifo": three queues. New blocks wait in a small queue and enter the main one
// only if they are used there often enough, or are put again soon after they were thrown away.
//
// Use it where the cache is much smaller than the working set: it throws one-time blocks away quickly. With
// room for the working set LRU is better on chains.
// Config keys: small, ghost, promote. Memory: 22 bytes a handle.
//
// J. Yang, Y. Zhang, Z. Qiu, Y. Yue, R. Vinayak, "FIFO queues are all you need for cache eviction", SOSP 2023.
package s3fifo

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "s3fifo", "small and main FIFO queues with ghosts; for caches far below the working set",
		Config{Small: 0.1, Ghost: 0.9, Promote: 2}, New)
}

// Config of the policy.
type Config struct {
	Small   float64 `koanf:"small" doc:"share of the blocks that fit which the small queue may have before it is evicted from" range:"0.001..0.9"`
	Ghost   float64 `koanf:"ghost" doc:"evicted keys to remember, as a share of the blocks that fit" range:"0..1"`
	Promote int     `koanf:"promote" doc:"uses in the small queue that let a block enter the main one" range:"1..3"`
}

const (
	smallList = iota
	mainList
)

const countMax = 3

// New makes the factory.
func New(_ context.Context, _ module.Env, c Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, t *order.Totals) (order.Order, error) {
		q := &s3fifo{c: c, totals: t, lists: order.NewLists(s.MaxHandles, 2)}
		q.count = make([]uint8, int(s.MaxHandles)+1)
		q.small = order.SecondChance{Lists: &q.lists, List: smallList, Count: q.count, Max: countMax}
		q.main = order.SecondChance{Lists: &q.lists, List: mainList, Count: q.count, Max: countMax}
		q.where = make([]bool, int(s.MaxHandles)+1)
		q.ghosts = order.NewGhostQueue(uint32(float64(s.MaxHandles) * c.Ghost))
		return q, nil
	}), nil
}

type s3fifo struct {
	c           Config
	totals      *order.Totals
	lists       order.Lists
	count       []uint8
	where       []bool // in main
	small, main order.SecondChance
	ghosts      order.GhostQueue
}

func (q *s3fifo) mainRoom() int { return int((1 - q.c.Small) * float64(q.totals.Blocks())) }

func (q *s3fifo) Insert(e *eviction.Event) {
	inMain := q.ghosts.Take(e.KeyHash)
	q.where[e.Handle] = inMain
	if inMain {
		q.main.Push(e.Handle, 0)
	} else {
		q.small.Push(e.Handle, 0)
	}
}

func (q *s3fifo) Touch(e *eviction.Event) { q.main.Touch(e.Handle) } // the counters are shared

func (q *s3fifo) Remove(e *eviction.Event, evicted bool) {
	switch {
	case q.where[e.Handle] && evicted:
		if q.main.Len <= q.mainRoom() {
			q.promote(0) // the small queue came first and had nobody to give
		}
		q.main.Take(e.Handle)
	case q.where[e.Handle]:
		q.main.Remove(e.Handle)
	case evicted:
		q.promote(e.Handle)
		q.small.Remove(e.Handle)
		for room := int(q.c.Ghost * float64(q.totals.Blocks())); q.ghosts.Len() >= max(room, 1); {
			q.ghosts.Drop()
		}
		if q.c.Ghost > 0 {
			q.ghosts.Add(e.KeyHash)
		}
	default:
		q.small.Remove(e.Handle)
	}
}

// promote moves the used blocks older than h (all if h is 0) from the small queue to the main one.
func (q *s3fifo) promote(until eviction.Handle) {
	for h := q.lists.Back(smallList); h != 0 && h != until; {
		newer := q.lists.Newer(h)
		if int(q.count[h]) >= q.c.Promote {
			q.small.Remove(h)
			q.main.Push(h, 0)
			q.where[h] = true
		}
		h = newer
	}
}

func (q *s3fifo) Victims(w *order.Walk) {
	c := q.main.Cursor()
	for over := q.main.Len - q.mainRoom(); over > 0; over-- {
		if h := c.Next(); h == 0 || !w.Offer(h) {
			return
		}
	}
	for h := q.lists.Back(smallList); h != 0; h = q.lists.Newer(h) {
		if int(q.count[h]) < q.c.Promote && !w.Offer(h) {
			return
		}
	}
	for h := c.Next(); h != 0; h = c.Next() {
		if !w.Offer(h) {
			return
		}
	}
	for h := q.lists.Back(smallList); h != 0; h = q.lists.Newer(h) {
		if int(q.count[h]) >= q.c.Promote && !w.Offer(h) {
			return
		}
	}
}

func (q *s3fifo) MemoryBytes() uint64 {
	return q.lists.MemoryBytes() + 2*uint64(cap(q.count)) + q.ghosts.MemoryBytes()
}
