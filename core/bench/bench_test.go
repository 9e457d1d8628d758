package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func goleakMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeMover copies between two slices and takes a fixed time for a batch.
type fakeMover struct {
	local, remote []byte
	takes         time.Duration
	calls         atomic.Int64
	writes, reads atomic.Int64
	hook          func(call int64, write bool) error // before a batch; its error fails it
	after         func(f *fakeMover, ops []Op, write bool)
	cpuErr        error
}

func newFake(o Options) *fakeMover {
	return &fakeMover{local: make([]byte, o.Need()), remote: make([]byte, o.Need()), takes: time.Millisecond}
}

func (f *fakeMover) Local() []byte { return f.local }

func (f *fakeMover) CPU() (time.Duration, error) {
	return time.Duration(f.calls.Load()) * time.Microsecond, f.cpuErr
}

func (f *fakeMover) Prepare(ops []Op) (func(context.Context, bool) error, error) {
	return func(ctx context.Context, write bool) error {
		call := f.calls.Add(1)
		if f.hook != nil {
			if err := f.hook(call, write); err != nil {
				return err
			}
		}
		select {
		case <-time.After(f.takes):
		case <-ctx.Done():
			return ctx.Err()
		}
		if write {
			f.writes.Add(1)
		} else {
			f.reads.Add(1)
		}
		for _, op := range ops {
			l, r := f.local[op.Local:op.Local+op.Len], f.remote[op.Remote:op.Remote+op.Len]
			if write {
				copy(r, l)
			} else {
				copy(l, r)
			}
		}
		if f.after != nil {
			f.after(f, ops, write)
		}
		return nil
	}, nil
}

func options(op string) Options {
	return Options{Transport: "fake", Op: op, Block: 1000, Batch: 4, Threads: 3, Duration: time.Second}
}

func TestRunMeasures(t *testing.T) {
	for _, op := range []string{"read", "write"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := options(op)
				var seen []Snapshot
				o.Progress = func(s Snapshot) { seen = append(seen, s) }
				f := newFake(o)
				r, err := Run(t.Context(), f, o)
				if err != nil {
					t.Fatal(err)
				}
				// 3 threads, 1,000 batches of 1 ms each, of 4 blocks of 1,000 bytes.
				if r.Seconds != 1 || r.BytesPerSecond != 12e6 || r.OpsPerSecond != 12000 || r.Errors != 0 || r.FirstError != nil {
					t.Errorf("%+v", r)
				}
				for name, us := range map[string]float64{"p50": r.LatencyUS.P50, "p99": r.LatencyUS.P99, "p999": r.LatencyUS.P999} {
					if math.Abs(us-1000) > 20 {
						t.Errorf("%s is %v us, want 1000 to 2 %%", name, us)
					}
				}
				if want := 3000e-6 / 0.012; math.Abs(r.CPUSecondsPerGB-want) > want/100 {
					t.Errorf("CPU %v s/GB, want %v", r.CPUSecondsPerGB, want)
				}
				if (op == "read") != (f.writes.Load() == 0) || (op == "write") != (f.reads.Load() == 0) {
					t.Errorf("%d reads, %d writes", f.reads.Load(), f.writes.Load())
				}
				if len(seen) != 5 && len(seen) != 4 || seen[0].Elapsed != progressStep || seen[0].Bytes < 2e6 {
					t.Errorf("progress: %+v", seen)
				}
			})
		})
	}
}

func TestRunStopsEarlyAndStillReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options("write")
		ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
		defer cancel()
		r, err := Run(ctx, newFake(o), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Seconds < 0.4 || r.Seconds > 0.51 || r.Errors != 0 || math.Abs(r.BytesPerSecond-12e6) > 12e4 {
			t.Errorf("after a stop: %+v", r)
		}
	})
}

func TestRunEndsHangingBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options("read")
		o.Threads = 1
		f := newFake(o)
		f.hook = func(call int64, _ bool) error {
			if call == 500 {
				f.takes = time.Hour
			}
			return nil
		}
		begin := time.Now()
		r, err := Run(t.Context(), f, o)
		if err != nil || r.BytesPerSecond == 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if took := time.Since(begin); took > o.Duration+grace+warmUp+time.Second {
			t.Errorf("Run took %v", took)
		}
	})
}

