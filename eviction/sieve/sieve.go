// Package sieve is the policy "sieve": first in, first out with one use bit, but the hand that looks for a
// victim stays where it was and used blocks do not move.
//
// Good for web caches; on chains of cache blocks it is far below LRU, because the beginning of old
// conversations is kept at the cost of all new ones. Here for comparison.
// Config keys: none. Memory: 11 bytes a handle.
//
// Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, "SIEVE is simpler than LRU", USENIX NSDI 2024.
package sieve

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "sieve", "FIFO with a use bit and a hand that stays", Config{}, New)
}

// Config has no keys.
type Config struct{}

// New makes the factory.
func New(context.Context, module.Env, Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, _ *order.Totals) (order.Order, error) {
		return &sieve{lists: order.NewLists(s.MaxHandles, 1), used: make([]bool, int(s.MaxHandles)+1)}, nil
	}), nil
}

type sieve struct {
	lists order.Lists
	used  []bool
	hand  eviction.Handle // next to look at; 0 = the oldest
}

func (s *sieve) Insert(e *eviction.Event) {
	s.used[e.Handle] = false
	s.lists.PushFront(0, e.Handle)
}

func (s *sieve) Touch(e *eviction.Event) { s.used[e.Handle] = true }

func (s *sieve) Remove(e *eviction.Event, evicted bool) {
	if evicted {
		s.advance(e.Handle)
	} else if s.hand == e.Handle {
		s.hand = s.lists.Newer(e.Handle)
	}
	s.lists.Remove(e.Handle)
}

// advance moves the hand past h, which it stops at, and takes the use bits on its way.
func (s *sieve) advance(h eviction.Handle) {
	at := s.start()
	if s.used[h] { // a whole round without a victim came first
		for x := s.lists.Back(0); x != 0; x = s.lists.Newer(x) {
			s.used[x] = false
		}
	}
	for at != h {
		s.used[at] = false
		if at = s.lists.Newer(at); at == 0 {
			at = s.lists.Back(0)
		}
	}
	s.hand = s.lists.Newer(h)
}

func (s *sieve) start() eviction.Handle {
	if s.hand != 0 {
		return s.hand
	}
	return s.lists.Back(0)
}

// Refuse passes h as if it had been used.
func (s *sieve) Refuse(h eviction.Handle) {
	s.advance(h)
	s.used[h] = true
}

func (s *sieve) Victims(w *order.Walk) {
	start := s.start()
	for _, used := range [2]bool{false, true} {
		for h := start; h != 0; h = s.lists.Newer(h) {
			if s.used[h] == used && !w.Offer(h) {
				return
			}
		}
		for h := s.lists.Back(0); h != start; h = s.lists.Newer(h) {
			if s.used[h] == used && !w.Offer(h) {
				return
			}
		}
	}
}

func (s *sieve) MemoryBytes() uint64 { return s.lists.MemoryBytes() + uint64(cap(s.used)) }
