package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// fillStore puts objects until nothing more fits without eviction: n objects of size bytes.
func (p *peer) fillStore(n int, size uint64, configs ...wire.ReplicateConfig) []string {
	p.t.Helper()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("fill-%03d", i)
		p.mustPut(keys[i], size, configs...)
	}
	return keys
}

// TestEvictionOrder: what was neither read nor put for longest goes first, leased and pinned objects stay.
func TestEvictionOrder(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest, "--default_kv_lease_ttl=60000")
	p := startPeer(t, s.Addr)
	p.lend("10.0.0.1:1", 64*mib)
	p.mustPut("pinned", mib, wire.ReplicateConfig{Replicas: 1, HardPin: true})
	p.mustPut("soft", mib, wire.ReplicateConfig{Replicas: 1, SoftPin: wire.SoftPinEnable})
	p.mustPut("read", mib)
	if _, code := p.get("read"); code != wire.OK {
		t.Fatal(code)
	}
	// Twice as many as fit. A put that comes before upstream's eviction thread is tried again.
	const n = 128
	for i := range n {
		k := fmt.Sprintf("e-%03d", i)
		p.eventually(wire.OK, "put "+k, func() wire.ErrorCode { return p.put(k, mib) })
	}
	for _, k := range []string{"pinned", "soft", "read"} {
		if _, code := p.get(k); code != wire.OK {
			t.Errorf("%s: %v", k, code)
		}
	}
	// Those that are left are the last ones. One call reads them all: eviction may still be going on, and what
	// was read is passed over.
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("e-%03d", i)
	}
	left := 0
	for i, code := range askAll(p, wire.BatchGetReplicaList, wire.KeysRequest{Keys: keys, Tenant: wire.DefaultTenant}) {
		if code == wire.OK {
			left++
		} else if left > 0 && !upstream(t) { // its clock has milliseconds, too few for these puts
			t.Errorf("%s was evicted although an older one is left", keys[i])
		}
	}
	if left < 50 || left > 61 {
		t.Errorf("%d objects of 1 MiB are left in 64 MiB beside three others", left)
	}
}

// TestNothingEvictable: everything is leased or pinned, so a put is refused, and served once that ends.
func TestNothingEvictable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		hold func(p *peer, keys []string) // all of them
		free func(p *peer, keys []string)
		pin  wire.ReplicateConfig
	}{
		{name: "leased", pin: wire.ReplicateConfig{Replicas: 1}, hold: func(p *peer, keys []string) {
			for _, k := range keys {
				p.get(k)
			}
		}, free: func(*peer, []string) {}}, // the leases end
		{name: "hard pinned", pin: wire.ReplicateConfig{Replicas: 1, HardPin: true}, hold: func(*peer, []string) {},
			free: func(p *peer, keys []string) { p.remove(keys[0], true) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, newest, "--default_kv_lease_ttl=3000")
			p := startPeer(t, s.Addr)
			p.lend("10.0.0.1:1", 16*mib)
			// With 14 of 16 the watermark of upstream's is not reached; two more fill it at once.
			keys := p.fillStore(14, mib, c.pin)
			began := time.Now()
			c.hold(p, keys)
			p.start("rest", 2*mib) // unfinished: not evictable either
			if code := p.put("more", mib); code != wire.ErrNoAvailableHandle && time.Since(began) < 2*time.Second {
				t.Errorf("put into a store of %s objects: %v", c.name, code)
			}
			for _, k := range keys {
				if !p.exists(k) && time.Since(began) < 2*time.Second {
					t.Errorf("%s is gone", k)
				}
			}
			c.free(p, keys)
			p.eventually(wire.OK, "put", func() wire.ErrorCode { return p.put("more", mib) })
		})
	}
}

// TestProbesDoNotFreezeEviction: a client that asks for all keys without pause keeps nothing alive for ever.
func TestProbesDoNotFreezeEviction(t *testing.T) {
	oursOnly(t, "takes a probe for a read: puts fail as long as somebody probes")
	t.Parallel()
	s := startServer(t, newest, "--default_kv_lease_ttl=60000")
	p, prober := startPeer(t, s.Addr), startPeer(t, s.Addr)
	p.lend("10.0.0.1:1", 64*mib)
	keys := p.fillStore(64, mib)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				askAll(prober, wire.BatchExistKey, wire.KeysRequest{Keys: keys, Tenant: wire.DefaultTenant})
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for i := range 32 {
		if code := p.put(fmt.Sprint("new-", i), mib); code != wire.OK {
			t.Fatalf("put %d while all keys are probed: %v", i, code)
		}
	}
	// What was read is still safe.
	if _, code := p.get("new-31"); code != wire.OK {
		t.Fatal(code)
	}
	for i := range 60 {
		if code := p.put(fmt.Sprint("more-", i), mib); code != wire.OK {
			t.Fatalf("put %d: %v", i, code)
		}
	}
	if _, code := p.get("new-31"); code != wire.OK {
		t.Errorf("an object with a read lease: %v", code)
	}
}

