package master

import (
	"fmt"
	"testing"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"pgregory.net/rapid"
)

// Tenants put, read, pin and change their policies at random in a store that is too small for them. Whatever one
// does, no other loses anything for it that is within its quota, but for the object that straddles the line, and
// nothing that is leased or pinned goes.
func TestTenantsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStore(t, func(o *Options) {
			multi(o)
			o.Policies = policies("lru")
			o.Config.VictimReserve = rapid.SampledFrom([]int{0, 4}).Draw(t, "reserve")
		})
		const store = 256 << 10
		s.mount(0, store, clientA)
		names := []string{"a", "b", "c"}
		quota := map[string]uint64{}
		for _, n := range names {
			quota[n] = rapid.SampledFrom([]uint64{32 << 10, 64 << 10, 100 << 10, 200 << 10}).Draw(t, "quota")
			s.must("quota", s.SetTenantQuota(n, quota[n]), wire.OK)
		}
		type kept struct {
			until int64
			pin   bool
		}
		safe := map[string]map[string]kept{"a": {}, "b": {}, "c": {}}
		used := func() map[string]TenantStats {
			out := map[string]TenantStats{}
			for _, n := range names {
				out[n], _ = s.TenantQuota(n)
			}
			return out
		}
		tenant := rapid.SampledFrom(names)
		key := func(t *rapid.T) string { return fmt.Sprintf("k%d", rapid.IntRange(0, 30).Draw(t, "key")) }
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				who, k := tenant.Draw(t, "tenant"), key(t)
				before := used()
				cfg := config()
				hard := rapid.IntRange(0, 30).Draw(t, "pin") == 0
				cfg.HardPin = hard
				if rapid.IntRange(0, 5).Draw(t, "group") == 0 {
					cfg.GroupIDs = wire.Opt[[]string]{Value: []string{"g"}, OK: true}
				}
				size := rapid.SampledFrom([]uint64{500, 4000, 16 << 10}).Draw(t, "size")
				var r wire.Result[[]wire.Replica]
				s.PutStart(&wire.PutStartRequest{Client: clientA, Key: k, Length: size, Config: cfg, Tenant: who}, &r)
				switch r.Code {
				case wire.OK:
					var e wire.Result[wire.Void]
					s.PutEnd(&wire.PutEndRequest{Client: clientA, Meta: wire.ObjectMeta{Key: k}, Type: wire.ReplicaAll, Tenant: who}, &e)
					s.must("end", e.Code, wire.OK)
					delete(safe[who], k)
					if hard {
						safe[who][k] = kept{pin: true}
					}
				case wire.ErrObjectAlreadyExists, wire.ErrTenantQuotaExceeded, wire.ErrNoAvailableHandle:
				default:
					t.Fatalf("put: %v", r.Code)
				}
				after := used()
				for _, n := range names {
					if n == who {
						if r.Code == wire.OK && after[n].Used > after[n].Quota {
							t.Fatalf("%s has %d bytes, its quota is %d", n, after[n].Used, after[n].Quota)
						}
						continue
					}
					// Who was above its quota may end less than one object below it.
					if low := before[n].Quota - min(before[n].Quota, 16<<10-1); after[n].Used < before[n].Used && (before[n].Used <= before[n].Quota || after[n].Used < low) {
						t.Fatalf("a put of %s pushed %s from %d to %d bytes, its quota is %d", who, n, before[n].Used, after[n].Used, before[n].Quota)
					}
				}
			},
			"get": func(t *rapid.T) {
				who, k := tenant.Draw(t, "tenant"), key(t)
				var r wire.Result[wire.ReplicaList]
				if s.GetReplicaList(&wire.KeyRequest{Key: k, Tenant: who}, &r); r.Code == wire.OK {
					x := safe[who][k]
					x.until = s.now() + s.leaseMS
					safe[who][k] = x
				}
			},
			"policy": func(t *rapid.T) {
				who := rapid.SampledFrom([]string{"*", "a", "b", "c"}).Draw(t, "domain")
				name := rapid.SampledFrom([]string{"lru", "arc", "s3fifo", "drop"}).Draw(t, "policy")
				if name == "drop" {
					_ = s.DropPolicy(who) // it may have none
					return
				}
				if err := s.SetPolicy(who, policies(name)[anyTenant]); err != nil {
					t.Fatal(err)
				}
			},
			"quota": func(t *rapid.T) {
				if rapid.IntRange(0, 4).Draw(t, "rarely") == 0 {
					s.must("quota", s.SetTenantQuota(tenant.Draw(t, "tenant"), rapid.SampledFrom([]uint64{32 << 10, 64 << 10, 128 << 10}).Draw(t, "quota")), wire.OK)
				}
			},
			"time": func(t *rapid.T) {
				s.ping(clientA)
				s.pass(rapid.SampledFrom([]int64{1, 1000, 6000}).Draw(t, "ms"))
				s.ping(clientA)
			},
			"": func(t *rapid.T) {
				for who, keys := range safe {
					for k, x := range keys {
						if !x.pin && x.until <= s.now() {
							delete(keys, k)
							continue
						}
						if _, code := s.DescribeKey(who, k); code != wire.OK {
							t.Fatalf("%s of %s is protected (%+v, now %d) and gone", k, who, x, s.now())
						}
					}
				}
				s.check()
			},
		})
	})
}
