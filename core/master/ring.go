package master

import (
	"sync"

	"github.com/mooncake-agent/mooncake/eviction"
)

// ring collects the events of a domain in order until the policy is told, and owns the handles. Events are
// pushed with the object's shard locked, so their order is the order of what happened to each object.
type ring struct {
	mu      sync.Mutex // a leaf
	pending []eviction.Event
	next    uint32     // smallest handle never used
	free    []uint32   // handles to use again
	objects []*refPage // handle → object
	req     uint32
	dropped uint64
	held    []uint32 // handles to use again when the instance that is being made is told of their end
	size    uint64   // capacity last told
	ticked  uint64   // time of the last TICK
	count   int      // handles in use
	now     uint64   // of the last event: threads may bring theirs out of order
}

type refPage [4096]ref

const (
	ringKick = 1024    // events after which the background drains
	ringLoss = 1 << 15 // events above which reads are dropped
	ringHard = 1 << 18 // events above which a put drains before it returns
)

// handle takes a handle for an object; called with mu held.
func (g *ring) handle(r ref) eviction.Handle {
	var h uint32
	if n := len(g.free); n > 0 {
		h = g.free[n-1]
		g.free = g.free[:n-1]
	} else {
		if g.next == 0 {
			g.next = 1
		}
		h = g.next
		g.next++
		if int(h>>12) == len(g.objects) {
			g.objects = append(g.objects, new(refPage))
		}
	}
	g.objects[h>>12][h&4095] = r
	g.count++
	return eviction.Handle(h)
}

// recycle lets the handles of applied removals be used again, or with hold only after reuse.
func (g *ring) recycle(events []eviction.Event, hold bool) {
	g.mu.Lock()
	for i := range events {
		if e := &events[i]; e.Kind == eviction.Remove && e.Handle != 0 {
			g.objects[e.Handle>>12][e.Handle&4095] = 0
			if hold {
				g.held = append(g.held, uint32(e.Handle))
			} else {
				g.free = append(g.free, uint32(e.Handle))
			}
			g.count--
		}
	}
	g.mu.Unlock()
}

// reuse lets the handles that were held be used again.
func (g *ring) reuse() {
	g.mu.Lock()
	g.free = append(g.free, g.held...)
	g.held = nil
	g.mu.Unlock()
}

// largest is the largest handle that was ever used.
func (g *ring) largest() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(g.next, 1) - 1
}

// tickPeriod is the time between two TICKs in milliseconds.
const tickPeriod = 1000

// tick adds a TICK if it is time for one.
func (g *ring) tick(now uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now < g.ticked+tickPeriod {
		return false
	}
	g.ticked = now
	g.append(&eviction.Event{Kind: eviction.Tick, NowMS: now})
	return true
}

// object returns what a handle stands for, 0 if nothing.
func (g *ring) object(h eviction.Handle) ref {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h == 0 || uint32(h) >= g.next {
		return 0
	}
	return g.objects[h>>12][h&4095]
}

// take swaps the pending events for an empty list.
func (g *ring) take(spare []eviction.Event) (events []eviction.Event, largest uint32, now uint64) {
	g.mu.Lock()
	events = g.pending
	g.pending = spare[:0]
	largest, now = max(g.next, 1)-1, g.now
	g.mu.Unlock()
	return events, largest, now
}

func (g *ring) backlog() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending)
}

// append adds an event; called with mu held.
func (g *ring) append(e *eviction.Event) {
	if e.Req == 0 {
		g.req++
		e.Req = g.req
	}
	g.now = max(g.now, e.NowMS)
	e.NowMS = g.now
	g.pending = append(g.pending, *e)
}

// long reports that the background should drain; called with mu held after an event was pushed.
func (g *ring) long(d *domain) bool {
	if len(g.pending) >= ringHard {
		d.full.Store(true)
	}
	return len(g.pending)%ringKick == 0
}
