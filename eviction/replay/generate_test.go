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

// TestAdaptiveIsNeverFarBelowLRU checks the promise of the default on traffic that it was not made for.
func TestAdaptiveIsNeverFarBelowLRU(t *testing.T) {
	long(t)
	const most = 0.003
	for _, family := range families() {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			tr, err := Generate(family, 7, 100_000)
			if err != nil {
				t.Fatal(err)
			}
			for _, share := range []int{50, 12, 5} {
				size := uint64(tr.Unique() / share)
				lru, err := Run(tr, policy(t, "lru"), size, Options{})
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range []Options{{}, {GetPut: true}} {
					got, err := Run(tr, policy(t, "adaptive"), size, o)
					if err != nil {
						t.Fatal(err)
					}
					if got.PrefixHit() < lru.PrefixHit()-most {
						t.Errorf("%d blocks (1/%d of the footprint), %+v: prefix hit %.2f %%, lru %.2f %%", size, share, o, 100*got.PrefixHit(), 100*lru.PrefixHit())
					}
				}
			}
		})
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

// TestAdaptiveOnHostileTraffic checks the same promise on short traces that were put together at random, at sizes
// from 1 % to half of the footprint.
func TestAdaptiveOnHostileTraffic(t *testing.T) {
	long(t)
	const most = 0.003
	for _, family := range []string{"mixed", "changes", "alternate", "tenants"} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(8) {
				r := rand.New(rand.NewPCG(seed, 17))
				tr, err := Generate(family, 3000+seed, 20_000+r.IntN(60_000))
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					size := max(20, uint64(float64(tr.Unique())*0.01*math.Pow(50, r.Float64())))
					o := Options{GetPut: r.IntN(3) == 0}
					lru, err := Run(tr, policy(t, "lru"), size, o)
					if err != nil {
						t.Fatal(err)
					}
					got, err := Run(tr, policy(t, "adaptive"), size, o)
					if err != nil {
						t.Fatal(err)
					}
					if got.PrefixHit() < lru.PrefixHit()-most {
						t.Errorf("%s, %d accesses, %d blocks of %d, %+v: prefix hit %.2f %%, lru %.2f %%", tr.Name, tr.Accesses(), size, tr.Unique(), o, 100*got.PrefixHit(), 100*lru.PrefixHit())
					}
				}
			}
		})
	}
}
