package eviction

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction/replay"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

var (
	sizes    = flag.String("sizes", "5000", "capacities in blocks")
	requests = flag.Int("requests", 1500, "requests of the trace to replay, 0 = all")
)

const (
	block     = 1 << 10 // bytes; no allocator rounds it
	tail      = 1000    // bytes of a block that is not full; it takes the room of one that is
	traceFile = "../../eviction/replay/testdata/conversation.trace"
	patience  = 5 * time.Minute
)

// engine is a serving engine without a model: it asks which blocks of a request are there, reads the leading ones
// and puts the others.
type engine struct {
	t      *testing.T
	c      *rpc.Client
	id     wire.UUID
	waited int // puts that found no room at first
	lost   int // puts that found none at all
}

func newEngine(t *testing.T, addr string, blocks int) *engine {
	t.Helper()
	c, err := rpc.NewClient(addr, rpc.DefaultClientConfig(), rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, c: c, id: wire.UUID{1, 2}}
	g := wire.Segment{ID: wire.UUID{3, 4}, Name: "engine:1", Base: 1 << 40, Size: uint64(blocks) * block, TEEndpoint: "127.0.0.1:1", Protocol: "tcp"}
	mounted := call(e, wire.ReMountSegment, &wire.ReMountSegmentRequest{Segments: []wire.Segment{g}, Client: e.id})
	if mounted.Code != wire.OK {
		t.Fatalf("segment: %v", mounted.Code)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var pings sync.WaitGroup
	pings.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_, _ = wire.Invoke(ctx, c, wire.Ping, wire.Newest, &wire.ClientRequest{Client: e.id}) // what fails shows in the replay
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		pings.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func call[Req, Resp any](e *engine, m *wire.Method[Req, Resp], req *Req) Resp {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := wire.Invoke(ctx, e.c, m, wire.Newest, req)
	if err != nil {
		e.t.Fatalf("%s: %v", m.Name(), err)
	}
	return resp
}

// Upstream's master makes room in rounds, so a put that finds none is tried again until the next round has run.
const (
	roundTime = 5 * time.Millisecond
	tries     = 100
)

// request serves one request; partial is the key of a block that is not full, "" if there is none.
func (e *engine) request(keys []string, partial string) (prefix int) {
	there := call(e, wire.BatchExistKey, &wire.KeysRequest{Keys: keys, Tenant: wire.DefaultTenant})
	for prefix < len(keys) && there[prefix].Value {
		prefix++
	}
	if prefix > 0 {
		got := call(e, wire.BatchGetReplicaList, &wire.KeysRequest{Keys: keys[:prefix], Tenant: wire.DefaultTenant})
		for i := range got {
			if got[i].Code != wire.OK { // evicted in between
				prefix = i
				break
			}
		}
	}
	rest := keys[prefix:]
	for try := 0; len(rest) > 0; try++ {
		put := wire.BatchPutStartRequest{Client: e.id, Keys: rest, Config: wire.ReplicateConfig{Replicas: 1}, Tenant: wire.DefaultTenant}
		end := wire.BatchPutEndRequest{Client: e.id, Type: wire.ReplicaAll, Tenant: wire.DefaultTenant}
		for _, k := range rest {
			size := uint64(block)
			if k == partial {
				size = tail
			}
			put.Lengths = append(put.Lengths, size)
		}
		var again []string
		for i, r := range call(e, wire.BatchPutStart, &put) {
			switch r.Code {
			case wire.OK:
				end.Metas = append(end.Metas, wire.ObjectMeta{Key: rest[i]})
			case wire.ErrNoAvailableHandle:
				again = append(again, rest[i])
			case wire.ErrObjectAlreadyExists:
			default:
				e.t.Fatalf("put: %v", r.Code)
			}
		}
		if len(end.Metas) > 0 {
			for _, r := range call(e, wire.BatchPutEnd, &end) {
				if r.Code != wire.OK {
					e.t.Fatalf("put end: %v", r.Code)
				}
			}
		}
		if rest = again; len(rest) == 0 {
			break
		}
		if try == 0 {
			e.waited += len(rest)
		}
		if try == tries {
			e.lost += len(rest)
			break
		}
		time.Sleep(roundTime)
	}
	return prefix
}

// run replays the trace and returns the prefix hit in percent. With tails blocks that are not full are put as such.
func (e *engine) run(t *replay.Trace, most int, tails bool) float64 {
	prefix, asked := 0, 0
	for i := range t.Requests {
		if most > 0 && i == most {
			break
		}
		chain := t.Blocks(i)
		keys := make([]string, len(chain))
		for j, b := range chain {
			keys[j] = "block-" + strconv.Itoa(int(b))
		}
		partial := ""
		if tails && t.Partial(i) {
			partial = keys[len(keys)-1]
		}
		prefix += e.request(keys, partial)
		asked += len(keys)
	}
	return 100 * float64(prefix) / float64(asked)
}

// The same traffic at the same capacity, against upstream's master and ours. Ours must not hit less.
func TestBesideUpstream(t *testing.T) {
	wheel := testenv.StoreWheel(t, testenv.WheelVersion)
	trace, err := replay.Open(traceFile)
	if err != nil {
		t.Fatal(err)
	}
	ours := []string{"--default_kv_lease_ttl=1", "--eviction_free_reserve=0", "--eviction_victim_reserve=0", "--noenable_metric_reporting"}
	var table strings.Builder
	for _, text := range strings.Split(*sizes, ",") {
		blocks, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("-sizes: %v", err)
		}
		hits := map[string]float64{}
		for _, who := range []string{"upstream", "native", "adaptive", "adaptive, tails"} {
			policy, tails := strings.CutSuffix(who, ", tails")
			t.Run(fmt.Sprintf("%s %d", who, blocks), func(t *testing.T) {
				var m *testenv.StoreMaster
				if who == "upstream" {
					m = testenv.StartWheelMaster(t, wheel, "--default_kv_lease_ttl=1")
				} else {
					m = testenv.StartMaster(t, append([]string{"--eviction_policy=" + policy}, ours...)...)
				}
				e := newEngine(t, m.Addr, blocks)
				start := time.Now()
				hits[who] = e.run(trace, *requests, tails)
				t.Logf("prefix hit %.2f %%, %d puts had to wait for room, %d got none, %v", hits[who], e.waited, e.lost, time.Since(start).Round(time.Second))
			})
		}
		fmt.Fprintf(&table, "| %d | %.2f | %.2f | %.2f | %.2f |\n", blocks, hits["upstream"], hits["native"], hits["adaptive"], hits["adaptive, tails"])
		for _, who := range []string{"native", "adaptive", "adaptive, tails"} {
			if hits[who] < hits["upstream"]-0.3 {
				t.Errorf("%s at %d blocks hits %.2f %%, upstream %.2f", who, blocks, hits[who], hits["upstream"])
			}
		}
	}
	t.Logf("prefix hit in percent\n| blocks | upstream | ours, lru | ours, adaptive | with partial blocks |\n|---|---|---|---|---|\n%s", table.String())
}
