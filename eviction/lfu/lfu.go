// Package lfu is the policy "lfu": the block with the fewest uses goes first; among equals the one that has
// had that number for the longest time.
//
// It never forgets: a block that was popular once stays. On chains far below LRU; here for comparison.
// Config keys: none. Memory: 11 bytes a handle. Uses are counted up to 255.
//
// R. L. Mattson, J. Gecsei, D. R. Slutz, I. L. Traiger, "Evaluation techniques for storage hierarchies", IBM
// Systems Journal 9(2), 1970; constant-time lists: K. Shah, A. Mitra, D. Matani, "An O(1) algorithm for
// implementing the LFU cache eviction scheme", 2010.
package lfu

import (
	"context"
	"math/bits"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "lfu", "least frequently used, ties first in first out", Config{}, New)
}

// Config has no keys.
type Config struct{}

const counts = 256

// New makes the factory.
func New(context.Context, module.Env, Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, _ *order.Totals) (order.Order, error) {
		return &lfu{lists: order.NewLists(s.MaxHandles, counts), uses: make([]uint8, int(s.MaxHandles)+1)}, nil
	}), nil
}

// lfu has one list per number of uses.
type lfu struct {
	lists order.Lists
	uses  []uint8
	some  [counts / 64]uint64 // bit set = the list may have members
}

func (l *lfu) Insert(e *eviction.Event) { l.push(e.Handle, 0) }

func (l *lfu) push(h eviction.Handle, uses uint8) {
	l.uses[h] = uses
	l.lists.PushFront(int(uses), h)
	l.some[uses/64] |= 1 << (uses % 64)
}

func (l *lfu) Touch(e *eviction.Event) {
	if uses := l.uses[e.Handle]; uses < counts-1 {
		l.remove(e.Handle)
		l.push(e.Handle, uses+1)
	}
}

func (l *lfu) Remove(e *eviction.Event, _ bool) { l.remove(e.Handle) }

func (l *lfu) remove(h eviction.Handle) {
	l.lists.Remove(h)
	if uses := l.uses[h]; l.lists.Back(int(uses)) == 0 {
		l.some[uses/64] &^= 1 << (uses % 64)
	}
}

func (l *lfu) Victims(w *order.Walk) {
	for i, word := range l.some {
		for ; word != 0; word &= word - 1 {
			list := i*64 + bits.TrailingZeros64(word)
			for h := l.lists.Back(list); h != 0; h = l.lists.Newer(h) {
				if !w.Offer(h) {
					return
				}
			}
		}
	}
}

func (l *lfu) MemoryBytes() uint64 { return l.lists.MemoryBytes() + uint64(cap(l.uses)) }
