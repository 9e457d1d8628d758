// Package fifo is the policy "fifo": the oldest block goes first, whether it was used or not.
//
// It is the floor that others are measured against, and the order in which reuse does not matter.
// Config keys: none. Memory: 10 bytes a handle.
//
// L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.
package fifo

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "fifo", "first in, first out", Config{}, New)
}

// Config has no keys.
type Config struct{}

// New makes the factory.
func New(context.Context, module.Env, Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, _ *order.Totals) (order.Order, error) {
		return &fifo{order.NewLists(s.MaxHandles, 1)}, nil
	}), nil
}

type fifo struct{ lists order.Lists }

func (f *fifo) Insert(e *eviction.Event)         { f.lists.PushFront(0, e.Handle) }
func (f *fifo) Touch(*eviction.Event)            {}
func (f *fifo) Remove(e *eviction.Event, _ bool) { f.lists.Remove(e.Handle) }
func (f *fifo) Refuse(h eviction.Handle)         { f.lists.MoveFront(0, h) }
func (f *fifo) MemoryBytes() uint64              { return f.lists.MemoryBytes() }

func (f *fifo) Victims(w *order.Walk) {
	for h := f.lists.Back(0); h != 0 && w.Offer(h); h = f.lists.Newer(h) {
	}
}
