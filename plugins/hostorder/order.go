// Package hostorder is the order that a host keeps beside a policy from outside, in WebAssembly or in another process. The
// policy advises, the host checks: every victim that it names, and what is to be named while it is down.
package hostorder

import (
	"fmt"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Order is the host's own tail-first LRU order of a domain and what it knows of each object. It is always
// up to date, guest or not: it checks every victim, names victims when the guest has none, chooses the
// candidates of score mode and fills a new instance by RESTORE. 9 bytes a handle for the order, 64 for the
// record, which a use touches in score mode only. Its answers are those of the built-in policy lru. It is used from one
// goroutine. The zero value with Max set is empty; the other fields are to be read only.
type Order struct {
	Max     uint32       // the largest handle; may be raised
	Scored  bool         // uses are counted
	places  pages[uint8] // the list that a handle is in
	links   pages[link]
	recs    pages[Record]
	lists   [orderLists]struct{ front, back uint32 }
	Count   int    // resident handles
	Largest uint32 // largest handle ever resident
	Applied uint64 // events seen
	Now     uint64 // of the last event
	epoch   uint32 // of the last question
}

// The lists of an order; a handle that is not resident is in none.
const (
	None = iota
	Main
	Soft // soft-pinned: named after all others, when allowed
	Hard // hard-pinned: never named
	orderLists
)

// Record is what is known of a resident object.
type Record struct {
	KeyHash, Size, LastMS                        uint64
	Parent, Depth, Added, Tenant, Segment, Group uint32
	Uses                                         uint32 // since it came; only counted with Scored
	refused                                      uint32 // Applied+1 when its last refusal came, 0 if none holds
	mark                                         uint32 // 2*epoch: a candidate of that question; +1: named
	Flags                                        eviction.Flags
}

type link struct{ prev, next uint32 } // 0: the end

// pages is an array that grows with the largest index in use, without copying and without pointers inside.
type pages[T any] struct{ page []*[pageSize]T }

const (
	pageBits = 12
	pageSize = 1 << pageBits
)

func (p *pages[T]) at(i uint32) *T { return &p.page[i>>pageBits][i%pageSize] }

func (p *pages[T]) ensure(i uint32) {
	n := int(i >> pageBits)
	for len(p.page) <= n {
		p.page = append(p.page, nil)
	}
	if p.page[n] == nil {
		p.page[n] = new([pageSize]T)
	}
}

func (p *pages[T]) count() (n uint64) {
	for _, page := range p.page {
		if page != nil {
			n += pageSize
		}
	}
	return n
}

// Place is the list of a handle, None if it is not resident.
func (o *Order) Place(h uint32) uint8 {
	if int(h>>pageBits) >= len(o.places.page) || o.places.page[h>>pageBits] == nil {
		return None
	}
	return *o.places.at(h)
}

// Apply follows one event. told is false for an event that a policy need not hear of: it names a handle that
// is not resident any more.
func (o *Order) Apply(e *eviction.Event) (told bool, err error) {
	h := uint32(e.Handle)
	if h > o.Max {
		return false, o.bad(e, "the handle is too large")
	}
	o.Applied++
	o.Now = max(o.Now, e.NowMS)
	if e.Kind == eviction.Insert || e.Kind == eviction.Restore {
		if h == 0 || o.Place(h) != None {
			return false, o.bad(e, "the handle is 0 or resident already")
		}
		o.insert(e)
		return true, nil
	}
	list := o.Place(h)
	if list == None {
		return h == 0, nil
	}
	switch e.Kind {
	case eviction.Access:
		if o.Scored {
			r := o.recs.at(h)
			r.Uses++
			r.LastMS, r.refused = e.NowMS, 0
		}
		if list != Hard {
			o.toFront(list, h)
		}
	case eviction.Remove:
		o.unlink(h)
		o.Count--
	case eviction.Reject:
		o.recs.at(h).refused = max(1, uint32(o.Applied))
		if list == Main {
			o.toFront(list, h)
		}
	case eviction.Pin:
		if f := e.Flags & (eviction.FlagSoftPin | eviction.FlagHardPin); f != 0 {
			o.setPin(h, f)
		}
	case eviction.Unpin:
		if list != Main {
			o.setPin(h, 0)
		}
	case eviction.Moved:
		o.recs.at(h).Segment = e.Segment
	}
	return true, nil
}

// setPin gives a resident handle other pins and the place in front that goes with them.
func (o *Order) setPin(h uint32, f eviction.Flags) {
	r := o.recs.at(h)
	r.Flags = r.Flags&^(eviction.FlagSoftPin|eviction.FlagHardPin) | f
	r.refused = 0
	o.unlink(h)
	o.pushFront(listOf(f), h)
}

func (o *Order) bad(e *eviction.Event, why string) error {
	return fmt.Errorf("eviction: %s of handle %d (largest %d): %s: %w", e.Kind, e.Handle, o.Max, why, eviction.ErrBadEvent)
}

func (o *Order) insert(e *eviction.Event) {
	h := uint32(e.Handle)
	o.recs.ensure(h)
	o.links.ensure(h)
	o.places.ensure(h)
	o.Largest = max(o.Largest, h)
	*o.recs.at(h) = Record{
		KeyHash: e.KeyHash, Size: e.Size, LastMS: e.NowMS, Parent: uint32(e.Parent), Depth: e.Depth, Added: e.Added,
		Tenant: e.Tenant, Segment: e.Segment, Group: e.Group, Flags: e.Flags,
	}
	o.pushFront(listOf(e.Flags), h)
	o.Count++
}

func listOf(f eviction.Flags) uint8 {
	switch {
	case f&eviction.FlagHardPin != 0:
		return Hard
	case f&eviction.FlagSoftPin != 0:
		return Soft
	}
	return Main
}

func (o *Order) unlink(h uint32) {
	place := o.places.at(h)
	l, at := o.links.at(h), &o.lists[*place]
	if l.prev == 0 {
		at.front = l.next
	} else {
		o.links.at(l.prev).next = l.next
	}
	if l.next == 0 {
		at.back = l.prev
	} else {
		o.links.at(l.next).prev = l.prev
	}
	*place = None
}

// toFront moves a handle to the front of the list that it is in.
func (o *Order) toFront(list uint8, h uint32) {
	at := &o.lists[list]
	if at.front == h {
		return
	}
	l := o.links.at(h)
	o.links.at(l.prev).next = l.next
	if l.next == 0 {
		at.back = l.prev
	} else {
		o.links.at(l.next).prev = l.prev
	}
	o.links.at(at.front).prev = h
	*l = link{0, at.front}
	at.front = h
}

func (o *Order) pushFront(list uint8, h uint32) {
	at := &o.lists[list]
	*o.links.at(h) = link{0, at.front}
	if at.front == 0 {
		at.back = h
	} else {
		o.links.at(at.front).prev = h
	}
	at.front = h
	*o.places.at(h) = list
}

// Newer is the next handle towards the front, 0 at the end.
func (o *Order) Newer(h uint32) uint32 { return o.links.at(h).prev }

// Event describes a resident object, without kind and time.
func (o *Order) Event(h uint32, r *Record) eviction.Event {
	return eviction.Event{
		Flags: r.Flags, Handle: eviction.Handle(h), Parent: eviction.Handle(r.Parent), Depth: r.Depth, Added: r.Added,
		Tenant: r.Tenant, Size: r.Size, KeyHash: r.KeyHash, Segment: r.Segment, Group: r.Group,
	}
}

// Answer begins a new answer to a question: nothing has been named yet.
func (o *Order) Answer() {
	if o.epoch++; o.epoch >= 1<<31 { // marks start anew
		for _, p := range o.recs.page {
			if p == nil {
				continue
			}
			for i := range p {
				p[i].mark = 0
			}
		}
		o.epoch = 1
	}
}

// IsNamed tells that a victim was named in the answer to the present question.
func (o *Order) IsNamed(r *Record) bool { return r.mark == 2*o.epoch+1 }

// Name marks a victim as named.
func (o *Order) Name(r *Record) { r.mark = 2*o.epoch + 1 }

// IsCandidate tells that an object is a candidate of the present question, or named.
func (o *Order) IsCandidate(r *Record) bool { return r.mark>>1 == o.epoch }

// Nominate makes an object a candidate.
func (o *Order) Nominate(r *Record) { r.mark = 2 * o.epoch }

// At is the record of a resident handle. It must not be kept.
func (o *Order) At(h uint32) *Record { return o.recs.at(h) }

// Back is the oldest handle of a list, 0 if it is empty.
func (o *Order) Back(list uint8) uint32 { return o.lists[list].back }

// IsRefused tells that the last refusal of an object still holds: for as many events as there are objects, so
// that the others come first and none is spared for ever.
func (o *Order) IsRefused(r *Record) bool {
	return r.refused != 0 && uint32(o.Applied)-r.refused < uint32(o.Count)
}

// Check judges a victim that a policy named for the present question, and marks it as named: 0 if it may be taken.
// [eviction.CodeUnknown] and [eviction.CodeDuplicate] are mistakes of the policy; the other codes may be bad luck.
func (o *Order) Check(h uint32, need *eviction.Need) eviction.Code {
	if h > o.Max || o.Place(h) == None {
		return eviction.CodeUnknown
	}
	r := o.recs.at(h)
	if o.IsNamed(r) {
		return eviction.CodeDuplicate
	}
	o.Name(r)
	return o.Refusal(h, need)
}

// Reject is the event that tells a policy why its victim was not taken; ok is false if no event can name the handle.
func (o *Order) Reject(h uint32, code eviction.Code) (e eviction.Event, ok bool) {
	if h == 0 || h > o.Max {
		return e, false
	}
	e = eviction.Event{Handle: eviction.Handle(h)}
	if code != eviction.CodeUnknown {
		e = o.Event(h, o.recs.at(h))
	}
	e.Kind, e.Code, e.NowMS = eviction.Reject, code, o.Now
	return e, true
}

// SoftLast puts soft-pinned victims behind the others.
func (o *Order) SoftLast(victims []eviction.Handle, need *eviction.Need) {
	if need.Flags&eviction.NeedSoftPins == 0 {
		return
	}
	var soft []eviction.Handle
	kept := victims[:0]
	for _, h := range victims {
		if o.Place(uint32(h)) == Soft {
			soft = append(soft, h)
		} else {
			kept = append(kept, h)
		}
	}
	copy(victims[len(kept):], soft)
}

// Refusal says why a resident object is not an answer to the question, 0 if it is.
func (o *Order) Refusal(h uint32, need *eviction.Need) eviction.Code {
	list := *o.places.at(h)
	if list == Hard || list == Soft && need.Flags&eviction.NeedSoftPins == 0 {
		return eviction.CodePinned
	}
	if need.Tenant == eviction.AnyTenant && need.Segment == 0 {
		return 0
	}
	r := o.recs.at(h)
	switch {
	case need.Tenant != eviction.AnyTenant && r.Tenant != need.Tenant:
		return eviction.CodeOtherTenant
	case need.Segment != 0 && r.Segment != 0 && r.Segment != need.Segment:
		return eviction.CodeNotThere
	}
	return 0
}

// MaxWalk bounds the handles that one question looks at.
const MaxWalk = 1 << 16

// Fill appends up to n handles of the order that were not named yet, until they add up to missing bytes (0: n
// alone counts).
func (o *Order) Fill(dst []eviction.Handle, need *eviction.Need, n int, missing uint64) []eviction.Handle {
	looked := 0
	for _, list := range [...]uint8{Main, Soft} {
		if list == Soft && need.Flags&eviction.NeedSoftPins == 0 {
			break
		}
		for h := o.lists[list].back; h != 0 && n > 0 && looked < MaxWalk; h = o.Newer(h) {
			looked++
			r := o.recs.at(h)
			if o.IsNamed(r) || o.Refusal(h, need) != 0 {
				continue
			}
			o.Name(r)
			dst = append(dst, eviction.Handle(h))
			n--
			if missing > 0 {
				if r.Size >= missing {
					return dst
				}
				missing -= r.Size
			}
		}
	}
	return dst
}

// Each calls f for all resident handles, the oldest first, until it says false.
func (o *Order) Each(f func(h uint32, r *Record) bool) {
	for _, list := range [...]uint8{Hard, Soft, Main} {
		for h := o.lists[list].back; h != 0; h = o.Newer(h) {
			if !f(h, o.recs.at(h)) {
				return
			}
		}
	}
}

// MemoryBytes is what the order holds.
func (o *Order) MemoryBytes() uint64 {
	return o.recs.count()*recordBytes + o.links.count()*8 + o.places.count()
}

const recordBytes = 64
