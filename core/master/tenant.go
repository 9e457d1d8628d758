package master

import (
	"math/big"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// tenant is one tenant: its account and its eviction domain. Tenants are never forgotten, only closed;
// there are at most 65535.
type tenant struct {
	name   string
	number uint16
	domain atomic.Pointer[domain]

	used    atomic.Int64  // bytes of memory replicas after rounding, finished or not
	quota   atomic.Uint64 // bytes in force; meaningless while closed
	closed  atomic.Bool   // not registered: no writes
	objects atomic.Int64
	evicted Counter
	rejects Counter

	requested uint64 // what the administrator set; 0 not registered. Guarded by tenants.mu
}

// tenantTable is an immutable map that is replaced when a tenant is added, so that requests read it
// without a lock.
type tenantTable struct {
	byName map[string]*tenant
	list   []*tenant // by number
}

const maxTenants = 1<<16 - 1

// validTenant is upstream's rule: not empty, no leading '_', no control characters.
func validTenant(name string) bool {
	if name == "" || name[0] == '_' {
		return false
	}
	for i := range len(name) {
		if name[i] < 0x20 || name[i] == 0x7f {
			return false
		}
	}
	return true
}

// dom is the eviction domain of the tenant. It changes only while all shards are locked.
func (t *tenant) dom() *domain { return t.domain.Load() }

func (s *Service) tenantTable() *tenantTable       { return s.tenants.table.Load() }
func (s *Service) tenantOf(o *object) *tenant      { return s.tenantTable().list[o.tenant] }
func (s *Service) knownTenant(name string) *tenant { return s.tenantTable().byName[name] }

// readTenant resolves the tenant of a request that creates nothing. A tenant that is not known has no
// objects: t is nil then.
func (s *Service) readTenant(name string) (t *tenant, code wire.ErrorCode) {
	if !s.cfg.MultiTenants {
		return s.defaultTenant, wire.OK
	}
	if name == "" {
		return s.defaultTenant, wire.OK
	}
	if !validTenant(name) {
		return nil, wire.ErrInvalidParams
	}
	return s.knownTenant(name), wire.OK
}

// writeTenant resolves the tenant of a request that may create an object.
func (s *Service) writeTenant(name string) (*tenant, wire.ErrorCode) {
	if !s.cfg.MultiTenants {
		return s.defaultTenant, wire.OK
	}
	if !validTenant(name) {
		return nil, wire.ErrTenantNotRegistered
	}
	t := s.knownTenant(name)
	if t == nil && s.cfg.DefaultQuota > 0 {
		t = s.addTenant(name)
	}
	if t == nil || t.closed.Load() {
		return nil, wire.ErrTenantNotRegistered
	}
	return t, wire.OK
}

// addTenant returns the tenant with a name, making it if needed; nil when there are too many.
func (s *Service) addTenant(name string) *tenant {
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	old := s.tenantTable()
	if t := old.byName[name]; t != nil {
		return t
	}
	if len(old.list) > maxTenants {
		return nil
	}
	t := &tenant{name: strings.Clone(name), number: uint16(len(old.list))}
	t.domain.Store(s.domainFor(name))
	if s.cfg.MultiTenants && s.cfg.DefaultQuota == 0 {
		t.closed.Store(true)
	}
	next := &tenantTable{byName: make(map[string]*tenant, len(old.list)+1), list: append(slices.Clip(old.list), t)}
	for _, t := range next.list {
		next.byName[t.name] = t
	}
	s.tenants.table.Store(next)
	s.applyQuotas(next)
	return t
}

// applyQuotas computes the quotas in force: what was asked for, or its proportional part when the store is
// smaller than the sum. It is called with tenants.mu held.
func (s *Service) applyQuotas(table *tenantTable) {
	if !s.cfg.MultiTenants {
		return
	}
	capacity := uint64(max(0, s.counters.CapacityBytes.Load()))
	sum := new(big.Int)
	for _, t := range table.list {
		sum.Add(sum, new(big.Int).SetUint64(t.requested))
	}
	fits := sum.Cmp(new(big.Int).SetUint64(capacity)) <= 0
	for _, t := range table.list {
		switch {
		case t.requested == 0:
			t.quota.Store(uint64(s.cfg.DefaultQuota))
			t.closed.Store(s.cfg.DefaultQuota == 0)
		case fits:
			t.quota.Store(t.requested)
			t.closed.Store(false)
		default:
			part := new(big.Int).SetUint64(capacity)
			part.Mul(part, new(big.Int).SetUint64(t.requested)).Div(part, sum)
			t.quota.Store(part.Uint64())
			t.closed.Store(false)
		}
	}
}

// capacityChanged follows a mount or unmount.
func (s *Service) capacityChanged() {
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	s.applyQuotas(s.tenantTable())
	s.resizeDomains()
}

// overQuota tells by how many bytes a charge would exceed the tenant's quota.
func (s *Service) overQuota(t *tenant, bytes uint64) uint64 {
	if !s.cfg.MultiTenants {
		return 0
	}
	used := uint64(max(0, t.used.Load()))
	if quota := t.quota.Load(); used+bytes > quota {
		return used + bytes - quota
	}
	return 0
}

// charge books bytes that a tenant is about to take, unless they exceed its quota. Without tenants nothing is
// booked before it is taken.
func (s *Service) charge(t *tenant, bytes uint64) bool {
	if !s.cfg.MultiTenants || bytes == 0 {
		return true
	}
	for {
		used := t.used.Load()
		if uint64(max(0, used))+bytes > t.quota.Load() {
			return false
		}
		if t.used.CompareAndSwap(used, used+int64(bytes)) {
			return true
		}
	}
}

// uncharge takes a charge back.
func (s *Service) uncharge(t *tenant, bytes uint64) {
	if s.cfg.MultiTenants {
		t.used.Add(-int64(bytes))
	}
}

// excess is how far a tenant is above its share of the store; the tenant with the greatest pays first when
// the store as a whole is full.
func (t *tenant) excess() int64 { return t.used.Load() - int64(t.quota.Load()) }

// SetTenantQuota registers a tenant or changes its quota.
func (s *Service) SetTenantQuota(name string, bytes uint64) wire.ErrorCode {
	switch {
	case !s.cfg.MultiTenants:
		return wire.ErrUnavailableInCurrentMode
	case !validTenant(name), bytes == 0, bytes >= 1<<63:
		return wire.ErrInvalidParams
	}
	t := s.addTenant(name)
	if t == nil {
		return wire.ErrInternalError
	}
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	t.requested = bytes
	s.applyQuotas(s.tenantTable())
	s.resizeDomains()
	return wire.OK
}

// DeleteTenantQuota unregisters a tenant that has no objects.
func (s *Service) DeleteTenantQuota(name string) wire.ErrorCode {
	switch {
	case !s.cfg.MultiTenants:
		return wire.ErrUnavailableInCurrentMode
	case !validTenant(name):
		return wire.ErrInvalidParams
	}
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	t := s.knownTenant(name)
	if t == nil || t.requested == 0 {
		return wire.ErrObjectNotFound
	}
	// Close first: a put that was let in before is seen in objects, a later one is refused.
	t.closed.Store(true)
	if t.objects.Load() != 0 {
		t.closed.Store(false)
		return wire.ErrTenantNotEmpty
	}
	t.requested = 0
	s.applyQuotas(s.tenantTable())
	return wire.OK
}

func (s *Service) tenantStats(t *tenant) TenantStats {
	return TenantStats{
		Name: t.name, Used: uint64(max(0, t.used.Load())), Quota: t.quota.Load(), Requested: t.requested,
		Objects: int(t.objects.Load()), EvictedBytes: t.evicted.Load(), Rejects: t.rejects.Load(),
	}
}

// TenantQuota returns one tenant.
func (s *Service) TenantQuota(name string) (TenantStats, wire.ErrorCode) {
	switch {
	case !s.cfg.MultiTenants:
		return TenantStats{}, wire.ErrUnavailableInCurrentMode
	case !validTenant(name):
		return TenantStats{}, wire.ErrInvalidParams
	}
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	t := s.knownTenant(name)
	if t == nil || t.requested == 0 && t.objects.Load() == 0 {
		return TenantStats{}, wire.ErrObjectNotFound
	}
	return s.tenantStats(t), wire.OK
}

// TenantQuotas lists the tenants that are registered or have objects, by name.
func (s *Service) TenantQuotas() ([]TenantStats, wire.ErrorCode) {
	if !s.cfg.MultiTenants {
		return nil, wire.ErrUnavailableInCurrentMode
	}
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	var out []TenantStats
	for _, t := range s.tenantTable().list {
		if t.requested != 0 || t.objects.Load() != 0 {
			out = append(out, s.tenantStats(t))
		}
	}
	slices.SortFunc(out, func(a, b TenantStats) int { return strings.Compare(a.Name, b.Name) })
	return out, wire.OK
}
