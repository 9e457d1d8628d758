package master

import (
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// chain is an object's place in the batch call that touches it; the zero chain is a single-key call.
type chain struct {
	parent       eviction.Handle
	depth, added uint32
	matched      uint32
	req          uint32         // 0: take a new number
	marks        eviction.Flags // flagAsk, flagLead
	batch        bool
	get          bool // a read
}

// event describes an object to its domain; called with the shard locked.
func (s *Service) event(sh *shard, o *object, kind eviction.EventKind, now int64) eviction.Event {
	e := eviction.Event{
		Kind: kind, Handle: o.handle, Tenant: uint32(o.tenant), Size: o.size, NowMS: uint64(now), KeyHash: o.hash,
		Group: o.group,
	}
	if o.is(fHardPin) {
		e.Flags |= eviction.FlagHardPin
	}
	if o.is(fSoftPin) {
		e.Flags |= eviction.FlagSoftPin
	}
	if o.group != 0 {
		e.Flags |= eviction.FlagGrouped
	}
	if o.lease > now {
		e.Flags |= eviction.FlagLeased
	}
	// The segment if there is one only.
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.kind == wire.KindMemory {
			if e.Segment != 0 {
				e.Segment = 0
				break
			}
			e.Segment = it.seg
		}
	}
	return e
}

// push appends an event; called with the object's shard locked, if it has one. It reports whether the
// background should drain.
func (d *domain) push(e *eviction.Event, droppable bool) {
	d.ring.mu.Lock()
	if droppable && len(d.ring.pending) >= ringLoss {
		d.ring.dropped++
		d.ring.mu.Unlock()
		d.s.counters.EventsDropped.Add(1)
		return
	}
	d.ring.append(e)
	kick := d.ring.long(d)
	d.ring.mu.Unlock()
	if kick {
		d.s.kickEviction()
	}
}

// request takes a number for the events of one batch call.
func (d *domain) request() uint32 {
	d.ring.mu.Lock()
	defer d.ring.mu.Unlock()
	d.ring.req++
	return d.ring.req
}

func (c *chain) on(e *eviction.Event) {
	e.Parent, e.Depth, e.Matched, e.Added, e.Req = c.parent, c.depth, c.matched, c.added, c.req
	e.Flags |= c.marks
	if c.batch {
		e.Flags |= eviction.FlagTailFirst
	}
}

// announce gives an object a handle. The INSERT must follow before the shard is unlocked.
func (s *Service) announce(d *domain, r ref, o *object) {
	d.ring.mu.Lock()
	o.handle = d.ring.handle(r)
	d.ring.mu.Unlock()
}

// emitInsert tells that a put finished: the object is resident.
func (s *Service) emitInsert(sh *shard, r ref, o *object, d *domain, c *chain, now int64) {
	d.known.Add(1)
	if o.is(fHardPin) {
		d.hard.Add(1)
	}
	o.touched = uint16(d.round.Load()) // its handle may have been another's when victims were named
	e := s.event(sh, o, eviction.Insert, now)
	c.on(&e)
	d.ring.mu.Lock()
	if o.handle == 0 {
		o.handle = d.ring.handle(r)
		e.Handle = o.handle
	}
	d.ring.append(&e)
	kick := d.ring.long(d)
	d.ring.mu.Unlock()
	if kick {
		s.kickEviction()
	}
}

// emitUse tells of a read or of a value written anew in place.
func (s *Service) emitUse(o *object, d *domain, c *chain, now int64) {
	if o.handle == 0 {
		return
	}
	o.touched = uint16(d.round.Load())
	e := eviction.Event{
		Kind: eviction.Access, Handle: o.handle, Tenant: uint32(o.tenant), Size: o.size, NowMS: uint64(now),
		KeyHash: o.hash, Group: o.group, Flags: eviction.FlagLeased,
	}
	c.on(&e)
	if e.Added = 0; c.get {
		e.Segment = markRead
	}
	d.push(&e, true)
}

// emitProbe tells a policy from outside that somebody asked whether an object exists.
func (s *Service) emitProbe(o *object, d *domain, c *chain, now int64) {
	if !d.told.Load() || o.handle == 0 {
		return
	}
	e := eviction.Event{
		Kind: eviction.Probe, Handle: o.handle, Tenant: uint32(o.tenant), Size: o.size, NowMS: uint64(now),
		KeyHash: o.hash, Group: o.group,
	}
	c.on(&e)
	e.Added = 0
	d.push(&e, true)
}

// emitGhost tells a policy from outside of a key that is not there. Size is that of the object if it is
// about to be put, else 0. Without such a policy a sample is enough, for the regret.
func (s *Service) emitGhost(d *domain, t *tenant, hash uint64, size uint64, c *chain, now int64) {
	if !d.told.Load() && hash&regretMask != 0 {
		return
	}
	e := eviction.Event{Kind: eviction.Ghost, Tenant: uint32(t.number), Size: size, NowMS: uint64(now), KeyHash: hash}
	c.on(&e)
	e.Parent, e.Added = 0, 0
	if e.Flags &^= flagLead; c.get {
		e.Segment = markRead
	}
	d.push(&e, true)
}

// markRead in the segment of a GHOST or ACCESS on its way to the recorder says that a client read the key, or
// tried to; no policy sees it.
const markRead = 1

// emitRemove tells that an object is no longer resident and takes its handle.
func (s *Service) emitRemove(sh *shard, o *object, code eviction.Code, now int64) {
	if o.handle == 0 {
		return
	}
	d := s.tenantOf(o).dom()
	e := s.event(sh, o, eviction.Remove, now)
	e.Code, e.Flags = code, 0
	o.handle = 0
	d.known.Add(-1)
	if o.is(fHardPin) {
		d.hard.Add(-1)
	}
	d.push(&e, false)
}

// emitPin follows a change of pins.
func (s *Service) emitPin(sh *shard, n uint32, o *object, now int64) {
	if o.handle == 0 {
		return
	}
	e := eviction.Event{Kind: eviction.Unpin, Handle: o.handle, Tenant: uint32(o.tenant), NowMS: uint64(now), KeyHash: o.hash, Group: o.group}
	switch {
	case o.is(fHardPin):
		e.Kind, e.Flags = eviction.Pin, eviction.FlagHardPin
	case o.is(fSoftPin):
		e.Kind, e.Flags = eviction.Pin, eviction.FlagSoftPin
		e.Size = uint64(sh.pins[n].until)
	}
	s.tenantOf(o).dom().push(&e, false)
}

// emitMoved tells that an object's replicas lie elsewhere now.
func (s *Service) emitMoved(sh *shard, o *object, now int64) {
	if o.handle == 0 {
		return
	}
	e := s.event(sh, o, eviction.Moved, now)
	s.tenantOf(o).dom().push(&e, false)
}

// reject tells why a victim was not taken.
func (d *domain) reject(sh *shard, o *object, h eviction.Handle, code eviction.Code, now int64) {
	if !d.told.Load() || code == eviction.CodeUsed && d.outside {
		return
	}
	if code == codeProbed {
		code = eviction.CodeLeased
	}
	e := eviction.Event{Kind: eviction.Reject, Code: code, Handle: h, NowMS: uint64(now)}
	if o != nil {
		e = d.s.event(sh, o, eviction.Reject, now)
		e.Code, e.Handle = code, h
	}
	d.push(&e, false)
}
