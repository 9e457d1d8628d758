package replay

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
)

func factoryOf(p func() eviction.Policy) eviction.Factory {
	return eviction.FactoryFunc(func(eviction.Spec) (eviction.Policy, error) { return p(), nil })
}

func mustRun(tb testing.TB, t *Trace, f eviction.Factory, size uint64, o Options) Result {
	tb.Helper()
	r, err := Run(t, f, size, o)
	if err != nil {
		tb.Fatal(err)
	}
	r.Elapsed = 0
	return r
}

// bad is a policy that says what it is told to.
type bad struct {
	victims func() ([]eviction.Handle, error)
	apply   func([]eviction.Event) error
}

func (b *bad) Apply(e []eviction.Event) error {
	if b.apply != nil {
		return b.apply(e)
	}
	return nil
}

func (b *bad) Victims(dst []eviction.Handle, _ eviction.Need) ([]eviction.Handle, error) {
	if b.victims == nil {
		return dst, nil
	}
	v, err := b.victims()
	return append(dst, v...), err
}
func (b *bad) Close() error { return nil }

// TestHostHelps checks that a policy without good advice is exactly as good as LRU, and that it is counted.
func TestHostHelps(t *testing.T) {
	tr := open(t, synthetic)
	want := mustRun(t, tr, policy(t, "lru"), 2000, Options{})
	for name, c := range map[string]struct {
		p               bad
		strikes, faults uint64 // 0 none, 1 some
	}{
		"no victims":         {bad{}, 0, 0},
		"unknown":            {bad{victims: func() ([]eviction.Handle, error) { return []eviction.Handle{7000}, nil }}, 1, 0},
		"far outside":        {bad{victims: func() ([]eviction.Handle, error) { return []eviction.Handle{1 << 31}, nil }}, 1, 0},
		"handle 0":           {bad{victims: func() ([]eviction.Handle, error) { return []eviction.Handle{0}, nil }}, 1, 0},
		"too many":           {bad{victims: func() ([]eviction.Handle, error) { return []eviction.Handle{1, 2}, nil }}, 0, 1},
		"victims fails":      {bad{victims: func() ([]eviction.Handle, error) { return nil, errors.New("trap") }}, 0, 1},
		"events are refused": {bad{apply: func([]eviction.Event) error { return errors.New("trap") }}, 0, 1},
	} {
		got := mustRun(t, tr, factoryOf(func() eviction.Policy { p := c.p; return &p }), 2000, Options{})
		if got.Hits != want.Hits || got.Prefix != want.Prefix || got.Helped != got.Evictions || got.Evictions != want.Evictions {
			t.Errorf("%s: %d hits, %d prefix hits, %d of %d evictions by the host; want %d, %d and all of %d", name, got.Hits, got.Prefix, got.Helped, got.Evictions, want.Hits, want.Prefix, want.Evictions)
		}
		if min(1, got.Strikes) != c.strikes || min(1, got.Faults) != c.faults || (got.Fault != "") != (c.faults > 0) {
			t.Errorf("%s: %d strikes, %d faults (%q)", name, got.Strikes, got.Faults, got.Fault)
		}
		if c.faults > 0 && got.Faults != maxFaults {
			t.Errorf("%s: %d faults, want quarantine after %d", name, got.Faults, maxFaults)
		}
	}
}

// TestRetryRestores checks that a policy that failed once is filled again, oldest first, and goes on like one that never failed.
func TestRetryRestores(t *testing.T) {
	tr := open(t, synthetic)
	lru := policy(t, "lru")
	want := mustRun(t, tr, lru, 2000, Options{})
	made, restored := 0, 0
	f := eviction.FactoryFunc(func(s eviction.Spec) (eviction.Policy, error) {
		p, err := lru.New(s)
		made++
		n, batches := made, 0
		return &bad{
			victims: func() ([]eviction.Handle, error) {
				return p.Victims(nil, eviction.Need{Max: 1, Tenant: eviction.AnyTenant})
			},
			apply: func(e []eviction.Event) error {
				if batches++; n == 1 && batches == 200 {
					return errors.New("trap")
				}
				for i := range e {
					if e[i].Kind == eviction.Restore {
						restored++
					}
				}
				return p.Apply(e)
			},
		}, err
	})
	got := mustRun(t, tr, f, 2000, Options{})
	if got.Prefix != want.Prefix || got.Hits != want.Hits {
		t.Errorf("%d prefix hits and %d hits after a failure, want %d and %d: RESTORE is exact for LRU", got.Prefix, got.Hits, want.Prefix, want.Hits)
	}
	if made != 2 || got.Faults != 1 || restored != 2000 || got.Helped == 0 || got.Helped == got.Evictions {
		t.Errorf("%d instances, %d faults, %d restored, %d of %d evictions by the host; want 2, 1, 2000, some", made, got.Faults, restored, got.Helped, got.Evictions)
	}
}