func TestRunCountsErrors(t *testing.T) {
	boom := errors.New("peer unreachable")
	synctest.Test(t, func(t *testing.T) {
		o := options("write")
		f := newFake(o)
		f.hook = func(call int64, _ bool) error {
			if call > 1000 && call%100 == 0 {
				return boom
			}
			return nil
		}
		r, err := Run(t.Context(), f, o)
		if err != nil || r.Errors < 20 || r.Errors > 30 || !errors.Is(r.FirstError, boom) || r.BytesPerSecond < 11e6 {
			t.Errorf("a few failed batches: %+v, %v", r, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		o := options("write")
		f := newFake(o)
		f.hook = func(call int64, _ bool) error {
			if call > 1000 {
				return boom
			}
			return nil
		}
		r, err := Run(t.Context(), f, o)
		if err != nil || r.Errors != 3*manyErrors || r.Seconds > 0.5 {
			t.Errorf("a peer that is gone: %+v, %v; want an early end", r, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		o := options("write")
		f := newFake(o)
		f.hook = func(int64, bool) error { return boom }
		if r, err := Run(t.Context(), f, o); !errors.Is(err, boom) || !strings.Contains(err.Error(), "nothing was moved") {
			t.Errorf("nothing works: %+v, %v", r, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		o := options("write")
		f := newFake(o)
		f.cpuErr = errors.New("target is gone")
		if _, err := Run(t.Context(), f, o); !errors.Is(err, f.cpuErr) {
			t.Errorf("without processor time: %v", err)
		}
	})
}

func TestVerifyFindsWrongContent(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(f *fakeMover, ops []Op, write bool)
	}{
		{"nothing wrong", nil},
		{"a bit flipped on the way", func(f *fakeMover, ops []Op, write bool) {
			if write {
				f.remote[ops[1].Remote+999] ^= 4
			} else {
				f.local[ops[1].Local+999] ^= 4
			}
		}},
		{"two blocks exchanged", func(f *fakeMover, ops []Op, write bool) {
			m := f.local
			if write {
				m = f.remote
			}
			a, b := m[ops[0].Remote:][:1000], m[ops[3].Remote:][:1000]
			tmp := slices.Clone(a)
			copy(a, b)
			copy(b, tmp)
		}},
		{"a block not moved", func(f *fakeMover, ops []Op, write bool) {
			if write {
				clear(f.remote[ops[2].Remote:][:1000])
			} else {
				clear(f.local[ops[2].Local:][:1000])
			}
		}},
	} {
		for _, op := range []string{"read", "write"} {
			t.Run(op+", "+c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := options(op)
					o.Verify = true
					f := newFake(o)
					f.after = func(f *fakeMover, ops []Op, write bool) {
						if c.spoil != nil && f.calls.Load() > 1000 {
							c.spoil(f, ops, write)
						}
					}
					r, err := Run(t.Context(), f, o)
					if err != nil {
						t.Fatal(err)
					}
					if c.spoil == nil {
						if r.Errors != 0 || r.FirstError != nil {
							t.Errorf("%+v", r)
						}
						// The read back of a write is not measured.
						if math.Abs(r.BytesPerSecond-12e6) > 12e4 {
							t.Errorf("%v bytes/s, want 12e6", r.BytesPerSecond)
						}
						return
					}
					if r.Errors == 0 || r.FirstError == nil || !strings.Contains(r.FirstError.Error(), "wrong content: bytes ") {
						t.Errorf("not found: %+v", r)
					}
				})
			})
		}
	}
}

// A block that arrives one batch late has the right shape but the wrong round.
func TestVerifyFindsStaleContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options("write")
		o.Verify, o.Threads = true, 1
		f := newFake(o)
		var before []byte
		f.hook = func(_ int64, write bool) error {
			if write {
				before = slices.Clone(f.remote)
			}
			return nil
		}
		f.after = func(f *fakeMover, ops []Op, write bool) {
			if write && f.calls.Load() > 500 {
				copy(f.remote, before)
			}
		}
		if r, err := Run(t.Context(), f, o); err != nil || r.Errors == 0 {
			t.Errorf("stale content went unnoticed: %+v, %v", r, err)
		}
	})
}

func TestOptionsValidate(t *testing.T) {
	bad := Options{Op: "copy", Batch: 0, Threads: 5000}
	err := bad.Validate()
	for _, flag := range []string{`--op: "copy"`, "--block: ", "--batch: 0", "--threads: 5000", "--duration: 0s"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%q is missing in %v", flag, err)
		}
	}
	huge := options("read")
	huge.Block = 1 << 60
	if err := huge.Validate(); err == nil || !strings.Contains(err.Error(), "more than any machine has") {
		t.Errorf("a block of 2^60 bytes: %v", err)
	}
	ok := options("read")
	if err := ok.Validate(); err != nil || ok.Need() != 12000 {
		t.Errorf("%v, need %d", err, ok.Need())
	}
	if _, err := Run(t.Context(), &fakeMover{local: make([]byte, 11999)}, ok); err == nil || !strings.Contains(err.Error(), "11999 bytes of local memory, 12000 needed") {
		t.Errorf("too little memory: %v", err)
	}
	if _, err := Run(t.Context(), nil, bad); err == nil {
		t.Error("bad options were accepted")
	}
}

