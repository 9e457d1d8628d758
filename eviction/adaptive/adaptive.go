package adaptive

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

func init() {
	module.Define(eviction.Kind, "adaptive", "learns which blocks will be used again, guarded by shadow caches; the default", defaultConfig(), New)
}

// New makes the factory.
func New(_ context.Context, _ module.Env, c Config) (eviction.Factory, error) {
	return eviction.FactoryFunc(func(s eviction.Spec) (eviction.Policy, error) {
		p := &Policy{}
		var err error
		p.Policy, err = order.New(s, func(s eviction.Spec, t *order.Totals) (order.Order, error) {
			p.adaptive = &adaptive{
				totals: t, queue: newQueue(s.MaxHandles),
				known: newKnown(uint64(c.Known) * uint64(s.MaxHandles)), sample: newSample(s.MaxHandles),
				req: request{fresh: make([]fresh, 0, maxFresh)},
			}
			return p.adaptive, nil
		})
		if err != nil {
			return nil, err
		}
		return p, nil
	}), nil
}

// Policy is the policy with its optional abilities: learned state, status, memory.
type Policy struct {
	*order.Policy
	adaptive *adaptive
}

var (
	_ eviction.StateSaver = (*Policy)(nil)
	_ eviction.Statser    = (*Policy)(nil)
	_ eviction.MemoryUser = (*Policy)(nil)
)

// adaptive is the order of resident blocks.
type adaptive struct {
	totals *order.Totals
	queue  queue
	known  known // keys that were evicted
	sample *sample
	blocks uint64 // that the sample was sized for
	now    uint64
	oldest uint64 // no resident block was last used before
	req    request
}

// request is what is known of the batch whose events are being applied.
type request struct {
	number uint32
	known  bool   // a block that was seen before has come
	turn   uint8  // of the request
	added  uint32 // new blocks
	reuse  uint8  // most uses of a block so far: those above it have at least as many
	fresh  []fresh
}

func (r *request) begin(e *eviction.Event) {
	r.number, r.added, r.fresh = e.Req, e.Added, r.fresh[:0]
	r.known, r.turn, r.reuse = false, 0, 0
}

// fresh is a block of the present request that was never seen before.
type fresh struct {
	key  uint64
	h    eviction.Handle
	slot uint32
}

// Before follows time and batches.
func (a *adaptive) Before(e *eviction.Event) {
	a.now = max(a.now, min(e.NowMS, maxTime))
	switch e.Kind {
	case eviction.Insert, eviction.Access:
		if e.Req != a.req.number || e.Req == 0 {
			a.req.begin(e)
		}
	}
}

func (a *adaptive) Insert(e *eviction.Event) {
	turn, reuse, seen := a.known.get(e.KeyHash)
	if e.Kind != eviction.Insert {
		a.queue.push(e.Handle, classOf(turn, 0, reuse), a.now)
		a.queue.setPast(e.Handle, past(turn, reuse))
		return
	}
	if seen {
		reuse++
	}
	if r := &a.req; e.Flags&eviction.FlagTailFirst != 0 {
		seen = seen || r.known
		reuse = max(reuse, r.reuse)
		r.reuse = reuse
	}
	if seen {
		a.meet(turn)
	} else {
		turn = a.req.turn
		if !a.req.known {
			a.req.added = max(a.req.added, uint32(len(a.req.fresh)+1))
		}
	}
	class := a.class(e, reuse)
	a.queue.push(e.Handle, class, a.now)
	a.queue.setPast(e.Handle, past(turn, reuse))
	slot := a.observe(e, class)
	if !seen && !a.req.known && len(a.req.fresh) < cap(a.req.fresh) {
		a.req.fresh = append(a.req.fresh, fresh{e.KeyHash, e.Handle, slot})
	}
}

