package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
)

// mallocs counts the allocations of n calls of f in the whole process.
func mallocs(n int, f func()) (objects, bytes uint64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		f()
	}
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs, after.TotalAlloc - before.TotalAlloc
}

// TestSteadyTransfersAllocateNothing: over every path and for every size, repeated transfers allocate nothing in either
// engine. Background work (timers, sweeps) may allocate a little now and then.
func TestSteadyTransfersAllocateNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates by itself")
	}
	for _, p := range []string{"shm", "tcp", "copy"} {
		for _, c := range []struct {
			block        uint64
			batch, count int
		}{{4 << 10, 1, 1000}, {4 << 10, 64, 100}, {64 << 10, 32, 50}, {1 << 20, 1, 50}, {1 << 20, 16, 20}, {5 << 20, 3, 20}, {16 << 20, 1, 20}} {
			t.Run(fmt.Sprintf("%s/%dKiB x %d", p, c.block>>10, c.batch), func(t *testing.T) {
				var b, a *transfer.Engine
				switch p {
				case "shm":
					b, _, _ = shared(t)
					a, _, _ = shared(t)
				case "tcp":
					b, a = startEngine(t), startEngine(t)
				default:
					b = startEngine(t)
					a = b
				}
				size := c.block * uint64(c.batch)
				_, addr := registerArena(t, b, size)
				local, _ := registerArena(t, a, size)
				s := open(t, a, b.Name())
				reqs := make([]transfer.Request, c.batch)
				for i := range reqs {
					off := uint64(i) * c.block
					reqs[i] = transfer.Request{Write: i%2 == 0, Local: local[off:][:c.block], Segment: s, Remote: addr + off}
				}
				move := func() {
					if err := a.Transfer(t.Context(), reqs); err != nil {
						t.Fatal(err)
					}
				}
				for range c.count { // connections, pools
					move()
				}
				ops := uint64(c.count * c.batch)
				objects, size := mallocs(c.count, move)
				for range 3 {
					if objects <= uint64(c.count)/4 {
						return
					}
					objects, size = mallocs(c.count, move) // something in the background may have been just then
				}
				if objects > uint64(c.count)/4 {
					t.Errorf("%d transfers of %d requests: %d allocations, %d bytes; want none for a request", c.count, ops, objects, size)
				}
			})
		}
	}
}

