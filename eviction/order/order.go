// Package order is what the built-in policies have in common: it turns an [Order], the few functions in
// which one policy differs from another, into an eviction.Policy that keeps the whole contract (residency,
// pins, tenants, segments, refusals). It also has the flat, pointer-free containers they are made of.
package order

import (
	"fmt"
	"math/bits"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Order ranks resident handles. [Policy] calls it with resident, unpinned handles only, so it needs no
// checks. An event is valid only during the call.
type Order interface {
	// Insert adds e.Handle: e.Kind is Insert, Restore, or Unpin when it comes back from aside.
	Insert(e *eviction.Event)
	// Touch records a use.
	Touch(e *eviction.Event)
	// Remove takes e.Handle out. evicted tells that it was a victim, so that ghosts are worth keeping.
	Remove(e *eviction.Event, evicted bool)
	// Victims offers handles in order of eviction until w.Offer says false. It changes nothing.
	Victims(w *Walk)
	// MemoryBytes is what the order holds.
	MemoryBytes() uint64
}

// Refuser is an [Order] with a way of its own to let others go first when h was proposed but cannot go now.
// From other orders a refused handle is set aside for a while, which costs it what the order knew of it.
type Refuser interface{ Refuse(h eviction.Handle) }

// Ghoster is an [Order] that wants to know which absent keys are asked for.
type Ghoster interface{ Ghost(e *eviction.Event) }

// Ticker is an [Order] that wants to see every event's time and batch before it is applied.
type Ticker interface{ Before(e *eviction.Event) }

// Fetcher is an [Order] whose memory is worth reading ahead. A handle that was not used for long is in no cache
// of the processor, and following its links one event after the other waits for memory each time. Fetch reads
// what the next events will need, so that the waits overlap. It gets events that were not checked, changes
// nothing, and returns something of all that it read, or the compiler would leave the reads out.
type Fetcher interface {
	Fetch(events []eviction.Event) uint32
}

// Totals is what an order may know about the whole domain.
type Totals struct {
	Capacity uint64 // bytes
	Bytes    uint64 // resident, pinned included
	Count    uint64 // resident handles, pinned included
	max      uint64
}

// MeanSize is the mean size of resident objects in bytes, at least 1.
func (t *Totals) MeanSize() uint64 {
	if t.Count == 0 || t.Bytes < t.Count {
		return 1
	}
	return t.Bytes / t.Count
}

// Blocks estimates how many objects fit into the capacity, from the mean size of those that are there. It
// is exact when all sizes are equal, and between 1 and the number of handles.
func (t *Totals) Blocks() uint64 {
	n := t.Capacity
	if t.Count > 0 && t.Bytes > 0 {
		hi, lo := bits.Mul64(t.Capacity, t.Count)
		if hi >= t.Bytes {
			return t.max
		}
		n, _ = bits.Div64(hi, lo, t.Bytes)
	}
	return max(1, min(n, t.max))
}

// Policy implements eviction.Policy around an [Order]. A pinned handle is set aside: for the order it leaves
// with the pin and is inserted again when the pin ends. Soft-pinned handles are kept in order of use and named
// last, when the question allows them. Refused handles are aside too, unless the order is a [Refuser]: they
// are named after the order's own and come back when they are used, or one by one as others are evicted.
type Policy struct {
	order    Order
	refuser  Refuser
	ghost    Ghoster
	before   Ticker
	fetcher  Fetcher
	fetched  uint32   // keeps the reads of fetch alive
	meta     []uint16 // place and state; 0 not resident
	places   places
	aside    Lists // made when first needed
	hasAside bool
	evicted  uint64
	totals   Totals
	walk     Walk
}

// The lists aside.
const (
	softList = iota
	refusedList
	asideLists
)

// One refused handle comes back with every so many evictions: often enough that none is forgotten, rarely
// enough that one under a long lease is not proposed all the time.
const comeBack = 8

// New makes a policy. build gets totals that Policy keeps up to date.
func New(s eviction.Spec, build func(eviction.Spec, *Totals) (Order, error)) (*Policy, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	p := &Policy{meta: make([]uint16, int(s.MaxHandles)+1), places: newPlaces()}
	p.totals = Totals{Capacity: s.Capacity, max: uint64(s.MaxHandles)}
	o, err := build(s, &p.totals)
	if err != nil {
		return nil, err
	}
	p.order = o
	p.refuser, _ = o.(Refuser)
	p.ghost, _ = o.(Ghoster)
	p.before, _ = o.(Ticker)
	if s.MaxHandles >= fetchFrom {
		p.fetcher, _ = o.(Fetcher)
	}
	return p, nil
}

// Factory makes an eviction.Factory of a build function for [New].
func Factory(build func(eviction.Spec, *Totals) (Order, error)) eviction.Factory {
	return eviction.FactoryFunc(func(s eviction.Spec) (eviction.Policy, error) { return New(s, build) })
}

const (
	// ahead is how many events are fetched at once: enough to keep the processor's queue of reads full, few enough
	// that all is still in its first cache when it is used.
	ahead = 32
	// fetchFrom is the number of handles from which on an order is not in the processor's own caches anyway.
	fetchFrom = 1 << 16
)

// Apply implements eviction.Policy.
func (p *Policy) Apply(events []eviction.Event) error {
	if p.fetcher == nil {
		return p.apply(events)
	}
	for len(events) > 0 {
		n := min(len(events), ahead)
		if n > 1 {
			p.fetch(events[:n])
		}
		if err := p.apply(events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

func (p *Policy) fetch(events []eviction.Event) {
	var sum uint32
	for i := range events {
		if h := int(events[i].Handle); h < len(p.meta) {
			sum += uint32(p.meta[h])
		}
	}
	p.fetched = sum + p.fetcher.Fetch(events)
}

func (p *Policy) apply(events []eviction.Event) error {
	for i := range events {
		e := &events[i]
		if int(e.Handle) >= len(p.meta) {
			return p.bad(e, "the handle is too large")
		}
		if p.before != nil {
			p.before.Before(e)
		}
		m := p.meta[e.Handle]
		switch e.Kind {
		case eviction.Access:
			switch {
			case m == absent:
			case m&stateMask == 0:
				p.order.Touch(e)
			case m&stateMask == refused:
				p.comeBack(e)
			case m&stateMask == softPin:
				p.aside.MoveFront(softList, e.Handle)
			}
		case eviction.Insert, eviction.Restore:
			if e.Handle == 0 || m != absent {
				return p.bad(e, "the handle is 0 or resident already")
			}
			p.meta[e.Handle] = p.places.find(e)
			p.totals.Count++
			p.totals.Bytes += e.Size
			if f := e.Flags & (eviction.FlagSoftPin | eviction.FlagHardPin); f != 0 {
				p.pin(e, f)
			} else {
				p.order.Insert(e)
			}
		case eviction.Remove:
			if m == absent {
				continue
			}
			p.leave(e, m, e.Code == eviction.CodeEvicted)
			p.meta[e.Handle] = absent
			p.totals.Count--
			p.totals.Bytes -= min(e.Size, p.totals.Bytes)
			if e.Code == eviction.CodeEvicted && p.hasAside {
				p.anotherEvicted(e)
			}
		case eviction.Reject:
			if m != absent && m&stateMask == 0 {
				p.refuse(e)
			}
		case eviction.Pin:
			if f := e.Flags & (eviction.FlagSoftPin | eviction.FlagHardPin); m != absent && f != 0 {
				p.leave(e, m, false)
				p.pin(e, f)
			}
		case eviction.Unpin:
			if m&stateMask&softPin != 0 {
				p.comeBack(e)
			}
		case eviction.Moved:
			if m != absent {
				p.meta[e.Handle] = m&stateMask | p.places.find(e)
			}
		case eviction.Ghost:
			if p.ghost != nil {
				p.ghost.Ghost(e)
			}
		case eviction.Resize:
			p.totals.Capacity = max(1, e.Size)
		}
	}
	return nil
}

func (p *Policy) bad(e *eviction.Event, why string) error {
	return fmt.Errorf("eviction: %s of handle %d (largest %d): %s: %w", e.Kind, e.Handle, len(p.meta)-1, why, eviction.ErrBadEvent)
}

// leave takes a resident handle out of whatever holds it.
func (p *Policy) leave(e *eviction.Event, m uint16, evicted bool) {
	switch m & stateMask {
	case 0:
		p.order.Remove(e, evicted)
	case softPin, refused:
		p.aside.Remove(e.Handle)
	}
}

func (p *Policy) pin(e *eviction.Event, f eviction.Flags) {
	if f&eviction.FlagHardPin != 0 {
		p.meta[e.Handle] = p.meta[e.Handle]&placeMask | hardPin
		return
	}
	p.setAside(e.Handle, softList, softPin)
}

func (p *Policy) setAside(h eviction.Handle, list int, state uint16) {
	if !p.hasAside {
		p.aside, p.hasAside = NewLists(uint32(len(p.meta)-1), asideLists), true
	}
	p.meta[h] = p.meta[h]&placeMask | state
	p.aside.PushFront(list, h)
}

// comeBack gives a handle that is aside to the order again, because of e.
func (p *Policy) comeBack(e *eviction.Event) {
	m := p.meta[e.Handle]
	p.leave(e, m, false)
	p.meta[e.Handle] = m & placeMask
	again := *e
	again.Kind = eviction.Unpin
	if e.Kind != eviction.Access {
		again.Size = p.totals.MeanSize() // not every event here has the object's size
	}
	p.order.Insert(&again)
}

func (p *Policy) refuse(e *eviction.Event) {
	if p.refuser != nil {
		p.refuser.Refuse(e.Handle)
		return
	}
	p.order.Remove(e, false)
	p.setAside(e.Handle, refusedList, refused)
}

func (p *Policy) anotherEvicted(e *eviction.Event) {
	if p.evicted++; p.evicted%comeBack != 0 {
		return
	}
	if h := p.aside.Back(refusedList); h != 0 {
		p.comeBack(&eviction.Event{Kind: eviction.Unpin, Handle: h, NowMS: e.NowMS, Req: e.Req})
	}
}

// Victims implements eviction.Policy.
func (p *Policy) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	if need.Max <= 0 {
		return dst, nil
	}
	w := &p.walk
	// Field by field: a literal is put together elsewhere and copied, which waits for its small parts.
	w.dst, w.left, w.skips, w.p = dst, need.Max, 0, p
	w.tenant, w.segment, w.any = need.Tenant, need.Segment, need.Tenant == eviction.AnyTenant && need.Segment == 0
	p.order.Victims(w)
	if w.left > 0 && p.hasAside {
		p.walkAside(w, refusedList)
		if w.left > 0 && need.Flags&eviction.NeedSoftPins != 0 {
			p.walkAside(w, softList)
		}
	}
	dst, w.dst = w.dst, nil
	return dst, nil
}

func (p *Policy) walkAside(w *Walk, list int) {
	for h := p.aside.Back(list); h != 0 && w.Offer(h); h = p.aside.Newer(h) {
	}
}

// Close implements eviction.Policy; everything here is ordinary memory.
func (p *Policy) Close() error { return nil }

// MemoryBytes implements eviction.MemoryUser.
func (p *Policy) MemoryBytes() uint64 {
	n := uint64(cap(p.meta))*2 + p.order.MemoryBytes() + uint64(cap(p.places.known))*8 + uint64(len(p.places.ids))*16
	if p.hasAside {
		n += p.aside.MemoryBytes()
	}
	return n
}

// Order returns what the policy was built around, for tests and status.
func (p *Policy) Order() Order { return p.order }
