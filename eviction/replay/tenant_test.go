package replay

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTenant checks that the part of one tenant is what a trace of its requests alone would be.
func TestTenant(t *testing.T) {
	all, alone := NewBuilder("t", 16), NewBuilder("t", 16)
	for i, names := range [][]uint64{{1, 2}, {7, 8}, {1, 2, 3}, {8, 9}, {5}, {7}, {1, 4}} {
		r := Request{TimeMS: uint64(i), Tokens: 16 * uint32(len(names)), Tenant: uint32(3 * (i % 2))}
		sizes := make([]uint64, len(names))
		for k, n := range names {
			sizes[k] = 100 + n
		}
		if err := all.AddRequest(r, names, sizes); err != nil {
			t.Fatal(err)
		}
		if r.Tenant == 3 {
			if err := alone.AddRequest(r, names, sizes); err != nil {
				t.Fatal(err)
			}
		}
	}
	tr, want := all.Trace(), alone.Trace()
	got, err := tr.Tenant(3)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Trace{}, Request{})); d != "" {
		t.Errorf("tenant 3 (-want +got):\n%s", d)
	}
	_, err = tr.Tenant(1)
	if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), "tenants [0 3]") {
		t.Errorf("a tenant that is not there: %v", err)
	}
	shares := []TenantShare{{0, 4, 8}, {3, 3, 5}}
	if d := cmp.Diff(shares, Analyze(tr).PerTenant); d != "" {
		t.Errorf("shares (-want +got):\n%s", d)
	}
	if a := Analyze(got); a.Tenants != 1 || a.PerTenant != nil {
		t.Errorf("one tenant alone: %d tenants, %v", a.Tenants, a.PerTenant)
	}
}
