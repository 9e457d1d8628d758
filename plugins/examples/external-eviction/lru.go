package main

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/mooncake-agent/mooncake/eviction"
)

// lru names what was not used for longest. Package eviction says what each event means and what a policy promises.
type lru struct {
	spec     eviction.Spec
	log      *slog.Logger
	logEvery int

	objects   []object // by handle; objects[0] is unused
	lists     [4]list
	resident  int
	questions int
}

// object is what the policy knows of a resident object.
type object struct {
	in              uint8           // the list
	newer, older    eviction.Handle // neighbours in it, 0 at the end
	size            uint64
	tenant, segment uint32
}

// list is ordered by use.
type list struct{ newest, oldest eviction.Handle }

const (
	absent = iota // not resident
	plain
	soft // soft-pinned: named after the others, and only when that is allowed
	hard // hard-pinned: never named
)

// Apply implements eviction.Policy.
func (p *lru) Apply(events []eviction.Event) error {
	for i := range events {
		e := &events[i]
		h := e.Handle
		if uint32(h) > p.spec.MaxHandles {
			return fmt.Errorf("%s of handle %d, the largest is %d: %w", e.Kind, h, p.spec.MaxHandles, eviction.ErrBadEvent)
		}
		known := int(h) < len(p.objects) && p.objects[h].in != absent
		switch e.Kind {
		case eviction.Insert, eviction.Restore:
			if h == 0 || known {
				return fmt.Errorf("%s of handle %d: it is 0 or resident: %w", e.Kind, h, eviction.ErrBadEvent)
			}
			for int(h) >= len(p.objects) {
				p.objects = append(p.objects, object{})
			}
			p.objects[h] = object{size: e.Size, tenant: e.Tenant, segment: e.Segment}
			p.push(h, pinned(e.Flags))
			p.resident++
		case eviction.Access, eviction.Reject: // a refused victim waits until the others have had their turn
			if known {
				in := p.objects[h].in
				p.unlink(h)
				p.push(h, in)
			}
		case eviction.Pin, eviction.Unpin:
			if known {
				to := uint8(plain)
				if e.Kind == eviction.Pin {
					to = pinned(e.Flags)
				}
				p.unlink(h)
				p.push(h, to)
			}
		case eviction.Moved:
			if known {
				p.objects[h].segment = e.Segment
			}
		case eviction.Remove:
			if known {
				p.unlink(h)
				p.resident--
			}
		}
	}
	return nil
}

func pinned(f eviction.Flags) uint8 {
	switch {
	case f&eviction.FlagHardPin != 0:
		return hard
	case f&eviction.FlagSoftPin != 0:
		return soft
	}
	return plain
}

func (p *lru) push(h eviction.Handle, to uint8) {
	l, o := &p.lists[to], &p.objects[h]
	o.in, o.newer, o.older = to, 0, l.newest
	if l.newest != 0 {
		p.objects[l.newest].newer = h
	} else {
		l.oldest = h
	}
	l.newest = h
}

func (p *lru) unlink(h eviction.Handle) {
	o := &p.objects[h]
	l := &p.lists[o.in]
	if o.newer != 0 {
		p.objects[o.newer].older = o.older
	} else {
		l.newest = o.older
	}
	if o.older != 0 {
		p.objects[o.older].newer = o.newer
	} else {
		l.oldest = o.newer
	}
	o.in = absent
}

// Victims implements eviction.Policy.
func (p *lru) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	if p.questions++; p.logEvery > 0 && p.questions%p.logEvery == 0 {
		p.log.Info("questions answered", "questions", p.questions, "resident", p.resident)
	}
	first, missing := len(dst), need.Bytes
	for _, in := range []uint8{plain, soft} {
		if in == soft && need.Flags&eviction.NeedSoftPins == 0 {
			break
		}
		for h := p.lists[in].oldest; h != 0; h = p.objects[h].newer {
			if len(dst)-first == need.Max {
				return dst, nil
			}
			o := &p.objects[h]
			if need.Tenant != eviction.AnyTenant && o.tenant != need.Tenant || need.Segment != 0 && o.segment != 0 && o.segment != need.Segment {
				continue
			}
			dst = append(dst, h)
			if need.Bytes > 0 {
				if o.size >= missing {
					return dst, nil
				}
				missing -= o.size
			}
		}
	}
	return dst, nil
}

// Stats implements eviction.Statser.
func (p *lru) Stats() (json.RawMessage, error) {
	return json.Marshal(map[string]int{"resident": p.resident, "questions": p.questions})
}

// Close implements eviction.Policy.
func (p *lru) Close() error { return nil }
