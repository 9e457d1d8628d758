package master

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"golang.org/x/sys/unix"
)

// benchKey is a key of 40 bytes.
func benchKey(b []byte, i int) []byte {
	b = append(b[:0], "model-layer-0123456789-block-0000000000"[:30]...)
	s := strconv.Itoa(i)
	for range 10 - len(s) {
		b = append(b, '0')
	}
	return append(b, s...)
}

func benchStore(b *testing.B, keys int, size uint64, segment uint64, change func(*Options)) *store {
	b.Helper()
	s := newStore(b, func(o *Options) {
		o.Clock = nil
		if change != nil {
			change(o)
		}
	})
	s.mount(0, segment, clientA)
	fillKeys(s, 0, keys, size)
	return s
}

func fillKeys(s *store, from, to int, size uint64) {
	var starts []wire.Result[[]wire.Replica]
	var ends []wire.Result[wire.Void]
	for i := from; i < to; {
		put := wire.BatchPutStartRequest{Client: clientA, Config: config(), Tenant: "default"}
		end := wire.BatchPutEndRequest{Client: clientA, Type: wire.ReplicaAll, Tenant: "default"}
		for ; i < to && len(put.Keys) < 1000; i++ {
			k := string(benchKey(nil, i))
			put.Keys, put.Lengths = append(put.Keys, k), append(put.Lengths, size)
			end.Metas = append(end.Metas, wire.ObjectMeta{Key: k})
		}
		s.BatchPutStart(&put, &starts)
		for j := range starts {
			if starts[j].Code != wire.OK {
				s.Fatalf("put %d: %v", j, starts[j].Code)
			}
		}
		s.BatchPutEnd(&end, &ends)
		s.maintainSpace(s.now())
	}
}

func benchKeys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = string(benchKey(nil, i*7919%n))
	}
	return out
}

const benchCount = 100_000

// cpuTime reports the CPU that the process used per operation: what counts on a machine that others use.
func cpuTime(b *testing.B) func() {
	use := func() int64 {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return r.Utime.Nano() + r.Stime.Nano()
	}
	start := use()
	return func() { b.ReportMetric(float64(use()-start)/float64(b.N), "cpu-ns/op") }
}

func BenchmarkExistKey(b *testing.B) {
	s := benchStore(b, benchCount, 64, 1<<36, nil)
	keys := benchKeys(benchCount)
	req, resp := wire.KeyRequest{Tenant: "default"}, wire.Result[bool]{}
	b.ReportAllocs()
	defer cpuTime(b)()
	i := 0
	for b.Loop() {
		req.Key = keys[i%benchCount]
		if s.ExistKey(&req, &resp); !resp.Value {
			b.Fatal(req.Key)
		}
		i++
	}
}

func BenchmarkGetReplicaList(b *testing.B) {
	for _, policy := range []string{"", "lru"} {
		b.Run("policy="+policy, func(b *testing.B) {
			s := benchStore(b, benchCount, 64, 1<<36, func(o *Options) {
				if policy != "" {
					o.Policies = policies(policy)
				}
			})
			if err := s.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			defer s.Close(b.Context())
			keys := benchKeys(benchCount)
			req, resp := wire.KeyRequest{Tenant: "default"}, wire.Result[wire.ReplicaList]{}
			b.ReportAllocs()
			defer cpuTime(b)()
			i := 0
			for b.Loop() {
				req.Key = keys[i%benchCount]
				if s.GetReplicaList(&req, &resp); resp.Code != wire.OK {
					b.Fatal(req.Key, resp.Code)
				}
				i++
			}
		})
	}
}

// BenchmarkPut is PutStart and PutEnd of new keys; with room, and when every put evicts one.
func BenchmarkPut(b *testing.B) {
	for _, tc := range []struct {
		name    string
		segment uint64
		keys    int
		size    uint64
		policy  string
	}{
		{"room", 1 << 42, 1000, 64, ""},
		{"full", 100_000 * 4096, 100_000, 4096, ""},
		{"room,policy=lru", 1 << 42, 1000, 64, "lru"},
		{"full,policy=lru", 100_000 * 4096, 100_000, 4096, "lru"},
	} {
		b.Run(tc.name, func(b *testing.B) {
			s := benchStore(b, tc.keys, tc.size, tc.segment, func(o *Options) {
				if tc.policy != "" {
					o.Policies = policies(tc.policy)
				}
			})
			if err := s.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			defer s.Close(b.Context())
			start := wire.PutStartRequest{Client: clientA, Length: tc.size, Config: config(), Tenant: "default"}
			end := wire.PutEndRequest{Client: clientA, Type: wire.ReplicaAll, Tenant: "default"}
			var rs wire.Result[[]wire.Replica]
			var v wire.Result[wire.Void]
			buf := make([]byte, 0, 64)
			b.ReportAllocs()
			defer cpuTime(b)()
			i := 10_000_000
			worst := time.Duration(0)
			for b.Loop() {
				buf = benchKey(buf, i)
				start.Key, end.Meta.Key = string(buf), ""
				end.Meta.Key = start.Key
				t := time.Now()
				s.PutStart(&start, &rs)
				if rs.Code != wire.OK {
					b.Fatal(rs.Code)
				}
				s.PutEnd(&end, &v)
				worst = max(worst, time.Since(t))
				i++
			}
			b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
		})
	}
}

