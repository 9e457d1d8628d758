package master

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/replay"
	"github.com/mooncake-agent/mooncake/plugins/wasm"
)

const exampleGuests = "../../plugins/examples/"

// openGuest loads a module as a master does, by the default limits.
func openGuest(tb testing.TB, path string) eviction.Factory {
	tb.Helper()
	c := wasm.DefaultConfig()
	c.Module, c.CacheDir = path, filepath.Join(tb.TempDir(), "code")
	f, err := wasm.Open(tb.Context(), c, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// exampleGuest is an example policy: from testdata, or built where it is in Go.
func exampleGuest(tb testing.TB, name string) string {
	tb.Helper()
	if name != "lru-go" {
		return filepath.Join(exampleGuests, "testdata", name+".wasm")
	}
	out := filepath.Join(tb.TempDir(), name+".wasm")
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-buildmode=c-shared", "-ldflags=-s -w", "-o", out, "./"+name)
	cmd.Dir, cmd.Env = exampleGuests, append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("go build %s: %v\n%s", name, err, text)
	}
	return out
}

// evictions notes the keys that were evicted, in order.
type evictions struct{ keys []uint64 }

func (v *evictions) Offer(events []eviction.Event) {
	for i := range events {
		if e := &events[i]; e.Kind == eviction.Remove && e.Code == eviction.CodeEvicted {
			v.keys = append(v.keys, e.KeyHash)
		}
	}
}

// evictedBy serves the first requests of the conversation trace and returns what was evicted and the leading
// resident blocks.
func evictedBy(t *testing.T, trace *replay.Trace, requests int, p Policy) ([]uint64, int) {
	t.Helper()
	c := newTraceStore(t, Native, 1000)
	if err := c.SetPolicy(anyTenant, p); err != nil {
		t.Fatal(err)
	}
	var v evictions
	c.Record(&v)
	prefix := 0
	for i := range requests {
		c.clock.Store(t0 + int64(trace.Requests[i].TimeMS/1000))
		prefix += c.request(trace.Blocks(i))
	}
	c.Poll()
	c.Record(nil)
	d := c.Policies()[0]
	if d.Faults+d.Fallbacks+d.Strikes > 0 {
		t.Errorf("%s: %d faults, %d victims of the built-in order, %d strikes", p.Name, d.Faults, d.Fallbacks, d.Strikes)
	}
	if s := d.Supervision; s != nil && (s.State != eviction.GuestRunning || s.Fallbacks > 0 || s.Questions == 0) {
		t.Errorf("%s: %+v", p.Name, s)
	}
	c.check()
	return v.keys, prefix
}

// In the store itself the same policy in four languages throws the same away as the built-in one and the store's
// own order, block by block.
func TestGuestLRUsEvictAsTheBuiltIn(t *testing.T) {
	trace, err := replay.Open(traceFiles + "conversation.trace")
	if err != nil {
		t.Fatal(err)
	}
	requests := 1500
	if raceDetector {
		requests = 200
	}
	want, prefix := evictedBy(t, trace, requests, Policy{Name: Native})
	if len(want) == 0 {
		t.Fatal("nothing was evicted")
	}
	for _, name := range []string{"lru", "lru-c", "lru-rust", "lru-as", "lru-go"} {
		t.Run(name, func(t *testing.T) {
			p := policies("lru")[anyTenant]
			if name != "lru" {
				if name == "lru-go" && raceDetector {
					t.Skip("the race detector makes compiling a guest in Go slow; it is tested without")
				}
				p = Policy{Name: name, Factory: openGuest(t, exampleGuest(t, name))}
			}
			p.Guard = "off"
			got, hits := evictedBy(t, trace, requests, p)
			for i := range min(len(got), len(want)) {
				if got[i] != want[i] {
					t.Fatalf("eviction %d of %d is of key %x, want %x", i, len(want), got[i], want[i])
				}
			}
			if len(got) != len(want) || hits != prefix {
				t.Errorf("%d evictions and %d hits, want %d and %d", len(got), hits, len(want), prefix)
			}
		})
	}
}

// pressed is a store at full rate: workers serve the requests of a trace one after the other, round and round.
type pressed struct {
	*store
	trace        *replay.Trace
	next         atomic.Int64 // request
	asked, found atomic.Int64
	lost, full   atomic.Int64 // reads of leased blocks that failed, puts without room
	stop         atomic.Bool
	lease        time.Duration
	most         int64 // requests, 0 = until stop
}

const pressedBlocks = 10_000

func newPressed(t *testing.T, trace *replay.Trace) *pressed {
	p := &pressed{trace: trace, lease: 50 * time.Millisecond}
	p.store = newStore(t, func(o *Options) {
		c := &o.Config
		c.LeaseTTL, c.FreeReserve, c.ClientTTL, c.WarmUp = p.lease, 0, 24*time.Hour, 0
		o.Clock = nil
	})
	p.mount(0, pressedBlocks*traceBlock, clientA)
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// work serves requests: what is there is read, the rest is written.
func (p *pressed) work() {
	c := &traceClient{store: p.store}
	start := wire.BatchPutStartRequest{Client: clientA, Config: config(), Tenant: "default"}
	end := wire.BatchPutEndRequest{Client: clientA, Type: wire.ReplicaAll, Tenant: "default"}
	for !p.stop.Load() {
		n := p.next.Add(1) - 1
		if p.most > 0 && n >= p.most {
			return
		}
		chain := p.trace.Blocks(int(n) % len(p.trace.Requests))
		keys := make([]string, len(chain))
		for i, b := range chain {
			keys[i] = c.key(b)
		}
		at, there := time.Now(), 0
		p.BatchExistKey(&wire.KeysRequest{Keys: keys, Tenant: "default"}, &c.exist)
		for there < len(keys) && c.exist[there].Value {
			there++
		}
		p.asked.Add(int64(len(keys)))
		p.found.Add(int64(there))
		if there > 0 {
			p.BatchGetReplicaList(&wire.KeysRequest{Keys: keys[:there], Tenant: "default"}, &c.lists)
			if time.Since(at) < p.lease { // later the lease of the question has ended
				for _, r := range c.lists[:there] {
					if r.Code != wire.OK {
						p.lost.Add(1)
					}
				}
			}
		}
		start.Keys, start.Lengths, end.Metas = keys[there:], start.Lengths[:0], end.Metas[:0]
		if len(start.Keys) == 0 {
			continue
		}
		for range start.Keys {
			start.Lengths = append(start.Lengths, traceBlock)
		}
		p.BatchPutStart(&start, &c.start)
		for i, r := range c.start {
			switch r.Code {
			case wire.OK:
				end.Metas = append(end.Metas, wire.ObjectMeta{Key: start.Keys[i]})
			case wire.ErrNoAvailableHandle:
				p.full.Add(1)
			}
		}
		if len(end.Metas) > 0 {
			p.BatchPutEnd(&end, &c.ended)
		}
	}
}

// run lets two workers work until they are done, or until during returns.
func (p *pressed) run(t *testing.T, during func()) (hit float64) {
	t.Helper()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(p.work)
	}
	if during != nil {
		during()
		p.stop.Store(true)
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	p.check()
	return float64(p.found.Load()) / float64(p.asked.Load())
}

// A hundred changes between the store's own order and guests, at full rate: no leased block is lost, none of the
// guests fails, and the hits are those of a store that was left alone.
func TestGuestSwapsUnderLoad(t *testing.T) {
	trace, err := replay.Open(traceFiles + "conversation.trace")
	if err != nil {
		t.Fatal(err)
	}
	swaps, least := 100, int64(len(trace.Requests))
	if raceDetector {
		swaps, least = 16, 500
	}
	list := []Policy{
		{Name: "lru-c", Factory: openGuest(t, exampleGuest(t, "lru-c")), Guard: "off"},
		{Name: "lru-rust", Factory: openGuest(t, exampleGuest(t, "lru-rust")), Guard: "off"},
		{Name: Native},
		{Name: "lru-as", Factory: openGuest(t, exampleGuest(t, "lru-as")), Guard: "off"},
	}
	p := newPressed(t, trace)
	hit := p.run(t, func() {
		for i := range swaps {
			before := p.next.Load()
			if err := p.SetPolicy(anyTenant, list[i%len(list)]); err != nil {
				t.Error(err)
			}
			if i%10 == 9 {
				if err := p.RollbackPolicy(anyTenant); err != nil {
					t.Error(err)
				}
			}
			waitFor(t, func() bool { return p.next.Load() > before+5 }) // at work in between
		}
		waitFor(t, func() bool { return p.next.Load() >= least })
	})
	d := p.Policies()[0]
	if d.Changes < uint64(swaps) || d.Faults+d.Strikes > 0 || d.Evicted == 0 {
		t.Errorf("%d changes, %d faults, %d strikes, %d evicted", d.Changes, d.Faults, d.Strikes, d.Evicted)
	}
	alone := newPressed(t, trace)
	alone.most = p.next.Load()
	want := alone.run(t, nil)
	t.Logf("%d requests, %d swaps: prefix hit %.2f %%, without %.2f %%; %d puts found no room, without %d", alone.most, swaps, 100*hit, 100*want, p.full.Load(), alone.full.Load())
	if p.lost.Load() != 0 || alone.lost.Load() != 0 {
		t.Errorf("%d leased blocks could not be read, without swaps %d", p.lost.Load(), alone.lost.Load())
	}
	if d := hit - want; d > 0.01 || d < -0.01 {
		t.Errorf("prefix hit %.2f %%, without swaps %.2f %%", 100*hit, 100*want)
	}
}

// waitFor waits for the workers; they stop on their own only when the test has failed.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !done(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatal("the workers stand still")
		}
	}
}
