package replay

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func families() []string {
	var out []string
	for f := range Families {
		out = append(out, f)
	}
	slices.Sort(out)
	return out
}

// TestAdaptiveIsNeverFarBelowLRU checks the promise of the default on traffic that it was not made for: on all
// families, and on short traces put together at random at sizes from 1 % to half of the footprint.
func TestAdaptiveIsNeverFarBelowLRU(t *testing.T) {
	long(t)
	for _, family := range families() {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			tr, err := Generate(family, 7, 100_000)
			if err != nil {
				t.Fatal(err)
			}
			for _, share := range []int{50, 12, 5} {
				size := uint64(tr.Unique() / share)
				notFarBelowLRU(t, tr, size, Options{})
				notFarBelowLRU(t, tr, size, Options{GetPut: true})
			}
		})
	}
	for _, family := range []string{"mixed", "changes", "alternate", "tenants"} {
		t.Run("hostile "+family, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(8) {
				r := rand.New(rand.NewPCG(seed, 17))
				tr, err := Generate(family, 3000+seed, 20_000+r.IntN(60_000))
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					size := max(20, uint64(float64(tr.Unique())*0.01*math.Pow(50, r.Float64())))
					notFarBelowLRU(t, tr, size, Options{GetPut: r.IntN(3) == 0})
				}
			}
		})
	}
}

// notFarBelowLRU compares with lru as it does with one call a request and with get and put.
func notFarBelowLRU(t *testing.T, tr *Trace, size uint64, o Options) {
	t.Helper()
	const most = 0.003
	got, err := Run(tr, policy(t, "adaptive"), size, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, getPut := range []bool{false, o.GetPut} {
		lru, err := Run(tr, policy(t, "lru"), size, Options{GetPut: getPut})
		if err != nil {
			t.Fatal(err)
		}
		if got.PrefixHit() < lru.PrefixHit()-most {
			t.Errorf("%s, %d accesses, %d blocks of %d, %+v: prefix hit %.2f %%, lru %.2f %% (get and put %v)", tr.Name, tr.Accesses(), size, tr.Unique(), o, 100*got.PrefixHit(), 100*lru.PrefixHit(), getPut)
		}
	}
}

func TestGenerateIsRepeatable(t *testing.T) {
	for _, family := range families() {
		a, err := Generate(family, 1, 5000)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Generate(family, 1, 5000)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Generate(family, 2, 5000)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(a.blocks, b.blocks); d != "" {
			t.Errorf("%s: two traces of one seed differ:\n%s", family, d)
		}
		if cmp.Equal(a.blocks, c.blocks) && cmp.Equal(a.Requests, c.Requests, cmp.AllowUnexported(Request{})) {
			t.Errorf("%s: two seeds make the same trace", family)
		}
		if a.Accesses() < 5000 || a.Accesses() > 6000 {
			t.Errorf("%s: %d accesses, asked for about 5000", family, a.Accesses())
		}
	}
	if _, err := Generate("chatt", 1, 10); err == nil {
		t.Error("an unknown family is accepted")
	}
}