// TestRoundedSizes: objects that the allocator rounds up fill the store earlier than their sizes say. Puts must go
// on all the same.
func TestRoundedSizes(t *testing.T) {
	oursOnly(t, "counts requested bytes and does not evict before a put has failed")
	t.Parallel()
	s := startServer(t, newest)
	p := startPeer(t, s.Addr)
	p.lend("10.0.0.1:1", 64*mib)
	for i := range 200 {
		if code := p.put(fmt.Sprint("odd-", i), mib+1); code != wire.OK {
			t.Fatalf("put %d of 1 MiB + 1: %v", i, code)
		}
	}
}

// TestPressureOfOneSegment: a full preferred segment beside an empty one. No put fails. Ours makes some room in
// the segment that writers want, but the empty one takes the rest.
func TestPressureOfOneSegment(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest)
	p := startPeer(t, s.Addr)
	p.lend("10.0.0.1:1", 16*mib)
	p.lend("10.0.0.2:1", 16*mib)
	const n = 24
	for i := range n {
		if code := p.put(fmt.Sprint("k-", i), mib, wire.ReplicateConfig{Replicas: 1, PreferredSegment: "10.0.0.1:1"}); code != wire.OK {
			t.Fatalf("put %d: %v", i, code)
		}
	}
	left := 0
	for i := range n {
		if p.exists(fmt.Sprint("k-", i)) {
			left++
		}
	}
	if left < n*2/3 {
		t.Errorf("%d of %d objects are left although half of the store was empty", left, n)
	}
}

// TestBatchIntoTooLittleSpace: each key has its own answer, in order, and what was accepted can be finished.
func TestBatchIntoTooLittleSpace(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest)
	p := startPeer(t, s.Addr)
	p.lend("10.0.0.1:1", 60*mib)
	req := wire.BatchPutStartRequest{Client: p.id, Config: wire.ReplicateConfig{Replicas: 1}, Tenant: wire.DefaultTenant}
	ends := wire.BatchPutEndRequest{Client: p.id, Type: wire.ReplicaAll, Tenant: wire.DefaultTenant}
	for i := range 100 {
		req.Keys, req.Lengths = append(req.Keys, fmt.Sprint("b-", i)), append(req.Lengths, mib)
	}
	for i, code := range askAll(p, wire.BatchPutStart, req) {
		switch {
		case i < 60 && code == wire.OK:
			ends.Metas = append(ends.Metas, wire.ObjectMeta{Key: req.Keys[i]})
		case i >= 60 && code == wire.ErrNoAvailableHandle:
		default:
			t.Errorf("key %d: %v", i, code)
		}
	}
	for i, code := range askAll(p, wire.BatchPutEnd, ends) {
		if code != wire.OK {
			t.Errorf("end of key %d: %v", i, code)
		}
	}
}

// TestNoWrongBytes: readers of a store that is always full, with leases shorter than its pauses. A read may find
// nothing; it may never see bytes of another object.
func TestNoWrongBytes(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest, "--default_kv_lease_ttl=500")
	owner := startClient(t, newest, s.addr(newest), options{segment: 32})
	var readers []*client
	var reads [][]any
	for i := range 16 {
		k := fmt.Sprintf("hot-%d", i)
		owner.put(k, 1_000_000)
		reads = append(reads, []any{k, value(k, 1_000_000)})
	}
	for range 2 {
		r := startClient(t, newest, s.addr(newest), options{buffer: 32})
		r.call("load_start", args{"load": "l", "kind": "read", "reads": reads})
		readers = append(readers, r)
	}
	writer := startClient(t, newest, s.addr(newest), options{buffer: 32})
	writer.call("load_start", args{"load": "w", "kind": "write", "prefix": "churn", "size": 1_000_000, "pause": 0.002})
	testenv.Eventually(t, late, func() error {
		if a := writer.call("load_status", args{"load": "w"}); a.Ops < 300 {
			return fmt.Errorf("%d objects written, want 300: %q", a.Ops, a.Errors)
		}
		return nil
	})
	if a := writer.call("load_stop", args{"load": "w"}); a.Wrong > 0 {
		t.Errorf("writer: %d of its objects had wrong content: %q", a.Wrong, a.Errors)
	}
	for _, r := range readers {
		a := r.call("load_stop", args{"load": "l"})
		if a.Wrong > 0 || a.Ops < 50 {
			t.Errorf("reader: %d reads, %d with wrong content: %q", a.Ops, a.Wrong, a.Errors)
		}
	}
}
