package evictiontest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/conformance"
	"golang.org/x/sys/unix"
)

// Bench measures what the budgets are about at 1 M and 10 M resident keys: a touch by handle, an insert with
// its eviction, in processor time, bytes a key and what the keys cost a full garbage collection. Sizes above max are
// left out.
func Bench(b *testing.B, f eviction.Factory, max uint32) {
	for _, n := range []uint32{1_000_000, 10_000_000} {
		if n > max {
			continue
		}
		p := conformance.Filled(b, f, n)
		name := fmt.Sprintf("keys=%dM/", n/1_000_000)
		b.Run(name+"touch", func(b *testing.B) { benchTouch(b, p, n) })
		b.Run(name+"insert-evict", func(b *testing.B) {
			c := conformance.Churn{T: b, P: p, N: n, Next: 3*uint64(n) + 1}
			start := cpu()
			for b.Loop() {
				c.Step()
			}
			b.ReportMetric(float64(cpu()-start)/float64(b.N), "cpu-ns/insert")
		})
		b.Run(name+"gc", func(b *testing.B) {
			for b.Loop() {
				start := time.Now()
				runtime.GC()
				b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "ms/gc")
			}
			if m, ok := p.(eviction.MemoryUser); ok {
				b.ReportMetric(float64(m.MemoryBytes())/float64(n), "B/key")
			}
		})
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// benchTouch touches handles at random, so that most are in no cache.
func benchTouch(b *testing.B, p eviction.Policy, n uint32) {
	r := rand.New(rand.NewPCG(1, 2))
	handles := make([]eviction.Handle, 1<<22)
	for i := range handles {
		handles[i] = 1 + eviction.Handle(r.Uint32N(n))
	}
	const batch = 64
	var ev [batch]eviction.Event
	for i := range ev {
		ev[i] = eviction.Event{Kind: eviction.Access, Size: 512, NowMS: 1 << 40}
	}
	at := 0
	start := cpu()
	for b.Loop() {
		for i := range ev {
			ev[i].Handle = handles[at+i]
			ev[i].KeyHash = conformance.Mix(uint64(handles[at+i]))
		}
		if err := p.Apply(ev[:]); err != nil {
			b.Fatal(err)
		}
		at = (at + batch) % len(handles)
	}
	b.ReportMetric(float64(cpu()-start)/float64(b.N)/batch, "cpu-ns/touch")
}

// cpu is the processor time that this process has used: others on the machine do not count.
func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
