// Package clock is the policy "clock": first in, first out, but a block that was used since it came to the
// front goes round once more.
//
// It is nearly LRU with cheaper touches (one byte, no list surgery), and resists single scans a little better.
// Config keys: bits, the size of the use counter. Memory: 11 bytes a handle.
//
// F. J. Corbató, "A paging experiment with the Multics system", MIT Project MAC, 1968; more than one bit:
// A. J. Smith, "Sequentiality and prefetching in database systems", ACM TODS 3(3), 1978.
package clock

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "clock", "first in, first out, with a second chance for used blocks", Config{Bits: 1}, New)
}

// Config of the policy.
type Config struct {
	Bits int `koanf:"bits" doc:"bits of the use counter; a block goes round at most 2^bits - 1 times after its last use" range:"1..3"`
}

// New makes the factory.
func New(_ context.Context, _ module.Env, c Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, _ *order.Totals) (order.Order, error) {
		k := &clock{lists: order.NewLists(s.MaxHandles, 1)}
		k.queue = order.SecondChance{Lists: &k.lists, Count: make([]uint8, int(s.MaxHandles)+1), Max: 1<<c.Bits - 1}
		return k, nil
	}), nil
}

type clock struct {
	lists order.Lists
	queue order.SecondChance
}

func (k *clock) Insert(e *eviction.Event) { k.queue.Push(e.Handle, 0) }
func (k *clock) Touch(e *eviction.Event)  { k.queue.Touch(e.Handle) }
func (k *clock) Refuse(h eviction.Handle) { k.queue.Refuse(h) }

func (k *clock) Remove(e *eviction.Event, evicted bool) {
	if evicted {
		k.queue.Take(e.Handle)
	} else {
		k.queue.Remove(e.Handle)
	}
}

func (k *clock) Victims(w *order.Walk) {
	c := k.queue.Cursor()
	for h := c.Next(); h != 0 && w.Offer(h); h = c.Next() {
	}
}

func (k *clock) MemoryBytes() uint64 { return k.lists.MemoryBytes() + uint64(cap(k.queue.Count)) }
