package order

import "github.com/mooncake-agent/mooncake/eviction"

// place is where an object is, as far as questions for victims can ask: its tenant and segment. The pairs
// are few, so that a handle needs 14 bits for it.
type place struct{ tenant, segment uint32 }

const (
	absent    = 0         // meta of a handle that is not resident
	crowd     = 1         // more pairs than fit: matches every question, the host checks
	maxPlaces = 1<<14 - 1 // ids 2..maxPlaces are real
	placeMask = 1<<14 - 1

	// The state is in the upper two bits; 0 is in the order.
	stateMask = 3 << 14
	refused   = 1 << 14 // aside, named after the order's own
	softPin   = 2 << 14 // aside, named last if allowed
	hardPin   = 3 << 14 // nowhere, never named
)

type places struct {
	known []place
	ids   map[place]uint16
	last  place // most blocks come from the same tenant and segment as the one before
	id    uint16
}

func newPlaces() places {
	return places{known: make([]place, 2, 16), ids: map[place]uint16{}}
}

func (p *places) find(e *eviction.Event) uint16 {
	at := place{e.Tenant, e.Segment}
	if at == p.last && p.id != 0 {
		return p.id
	}
	id, ok := p.ids[at]
	if !ok {
		id = crowd
		if len(p.known) <= maxPlaces {
			id = uint16(len(p.known))
			p.known = append(p.known, at)
			p.ids[at] = id
		}
	}
	p.last, p.id = at, id
	return id
}

func (p *places) match(meta uint16, tenant, segment uint32) bool {
	id := meta & placeMask
	if id == crowd {
		return true
	}
	at := p.known[id]
	return (tenant == eviction.AnyTenant || tenant == at.tenant) && (segment == 0 || at.segment == 0 || segment == at.segment)
}

// Walk collects the answer to one question. An [Order] offers handles, best victim first, until Offer
// says false.
type Walk struct {
	dst     []eviction.Handle
	left    int
	skips   int
	any     bool // tenant and segment
	tenant  uint32
	segment uint32
	p       *Policy
}

// A question for a tenant or segment that has nothing near the cold end must not walk millions of handles:
// the host helps itself to the rest.
const maxSkips = 1 << 14

// Offer names h as the next best victim and reports whether more are wanted.
func (w *Walk) Offer(h eviction.Handle) bool {
	if !w.any && !w.p.places.match(w.p.meta[h], w.tenant, w.segment) {
		w.skips++
		return w.skips < maxSkips
	}
	w.dst = append(w.dst, h)
	w.left--
	return w.left > 0
}