// TestLease checks that a block that was just read stays, that the policy hears of it, and that a put fails when
// everything is leased.
func TestLease(t *testing.T) {
	b := NewBuilder("t", 512)
	for i, names := range [][]uint64{{1}, {2}, {1}, {3}, {1}, {2}} {
		if err := b.Add(uint64(i)*1000, 0, 0, names); err != nil {
			t.Fatal(err)
		}
	}
	tr := b.Trace()
	var told []eviction.Event
	// Most recently used first: it always names the block that was just read.
	f := factoryOf(func() eviction.Policy {
		s := &spy{told: &told}
		return &bad{apply: s.Apply, victims: func() ([]eviction.Handle, error) {
			return []eviction.Handle{s.order[len(s.order)-1]}, nil
		}}
	})
	r := mustRun(t, tr, f, 2, Options{Lease: 10 * time.Second})
	// 3 needs room while 1 is leased: 2 must go, by the host, because the policy insists on 1.
	if r.Hits != 2 || r.Leased == 0 || r.Helped == 0 || r.NoSpace != 0 {
		t.Errorf("%+v, want 2 hits, leased victims, help", r)
	}
	if !slices.ContainsFunc(told, func(e eviction.Event) bool {
		return e.Kind == eviction.Reject && e.Code == eviction.CodeLeased && e.Size == 1 && e.KeyHash != 0
	}) {
		t.Error("no REJECT for a leased victim")
	}
	r = mustRun(t, tr, policy(t, "lru"), 1, Options{Lease: time.Hour})
	// 1 is put, goes for 2, and so on: nothing is ever read twice in a row, so nothing is leased.
	if r.NoSpace != 0 {
		t.Errorf("%+v, want no failed put", r)
	}
	b = NewBuilder("t", 512)
	for i, names := range [][]uint64{{1}, {1}, {2}, {1}} {
		if err := b.Add(uint64(i), 0, 0, names); err != nil {
			t.Fatal(err)
		}
	}
	r = mustRun(t, b.Trace(), policy(t, "lru"), 1, Options{Lease: time.Hour})
	if r.NoSpace != 1 || r.Hits != 2 {
		t.Errorf("%+v, want 1 put without space and 2 hits", r)
	}
}

// TestPrefillTime checks that blocks are found only once they were computed.
func TestPrefillTime(t *testing.T) {
	b := NewBuilder("t", 512)
	for _, ms := range []uint64{0, 500, 1100, 1200} {
		if err := b.Add(ms, 1024, 0, []uint64{1, 2}); err != nil {
			t.Fatal(err)
		}
	}
	tr := b.Trace()
	o := Options{PrefillBase: 512 * time.Millisecond, PrefillToken: 500 * time.Microsecond} // 1024 ms for both blocks
	want := [2]uint64{4, 2}                                                                 // hits, inserts
	for name, r := range map[string]Result{
		"lru":      mustRun(t, tr, policy(t, "lru"), 10, o),
		"min":      Min(tr, 10, o),
		"infinite": Infinite(tr, o),
	} {
		if got := [2]uint64{r.Prefix, r.Inserts}; got != want || r.Hits != 4 {
			t.Errorf("%s: prefix hits and inserts %v, want %v", name, got, want)
		}
	}
}

// TestUpstream checks the imitation of upstream's master: it keeps a tenth free and hits less than plain LRU. The figures are those of a
// simulator of its own, to 0.5 points: upstream evicts every 10 ms of its own time, here after each put.
func TestUpstream(t *testing.T) {
	long(t)
	o := Options{Watermark: 0.9, EvictRatio: 0.05, Lease: 5 * time.Second}
	for path, sizes := range map[string]map[uint64]float64{
		conversation: {5000: 9.7, 10000: 19.3, 20000: 27.5, 50000: 35.3},
		synthetic:    {1000: 7.4, 5000: 25.5, 10000: 39.7, 20000: 54.4},
	} {
		tr := open(t, path)
		for size, want := range sizes {
			r := mustRun(t, tr, policy(t, "lru"), size, o)
			if got := 100 * r.PrefixHit(); got < want-0.6 || got > want+0.6 {
				t.Errorf("%s at %d: %.2f %%, want %.1f", path, size, got, want)
			}
			if r.Peak > size*9/10+1 {
				t.Errorf("%s at %d: %d blocks resident, the watermark is 90 %%", path, size, r.Peak)
			}
		}
	}
}

