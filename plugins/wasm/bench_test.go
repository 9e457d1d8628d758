package wasm

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
	"github.com/mooncake-agent/mooncake/eviction/replay"
)

// An event through the whole policy in batches of 256: the host's order, the copy, the guest. guest-ns is the part
// inside the guest.
func BenchmarkEvents(b *testing.B) {
	for _, bench := range []struct {
		name string
		f    eviction.Factory
	}{{"metered", guest(b, "lru")}, {"unmetered", plain(b, "lru")}, {"native", native(b)}} {
		for _, keys := range []uint32{4096, 100_000, 1_000_000} {
			b.Run(bench.name+"/keys="+short(keys), func(b *testing.B) { benchEvents(b, bench.f, keys) })
		}
	}
}

func short(n uint32) string {
	switch {
	case n >= 1_000_000:
		return "1M"
	case n >= 100_000:
		return "100k"
	}
	return "4k"
}

func benchEvents(b *testing.B, f eviction.Factory, keys uint32) {
	p := instanceOf(b, f, spec(keys))
	events := make([]eviction.Event, 0, batchMax)
	flush := func() {
		if err := p.Apply(events); err != nil {
			b.Fatal(err)
		}
		events = events[:0]
	}
	for h := eviction.Handle(1); h <= eviction.Handle(keys); h++ {
		if events = append(events, insert(h, 1)); len(events) == batchMax {
			flush()
		}
	}
	flush()
	r := rand.New(rand.NewPCG(1, 2))
	handles := make([]eviction.Handle, 1<<20)
	for i := range handles {
		handles[i] = 1 + eviction.Handle(r.Uint32N(keys))
	}
	// Three uses, then one goes and comes back.
	at := 0
	events = events[:batchMax]
	var before eviction.Supervision
	s, ok := p.(eviction.Supervised)
	if ok {
		before = s.Supervision()
	}
	b.ResetTimer()
	n := 0
	// The best of short stretches tells what it costs when no other program takes time.
	const stretch = 64
	best, since := time.Hour, time.Now()
	bestGuest, guestBefore := ^uint64(0), before.EventNanos
	for b.Loop() {
		if n > 0 && n%(stretch*batchMax) == 0 {
			now := time.Now()
			best, since = min(best, now.Sub(since)), now
			if ok {
				told := s.Supervision().EventNanos
				bestGuest, guestBefore = min(bestGuest, told-guestBefore), told
			}
		}
		for i := 0; i < batchMax; i += 4 {
			h := handles[(at+i)&(len(handles)-1) : (at+i)&(len(handles)-1)+4]
			for j := range 2 {
				events[i+j] = eviction.Event{Kind: eviction.Access, Handle: h[j], Size: 512, NowMS: 2}
			}
			events[i+2] = eviction.Event{Kind: eviction.Remove, Code: eviction.CodeEvicted, Handle: h[2], Size: 512, NowMS: 2}
			events[i+3] = insert(h[2], 2)
		}
		at += batchMax
		if err := p.Apply(events); err != nil {
			b.Fatal(err)
		}
		n += batchMax
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
	b.ReportMetric(float64(best.Nanoseconds())/stretch/batchMax, "best-ns/event")
	if ok {
		b.ReportMetric(float64(bestGuest)/stretch/batchMax, "best-guest-ns/event")
		after := s.Supervision()
		told := float64(after.Events - before.Events)
		b.ReportMetric(float64(after.EventNanos-before.EventNanos)/told, "guest-ns/event")
		b.ReportMetric(float64(after.EventFuel-before.EventFuel)/told, "fuel/event")
		if after.State != eviction.GuestRunning {
			b.Fatal(after.Fault)
		}
	}
}

// A question for 32 victims, which the store keeps as its reserve.
func BenchmarkVictims(b *testing.B) {
	for _, bench := range []struct {
		name string
		f    eviction.Factory
	}{{"lru", guest(b, "lru")}, {"score", guest(b, "score_lru")}, {"native", native(b)}} {
		b.Run(bench.name, func(b *testing.B) {
			p := instanceOf(b, bench.f, spec(100_000))
			for h := eviction.Handle(1); h <= 100_000; h++ {
				if err := p.Apply([]eviction.Event{insert(h, 1)}); err != nil {
					b.Fatal(err)
				}
			}
			var dst []eviction.Handle
			for b.Loop() {
				var err error
				if dst, err = p.Victims(dst[:0], evictiontest.Any(32)); err != nil || len(dst) != 32 {
					b.Fatal(len(dst), err)
				}
			}
		})
	}
}

// Block accesses a second of the conversation trace through the simulator.
func BenchmarkReplay(b *testing.B) {
	trace, err := replay.Open(filepath.Join("..", "..", "eviction", "replay", "testdata", "conversation.trace"))
	if err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name string
		f    eviction.Factory
	}{{"lru.wasm", guest(b, "lru")}, {"score_lru.wasm", guest(b, "score_lru")}, {"native", native(b)}} {
		b.Run(bench.name, func(b *testing.B) {
			accesses := 0
			for b.Loop() {
				r, err := replay.Run(trace, bench.f, 20_000, replay.Options{})
				if err != nil {
					b.Fatal(err)
				}
				accesses += int(r.Accesses)
			}
			b.ReportMetric(float64(accesses)/b.Elapsed().Seconds()/1e6, "M/s")
		})
	}
}

