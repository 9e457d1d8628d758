package lru

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "lru", "least recently used, the end of a chain first", Config{}, New)
}

// Config has no keys.
type Config struct{}

// New makes the factory.
func New(context.Context, module.Env, Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, _ *order.Totals) (order.Order, error) {
		return &lru{order.NewLists(s.MaxHandles, 1)}, nil
	}), nil
}

// lru is one list, most recently used in front.
type lru struct{ lists order.Lists }

func (l *lru) Insert(e *eviction.Event)         { l.lists.PushFront(0, e.Handle) }
func (l *lru) Touch(e *eviction.Event)          { l.lists.MoveFront(0, e.Handle) }
func (l *lru) Remove(e *eviction.Event, _ bool) { l.lists.Remove(e.Handle) }
func (l *lru) Refuse(h eviction.Handle)         { l.lists.MoveFront(0, h) }
func (l *lru) Fetch(e []eviction.Event) uint32  { return l.lists.Fetch(e) }
func (l *lru) MemoryBytes() uint64              { return l.lists.MemoryBytes() }

func (l *lru) Victims(w *order.Walk) {
	for h := l.lists.Back(0); h != 0 && w.Offer(h); h = l.lists.Newer(h) {
	}
}
