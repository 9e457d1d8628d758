package master

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func (s *store) putAs(tenant, key string, size uint64) wire.ErrorCode {
	var r wire.Result[[]wire.Replica]
	s.PutStart(&wire.PutStartRequest{Client: clientA, Key: key, Length: size, Config: config(), Tenant: tenant}, &r)
	if r.Code != wire.OK {
		return r.Code
	}
	var e wire.Result[wire.Void]
	s.PutEnd(&wire.PutEndRequest{Client: clientA, Meta: wire.ObjectMeta{Key: key}, Type: wire.ReplicaAll, Tenant: tenant}, &e)
	return e.Code
}

func (s *store) existsAs(tenant, key string) bool {
	var r wire.Result[wire.ReplicaList]
	s.QueryKey(tenant, key, &r)
	return r.Code == wire.OK
}

func multi(o *Options) { o.Config.MultiTenants = true }

func TestTenantsOff(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.must("put", s.putAs("whoever", "k", 100), wire.OK)
	if !s.existsAs("default", "k") || !s.existsAs("_any\x01", "k") {
		t.Error("tenants are kept apart although they are off")
	}
	for name, code := range map[string]wire.ErrorCode{
		"set": s.SetTenantQuota("t", 1), "delete": s.DeleteTenantQuota("t"),
		"get":  func() wire.ErrorCode { _, c := s.TenantQuota("t"); return c }(),
		"list": func() wire.ErrorCode { _, c := s.TenantQuotas(); return c }(),
	} {
		s.must(name, code, wire.ErrUnavailableInCurrentMode)
	}
}

func TestTenantsAreApart(t *testing.T) {
	s := newStore(t, multi)
	s.mount(0, mib, clientA)
	s.must("put by an unregistered tenant", s.putAs("a", "k", 100), wire.ErrTenantNotRegistered)
	s.must("put by default", s.putAs("default", "k", 100), wire.ErrTenantNotRegistered)
	for _, bad := range []string{"", "_x", "a\nb", "\x7f"} {
		s.must("quota of "+bad, s.SetTenantQuota(bad, 1000), wire.ErrInvalidParams)
		s.must("put by "+bad, s.putAs(bad, "k", 100), wire.ErrTenantNotRegistered)
	}
	s.must("quota of 0", s.SetTenantQuota("a", 0), wire.ErrInvalidParams)
	s.must("quota", s.SetTenantQuota("a", 100<<10), wire.OK)
	s.must("quota", s.SetTenantQuota("b", 100<<10), wire.OK)
	s.must("put", s.putAs("a", "k", 100), wire.OK)
	if s.existsAs("b", "k") || !s.existsAs("a", "k") {
		t.Error("a key of one tenant is seen by another")
	}
	s.must("put of the same key by another", s.putAs("b", "k", 200), wire.OK)
	var r wire.Result[bool]
	s.ExistKey(&wire.KeyRequest{Key: "k", Tenant: "_x"}, &r)
	s.must("ExistKey with an invalid tenant", r.Code, wire.ErrInvalidParams)
	s.ExistKey(&wire.KeyRequest{Key: "k", Tenant: "nobody"}, &r)
	if r.Code != wire.OK || r.Value {
		t.Errorf("ExistKey with an unknown tenant: %+v", r)
	}
	var out []wire.Result[wire.ReplicaList]
	s.BatchGetReplicaList(&wire.KeysRequest{Keys: []string{"k", "l"}, Tenant: "_x"}, &out)
	if len(out) != 2 || out[1].Code != wire.ErrInvalidParams {
		t.Errorf("batch with an invalid tenant: %+v", out)
	}
	s.check()
	if n := s.RemoveEverything(t.Context(), "a", true); n != 1 {
		t.Errorf("removed %d of tenant a", n)
	}
	if n := s.RemoveEverything(t.Context(), "", true); n != 1 {
		t.Errorf("removed %d of all tenants", n)
	}
	s.must("delete", s.DeleteTenantQuota("a"), wire.OK)
	s.must("delete again", s.DeleteTenantQuota("a"), wire.ErrObjectNotFound)
	s.must("put after it", s.putAs("a", "k", 100), wire.ErrTenantNotRegistered)
	s.must("put", s.putAs("b", "k", 100), wire.OK)
	s.must("delete with objects", s.DeleteTenantQuota("b"), wire.ErrTenantNotEmpty)
	s.must("put after a refused delete", s.putAs("b", "k2", 100), wire.OK)
	if list, code := s.TenantQuotas(); code != wire.OK || len(list) != 1 || list[0].Name != "b" || list[0].Objects != 2 || list[0].Used != 208 {
		t.Errorf("quotas: %v %+v", code, list)
	}
	s.check()
}

