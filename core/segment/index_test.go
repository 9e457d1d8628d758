package segment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/mooncake-agent/mooncake/transports"
)

// fake is a region at an address of the test's choice; its memory is never looked at.
type fake struct{ addr, n uint64 }

func (f fake) Addr() uint64              { return f.addr }
func (f fake) Len() uint64               { return f.n }
func (f fake) Location() string          { return "*" }
func (f fake) Access() transports.Access { return transports.ReadWrite }
func (f fake) Bytes() []byte {
	if f.n > uint64(len(backing)) {
		return nil
	}
	return backing[:f.n]
}
func (f fake) FD() (int, int64, bool) { return -1, 0, false }

var backing = make([]byte, 1<<16)

func fakes(rs ...fake) []transports.Region {
	out := make([]transports.Region, len(rs))
	for i, r := range rs {
		out[i] = r
	}
	return out
}

func TestIndexFind(t *testing.T) {
	var x Index
	if err := x.Add(fakes(fake{0x3000, 0x100}, fake{0x1000, 0x1000}, fake{0x2000, 0x1000})...); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		addr, n uint64
		ok      bool
	}{
		{"all of a region", 0x1000, 0x1000, true},
		{"first byte", 0x1000, 1, true},
		{"last byte", 0x30ff, 1, true},
		{"byte before", 0xfff, 1, false},
		{"byte after", 0x3100, 1, false},
		{"one byte too long", 0x30ff, 2, false},
		{"over two touching regions", 0x1fff, 2, false},
		{"empty", 0x1000, 0, false},
		{"wraps around", 0x1800, math.MaxUint64, false},
		{"wraps to the region's own end", 0x1800, math.MaxUint64 - 0x7ff, false},
		{"highest address", math.MaxUint64, 1, false},
		{"address 0", 0, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ref, err := x.Find(c.addr, c.n)
			if c.ok != (err == nil) || !c.ok && !errors.Is(err, transports.ErrNotRegistered) {
				t.Fatalf("Find(%#x, %d) = %v", c.addr, c.n, err)
			}
			if c.ok && (uint64(len(ref.Data)) != c.n || uint64(cap(ref.Data)) != c.n) {
				t.Errorf("range has %d bytes (cap %d), want %d", len(ref.Data), cap(ref.Data), c.n)
			}
			r, off, ref2, err2 := x.FindRegion(c.addr, c.n)
			if !errors.Is(err2, err) || err == nil && r.Addr()+off != c.addr {
				t.Errorf("FindRegion = %v, offset %#x, %v", r, off, err2)
			}
			ref.Release()
			ref2.Release()
		})
	}
	if got := x.List(); !cmp.Equal(addrs(got), []uint64{0x3000, 0x1000, 0x2000}) {
		t.Errorf("List is not in the order of registration: %#x", addrs(got))
	}
	for i, e := range x.load().leaves[0] {
		if n := e.refs.n.Load(); n != 0 {
			t.Errorf("region %d keeps %d references", i, n)
		}
	}
}

func addrs(rs []transports.Region) []uint64 {
	out := make([]uint64, len(rs))
	for i, r := range rs {
		out[i] = r.Addr()
	}
	return out
}

func TestIndexAddRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		add  []fake
		is   error
		text string
	}{
		{"same range", []fake{{0x1000, 0x1000}}, ErrOverlap, "[0x1000, 0x2000) overlaps the registered [0x1000, 0x2000)"},
		{"inside", []fake{{0x1800, 1}}, ErrOverlap, "[0x1800, 0x1801)"},
		{"around", []fake{{0x800, 0x2000}}, ErrOverlap, "[0x800, 0x2800)"},
		{"over the start", []fake{{0xfff, 2}}, ErrOverlap, "[0xfff, 0x1001)"},
		{"over the end", []fake{{0x1fff, 2}}, ErrOverlap, "[0x1fff, 0x2001)"},
		{"two of the batch", []fake{{0x5000, 0x10}, {0x8000, 8}, {0x500f, 1}}, ErrOverlap, "[0x500f, 0x5010) overlaps the registered [0x5000, 0x5010)"},
		{"good ones with a bad one", []fake{{0x4000, 0x10}, {0x1fff, 8}}, ErrOverlap, "[0x1fff, 0x2007)"},
		{"address 0", []fake{{0, 8}}, ErrBadRegion, "at 0x0"},
		{"empty", []fake{{0x9000, 0}}, ErrBadRegion, "0 bytes at 0x9000"},
		{"wraps around", []fake{{math.MaxUint64 - 6, 8}}, ErrBadRegion, "bad region"},
		{"length without memory", []fake{{0x10000, 1 << 20}}, ErrBadRegion, "1048576 bytes at 0x10000 with 0 bytes of memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var x Index
			if err := x.Add(fake{0x1000, 0x1000}); err != nil {
				t.Fatal(err)
			}
			err := x.Add(fakes(c.add...)...)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Add = %v, want %v with %q", err, c.is, c.text)
			}
			if x.Len() != 1 {
				t.Errorf("%d regions after a refused Add, want 1", x.Len())
			}
			if err := x.Add(fakes(fake{0x2000, 8}, fake{0xff8, 8})...); err != nil {
				t.Errorf("touching regions: %v", err)
			}
		})
	}
}

func TestIndexRemoveWaitsForUsers(t *testing.T) {
	var x Index
	if err := x.Add(fakes(fake{0x1000, 0x100}, fake{0x2000, 0x100})...); err != nil {
		t.Fatal(err)
	}
	a, _ := x.Find(0x1000, 1)
	b, _ := x.Find(0x1080, 8)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	err := x.Remove(done, 0x1000, 0x2000)
	if !errors.Is(err, transports.ErrUnquiet) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "[0x1000, 0x1100) is still in use, 2 users left") {
		t.Fatalf("Remove with users = %v", err)
	}
	if _, err := x.Find(0x1000, 1); !errors.Is(err, transports.ErrNotRegistered) {
		t.Errorf("a region under removal was found: %v", err)
	}
	if len(x.List()) != 0 || x.At(0x1000) != nil {
		t.Errorf("a region under removal is listed")
	}
	if err := x.Add(fake{0x1040, 8}); !errors.Is(err, ErrOverlap) {
		t.Errorf("the range of a region in use was given away: %v", err)
	}
	if err := x.Add(fake{0x2000, 8}); err != nil {
		t.Errorf("the range of a quiet region is still taken: %v", err)
	}
	a.Release()
	end := make(chan error, 2)
	for range 2 {
		go func() { end <- x.Remove(t.Context(), 0x1000) }()
	}
	b.Release()
	for range 2 {
		// The second Remove either waited too or came after the first had ended.
		if err := <-end; err != nil && !errors.Is(err, transports.ErrNotRegistered) {
			t.Errorf("Remove after the last user left = %v", err)
		}
	}
	if x.Len() != 1 {
		t.Errorf("%d regions left, want 1", x.Len())
	}
}

func TestIndexRemoveUnknownChangesNothing(t *testing.T) {
	var x Index
	if err := x.Add(fakes(fake{0x1000, 0x100}, fake{0x2000, 0x100})...); err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]uint64{{0x1000, 0x1001}, {0x1000, 0x3000}, {0x2000, 0x1000, 0x2000}} {
		if err := x.Remove(t.Context(), list...); !errors.Is(err, transports.ErrNotRegistered) {
			t.Errorf("Remove(%#x) = %v", list, err)
		}
	}
	if len(x.List()) != 2 {
		t.Errorf("regions left: %d, want 2", len(x.List()))
	}
	if err := x.Remove(t.Context()); err != nil {
		t.Errorf("Remove of nothing: %v", err)
	}
}

// naive is the model: a list in order of registration, searched from end to end.
type naive []fake

func (m naive) overlaps(f fake) bool {
	return slices.ContainsFunc(m, func(o fake) bool { return f.addr < o.addr+o.n && o.addr < f.addr+f.n })
}