func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Uint64Range(0, 1<<62).Draw(t, "v")
		if got := middle(bucket(v)); math.Abs(float64(got)-float64(v)) > float64(v)/64 {
			t.Fatalf("%d is counted as %d", v, got)
		}
		if w := rapid.Uint64Range(0, 1<<62).Draw(t, "w"); (v < w) && bucket(v) > bucket(w) {
			t.Fatalf("%d is in a higher bucket than %d", v, w)
		}
	})
	if b := bucket(math.MaxInt64); b >= len(histogram{}.counts) {
		t.Errorf("the largest duration has bucket %d of %d", b, len(histogram{}.counts))
	}
	var h, a, b histogram
	if l := h.latency(); l != (Latency{}) {
		t.Errorf("empty: %+v", l)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	var all []float64
	for i := range 10000 {
		d := time.Duration(math.Exp(rnd.Float64()*14)) * time.Nanosecond
		all = append(all, float64(d)/1000)
		if i%2 == 0 {
			a.add(d)
		} else {
			b.add(d)
		}
	}
	h.merge(&a)
	h.merge(&b)
	slices.Sort(all)
	for p, got := range map[float64]float64{0.5: h.latency().P50, 0.99: h.latency().P99, 0.999: h.latency().P999} {
		if want := all[int(p*10000)-1]; math.Abs(got-want) > want/50 {
			t.Errorf("p%v = %v, want %v", p*100, got, want)
		}
	}
	var neg histogram
	neg.add(-1)
	if neg.microseconds(1) != 0 {
		t.Error("a negative duration is not counted as 0")
	}
}

func TestPattern(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 4099} {
		b := make([]byte, n)
		fill(b, 42)
		if err := check(b, 42); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		for i := range b {
			b[i] ^= 1
			if err := check(b, 42); err == nil {
				t.Fatalf("byte %d of %d changed unnoticed", i, n)
			}
			b[i] ^= 1
		}
		if n > 0 && check(b, 43) == nil {
			t.Errorf("%d bytes: another seed gives the same pattern", n)
		}
	}
}

func TestResultForms(t *testing.T) {
	r := Result{Transport: "tcp", Op: "read", BlockBytes: 65536, Batch: 32, Threads: 2, Seconds: 10, BytesPerSecond: 1.5e9, OpsPerSecond: 22888,
		LatencyUS: Latency{12.34, 5678, 90000}, CPUSecondsPerGB: 0.75, Errors: 1, FirstError: errors.New("peer gone")}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"transport":"tcp","op":"read","block_bytes":65536,"batch":32,"threads":2,"seconds":10,"bytes_per_second":1500000000,"ops_per_second":22888,` +
		`"latency_us":{"p50":12.34,"p99":5678,"p999":90000},"cpu_seconds_per_gb":0.75,"errors":1}`
	if string(b) != want {
		t.Errorf("JSON\n%s\nwant\n%s", b, want)
	}
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"tcp read, 64 KiB x 32, 2 threads, 10s", "1.50 GB/s, 22888 ops/s", "p50 12.3 us, p99 5.68 ms, p99.9 90.00 ms", "0.750 s per GB", "errors       1", "first error  peer gone"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
}

func BenchmarkPattern(b *testing.B) {
	buf := make([]byte, 1<<20)
	b.SetBytes(1 << 20)
	for i := 0; b.Loop(); i++ {
		fill(buf, uint64(i))
		if err := check(buf, uint64(i)); err != nil {
			b.Fatal(err)
		}
	}
}

func TestProgressLine(t *testing.T) {
	var out bytes.Buffer
	o := options("write")
	show, finish := Progress(&out, o)
	show(Snapshot{Elapsed: 200 * time.Millisecond, Bytes: 2e8})
	show(Snapshot{Elapsed: 400 * time.Millisecond, Bytes: 8e8, Errors: 3})
	finish()
	for _, part := range []string{"fake write 1000 B x 4  1.00 GB/s", "3.00 GB/s  3 errors"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in %q", part, out.String())
		}
	}
	if !strings.HasSuffix(strings.TrimRight(out.String(), " "), "\r") || strings.Contains(out.String(), "\n") {
		t.Errorf("the line is not cleared: %q", out.String()[max(0, out.Len()-60):])
	}
}