// A tenant over its quota makes room among its own objects; bytes count as they are taken, after rounding.
func TestQuota(t *testing.T) {
	s := newStore(t, multi)
	s.mount(0, 64*mib, clientA)
	s.must("quota", s.SetTenantQuota("a", 10*mib), wire.OK)
	s.must("quota", s.SetTenantQuota("b", 10*mib), wire.OK)
	for i := range 8 {
		s.must("put", s.putAs("b", fmt.Sprintf("k%d", i), mib), wire.OK)
	}
	for i := range 20 {
		s.must("put", s.putAs("a", fmt.Sprintf("k%d", i), mib+1), wire.OK) // 1.125 MiB
		s.clock.Add(1)
	}
	if st, _ := s.TenantQuota("a"); st.Used > 10*mib || st.Objects != 8 {
		t.Errorf("tenant a: %+v, want 8 objects of 1.125 MiB", st)
	}
	if st, _ := s.TenantQuota("b"); st.Objects != 8 {
		t.Errorf("tenant b lost objects: %+v", st)
	}
	if s.existsAs("a", "k11") || !s.existsAs("a", "k12") {
		t.Error("not the oldest went")
	}
	s.must("put above the quota", s.putAs("a", "large", 11*mib), wire.ErrTenantQuotaExceeded)
	if st, _ := s.TenantQuota("a"); st.Objects != 8 {
		t.Errorf("a put that can never fit cost objects: %+v", st)
	}
	if got := s.Counters().QuotaRejects.Load(); got != 1 {
		t.Errorf("%d rejects", got)
	}
	s.check()
}

// Quotas that add up to more than the store are cut in proportion.
func TestQuotasFitTheStore(t *testing.T) {
	s := newStore(t, multi)
	s.mount(0, 12*mib, clientA)
	s.must("quota", s.SetTenantQuota("a", 30*mib), wire.OK)
	s.must("quota", s.SetTenantQuota("b", 10*mib), wire.OK)
	if a, _ := s.TenantQuota("a"); a.Quota != 9*mib || a.Requested != 30*mib {
		t.Errorf("tenant a: %+v", a)
	}
	s.mount(1, 28*mib, clientA)
	if a, _ := s.TenantQuota("a"); a.Quota != 30*mib {
		t.Errorf("tenant a after a mount: %+v", a)
	}
}

// When the store is full, the tenant furthest above its share pays, whoever puts.
func TestTheGreediestPaysFirst(t *testing.T) {
	for name, own := range map[string]bool{"one domain": false, "domains of their own": true} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, func(o *Options) {
				multi(o)
				if own {
					lru := policies("lru")[anyTenant]
					o.Policies = map[string]Policy{"a": lru, "b": lru}
				}
			})
			s.mount(0, 30*mib, clientA)
			s.mount(1, 30*mib, clientB)
			s.must("quota", s.SetTenantQuota("a", 30*mib), wire.OK)
			s.must("quota", s.SetTenantQuota("b", 20*mib), wire.OK)
			s.must("quota", s.SetTenantQuota("c", 10*mib), wire.OK)
			for i := range 30 {
				s.must("put", s.putAs("a", fmt.Sprintf("k%d", i), mib), wire.OK)
			}
			for i := range 20 {
				s.must("put", s.putAs("b", fmt.Sprintf("k%d", i), mib), wire.OK)
			}
			s.must("put", s.putAs("c", "k", mib), wire.OK)
			// A segment leaves: the quotas shrink by half, c is below its share, b and a above.
			s.must("unmount", s.unmount(1, clientB), wire.OK)
			s.Poll()
			s.check()
			fill := 0
			for ; s.counters.AllocatedBytes.Load() < int64(30*mib); fill++ {
				code := s.putAs("c", fmt.Sprintf("f%d", fill), mib)
				if code != wire.OK {
					break
				}
			}
			before := map[string]TenantStats{}
			for _, n := range []string{"a", "b", "c"} {
				before[n], _ = s.TenantQuota(n)
			}
			if before["c"].Used+mib > before["c"].Quota {
				t.Fatalf("tenant c has reached its share: %+v", before)
			}
			s.must("put", s.putAs("c", "new", mib), wire.OK)
			top := "a"
			if int64(before["b"].Used)-int64(before["b"].Quota) > int64(before["a"].Used)-int64(before["a"].Quota) {
				top = "b"
			}
			for _, n := range []string{"a", "b"} {
				after, _ := s.TenantQuota(n)
				if paid := after.Used < before[n].Used; paid != (n == top) {
					t.Errorf("tenant %s: before %+v, after %+v; the greediest is %s", n, before[n], after, top)
				}
			}
			s.check()
		})
	}
}

// Concurrent puts of one tenant never take more than its quota, not even for a moment.
func TestQuotaUnderConcurrency(t *testing.T) {
	s := newStore(t, multi)
	s.mount(0, 64*mib, clientA)
	s.must("quota", s.SetTenantQuota("a", mib), wire.OK)
	tn := s.knownTenant("a")
	var wg sync.WaitGroup
	var stored atomic.Int64
	for w := range 8 {
		wg.Go(func() {
			for i := range 300 {
				switch code := s.putAs("a", fmt.Sprintf("k%d-%d", w, i), 10_000); code {
				case wire.OK:
					stored.Add(1)
				case wire.ErrTenantQuotaExceeded: // others took the room that it had made
				default:
					t.Errorf("put: %v", code)
				}
				if used := tn.used.Load(); used > int64(mib) {
					t.Errorf("%d bytes used of %d", used, mib)
					return
				}
			}
		})
	}
	wg.Wait()
	if stored.Load() < 1000 {
		t.Errorf("only %d of 2400 puts were stored", stored.Load())
	}
	s.check()
}