// A module from file to factory, and a factory to an instance: cold compiles it in a child, cached does not.
func BenchmarkLoad(b *testing.B) {
	c := config(b, "lru")
	load := func(b *testing.B, compiled bool) {
		f, err := Open(context.Background(), c, nil)
		if err != nil || f.info.Compiled != compiled {
			b.Fatal(f.info.Compiled, err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			c.CacheDir = filepath.Join(b.TempDir(), time.Now().Format("150405.000000000"))
			load(b, true)
		}
	})
	b.Run("cached", func(b *testing.B) {
		c.CacheDir = cacheFor(b)
		load1, err := Open(context.Background(), c, nil)
		if err != nil {
			b.Fatal(err)
		}
		load1.Close()
		for b.Loop() {
			load(b, false)
		}
	})
	b.Run("instance", func(b *testing.B) {
		f := guest(b, "lru")
		for b.Loop() {
			p, err := f.New(spec(4096))
			if err != nil {
				b.Fatal(err)
			}
			p.Close()
		}
	})
}

// How late a 10 ms ticker is at worst while a guest uses up its budget in every call and the garbage collector wants to
// stop the world all the time. compiled code cannot be interrupted, so it waits for the end of a call.
func BenchmarkTickerSlip(b *testing.B) {
	batch := make([]eviction.Event, batchMax)
	for i := range batch {
		batch[i] = tick(1)
	}
	events := func(name string) func(*testing.B) {
		f := guest(b, name)
		return func(b *testing.B) {
			p := instanceOf(b, f, spec(1000)).(*policy)
			p.settled = true
			if p.guest == nil {
				b.Fatal(p.told.Fault)
			}
			_ = p.Apply(batch) // a fault
			p.faultTimes, p.retryAt = nil, 0
			p.restart()
		}
	}
	stats := func(b *testing.B) {
		p := instanceOf(b, guest(b, "slow"), spec(1000))
		_, _ = p.(eviction.Statser).Stats() // a fault
	}
	start := func(name string) func(*testing.B) {
		f := guest(b, name)
		return func(b *testing.B) {
			if _, err := f.New(spec(1000)); err == nil {
				b.Fatal("it started")
			}
		}
	}
	for name, work := range map[string]func(*testing.B){
		"idle":         func(*testing.B) { time.Sleep(time.Millisecond) },
		"spin":         events("spin"),
		"slow":         events("slow"),
		"slow-stats":   stats,
		"recurse":      events("recurse"),
		"grab_memory":  events("grab_memory"),
		"start_spin":   start("start_spin"),
		"init_spin":    start("init_spin"),
		"load-compile": func(b *testing.B) { compileFresh(b) },
	} {
		b.Run(name, func(b *testing.B) {
			stop, done := make(chan struct{}), make(chan time.Duration)
			go func() { // the garbage collector's wish
				for {
					select {
					case <-stop:
						return
					default:
						runtime.GC()
						time.Sleep(time.Millisecond)
					}
				}
			}()
			go func() {
				worst := time.Duration(0)
				t := time.NewTicker(10 * time.Millisecond)
				defer t.Stop()
				last := time.Now()
				for {
					select {
					case <-stop:
						done <- worst
						return
					case <-t.C:
						now := time.Now()
						worst = max(worst, now.Sub(last)-10*time.Millisecond)
						last = now
					}
				}
			}()
			for b.Loop() {
				work(b)
				time.Sleep(20 * time.Millisecond) // after a fault a guest rests for a second
			}
			close(stop)
			b.ReportMetric(float64((<-done).Microseconds())/1000, "worst-slip-ms")
		})
	}
}

func compileFresh(b *testing.B) {
	c := config(b, "lru")
	c.CacheDir = filepath.Join(b.TempDir(), time.Now().Format("150405.000000000"))
	f, err := Open(context.Background(), c, nil)
	if err != nil {
		b.Fatal(err)
	}
	f.Close()
}
