package space

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRoundingIsUpstreams(t *testing.T) {
	a, err := New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[uint64]uint64{5000: 5120, 200: 208, 10: 10, 7: 7, 1: 1, 1 << 20: 1 << 20, 1<<20 + 1: 1<<20 + 1<<17} {
		if got := a.Rounded(in); got != want {
			t.Errorf("Rounded(%d) = %d, want %d", in, got, want)
		}
	}
}

func TestBinsAreContiguous(t *testing.T) {
	for b := uint32(1); b < binDown(maxUnits); b++ {
		lo, hi := binSize(b), binSize(b+1)
		if hi <= lo || binDown(lo) != b || binUp(lo) != b || binDown(hi-1) != b {
			t.Fatalf("bin %d: sizes %d..%d, binDown(lo) %d, binUp(lo) %d, binDown(hi-1) %d", b, lo, hi, binDown(lo), binUp(lo), binDown(hi-1))
		}
	}
}

func TestWholeSpace(t *testing.T) {
	for _, size := range []uint64{1, 7, 64 << 20, 3 << 30, maxUnits, 5 << 30, 1 << 40} {
		a, err := New(size)
		if err != nil {
			t.Fatal(err)
		}
		most := a.Largest()
		if most == 0 || most > size || float64(most) < 0.87*float64(size) {
			t.Errorf("size %d: largest request %d", size, most)
		}
		off, h, ok := a.Allocate(most)
		if !ok || off != 0 {
			t.Fatalf("size %d: Allocate(%d) = %d, %v", size, most, off, ok)
		}
		a.Free(h)
		if a.Used() != 0 || a.Largest() != most {
			t.Fatalf("size %d: after Free used %d, largest %d", size, a.Used(), a.Largest())
		}
	}
	for _, size := range []uint64{0, 1 << 63} {
		if _, err := New(size); err == nil {
			t.Errorf("New(%d) succeeded", size)
		}
	}
}

// A 64 MiB segment takes 64 objects of 1 MiB, but only 56 of 1 MiB + 1: measured on upstream's master.
func TestCapacityIsUpstreams(t *testing.T) {
	for n, want := range map[uint64]int{1 << 20: 64, 1<<20 + 1: 56} {
		a, _ := New(64 << 20)
		got := 0
		for {
			if _, _, ok := a.Allocate(n); !ok {
				break
			}
			got++
		}
		if got != want {
			t.Errorf("%d objects of %d bytes, want %d", got, n, want)
		}
	}
}

func TestFreeOfNothingPanics(t *testing.T) {
	a, _ := New(1000)
	_, h, _ := a.Allocate(10)
	a.Free(h)
	for _, h := range []Handle{0, h, 99} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Free(%d) did not panic", h)
				}
			}()
			a.Free(h)
		}()
	}
}

// The model keeps the taken ranges in a list and checks that they never overlap, that a refused
// request really had no place, and that nothing is lost.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]uint64{1000, 1 << 16, 6 << 30}).Draw(t, "size")
		a, _ := New(size)
		type taken struct {
			off, n uint64
			h      Handle
		}
		var live []taken
		unit := uint64(1) << a.shift
		t.Repeat(map[string]func(*rapid.T){
			"allocate": func(t *rapid.T) {
				n := rapid.Uint64Range(1, size/4).Draw(t, "n")
				largest := a.Largest()
				off, h, ok := a.Allocate(n)
				if ok != (n <= largest) {
					t.Fatalf("Allocate(%d) = %v with largest %d", n, ok, largest)
				}
				if ok {
					live = append(live, taken{off, a.Rounded(n), h})
				}
			},
			"free": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "i")
				a.Free(live[i].h)
				live = slices.Delete(live, i, i+1)
			},
			"": func(t *rapid.T) {
				slices.SortFunc(live, func(x, y taken) int { return int(int64(x.off) - int64(y.off)) })
				var used, gap, end uint64
				for _, r := range live {
					if r.off < end || r.off+r.n > size || r.off%unit != 0 {
						t.Fatalf("range %d+%d overlaps or leaves the space", r.off, r.n)
					}
					if o, n := a.Range(r.h); o != r.off || n != r.n {
						t.Fatalf("Range = %d+%d, want %d+%d", o, n, r.off, r.n)
					}
					gap = max(gap, r.off-end)
					used, end = used+r.n, r.off+r.n
				}
				gap = max(gap, size/unit*unit-end)
				if used != a.Used() || len(live) != a.Count() {
					t.Fatalf("used %d, want %d; count %d, want %d", a.Used(), used, a.Count(), len(live))
				}
				if want := uint64(binSize(binDown(uint32(gap/unit)))) * unit; a.Largest() != want {
					t.Fatalf("largest %d, want %d (gap %d)", a.Largest(), want, gap)
				}
			},
		})
	})
}

func BenchmarkAllocateFree(b *testing.B) {
	a, _ := New(1 << 40)
	hs := make([]Handle, 1<<16)
	for i := range hs {
		_, hs[i], _ = a.Allocate(uint64(4096 + i%7*1000))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := i * 40503 % len(hs)
		a.Free(hs[k])
		_, hs[k], _ = a.Allocate(uint64(4096 + i%5*3000))
	}
}
