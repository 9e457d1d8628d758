// Package gdsf is the policy "gdsf": the block with the least value per byte goes first, where value is uses
// times cost, and the value of the last victim is added to every later one, so that old fame fades.
//
// For objects of very different sizes. On chains of equal blocks it is an ageing LFU and below LRU.
// Config keys: cost. Memory: 32 bytes a handle.
//
// L. Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy", HP Labs
// HPL-98-69R1, 1998.
package gdsf

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "gdsf", "greedy dual size frequency: least value per byte first", Config{Cost: "object"}, New)
}

// Config of the policy.
type Config struct {
	Cost string `koanf:"cost" doc:"what a miss costs: the same for every object, its bytes, or its position in the chain" enum:"object|bytes|depth"`
}

// New makes the factory.
func New(_ context.Context, _ module.Env, c Config) (eviction.Factory, error) {
	return order.Factory(func(s eviction.Spec, t *order.Totals) (order.Order, error) {
		return &gdsf{
			cost: c.Cost, totals: t, heap: order.NewHeap(s.MaxHandles), uses: make([]uint16, int(s.MaxHandles)+1),
		}, nil
	}), nil
}

type gdsf struct {
	cost    string
	totals  *order.Totals
	heap    order.Heap
	uses    []uint16
	seq     uint64
	inflate float64 // value of the last victim
}

func (g *gdsf) Insert(e *eviction.Event) {
	g.uses[e.Handle] = 0
	g.use(e)
}

func (g *gdsf) Touch(e *eviction.Event) { g.use(e) }

func (g *gdsf) use(e *eviction.Event) {
	if g.uses[e.Handle] < 1<<16-1 {
		g.uses[e.Handle]++
	}
	g.seq++
	value := float64(g.uses[e.Handle])
	// Sizes are relative to the mean, so that values and the inflation keep a comparable scale.
	size := float64(max(e.Size, 1)) / float64(g.totals.MeanSize())
	switch g.cost {
	case "object":
		value /= size
	case "depth":
		value *= float64(e.Depth+1) / size
	}
	g.heap.Set(e.Handle, g.inflate+value, g.seq)
}

func (g *gdsf) Remove(e *eviction.Event, evicted bool) {
	if evicted {
		g.inflate = max(g.inflate, g.heap.Key(e.Handle))
	}
	g.heap.Remove(e.Handle)
}

func (g *gdsf) Victims(w *order.Walk) { g.heap.Offer(w) }

func (g *gdsf) MemoryBytes() uint64 { return g.heap.MemoryBytes() + uint64(cap(g.uses))*2 }