func (m naive) find(addr, n uint64) bool {
	return n > 0 && slices.ContainsFunc(m, func(o fake) bool { return addr >= o.addr && addr < o.addr+o.n && n <= o.addr+o.n-addr })
}

func TestIndexAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Index
		var model naive
		region := rapid.Custom(func(t *rapid.T) fake {
			return fake{rapid.Uint64Range(1, 3000).Draw(t, "addr"), rapid.Uint64Range(1, 12).Draw(t, "len")}
		})
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				batch := rapid.SliceOfN(region, 0, 4).Draw(t, "batch")
				want := slices.Clone(model)
				ok := true
				for _, f := range batch {
					ok = ok && !want.overlaps(f)
					want = append(want, f)
				}
				if err := x.Add(fakes(batch...)...); (err == nil) != ok {
					t.Fatalf("Add(%v) = %v, the model says %v", batch, err, ok)
				}
				if ok {
					model = want
				}
			},
			"fill": func(t *rapid.T) { // enough to split leaves
				base := rapid.Uint64Range(1, 50).Draw(t, "base") * 10000
				var batch []fake
				if !model.overlaps(fake{base, 10000}) {
					for i := range uint64(400) {
						batch = append(batch, fake{base + i*10, 5})
					}
				}
				if rapid.Bool().Draw(t, "reverse") {
					slices.Reverse(batch)
				}
				for _, f := range batch {
					if err := x.Add(f); err != nil {
						t.Fatal(err)
					}
				}
				model = append(model, batch...)
			},
			"remove": func(t *rapid.T) {
				var list []uint64
				for range rapid.IntRange(0, min(len(model), 300)).Draw(t, "count") {
					i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
					list = append(list, model[i].addr)
					model = slices.Delete(model, i, i+1)
				}
				if rapid.Bool().Draw(t, "one by one") {
					for _, a := range list {
						if err := x.Remove(context.Background(), a); err != nil {
							t.Fatal(err)
						}
					}
				} else if err := x.Remove(context.Background(), list...); err != nil {
					t.Fatal(err)
				}
			},
			"find": func(t *rapid.T) {
				addr, n := rapid.Uint64Range(0, 3100).Draw(t, "addr"), rapid.Uint64Range(0, 14).Draw(t, "n")
				if len(model) > 0 && rapid.Bool().Draw(t, "near a region") {
					addr = model[rapid.IntRange(0, len(model)-1).Draw(t, "which")].addr + rapid.Uint64Range(0, 8).Draw(t, "off") - 3
				}
				ref, err := x.Find(addr, n)
				if (err == nil) != model.find(addr, n) {
					t.Fatalf("Find(%d, %d) = %v, the model says %v", addr, n, err, model.find(addr, n))
				}
				ref.Release()
			},
			"": func(t *rapid.T) {
				got := x.List()
				if x.Len() != len(model) || len(got) != len(model) {
					t.Fatalf("%d regions (%d listed), want %d", x.Len(), len(got), len(model))
				}
				for i, r := range got {
					if r.Addr() != model[i].addr {
						t.Fatalf("List[%d] = %d, want %d", i, r.Addr(), model[i].addr)
					}
				}
				checkShape(t, x.load())
			},
		})
	})
}

func checkShape(t *rapid.T, s *snapshot) {
	last, n := uint64(0), 0
	for i, l := range s.leaves {
		if len(l) == 0 || len(l) > leafMax || s.firsts[i] != l[0].addr {
			t.Fatalf("leaf %d has %d entries and starts at %d, listed as %d", i, len(l), l[0].addr, s.firsts[i])
		}
		for _, e := range l {
			if e.addr < last {
				t.Fatalf("not sorted at %d", e.addr)
			}
			last, n = e.end, n+1
		}
	}
	if n != s.n {
		t.Fatalf("counts %d, holds %d", s.n, n)
	}
}

