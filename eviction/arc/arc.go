// Package arc is the policy "arc": one list for blocks used once, one for blocks used again, and ghosts of
// both that tell which of the two deserves more room.
//
// It needs no settings and is the best of the classics on many traces of chains when the cache is small.
// Config keys: none. Memory: 33 bytes a handle, ghosts included.
//
// N. Megiddo, D. S. Modha, "ARC: a self-tuning, low overhead replacement cache", USENIX FAST 2003.
package arc

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "arc", "adaptive replacement cache: recency and frequency lists balanced by ghosts", Config{}, New)
}

// Config has no keys.
type Config struct{}

// The lists have the paper's names; b1 and b2 are the ghosts of t1 and t2.
const (
	t1 = iota
	t2
	b1 = t1
	b2 = t2
)

// New makes the factory.
func New(context.Context, module.Env, Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, t *order.Totals) (order.Order, error) {
		return &arc{
			totals: t, lists: order.NewLists(s.MaxHandles, 2), where: make([]uint8, int(s.MaxHandles)+1),
			ghosts: order.NewGhosts(s.MaxHandles, 2), ghostOf: make([]uint8, int(s.MaxHandles)+1),
		}, nil
	}), nil
}

type arc struct {
	totals  *order.Totals
	lists   order.Lists
	where   []uint8 // t1 or t2 by handle
	n       [2]int  // lengths of t1, t2
	ghosts  order.Ghosts
	ghostOf []uint8 // b1 or b2 by ghost slot, plus counted
	gn      [2]int  // lengths of b1, b2
	p       float64 // room that t1 should have
	fromB2  bool    // the block that room is needed for is remembered in b2
}

// counted marks a ghost whose return has moved p already: it may be asked for several times before it is put.
const counted = 2

// Ghost learns from the return of a key before room is made for it, as the paper does.
func (a *arc) Ghost(e *eviction.Event) {
	slot := a.ghosts.Find(e.KeyHash)
	a.fromB2 = slot != 0 && a.ghostOf[slot]&^counted == b2
	if slot == 0 || a.ghostOf[slot]&counted != 0 {
		return
	}
	n1, n2 := float64(a.gn[b1]), float64(a.gn[b2])
	if a.fromB2 {
		a.p = max(a.p-max(1, n1/n2), 0)
	} else {
		a.p = min(a.p+max(1, n2/n1), float64(a.totals.Blocks()))
	}
	a.ghostOf[slot] |= counted
}

func (a *arc) Insert(e *eviction.Event) {
	list := uint8(t1)
	if e.Kind == eviction.Insert {
		a.Ghost(e) // in case nobody asked before
		if slot := a.ghosts.Find(e.KeyHash); slot != 0 {
			a.gn[a.ghostOf[slot]&^counted]--
			a.ghosts.Remove(slot)
			list = t2
		}
	}
	a.fromB2 = false
	a.where[e.Handle] = list
	a.lists.PushFront(int(list), e.Handle)
	a.n[list]++
	a.trim()
}

// trim keeps the directory within the paper's bounds: t1 and b1 together no more than fits, all four twice that.
func (a *arc) trim() {
	c := int(a.totals.Blocks())
	for a.gn[b1] > 0 && a.n[t1]+a.gn[b1] > c {
		a.forget(b1)
	}
	for a.n[t1]+a.n[t2]+a.gn[b1]+a.gn[b2] > 2*c && a.gn[b1]+a.gn[b2] > 0 {
		if a.gn[b2] > 0 {
			a.forget(b2)
		} else {
			a.forget(b1)
		}
	}
}

func (a *arc) forget(list int) {
	a.ghosts.Remove(a.ghosts.Oldest(list))
	a.gn[list]--
}

func (a *arc) Touch(e *eviction.Event) {
	a.n[a.where[e.Handle]]--
	a.n[t2]++
	a.where[e.Handle] = t2
	a.lists.MoveFront(t2, e.Handle)
}

func (a *arc) Remove(e *eviction.Event, evicted bool) {
	list := a.where[e.Handle]
	a.lists.Remove(e.Handle)
	a.n[list]--
	if !evicted {
		return
	}
	if old := a.ghosts.Find(e.KeyHash); old != 0 { // two keys with one fingerprint
		a.gn[a.ghostOf[old]&^counted]--
		a.ghosts.Remove(old)
	}
	before := a.gn[0] + a.gn[1]
	if before >= len(a.ghostOf)-1 {
		a.forget(b1 + boolInt(a.gn[b1] == 0))
	}
	a.ghostOf[a.ghosts.Add(int(list), e.KeyHash)] = list
	a.gn[list]++
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Victims is the paper's REPLACE, going on as if p did not change.
func (a *arc) Victims(w *order.Walk) {
	at := [2]eviction.Handle{a.lists.Back(t1), a.lists.Back(t2)}
	for left := a.n[t1]; at[t1] != 0 || at[t2] != 0; {
		list := t2
		if at[t2] == 0 || at[t1] != 0 && (float64(left) > a.p || a.fromB2 && float64(left) == a.p) {
			list = t1
			left--
		}
		if !w.Offer(at[list]) {
			return
		}
		at[list] = a.lists.Newer(at[list])
	}
}

func (a *arc) MemoryBytes() uint64 {
	return a.lists.MemoryBytes() + a.ghosts.MemoryBytes() + uint64(cap(a.where)+cap(a.ghostOf))
}