// TestFlatMemory: the live heap does not grow with the number of operations (MOONCAKE_TEST_OPS of them over each path).
func TestFlatMemory(t *testing.T) {
	ops := 100_000
	if v := os.Getenv("MOONCAKE_TEST_OPS"); v != "" {
		var err error
		if ops, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	const batch, block = 32, 64
	for _, p := range []string{"shm", "tcp"} {
		t.Run(p, func(t *testing.T) {
			b, a := startEngine(t), startEngine(t)
			if p == "shm" {
				b, _, _ = shared(t)
				a, _, _ = shared(t)
			}
			_, addr := registerArena(t, b, batch*block)
			local, _ := registerArena(t, a, batch*block)
			s := open(t, a, b.Name())
			reqs := make([]transfer.Request, batch)
			for i := range reqs {
				reqs[i] = transfer.Request{Write: i%2 == 0, Local: local[i*block:][:block], Segment: s, Remote: addr + uint64(i*block)}
			}
			move := func(n int) {
				for range n {
					batch, err := a.Submit(t.Context(), reqs)
					if err != nil {
						t.Fatal(err)
					}
					if err := batch.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			rounds := ops / batch
			move(rounds / 10)
			before := liveHeap()
			move(rounds - rounds/10)
			after := liveHeap()
			t.Logf("%d operations: live heap %d bytes, before %d", ops, after, before)
			if after > before+(1<<20) {
				t.Errorf("the live heap grew from %d to %d bytes within %d operations", before, after, ops)
			}
		})
	}
}

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what sync.Pool kept
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestReuse: transfers that share batches one after the other do not share their ends.
func TestReuse(t *testing.T) {
	f := newFake()
	e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
	s := open(t, e, newTarget(t, tcpDoc(1, "")).Name)
	one := []transfer.Request{{Local: make([]byte, 8), Segment: s, Remote: 8}}
	ok := func(ctx context.Context) {
		t.Helper()
		if err := e.Transfer(ctx, one); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("the end of a context that was used again and again", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		for range 5 {
			ok(ctx)
		}
		cancel()
		ok(context.Background())
		if err := e.Transfer(ctx, one); err != nil && !errors.Is(err, transfer.ErrCanceled) { // it may be complete before the end is seen
			t.Errorf("under the context that has ended: %v", err)
		}
		ok(t.Context())
	})
	t.Run("and ends in the middle", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for range 5 {
			ok(ctx)
		}
		n := f.count()
		f.hang()
		done := make(chan error)
		go func() { done <- e.Transfer(ctx, one) }()
		f.waitOps(t, n+1)
		cancel()
		if err := <-done; !errors.Is(err, transfer.ErrCanceled) {
			t.Errorf("got %v", err)
		}
		f.release(nil)
		ok(t.Context())
	})
	t.Run("contexts of one transfer each", func(t *testing.T) {
		for range 100 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			ok(ctx)
			cancel()
		}
	})
	t.Run("failures", func(t *testing.T) {
		for range 20 {
			f.set(func() { f.answer = failing(1, errors.New("odd")) })
			if err := e.Transfer(t.Context(), one); err == nil || !strings.Contains(err.Error(), "odd") {
				t.Fatalf("got %v", err)
			}
			f.set(func() { f.answer = func(transports.Op) error { return nil } })
			ok(t.Context())
		}
	})
	t.Run("free", func(t *testing.T) {
		n := f.count()
		f.hang()
		b, err := e.Submit(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		f.waitOps(t, n+1)
		b.Free() // not complete: nothing happens
		f.release(nil)
		if err := b.Wait(t.Context()); err != nil || b.Status(0).State != transfer.Completed {
			t.Errorf("%v, %+v", err, b.Status(0))
		}
		b.Free()
		b.Free()
		ok(t.Context())
		ok(t.Context())
	})
}

// TestSecondReport: a transport that reports a request twice does not end a later one with it.
func TestSecondReport(t *testing.T) {
	f := newFake()
	e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
	s := open(t, e, newTarget(t, tcpDoc(1, "")).Name)
	reqs := []transfer.Request{{Local: make([]byte, 8), Segment: s, Remote: 8}}
	f.hang()
	done := make(chan error, 1)
	go func() { done <- e.Transfer(t.Context(), reqs) }()
	f.waitOps(t, 1)
	f.mu.Lock()
	first := f.kept[0]
	f.mu.Unlock()
	f.flush(nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	go func() { done <- e.Transfer(t.Context(), reqs) }()
	f.waitOps(t, 2)
	first.done(first.op.Cookie, 8, nil)
	select {
	case err := <-done:
		t.Fatalf("the second transfer ended: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	f.flush(nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestReuseChaos: transfers of several goroutines with and without cancellation; whatever completes holds the right bytes.
func TestReuseChaos(t *testing.T) {
	b, _, _ := shared(t)
	_, addr := registerArena(t, b, 8<<20)
	plain, plainAddr := register(t, b, 1<<20)
	_ = plain
	a, _, _ := shared(t)
	s := open(t, a, b.Name())
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			base := addr + uint64(g)*(2<<20)
			if g == 3 {
				base = plainAddr // over tcp
			}
			long, cancel := context.WithCancel(context.Background())
			defer cancel()
			for round := range 60 {
				n := 1 + rand.IntN(1<<20)
				if round%7 == 0 && g != 3 {
					n += 1 << 20
				}
				ctx := long
				if round%5 == 0 && g != 3 { // may end at any moment; over tcp, bytes that were sent before may still arrive
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(long, time.Duration(rand.IntN(2000))*time.Microsecond)
					defer stop()
				}
				want := pattern(n, round)
				if err := a.Write(ctx, s, want, base); err != nil {
					if ctx == long {
						t.Error(err)
					}
					continue
				}
				got := make([]byte, n)
				if err := a.Read(long, s, got, base); err != nil || !bytes.Equal(got, want) {
					t.Errorf("goroutine %d, round %d, %d bytes read back: %v, equal: %v", g, round, n, err, bytes.Equal(got, want))
				}
			}
		})
	}
	wg.Wait()
	testenv.Eventually(t, testDeadline, func() error { // nothing is left under way
		for _, g := range a.Segments() {
			for _, p := range g.Paths {
				if p.State == transfer.PathDown {
					return fmt.Errorf("path %+v", p)
				}
			}
		}
		return nil
	})
}
