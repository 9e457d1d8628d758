package master

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Policy says what rules one eviction domain. The zero value is the service's own tail-first LRU.
type Policy struct {
	// Name is how the policy was asked for, for people: "lru-k:k=3".
	Name string
	// Factory makes the instances; nil is the service's own LRU.
	Factory eviction.Factory
	// Admission "on" asks a policy that is an [eviction.Admitter] whether a put is worth an eviction.
	Admission string
	// Refused is what a put is answered that the policy does not want: "no_space", as upstream answers when
	// nothing can be evicted; "evict" stores it all the same.
	Refused string
	// Guard is what happens when the policy is worse than LRU for long: "fallback" puts the LRU in its place,
	// "alarm" only says so, "off" does not compare. "" is the config's value, for all three.
	Guard string
}

// The choices of [Policy]. Native is the name of the service's own LRU.
const (
	RefusedNoSpace = "no_space"
	RefusedEvict   = "evict"
	GuardFallback  = "fallback"
	GuardAlarm     = "alarm"
	GuardOff       = "off"
	Native         = "native"
)

// Validate reports choices that are not known.
func (p *Policy) Validate() error {
	var errs []error
	if !slices.Contains([]string{"", "on", "off"}, p.Admission) {
		errs = append(errs, fmt.Errorf("admission: %q is not known here; it is on or off", p.Admission))
	}
	if !slices.Contains([]string{"", RefusedNoSpace, RefusedEvict}, p.Refused) {
		errs = append(errs, fmt.Errorf("refused: %q is not known here; it is no_space or evict", p.Refused))
	}
	if !slices.Contains([]string{"", GuardFallback, GuardAlarm, GuardOff}, p.Guard) {
		errs = append(errs, fmt.Errorf("guard: %q is not known here; it is fallback, alarm or off", p.Guard))
	}
	return errors.Join(errs...)
}

// name is what people see.
func (p *Policy) name() string {
	switch {
	case p.Factory == nil:
		return Native
	case p.Name == "":
		return "unnamed"
	}
	return p.Name
}

// rules puts a policy's settings in force; called with mu held.
func (d *domain) rules(p Policy) {
	cfg := &d.s.cfg
	p.Admission, p.Refused, p.Guard = cmp.Or(p.Admission, cfg.Admission), cmp.Or(p.Refused, cfg.AdmissionRefused), cmp.Or(p.Guard, cfg.Guard)
	d.rule = p
	settings := d.s.settings(&p)
	d.outside = settings.Aside
	d.count.reserve.Store(int64(settings.Reserve))
	d.count.admission.Store(p.Factory != nil && (settings.Admission || p.Admission == "on"))
	d.count.storeRefused.Store(p.Refused == RefusedEvict)
	d.faults, d.strikes, d.retryAt, d.fault, d.fallen = nil, nil, 0, "", false
	d.tellAll()
	d.guard.start(p.Factory != nil && p.Guard != GuardOff)
	d.dropReserve()
}

// settings are what a policy says to the host, with the defaults in force. Without a reserve no policy works aside.
func (s *Service) settings(p *Policy) eviction.Settings {
	settings := eviction.Settings{Reserve: -1}
	if c, ok := p.Factory.(eviction.DomainConfig); ok {
		settings = c.DomainSettings()
	}
	if settings.Reserve < 0 {
		settings.Reserve = s.cfg.VictimReserve
	}
	settings.Aside = settings.Aside && settings.Reserve > 0
	return settings
}

// tellAll decides whether probes and misses are told.
func (d *domain) tellAll() {
	d.told.Store(d.rule.Factory != nil || d.swap != nil || d.s.recorder.Load() != nil)
}

func (s *Service) allDomains() []*domain { return *s.domains.Load() }

// newDomain adds a domain; called by New, or with tenants.mu held.
func (s *Service) newDomain(name string, p Policy) *domain {
	d := &domain{s: s, name: name}
	d.count.oldUntil.Store(never)
	d.mu.Lock()
	d.rules(p)
	d.mu.Unlock()
	var list []*domain
	if old := s.domains.Load(); old != nil {
		list = slices.Clip(*old)
	}
	list = append(list, d)
	s.domains.Store(&list)
	return d
}

func (s *Service) domainNamed(name string) *domain {
	for _, d := range s.allDomains() {
		if d.name == name {
			return d
		}
	}
	return nil
}

// domainFor returns the domain of a tenant; called with tenants.mu held.
func (s *Service) domainFor(name string) *domain {
	if d := s.domainNamed(name); d != nil {
		return d
	}
	return s.allDomains()[0]
}

