package master

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// registry knows the segments. Changes take its lock; puts read the view, which is replaced on each change.
type registry struct {
	mu       sync.Mutex
	byID     map[wire.UUID]*segment
	byName   map[string][]*segment // in order of mounting
	byClient map[wire.UUID][]*segment
	spare    []uint32 // numbers to use again
	sweeping []*segment

	numbers atomic.Pointer[[]*segment] // by number; entries of unmounted segments stay until swept
	view    atomic.Pointer[view]
}

// unit is all allocatable segments of one name: what placement chooses between. It never changes.
type unit struct {
	name    string
	host    string
	segs    []*segment
	largest uint64 // size of its largest segment
}

// view is what puts choose from. It never changes, so that they read it without a lock.
type view struct {
	units   []*unit // by name
	largest uint64  // size of the largest segment: no put above it can ever fit
	hosts   func() *hosts
}

// hosts are the units by where they run; made when first asked for, since most configurations do not.
type hosts struct {
	byName map[string][]*unit
	names  []string
}

func newView(units []*unit) *view {
	v := &view{units: units}
	for _, u := range units {
		v.largest = max(v.largest, u.largest)
	}
	v.hosts = sync.OnceValue(func() *hosts {
		h := &hosts{byName: map[string][]*unit{}}
		for _, u := range units {
			if u.host != "" {
				h.byName[u.host] = append(h.byName[u.host], u)
			}
		}
		h.names = slices.Sorted(maps.Keys(h.byName))
		return h
	})
	return v
}

func (v *view) find(name string) (int, bool) {
	return slices.BinarySearchFunc(v.units, name, func(u *unit, name string) int { return strings.Compare(u.name, name) })
}

// unit returns the unit of a name, nil if there is none.
func (v *view) unit(name string) *unit {
	if name != "" {
		if i, ok := v.find(name); ok {
			return v.units[i]
		}
	}
	return nil
}

func newRegistry() *registry {
	r := &registry{byID: map[wire.UUID]*segment{}, byName: map[string][]*segment{}, byClient: map[wire.UUID][]*segment{}}
	r.numbers.Store(&[]*segment{nil})
	r.view.Store(newView(nil))
	return r
}

// seg returns the segment that a replica lies in.
func (s *Service) seg(r *replica) *segment { return (*s.registry.numbers.Load())[r.seg] }

// The methods below are called with registry.mu held.

// add makes a segment known; refresh must follow.
func (r *registry) add(g *segment) {
	old := *r.numbers.Load()
	if n := len(r.spare); n > 0 {
		g.number = r.spare[n-1]
		r.spare = r.spare[:n-1]
		next := slices.Clone(old)
		next[g.number] = g
		r.numbers.Store(&next)
	} else {
		g.number = uint32(len(old))
		next := append(slices.Clip(old), g)
		r.numbers.Store(&next)
	}
	r.byID[g.ID] = g
	r.byName[g.Name] = append(r.byName[g.Name], g)
	r.byClient[g.client] = append(r.byClient[g.client], g)
}

// drop forgets a segment but for its number, which waits for the sweep; refresh must follow.
func (r *registry) drop(g *segment) {
	delete(r.byID, g.ID)
	without := func(m map[string][]*segment, k string) {
		if m[k] = slices.DeleteFunc(m[k], func(x *segment) bool { return x == g }); len(m[k]) == 0 {
			delete(m, k)
		}
	}
	without(r.byName, g.Name)
	if r.byClient[g.client] = slices.DeleteFunc(r.byClient[g.client], func(x *segment) bool { return x == g }); len(r.byClient[g.client]) == 0 {
		delete(r.byClient, g.client)
	}
	r.sweeping = append(r.sweeping, g)
}

// swept lets the number of a segment without replicas be used again.
func (r *registry) swept(g *segment) {
	next := slices.Clone(*r.numbers.Load())
	next[g.number] = nil
	r.numbers.Store(&next)
	r.spare = append(r.spare, g.number)
}

// refresh brings the view in line with the segments of some names. It costs a copy of the list of units.
func (r *registry) refresh(names ...string) {
	v := r.view.Load()
	units := slices.Clone(v.units)
	for _, name := range names {
		u := &unit{name: name}
		for _, g := range r.byName[name] {
			if g.takes() {
				u.segs = append(u.segs, g)
				u.name = g.Name // the registry's own string
				u.largest = max(u.largest, g.Size)
				if g.HostID != "" {
					u.host = g.HostID
				}
			}
		}
		i, found := (&view{units: units}).find(name)
		switch {
		case found && len(u.segs) > 0:
			units[i] = u
		case found:
			units = slices.Delete(units, i, i+1)
		case len(u.segs) > 0:
			units = slices.Insert(units, i, u)
		}
	}
	r.view.Store(newView(units))
}

// allocatable reports whether a name takes new objects; known whether it exists. As upstream, the segment
// mounted last speaks for a name.
func (r *registry) allocatable(name string) (known, takes bool) {
	segs := r.byName[name]
	if len(segs) == 0 {
		return false, false
	}
	return true, segs[len(segs)-1].takes()
}