func BenchmarkBatchGet100(b *testing.B) {
	s := benchStore(b, benchCount, 64, 1<<36, nil)
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer s.Close(b.Context())
	keys := benchKeys(benchCount)
	var resp []wire.Result[wire.ReplicaList]
	req := wire.KeysRequest{Tenant: "default"}
	b.ReportAllocs()
	defer cpuTime(b)()
	i := 0
	for b.Loop() {
		at := i * 100 % benchCount
		req.Keys = keys[at : at+100]
		s.BatchGetReplicaList(&req, &resp)
		i++
	}
}

func BenchmarkPing(b *testing.B) {
	s := benchStore(b, 0, 64, mib, nil)
	req, resp := wire.ClientRequest{Client: clientA}, wire.Result[wire.PingReply]{}
	b.ReportAllocs()
	defer cpuTime(b)()
	for b.Loop() {
		s.Ping(&req, &resp)
	}
}

// BenchmarkParallelGet is for machines with more cores: gets from many loops at once.
func BenchmarkParallelGet(b *testing.B) {
	s := benchStore(b, benchCount, 64, 1<<36, nil)
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer s.Close(b.Context())
	keys := benchKeys(benchCount)
	b.RunParallel(func(pb *testing.PB) {
		req, resp := wire.KeyRequest{Tenant: "default"}, wire.Result[wire.ReplicaList]{}
		for i := 0; pb.Next(); i++ {
			req.Key = keys[i%benchCount]
			s.GetReplicaList(&req, &resp)
		}
	})
}

// memoryPerKey is what a store of n keys of 40 bytes with one replica takes, in live bytes of heap.
func memoryPerKey(t testing.TB, n int, policy string) float64 {
	heap := func() uint64 {
		runtime.GC()
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	s := newStore(t, func(o *Options) {
		o.Clock = nil
		if policy != "" {
			o.Policies = policies(policy)
		}
	})
	s.mount(0, 64<<30, clientA)
	fillKeys(s, 0, n, 64)
	per := float64(heap()-before) / float64(n)
	if got := s.Counters().Keys.Load(); got != int64(n) {
		t.Fatalf("%d keys", got)
	}
	runtime.KeepAlive(s)
	return per
}

func TestMemoryPerKey(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector changes what memory takes")
	}
	const n = 500_000
	for _, policy := range []string{"", "lru"} {
		per := memoryPerKey(t, n, policy)
		t.Logf("policy %q: %.0f bytes a key at %d keys of 40 bytes", policy, per, n)
		if per > 300 {
			t.Errorf("policy %q: %.0f bytes a key, want at most 300", policy, per)
		}
	}
}

// A collection of millions of keys must not stop the world for long: records hold no pointers.
func TestCollectionIsShort(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector changes how long a collection takes")
	}
	s := newStore(t, func(o *Options) { o.Clock = nil })
	s.mount(0, 1<<40, clientA)
	fillKeys(s, 0, 400_000, 64)
	// What other programs do to this one is not in every collection; what the records cost is.
	best := time.Hour
	for range 10 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		best = min(best, time.Duration(m.PauseNs[(m.NumGC+255)%256]))
	}
	t.Logf("the shortest stop of ten collections with 400,000 keys is %v", best)
	if best > 5*time.Millisecond {
		t.Errorf("the world stood for %v in each collection", best)
	}
	runtime.KeepAlive(s)
}

func ExampleEvictionReport() {
	r := EvictionReport{Objects: 61, Leased: 61, TotalFree: 3 << 20, LargestFree: 3 << 20}
	fmt.Println(r)
	// Output: 0 of 61 objects evicted: 61 leased, 0 hard-pinned, 0 soft-pinned, 0 in use; 3145728 bytes free, the largest free block holds 3145728
}
