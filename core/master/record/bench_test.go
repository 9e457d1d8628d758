package record

import (
	"context"
	"fmt"
	"slices"
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
)

func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRecording is what recording costs the master, in processor time of the whole process: the same store without
// and with it in turn, because a busy machine is not the same for long. The work of the RPC server is not in it.
func BenchmarkRecording(b *testing.B) {
	for _, policy := range []string{"native", "lru", "adaptive"} {
		e := newEngine(b, policy)
		b.Run(fmt.Sprintf("policy=%s/get", policy), func(b *testing.B) { inTurn(b, e.s, e.get) })
		b.Run(fmt.Sprintf("policy=%s/mixed", policy), func(b *testing.B) { inTurn(b, e.s, e.mixed) })
	}
}

// inTurn sends requests without and with recording, a thousand each.
func inTurn(b *testing.B, s *master.Service, request func()) {
	const turn = 1000
	c := New(s, Options{Dir: b.TempDir(), PartBytes: 1 << 30, Parts: 2})
	if err := c.Start("x.trace"); err != nil {
		b.Fatal(err)
	}
	requests := func(r master.Recorder) float64 {
		s.Record(r)
		start := cpu()
		for range turn {
			request()
		}
		s.Record(nil)
		for len(c.run.full) > 0 {
			time.Sleep(100 * time.Microsecond)
		}
		return float64(cpu()-start) / turn
	}
	requests(c.run) // its buffers are made
	var off, more []float64
	before := c.Status().Records
	for b.Loop() {
		without := requests(nil)
		off, more = append(off, without), append(more, requests(c.run)-without)
	}
	records := c.Status().Records - before
	st, err := c.Stop()
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(off)
	slices.Sort(more)
	usual, extra := off[len(off)/2], more[len(more)/2]
	b.ReportMetric(usual, "cpu-ns/request")
	b.ReportMetric(extra, "more-ns/request")
	b.ReportMetric(100*extra/usual, "%-more")
	b.ReportMetric(float64(records)/float64(len(off)*turn), "records/request")
	b.ReportMetric(float64(st.Dropped), "dropped")
}

// engine makes requests of a full store.
type engine struct {
	s      *master.Service
	next   int      // key
	recent []string // keys that are there
	at     int      // in recent

	keys    []string
	lengths []uint64
	yes     []wire.Result[bool]
	lists   []wire.Result[wire.ReplicaList]
	placed  []wire.Result[[]wire.Replica]
	ended   []wire.Result[wire.Void]
	metas   []wire.ObjectMeta
}

const (
	room  = 200_000 // objects
	chain = 32      // keys of a mixed request
	batch = 100     // keys of a get
)

func newEngine(b *testing.B, policy string) *engine {
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
	g := wire.Segment{ID: wire.UUID{3, 4}, Name: "node:1", Base: 1 << 40, Size: room * 1024, TEEndpoint: "127.0.0.1:1", Protocol: "tcp"}
	var mounted wire.Result[wire.Void]
	s.ReMountSegment(&wire.ReMountSegmentRequest{Segments: []wire.Segment{g}, Client: wire.UUID{1, 2}}, &mounted)
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close(context.Background()) })
	e := &engine{s: s, keys: make([]string, chain), lengths: make([]uint64, chain)}
	for i := range e.lengths {
		e.lengths[i] = 1024
	}
	for e.next < room+room/10 {
		e.mixed()
	}
	for i := range room / 2 {
		e.recent = append(e.recent, key(e.next-room/2+i))
	}
	return e
}

func key(i int) string { return fmt.Sprintf("block-%032d", i) }

// mixed asks for a chain, reads what is there, half of it, and puts the rest.
func (e *engine) mixed() {
	for i := range e.keys {
		e.keys[i] = key(e.next + i)
	}
	e.next += chain / 2
	e.s.BatchExistKey(&wire.KeysRequest{Keys: e.keys, Tenant: "default"}, &e.yes)
	found := 0
	for found < chain && e.yes[found].Value {
		found++
	}
	if found > 0 {
		e.s.BatchGetReplicaList(&wire.KeysRequest{Keys: e.keys[:found], Tenant: "default"}, &e.lists)
	}
	absent := e.keys[found:]
	e.s.BatchPutStart(&wire.BatchPutStartRequest{Client: wire.UUID{1, 2}, Keys: absent, Lengths: e.lengths[:len(absent)],
		Config: wire.ReplicateConfig{Replicas: 1}, Tenant: "default"}, &e.placed)
	e.metas = e.metas[:0]
	for i, r := range e.placed {
		if r.Code == wire.OK {
			e.metas = append(e.metas, wire.ObjectMeta{Key: absent[i]})
		}
	}
	e.s.BatchPutEnd(&wire.BatchPutEndRequest{Client: wire.UUID{1, 2}, Metas: e.metas, Type: wire.ReplicaAll, Tenant: "default"}, &e.ended)
}

// get reads keys that are there.
func (e *engine) get() {
	e.s.BatchGetReplicaList(&wire.KeysRequest{Keys: e.recent[e.at : e.at+batch], Tenant: "default"}, &e.lists)
	e.at = (e.at + batch) % len(e.recent)
}

// BenchmarkEvent is the cost of one event of a batch of 32, without the writing.
func BenchmarkEvent(b *testing.B) {
	r, err := newRecorder(&New(nil, Options{PartBytes: 1 << 60}).o, "x")
	if err != nil {
		b.Fatal(err)
	}
	events := make([]eviction.Event, 4096)
	for i := range events {
		events[i] = eviction.Event{Kind: eviction.Access, KeyHash: uint64(i+1) * 0x9e3779b97f4a7c15, Size: 1 << 20, NowMS: uint64(i / 100), Req: uint32(i / 32), Segment: 1}
	}
	before, n := cpu(), 0
	for b.Loop() {
		r.Offer(events)
		for len(r.full) > 0 {
			r.free <- (<-r.full).b
		}
		n++
	}
	b.ReportMetric(float64(cpu()-before)/float64(n*len(events)), "cpu-ns/event")
}
