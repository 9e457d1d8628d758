package master

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	_ "github.com/mooncake-agent/mooncake/eviction/adaptive"
	"github.com/mooncake-agent/mooncake/eviction/replay"
)

const (
	traceBlock = 1 << 10 // bytes of a block; the allocator does not round it
	traceTail  = 1000    // bytes of a block that is not full; it takes the room of one that is
	traceFiles = "../../eviction/replay/testdata/"
)

// traceClient is what a serving engine does for each request: it asks which blocks are there, reads the leading
// ones, computes the rest and puts it.
type traceClient struct {
	*store
	keys  []string // by block
	last  uint64   // bytes of the last block of the next request; 0: those of a full one
	exist []wire.Result[bool]
	lists []wire.Result[wire.ReplicaList]
	start []wire.Result[[]wire.Replica]
	ended []wire.Result[wire.Void]
	req   wire.BatchPutStartRequest
	end   wire.BatchPutEndRequest
}

// newTraceStore is a store of so many blocks that holds nothing back: no reserve, no headroom, leases of 1 ms.
func newTraceStore(t testing.TB, policy string, blocks int) *traceClient {
	s := newStore(t, func(o *Options) {
		c := &o.Config
		c.VictimReserve, c.FreeReserve, c.LeaseTTL = 0, 0, time.Millisecond
		c.ClientTTL, c.WarmUp = 24*time.Hour, 0
		if policy != Native {
			o.Policies = policies(policy)
		}
	})
	s.mount(0, uint64(blocks)*traceBlock, clientA)
	return &traceClient{store: s, req: wire.BatchPutStartRequest{Client: clientA, Config: config(), Tenant: "default"},
		end: wire.BatchPutEndRequest{Client: clientA, Type: wire.ReplicaAll, Tenant: "default"}}
}

func (c *traceClient) key(block uint32) string {
	for int(block) >= len(c.keys) {
		c.keys = append(c.keys, "block-"+strconv.Itoa(len(c.keys)))
	}
	return c.keys[block]
}

// request serves one request and returns its leading resident blocks.
func (c *traceClient) request(chain []uint32) (prefix int) {
	keys := make([]string, len(chain))
	for i, b := range chain {
		keys[i] = c.key(b)
	}
	c.BatchExistKey(&wire.KeysRequest{Keys: keys, Tenant: "default"}, &c.exist)
	for prefix < len(keys) && c.exist[prefix].Value {
		prefix++
	}
	if prefix > 0 {
		c.BatchGetReplicaList(&wire.KeysRequest{Keys: keys[:prefix], Tenant: "default"}, &c.lists)
		for i, r := range c.lists {
			if r.Code != wire.OK {
				c.Fatalf("block %d of %d was there and cannot be read: %v", i, prefix, r.Code)
			}
		}
	}
	rest := keys[prefix:]
	if len(rest) == 0 {
		return prefix
	}
	c.req.Keys, c.req.Lengths = rest, c.req.Lengths[:0]
	for range rest {
		c.req.Lengths = append(c.req.Lengths, traceBlock)
	}
	if c.last > 0 {
		c.req.Lengths[len(rest)-1] = c.last
	}
	c.BatchPutStart(&c.req, &c.start)
	c.end.Metas = c.end.Metas[:0]
	for i, r := range c.start {
		switch r.Code {
		case wire.OK:
			c.end.Metas = append(c.end.Metas, wire.ObjectMeta{Key: rest[i]})
		case wire.ErrObjectAlreadyExists:
		default:
			c.Fatalf("put of block %d of %d: %v", prefix+i, len(keys), r.Code)
		}
	}
	if len(c.end.Metas) > 0 {
		c.BatchPutEnd(&c.end, &c.ended)
	}
	return prefix
}

// replay serves the whole trace and returns the share of blocks whose prefill was saved. The clock is the trace's
// time divided by 1000. With tails a block that is not full is put as such.
func (c *traceClient) replay(t *replay.Trace, tails bool) float64 {
	prefix, asked := 0, 0
	for i := range t.Requests {
		c.clock.Store(t0 + int64(t.Requests[i].TimeMS/1000))
		chain := t.Blocks(i)
		if c.last = 0; tails && t.Partial(i) {
			c.last = traceTail
		}
		prefix += c.request(chain)
		asked += len(chain)
		if i%50 == 0 {
			c.Poll()
		}
	}
	return float64(prefix) / float64(asked)
}

// The store itself reaches what the simulator promises (replay's own tests compute its figures), through its own
// calls. Native and the policy lru evict the same.
func TestStoreReachesTheSimulator(t *testing.T) {
	trace, err := replay.Open(traceFiles + "conversation.trace")
	if err != nil {
		t.Fatal(err)
	}
	type point struct {
		policy    string
		blocks    int
		goal      float64 // prefix hit in percent, of the store's default
		simulator float64 // get and put as two calls, no token counts unless tails are
		tails     bool
	}
	for _, p := range []point{
		{Native, 5000, 11.1, 11.18, false}, {Native, 10000, 21.1, 21.16, false}, {Native, 20000, 28.7, 28.78, false}, {Native, 50000, 35.4, 35.46, false},
		{"lru", 5000, 11.1, 11.18, false},
		{"adaptive", 5000, 17.0, 16.86, false}, {"adaptive", 10000, 23.0, 22.96, false}, {"adaptive", 20000, 30.0, 29.62, false}, {"adaptive", 50000, 35.4, 35.52, false},
		{"adaptive", 5000, 17.0, 17.27, true}, {"adaptive", 10000, 23.0, 23.27, true}, {"adaptive", 20000, 30.0, 30.27, true}, {"adaptive", 50000, 35.4, 35.52, true},
	} {
		t.Run(fmt.Sprintf("%s %d tails %v", p.policy, p.blocks, p.tails), func(t *testing.T) {
			if raceDetector && (p.blocks != 5000 || p.policy != Native) {
				t.Skip("the race detector makes a long trace slow; one run is enough for it")
			}
			c := newTraceStore(t, p.policy, p.blocks)
			got := 100 * c.replay(trace, p.tails)
			d := c.Policies()[0]
			t.Logf("prefix hit %.2f %%, goal %.1f, simulator %.2f; evicted %d, regret %d, guard %+v", got, p.goal, p.simulator, d.Evicted, d.Regret, d.Guard)
			least := p.goal - 0.5
			if p.tails {
				least = p.goal - 0.05 // rounded
			}
			if got < least {
				t.Errorf("prefix hit %.2f %%, want at least %.2f", got, least)
			}
			if got < p.simulator-0.5 || got > p.simulator+0.5 {
				t.Errorf("prefix hit %.2f %%, the simulator says %.2f", got, p.simulator)
			}
			if n := c.Counters().EventsDropped.Load(); n != 0 {
				t.Errorf("%d events dropped", n)
			}
			if share := 100 * float64(d.Requests.Prefix) / float64(d.Requests.Asked); d.Requests.Asked != uint64(trace.Accesses()) || share < got-0.01 || share > got+0.01 {
				t.Errorf("the metric says %.2f %% of %d", share, d.Requests.Asked)
			}
			if p.policy == "lru" && (d.Guard.Store-d.Guard.LRU > 0.005 || d.Guard.LRU-d.Guard.Store > 0.005) {
				t.Errorf("the shadow of an LRU differs from the LRU: %+v", d.Guard)
			}
			c.check()
		})
	}
}
