package record

import (
	"fmt"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/policies"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
	_ "github.com/mooncake-agent/mooncake/eviction/adaptive"
	_ "github.com/mooncake-agent/mooncake/eviction/lru"
	"github.com/mooncake-agent/mooncake/eviction/trace"
)

func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRecording is what recording costs the master, in processor time of the whole process: requests of 32 blocks,
// half of them there, in a full store. The work of the RPC server is not in it.
func BenchmarkRecording(b *testing.B) {
	for _, policy := range []string{"native", "lru", "adaptive"} {
		for _, on := range []bool{false, true} {
			b.Run(fmt.Sprintf("policy=%s/recording=%v", policy, on), func(b *testing.B) {
				p, err := policies.Build(b.Context(), policy, module.Env{})
				if err != nil {
					b.Fatal(err)
				}
				cfg := master.DefaultConfig()
				cfg.LeaseTTL = time.Millisecond
				s, err := master.New(master.Options{Config: cfg, Seed: 1, Policies: map[string]master.Policy{policies.Everyone: p}})
				if err != nil {
					b.Fatal(err)
				}
				client := wire.UUID{1, 2}
				g := wire.Segment{ID: wire.UUID{3, 4}, Name: "node:1", Base: 1 << 40, Size: 200_000 * 1024, TEEndpoint: "127.0.0.1:1", Protocol: "tcp"}
				var mounted wire.Result[wire.Void]
				s.ReMountSegment(&wire.ReMountSegmentRequest{Segments: []wire.Segment{g}, Client: client}, &mounted)
				if err := s.Start(b.Context()); err != nil {
					b.Fatal(err)
				}
				defer s.Close(b.Context())
				const chain = 32
				var yes []wire.Result[bool]
				var lists []wire.Result[wire.ReplicaList]
				var placed []wire.Result[[]wire.Replica]
				var ended []wire.Result[wire.Void]
				keys := make([]string, chain)
				start := wire.BatchPutStartRequest{Client: client, Config: wire.ReplicateConfig{Replicas: 1}, Tenant: "default"}
				end := wire.BatchPutEndRequest{Client: client, Type: wire.ReplicaAll, Tenant: "default"}
				for range chain {
					start.Lengths = append(start.Lengths, 1024)
				}
				next := 0
				request := func() {
					for i := range keys {
						keys[i] = fmt.Sprintf("block-%032d", next+i)
					}
					next += chain / 2
					s.BatchExistKey(&wire.KeysRequest{Keys: keys, Tenant: "default"}, &yes)
					found := 0
					for found < chain && yes[found].Value {
						found++
					}
					if found > 0 {
						s.BatchGetReplicaList(&wire.KeysRequest{Keys: keys[:found], Tenant: "default"}, &lists)
					}
					start.Keys, end.Metas = keys[found:], end.Metas[:0]
					s.BatchPutStart(&wire.BatchPutStartRequest{Client: client, Keys: start.Keys, Lengths: start.Lengths[:len(start.Keys)], Config: start.Config, Tenant: "default"}, &placed)
					for i, r := range placed {
						if r.Code == wire.OK {
							end.Metas = append(end.Metas, wire.ObjectMeta{Key: start.Keys[i]})
						}
					}
					s.BatchPutEnd(&end, &ended)
				}
				for next < 220_000 {
					request()
				}
				c := New(s, Options{Dir: b.TempDir(), PartBytes: 1 << 30, Parts: 2})
				if on {
					if err := c.Start("x.trace"); err != nil {
						b.Fatal(err)
					}
				}
				before := cpu()
				for b.Loop() {
					request()
				}
				used := cpu() - before
				b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/request")
				if on {
					st, err := c.Stop()
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(st.Bytes)/float64(max(1, st.Records)), "B/record")
					b.ReportMetric(float64(st.Dropped), "dropped")
				}
			})
		}
	}
}

// BenchmarkEvent is the cost of one event of a batch of 32, in the writer.
func BenchmarkEvent(b *testing.B) {
	w, err := trace.NewWriter(io.Discard, trace.Header{})
	if err != nil {
		b.Fatal(err)
	}
	r := &recorder{o: &Options{PartBytes: 1 << 60}, w: w, free: make(chan []eviction.Event, 1)}
	events := make([]eviction.Event, bufferEvents)
	for i := range events {
		events[i] = eviction.Event{Kind: eviction.Access, KeyHash: uint64(i+1) * 0x9e3779b97f4a7c15, Size: 1 << 20, NowMS: uint64(i / 100), Req: uint32(i / 32), Segment: 1}
	}
	before, n := cpu(), 0
	for b.Loop() {
		r.take(events)
		<-r.free
		n++
	}
	b.ReportMetric(float64(cpu()-before)/float64(n*bufferEvents), "cpu-ns/event")
}