func (a *adaptive) Touch(e *eviction.Event) {
	turn, reuse := split(a.queue.past(e.Handle))
	reuse++
	if r := &a.req; e.Flags&eviction.FlagTailFirst != 0 {
		reuse = max(reuse, r.reuse)
		r.reuse = reuse
	}
	a.meet(turn)
	class := a.class(e, reuse)
	a.queue.touch(e.Handle, class, a.now)
	a.queue.setPast(e.Handle, past(turn, reuse))
	a.observe(e, class)
}

// past packs what a block's history says: the turn of the request that brought it, and its uses, up to 15 each.
func past(turn, reuse uint8) uint8 { return min(turn, 15)<<4 | min(reuse, 15) }

func split(past uint8) (turn, reuse uint8) { return past >> 4, past & 15 }

// meet is called at each block of the request that was seen before. Blocks come deepest first, so the first of
// them is where the request left the known part of the tree: what came before it is what it really added,
// whether or not the blocks above are resident.
func (a *adaptive) meet(turn uint8) {
	r := &a.req
	if r.known {
		return
	}
	r.known, r.turn = true, turn
	if len(r.fresh) > 0 {
		r.turn = min(turn+1, 15)
		r.added = uint32(len(r.fresh))
	}
	for _, f := range r.fresh {
		c := a.queue.classOf(f.h)
		if c == gone {
			continue
		}
		a.queue.setPast(f.h, past(r.turn, 0))
		if c == partial {
			continue
		}
		class := classOf(r.turn, r.added, 0)
		a.queue.touch(f.h, class, a.now)
		if f.slot != 0 {
			a.sample.reclass(f.slot, class)
		}
	}
	r.fresh = r.fresh[:0]
}

// maxFresh is how many new blocks of one request are classed again once its turn is known.
const maxFresh = 4096

func (a *adaptive) class(e *eviction.Event, reuse uint8) uint8 {
	if e.Flags&eviction.FlagPartial != 0 {
		return partial
	}
	return classOf(a.req.turn, a.req.added, reuse)
}

func (a *adaptive) observe(e *eviction.Event, class uint8) uint32 {
	if b := a.totals.Blocks(); a.blocks != b {
		a.blocks = b
		a.sample.resize(b)
	}
	if !a.sample.chosen(e.KeyHash) {
		return 0
	}
	slot := a.sample.use(e.KeyHash, e.Req, class, a.now)
	if a.sample.changed {
		a.sample.changed = false
		a.queue.tableChanged()
	}
	return slot
}

func (a *adaptive) Remove(e *eviction.Event, evicted bool) {
	if evicted {
		turn, reuse := split(a.queue.past(e.Handle))
		a.known.set(e.KeyHash, turn, reuse)
	}
	a.queue.remove(e.Handle)
}

func (a *adaptive) Victims(w *order.Walk) {
	h := a.forgotten()
	if h == 0 {
		h = a.queue.victim(a.sample.table, a.now, a.sample.horizon())
	}
	if h == 0 || !w.Offer(h) {
		return
	}
	for c := range classes {
		for o := a.queue.lists.Back(c); o != 0; o = a.queue.lists.Newer(o) {
			if o != h && !w.Offer(o) {
				return
			}
		}
	}
}

// forgotten returns the oldest block if the sample has no keys as old as that any more, else 0. The shadow caches
// have lost such blocks, so the policy's account would be wrong if it kept them.
func (a *adaptive) forgotten() eviction.Handle {
	since := a.sample.since()
	if since <= a.oldest {
		return 0
	}
	var h eviction.Handle
	a.oldest = a.now
	for c := range classes {
		if o := a.queue.lists.Back(c); o != 0 && a.queue.lists.Of(o).used() < a.oldest {
			h, a.oldest = o, a.queue.lists.Of(o).used()
		}
	}
	if a.oldest >= since {
		return 0
	}
	return h
}

// Fetch implements order.Fetcher.
func (a *adaptive) Fetch(events []eviction.Event) uint32 {
	return a.known.fetch(events) + a.queue.lists.Fetch(events)
}

func (a *adaptive) MemoryBytes() uint64 {
	return a.queue.memoryBytes() + a.known.memoryBytes() + a.sample.memoryBytes()
}
