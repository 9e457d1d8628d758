package master

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// group is a set of objects that are leased and evicted together. An object that is a member keeps it
// alive.
type group struct {
	tenant uint16
	name   string
	number uint32

	// lease and probe cover every member; anyLease and anyProbe are the latest of a single member.
	lease, probe, anyLease, anyProbe atomic.Int64

	mu      sync.Mutex // a leaf
	members []ref
}

type groupName struct {
	tenant uint16
	name   string
}

type groupTable struct {
	mu     sync.RWMutex // before group.mu
	byName map[groupName]*group
	list   []*group // by number - 1
	spare  []uint32
}

func (t *groupTable) at(number uint32) *group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.list[number-1]
}

// join makes an object a member and returns the group's number.
func (t *groupTable) join(tenant uint16, name string, r ref) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.byName[groupName{tenant, name}]
	if g == nil {
		g = &group{tenant: tenant, name: strings.Clone(name)}
		if n := len(t.spare); n > 0 {
			g.number = t.spare[n-1]
			t.spare = t.spare[:n-1]
			t.list[g.number-1] = g
		} else {
			t.list = append(t.list, g)
			g.number = uint32(len(t.list))
		}
		if t.byName == nil {
			t.byName = map[groupName]*group{}
		}
		t.byName[groupName{tenant, g.name}] = g
	}
	g.mu.Lock()
	g.members = append(g.members, r)
	g.mu.Unlock()
	return g.number
}

func (t *groupTable) leave(number uint32, r ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.list[number-1]
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.members, r); i >= 0 {
		last := len(g.members) - 1
		g.members[i] = g.members[last]
		g.members = g.members[:last]
	}
	if len(g.members) == 0 {
		delete(t.byName, groupName{g.tenant, g.name})
		t.list[number-1] = nil
		t.spare = append(t.spare, number)
	}
}

func (g *group) copyMembers(dst []ref) []ref {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append(dst, g.members...)
}

// raise sets v to at least to.
func raise(v *atomic.Int64, to int64) {
	for {
		old := v.Load()
		if old >= to || v.CompareAndSwap(old, to) {
			return
		}
	}
}

// leaseEnd is when an object may be removed again as far as reads go.
func (s *Service) leaseEnd(o *object) int64 {
	if o.group == 0 {
		return o.lease
	}
	return max(o.lease, s.groups.at(o.group).lease.Load())
}

// protectedUntil is when an object may be removed again: reads and probes.
func (s *Service) protectedUntil(o *object) int64 {
	end := max(o.lease, o.probe)
	if o.group != 0 {
		g := s.groups.at(o.group)
		end = max(end, g.lease.Load(), g.probe.Load())
	}
	return end
}

// grantRead gives an object a read lease. With half the lease or less left, the whole group gets one.
func (s *Service) grantRead(o *object, now int64) {
	end := now + s.leaseMS
	if o.group != 0 {
		g := s.groups.at(o.group)
		if left := max(o.lease, g.lease.Load()) - now; left <= s.leaseMS/2 {
			raise(&g.lease, end)
		}
		raise(&g.anyLease, end)
	}
	o.lease = max(o.lease, end)
}

// grantProbe notes that ExistKey said yes.
func (s *Service) grantProbe(o *object, now int64) {
	switch {
	case s.probes == probeNone:
	case s.probes == probeUpstream || o.is(fProcessing):
		s.grantRead(o, now)
	default:
		end := now + s.leaseMS
		o.probe = max(o.probe, end)
		if o.group != 0 {
			g := s.groups.at(o.group)
			raise(&g.probe, end)
			raise(&g.anyProbe, end)
		}
	}
}

// What ExistKey grants.
const (
	probeCapped = iota
	probeUpstream
	probeNone
)

func probesOf(name string) int {
	return map[string]int{"upstream": probeUpstream, "none": probeNone}[name]
}