// Readers, writers and removers at once, on memory that a remover poisons as soon as Remove returned:
// a reader that still holds a range must never see the poison.
func TestIndexConcurrent(t *testing.T) {
	const regions, size = 64, 64
	mem := make([]byte, regions*size)
	for i := range mem {
		mem[i] = 1
	}
	base := addressOf(mem)
	var x Index
	add := func(i int) error {
		r, err := Wrap(mem[i*size:(i+1)*size], "", transports.ReadWrite)
		if err != nil {
			return err
		}
		return x.Add(r)
	}
	for i := range regions {
		if err := add(i); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			for ctx.Err() == nil {
				ref, err := x.Find(base+rnd.Uint64N(regions)*size, size)
				if err != nil {
					continue
				}
				for _, b := range ref.Data {
					if b != 1 {
						t.Error("memory was changed while a range was held")
						cancel()
						break
					}
				}
				ref.Release()
			}
		})
	}
	for g := range 2 { // each remover owns every second region
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 2))
			for ctx.Err() == nil {
				i := int(rnd.Uint64N(regions/2))*2 + g
				if err := x.Remove(t.Context(), base+uint64(i*size)); err != nil {
					t.Error(err)
					return
				}
				m := mem[i*size : (i+1)*size]
				for j := range m {
					m[j] = 2
				}
				for j := range m {
					m[j] = 1
				}
				if err := add(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if x.Len() != regions {
		t.Errorf("%d regions at the end, want %d", x.Len(), regions)
	}
}

func TestRefReleaseTwicePanics(t *testing.T) {
	var r refs
	r.acquire()
	r.release()
	defer func() {
		if recover() == nil {
			t.Error("the second release went unnoticed")
		}
	}()
	r.release()
}

func TestWrap(t *testing.T) {
	b := make([]byte, 100)
	r, err := Wrap(b[:10], "", transports.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	if r.Addr() != uint64(uintptr(unsafe.Pointer(&b[0]))) || r.Len() != 10 || r.Location() != "*" || r.Access() != transports.RemoteRead {
		t.Errorf("got %#x+%d %q %v", r.Addr(), r.Len(), r.Location(), r.Access())
	}
	if cap(r.Bytes()) != 10 {
		t.Errorf("the region reaches %d bytes far", cap(r.Bytes()))
	}
	if _, _, ok := r.FD(); ok {
		t.Error("wrapped memory has a file descriptor")
	}
	r.Close()
	if _, err := Wrap(nil, "", transports.ReadWrite); !errors.Is(err, ErrBadRegion) {
		t.Errorf("Wrap(nil) = %v", err)
	}
}

func many(n int) []transports.Region {
	rs := make([]transports.Region, n)
	for i := range rs {
		rs[i] = fake{uint64(i+1) << 12, 4096}
	}
	return rs
}

func BenchmarkIndexFind(b *testing.B) {
	for _, n := range []int{1, 100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			var x Index
			if err := x.Add(many(n)...); err != nil {
				b.Fatal(err)
			}
			rnd := rand.New(rand.NewPCG(1, 2))
			b.ReportAllocs()
			for b.Loop() {
				ref, err := x.Find(uint64(rnd.IntN(n)+1)<<12+64, 1024)
				if err != nil {
					b.Fatal(err)
				}
				ref.Release()
			}
		})
	}
}

func BenchmarkIndexAdd(b *testing.B) {
	for _, n := range []int{5000, 20000, 80000} {
		rs := many(n)
		one := func(order []transports.Region) func(*testing.B) {
			return func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					var x Index
					for _, r := range order {
						if err := x.Add(r); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/region")
			}
		}
		mixed := slices.Clone(rs)
		rand.New(rand.NewPCG(3, 4)).Shuffle(n, func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		b.Run(fmt.Sprintf("single,rising/%d", n), one(rs))
		b.Run(fmt.Sprintf("single,random/%d", n), one(mixed))
		b.Run(fmt.Sprintf("batch/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var x Index
				if err := x.Add(mixed...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/region")
		})
	}
}