// SetPolicy changes the policy of a domain ("*", or a tenant) while objects are in use. The new instance is made
// and told what is resident aside, takes over the old one's learned state if it can, catches up with what happened
// meanwhile and takes over in one step; the old one is kept for a minute for [Service.RollbackPolicy]. If
// anything fails the old one stays. It also ends the quarantine of a policy that failed.
//
// A tenant that had no policy of its own gets a domain; its objects move there with their order, while all
// requests wait. It must be called from one goroutine at a time for one domain.
func (s *Service) SetPolicy(name string, p Policy) error {
	if err := p.Validate(); err != nil {
		return fmt.Errorf("master: eviction policy of %q: %w", name, err)
	}
	d := s.domainNamed(name)
	if d == nil {
		var err error
		if d, err = s.splitDomain(name); err != nil {
			return err
		}
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	return d.change(p)
}

// DropPolicy ends the domain of a tenant: "*" rules over its objects from now on. They count as new there, in the
// order in which they were used.
func (s *Service) DropPolicy(name string) error {
	d := s.domainNamed(name)
	if d == nil || name == anyTenant {
		return fmt.Errorf("master: %q has no eviction policy of its own; there are: %s", name, s.domainNames())
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	s.moving.Lock()
	defer s.moving.Unlock()
	s.tenants.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(s.allDomains()), func(x *domain) bool { return x == d })
	s.domains.Store(&list)
	t := s.tenantTable().byName[name]
	s.tenants.mu.Unlock()
	if t != nil {
		s.moveTenant(t, d, list[0])
	}
	d.mu.Lock()
	d.drain(s.now())
	closePolicy(d.policy)
	d.policy = nil
	d.forget()
	d.rules(Policy{})
	d.mu.Unlock()
	s.kickEviction()
	return nil
}

// RollbackPolicy puts the policy that was in force before the last change back, within a minute of it. What it
// replaces can be rolled forward to for a minute.
func (s *Service) RollbackPolicy(name string) error {
	d := s.domainNamed(name)
	if d == nil {
		return fmt.Errorf("master: no eviction domain %q; there are: %s", name, s.domainNames())
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	d.mu.Lock()
	d.drain(s.now())
	old := d.old
	if old == nil {
		d.mu.Unlock()
		return fmt.Errorf("master: eviction domain %q: nothing to roll back to: the policy before a change is kept for %v", name, keepOld)
	}
	if old.rule.Factory != nil && old.policy == nil { // it could not follow: fill a new instance
		d.mu.Unlock()
		return d.change(old.rule)
	}
	d.old = nil
	d.install(old.rule, old.policy, old.handles, old.skipped, true)
	d.mu.Unlock()
	return nil
}

func (s *Service) domainNames() string {
	var names []string
	for _, d := range s.allDomains() {
		names = append(names, d.name)
	}
	return strings.Join(names, ", ")
}

// splitDomain gives a tenant a domain of its own, with the service's own order.
func (s *Service) splitDomain(name string) (*domain, error) {
	switch {
	case !validTenant(name):
		return nil, fmt.Errorf("master: %q is no tenant's name", name)
	case !s.cfg.MultiTenants && name != s.defaultTenant.name:
		return nil, fmt.Errorf("master: %q: every tenant is %s without enable_multi_tenants", name, s.defaultTenant.name)
	}
	s.moving.Lock()
	defer s.moving.Unlock()
	s.tenants.mu.Lock()
	if d := s.domainNamed(name); d != nil {
		s.tenants.mu.Unlock()
		return d, nil
	}
	d := s.newDomain(name, Policy{})
	t := s.tenantTable().byName[name]
	s.tenants.mu.Unlock()
	if t != nil {
		s.moveTenant(t, s.allDomains()[0], d)
	}
	return d, nil
}

// moveTenant moves all objects of a tenant to another domain, in the order of their use. Requests wait meanwhile:
// about 100 ms for a million objects. Called with moving held.
func (s *Service) moveTenant(t *tenant, from, to *domain) {
	from.mu.Lock()
	from.drain(s.now())
	order := from.lru.order(nil)
	from.mu.Unlock() // handles that are used again meanwhile are looked at below
	for i := range s.shards {
		s.shards[i].mu.Lock()
	}
	defer func() {
		for i := range s.shards {
			s.shards[i].mu.Unlock()
		}
	}()
	now := s.now()
	from.ring.mu.Lock()
	for i := range from.ring.pending {
		if e := &from.ring.pending[i]; e.Kind == eviction.Insert {
			order = append(order, e.Handle)
		}
	}
	from.ring.mu.Unlock()
	refs := make([]ref, 0, len(order))
	for _, h := range order {
		r := from.ring.object(h)
		sh := &s.shards[r.shard()]
		if o := sh.live(r.index()); o != nil && o.handle == h && o.tenant == t.number {
			s.emitRemove(sh, o, eviction.CodeRemoved, now)
			refs = append(refs, r)
		}
	}
	// What was announced while the order was read and drained already is in no list: look at every object.
	for i := range s.shards {
		sh := &s.shards[i]
		for n := uint32(1); n < sh.objects.next; n++ {
			if o := sh.live(n); o != nil && o.handle != 0 && o.tenant == t.number {
				s.emitRemove(sh, o, eviction.CodeRemoved, now)
				refs = append(refs, makeRef(uint32(i), n))
			}
		}
	}
	t.domain.Store(to)
	for _, r := range refs {
		sh := &s.shards[r.shard()]
		s.emitInsert(sh, r, sh.objects.at(r.index()), to, &chain{}, now)
	}
}
