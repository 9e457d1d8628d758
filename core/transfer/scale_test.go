package transfer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata/memory"
	"github.com/mooncake-agent/mooncake/transports"
)

// manyPeers starts an engine and n segments that it can reach over one path. The segments are names of a few engines, so
// that a process has enough files and memory for both sides; to the initiator each is a peer of its own.
func manyPeers(t testing.TB, path string, n int) (a *transfer.Engine, names []string, addrs []uint64) {
	t.Helper()
	store := memory.NewStore().Open()
	t.Cleanup(func() { store.Close() })
	named := func() []transfer.NamedTransport {
		if path == "tcp" {
			return []transfer.NamedTransport{{Name: "tcp", Transport: newTCP(t, nil)}}
		}
		return []transfer.NamedTransport{{Name: "shm", Transport: newShm(t)}, {Name: "tcp", Transport: newTCP(t, nil)}}
	}
	var docs []*transports.Descriptor
	for range min(n, 4) {
		e := startEngine(t, func(o *transfer.Options) { o.Transports = named() })
		registerArena(t, e, 64<<10)
		docs = append(docs, e.Descriptor())
	}
	a = startEngine(t, func(o *transfer.Options) {
		o.Transports, o.LocalName, o.AdvertiseHost, o.Metadata = named(), "initiator", "127.0.0.1", store
	})
	for i := range n {
		d := docs[i%len(docs)].Clone()
		d.Name = fmt.Sprintf("peer-%d", i)
		if err := store.Put(t.Context(), "mooncake/ram/"+d.Name, d.Encode(time.Now())); err != nil {
			t.Fatal(err)
		}
		names, addrs = append(names, d.Name), append(addrs, d.Buffers[0].Addr)
	}
	return a, names, addrs
}

// inUse is the memory of this process that Go manages and that is in use: heap and stacks.
func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// busyGoroutines counts those that do not wait for a file or for another goroutine.
func busyGoroutines() (busy int, list string) {
	buf := make([]byte, 64<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		_, state, _ := strings.Cut(g, "[")
		state, _, _ = strings.Cut(state, "]")
		state, _, _ = strings.Cut(state, ",") // "IO wait, 2 minutes"
		switch state {
		case "IO wait", "chan receive", "select", "sync.Cond.Wait", "sync.WaitGroup.Wait", "semacquire":
		default:
			busy++
			list += g + "\n\n"
		}
	}
	return busy, list
}

// TestIdlePeers: what an idle peer costs on both sides together, and that nothing polls for it.
func TestIdlePeers(t *testing.T) {
	const budget = 64 << 10
	n := 1000
	if raceDetector {
		n = 100
	}
	for path, goroutines := range map[string]int{"tcp": 3, "shm": 2} { // a connection's reader and writer, and the server's
		t.Run(path, func(t *testing.T) {
			a, names, addrs := manyPeers(t, path, n)
			local := make([]byte, 4096)
			reach := func(i int) {
				s := open(t, a, names[i])
				if err := a.Read(t.Context(), s, local, addrs[i]); err != nil {
					t.Fatal(err)
				}
			}
			reach(0)
			memory, before := inUse(), runtime.NumGoroutine()
			for i := range names {
				reach(i)
			}
			testenv.Eventually(t, testDeadline, func() error {
				if busy, list := busyGoroutines(); busy > 8 { // this one, those of the runtime, timers that just fired
					return fmt.Errorf("%d goroutines neither wait for a file nor for each other:\n%s", busy, list)
				}
				return nil
			})
			each := (int64(inUse()) - int64(memory)) / int64(n-1)
			more := float64(runtime.NumGoroutine()-before) / float64(n-1)
			t.Logf("%d idle peers over %s: %d bytes and %.2f goroutines each, both sides together", n, path, each, more)
			if each > budget && !raceDetector {
				t.Errorf("an idle peer takes %d bytes, more than %d", each, budget)
			}
			if more > float64(goroutines)+0.5 {
				t.Errorf("an idle peer has %.2f goroutines, more than %d", more, goroutines)
			}
			for _, g := range a.Segments() {
				for _, p := range g.Paths {
					if p.Path == path && g.Segment != a.Name() && p.State != transfer.PathUsed {
						t.Fatalf("%s: %+v", g.Segment, p)
					}
				}
			}
		})
	}
}

// BenchmarkPeers moves 4 KiB to so many peers in random order.
func BenchmarkPeers(b *testing.B) {
	for _, path := range []string{"tcp", "shm"} {
		for _, n := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", path, n), func(b *testing.B) {
				a, names, addrs := manyPeers(b, path, n)
				local := make([]byte, 4096)
				segs := make([]*transfer.Segment, n)
				move := func(i int) {
					if err := a.Write(context.Background(), segs[i], local, addrs[i]); err != nil {
						b.Fatal(err)
					}
				}
				before := inUse()
				for i := range segs {
					segs[i] = open(b, a, names[i])
					move(i)
				}
				each := float64(int64(inUse())-int64(before)) / float64(n)
				rnd := rand.New(rand.NewPCG(1, 2))
				b.ReportAllocs()
				for b.Loop() {
					move(rnd.IntN(n))
				}
				b.ReportMetric(each, "B/peer")
			})
		}
	}
}

// BenchmarkOpen finds an opened segment among so many.
func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a, names, _ := manyPeers(b, "tcp", n)
			for _, name := range names {
				open(b, a, name)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				if _, err := a.Open(context.Background(), names[i%n]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRegions moves 4 KiB between registered regions of two engines in random order, with so many of them on each
// side.
func BenchmarkRegions(b *testing.B) {
	for _, path := range []string{"tcp", "shm"} {
		for _, n := range []int{1, 100, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", path, n), func(b *testing.B) {
				const size = 4096
				var es [2]*transfer.Engine
				var mems [2][]byte
				var bases [2]uint64
				for i := range es {
					named := []transfer.NamedTransport{{Name: "tcp", Transport: newTCP(b, nil)}}
					if path == "shm" {
						named = append([]transfer.NamedTransport{{Name: "shm", Transport: newShm(b)}}, named...)
					}
					es[i] = startEngine(b, func(o *transfer.Options) { o.Transports, o.HandshakeMaxLength = named, 64<<20 })
					mems[i], bases[i] = registerPieces(b, es[i], n, size)
				}
				s := open(b, es[0], es[1].Name())
				rnd := rand.New(rand.NewPCG(1, 2))
				move := func(i, k int) {
					if err := es[0].Write(context.Background(), s, mems[0][i*size:][:size], bases[1]+uint64(k*size)); err != nil {
						b.Fatal(err)
					}
				}
				for i := range n { // shm fetches a region when it is first needed
					move(i, i)
				}
				b.ReportAllocs()
				for b.Loop() {
					move(rnd.IntN(n), rnd.IntN(n))
				}
			})
		}
	}
}