// TestGuard checks that a policy that throws away what was just used is replaced, and a good one is not.
func TestGuard(t *testing.T) {
	tr := open(t, synthetic)
	newest := func() eviction.Policy {
		var l hostLRU
		l.older, l.newer = make([]eviction.Handle, 20_000), make([]eviction.Handle, 20_000)
		return &bad{apply: func(events []eviction.Event) error {
			for _, e := range events {
				switch e.Kind {
				case eviction.Insert:
					l.push(e.Handle)
				case eviction.Access:
					l.touch(e.Handle)
				case eviction.Remove:
					l.remove(e.Handle)
				}
			}
			return nil
		}, victims: func() ([]eviction.Handle, error) { return []eviction.Handle{l.front}, nil }}
	}
	alone := mustRun(t, tr, factoryOf(newest), 5000, Options{})
	guarded := mustRun(t, tr, factoryOf(newest), 5000, Options{Guard: true})
	if guarded.Alarms != 1 || guarded.Helped == 0 || guarded.Prefix <= alone.Prefix {
		t.Errorf("%d alarms, %d evictions by LRU, %d prefix hits, %d without guard", guarded.Alarms, guarded.Helped, guarded.Prefix, alone.Prefix)
	}
	for _, name := range []string{"lru", "adaptive"} {
		if r := mustRun(t, tr, policy(t, name), 5000, Options{Guard: true}); r.Alarms != 0 || r.Helped != 0 {
			t.Errorf("%s: %d alarms, %d evictions by LRU", name, r.Alarms, r.Helped)
		}
	}
}

// TestKinds checks removals, puts that nobody asked for, regret and warm-up, and that MIN and the infinite cache follow.
func TestKinds(t *testing.T) {
	b := NewBuilder("t", 512)
	add := func(ms uint64, kind Kind, names ...uint64) {
		t.Helper()
		if err := b.AddRequest(Request{TimeMS: ms, Kind: kind}, names, nil); err != nil {
			t.Fatal(err)
		}
	}
	add(0, Stored, 1, 2)
	add(1, Wanted, 1, 2, 3)     // 2 of 3
	add(2, Removed, 2)          //
	add(3, Wanted, 1, 2, 3)     // 1 leading, 2 found
	add(4, Stored, 1)           // there already
	add(5, Wanted, 4)           // evicts one of three
	add(6, Wanted, 1, 2, 3)     // what is left
	add(400_000, Wanted, 3)     //
	add(400_001, Removed, 3, 9) // 9 is not there
	tr := b.Trace()
	lru := mustRun(t, tr, policy(t, "lru"), 3, Options{})
	inf, best := Infinite(tr, Options{}), Min(tr, 3, Options{})
	if inf.Prefix != 2+1+3+1 || inf.Hits != 2+2+3+1 || inf.Accesses != 11 || inf.Requests != 5 {
		t.Errorf("infinite: %+v", inf)
	}
	// 4 takes the place of 3, whose end is regretted at 6, as are those of 2 and 1, which 3 and 2 push out on the way.
	if lru.Prefix != 2+1+2+1 || lru.Evictions != 4 || lru.Regret != 3 || lru.Peak != 3 {
		t.Errorf("lru: %+v", lru)
	}
	if best.Hits < lru.Hits || best.Hits > inf.Hits {
		t.Errorf("min: %+v", best)
	}
	if r := mustRun(t, tr, policy(t, "lru"), 3, Options{WarmUp: 6}); r.Requests != 2 || r.Accesses != 4 {
		t.Errorf("after warm-up: %+v", r)
	}
	if r := mustRun(t, tr, policy(t, "lru"), 3, Options{Regret: time.Nanosecond}); r.Regret != 2 {
		t.Errorf("with a window of 0: %d regretted, want the 2 of one request", r.Regret)
	}
}

// TestMinAdmission: with admission MIN may leave out a block too, or a policy that refuses could beat it.
func TestMinAdmission(t *testing.T) {
	b := NewBuilder("t", 512)
	for i, name := range []uint64{1, 2, 1, 3, 1, 4, 1} {
		if err := b.Add(uint64(i), 0, 0, []uint64{name}); err != nil {
			t.Fatal(err)
		}
	}
	if with, without := Min(b.Trace(), 1, Options{Admission: true}), Min(b.Trace(), 1, Options{}); with.Hits != 3 || without.Hits != 0 || with.Refused != 3 {
		t.Errorf("%+v with admission, %+v without", with, without)
	}
}

func TestSizes(t *testing.T) {
	b := NewBuilder("t", 0)
	for i, size := range []uint64{30, 80, 30, 0} {
		if err := b.AddRequest(Request{TimeMS: uint64(i)}, []uint64{uint64(i % 3)}, []uint64{size}); err != nil {
			t.Fatal(err)
		}
	}
	tr := b.Trace()
	if tr.Footprint() != 140 || tr.MeanSize() != 46 || !tr.Sized() {
		t.Fatalf("footprint %d, mean %d", tr.Footprint(), tr.MeanSize())
	}
	r := mustRun(t, tr, policy(t, "lru"), 70, Options{}) // 80 does not fit
	if r.Hits != 1 || r.Bytes != 170 || r.ByteHits != 30 || r.Inserts != 2 || r.Evictions != 0 {
		t.Errorf("%+v", r)
	}
	if m := Min(tr, 70, Options{}); m.Hits != 1 || m.ByteHits != 30 {
		t.Errorf("min %+v", m)
	}
}
