// Package random is the policy "random": any block may go.
//
// It needs nothing to be true about the traffic, so it is the honest zero of comparisons; chains lose blocks
// in the middle. Repeatable by the seed of the instance.
// Config keys: none. Memory: 10 bytes a handle.
//
// L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.
package random

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "random", "any block, repeatable by seed", Config{}, New)
}

// Config has no keys.
type Config struct{}

// New makes the factory.
func New(context.Context, module.Env, Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, _ *order.Totals) (order.Order, error) {
		return &random{seed: s.Seed, all: make([]eviction.Handle, 0, s.MaxHandles), at: make([]uint32, int(s.MaxHandles)+1)}, nil
	}), nil
}

type random struct {
	seed  uint64
	taken uint64 // victims so far: the next choice depends on it, not on how often it was asked for
	all   []eviction.Handle
	at    []uint32 // position in all by handle
}

func (r *random) Insert(e *eviction.Event) {
	r.at[e.Handle] = uint32(len(r.all))
	r.all = append(r.all, e.Handle)
}

func (r *random) Touch(*eviction.Event) {}

func (r *random) Remove(e *eviction.Event, evicted bool) {
	i, last := r.at[e.Handle], r.all[len(r.all)-1]
	r.all[i], r.at[last] = last, i
	r.all = r.all[:len(r.all)-1]
	if evicted {
		r.taken++
	}
}

// Victims starts at a random place and goes on in steps that reach every place once.
func (r *random) Victims(w *order.Walk) {
	n := uint64(len(r.all))
	if n == 0 {
		return
	}
	x := scramble(r.seed + r.taken*0x9e3779b97f4a7c15)
	at, step := x%n, 1+scramble(x)%n
	for gcd(step, n) != 1 {
		step++
	}
	for range n {
		if !w.Offer(r.all[at]) {
			return
		}
		at = (at + step) % n
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// scramble is the finalizer of splitmix64.
func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (r *random) MemoryBytes() uint64 { return uint64(cap(r.all)+cap(r.at)) * 4 }
