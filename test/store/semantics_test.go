package store

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// TestCallsByState is the table of calls against the states of an object.
func TestCallsByState(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest, "--default_kv_lease_ttl=60000")
	p := startPeer(t, s.Addr)
	p.lend("10.0.0.1:1", 64*mib)
	states := map[string]func(key string){
		"missing":    func(string) {},
		"processing": func(k string) { p.start(k, 100) },
		"complete":   func(k string) { p.mustPut(k, 100) },
		"leased":     func(k string) { p.mustPut(k, 100); p.get(k) },
		"probed":     func(k string) { p.mustPut(k, 100); p.exists(k) },
		"revoked":    func(k string) { p.start(k, 100); p.revoke(k) },
		"removed":    func(k string) { p.mustPut(k, 100); p.remove(k, true) },
		"upserting": func(k string) {
			p.mustPut(k, 100)
			ask(p, wire.UpsertStart, wire.PutStartRequest{Client: p.id, Key: k, Length: 100, Config: wire.ReplicateConfig{Replicas: 1}, Tenant: "default"})
		},
	}
	existing := func(k string) wire.ErrorCode {
		if p.exists(k) {
			return wire.OK
		}
		return wire.ErrObjectNotFound
	}
	calls := map[string]func(key string) wire.ErrorCode{
		"exist":        existing,
		"get":          func(k string) wire.ErrorCode { _, c := p.get(k); return c },
		"remove":       func(k string) wire.ErrorCode { return p.remove(k, false) },
		"remove force": func(k string) wire.ErrorCode { return p.remove(k, true) },
		"put start":    func(k string) wire.ErrorCode { _, c := p.start(k, 100); return c },
		"put end":      p.end,
		"put revoke":   p.revoke,
	}
	const ok, missing, busy, taken, held, bad = wire.OK, wire.ErrObjectNotFound, wire.ErrReplicaIsNotReady, wire.ErrObjectAlreadyExists, wire.ErrObjectHasLease, wire.ErrInvalidWrite
	order := []string{"exist", "get", "remove", "remove force", "put start", "put end", "put revoke"}
	for state, want := range map[string][]wire.ErrorCode{
		"missing":    {missing, missing, missing, missing, ok, missing, missing},
		"processing": {missing, busy, busy, busy, taken, ok, ok},
		"complete":   {ok, ok, ok, ok, taken, ok, bad},
		"leased":     {ok, ok, held, ok, taken, ok, bad},
		"probed":     {ok, ok, held, ok, taken, ok, bad},
		"revoked":    {missing, missing, missing, missing, ok, missing, missing},
		"removed":    {missing, missing, missing, missing, ok, missing, missing},
		"upserting":  {missing, busy, busy, busy, taken, ok, ok},
	} {
		for i, call := range order {
			k := state + "/" + call
			states[state](k)
			if got := calls[call](k); got != want[i] {
				t.Errorf("%s of a key that is %s: %v, want %v", call, state, got, want[i])
			}
		}
	}
}

// TestConcurrentPuts has many clients put one key at a time: one may write, the others hear that the key is taken.
func TestConcurrentPuts(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest)
	peers := make([]*peer, 8)
	for i := range peers {
		peers[i] = startPeer(t, s.Addr)
	}
	peers[0].lend("10.0.0.1:1", 64*mib)
	const rounds, writers = 20, 64
	for round := range rounds {
		k := fmt.Sprintf("round-%d", round)
		var won, lost atomic.Int64
		var mu sync.Mutex
		var other []wire.ErrorCode
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for w := range writers {
			wg.Go(func() {
				p := peers[w%len(peers)]
				<-begin
				switch _, code := p.start(k, uint64(100+w)); code {
				case wire.OK:
					won.Add(1)
					if c := p.end(k); c != wire.OK {
						t.Errorf("end of the put that won: %v", c)
					}
				case wire.ErrObjectAlreadyExists:
					lost.Add(1)
				default:
					mu.Lock()
					other = append(other, code)
					mu.Unlock()
				}
			})
		}
		close(begin)
		wg.Wait()
		if won.Load() != 1 || lost.Load() != writers-1 {
			t.Fatalf("%s: %d won, %d lost, others %v", k, won.Load(), lost.Load(), other)
		}
		if l, code := peers[1].get(k); code != wire.OK || len(l.Replicas) != 1 || l.Replicas[0].Status != wire.StatusComplete {
			t.Fatalf("%s: %v, %+v", k, code, l)
		}
	}
}

// TestConcurrentPutsOfWheels is the same with real clients and data: no reader may see mixed bytes, and all see
// the same value from the first one on.
func TestConcurrentPutsOfWheels(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest)
	const writers, each, size = 4, 16, 100_000
	var all []*client
	for range writers {
		all = append(all, startClient(t, newest, s.addr(newest), options{segment: 32}))
	}
	sums := map[string]bool{}
	for w := range writers {
		for i := range each {
			sums[value(fmt.Sprintf("w%d-%d", w, i), size)] = true
		}
	}
	for round := range 5 {
		k := fmt.Sprintf("raced-%d", round)
		for w, c := range all {
			c.send("race", args{"key": k, "seed": fmt.Sprintf("w%d", w), "size": size, "threads": each})
		}
		for _, c := range all {
			for i, rc := range c.receive("race", soon).Codes {
				if rc != 0 {
					t.Errorf("put %d of %s: %d", i, k, rc)
				}
			}
		}
		first := all[0].call("get", args{"key": k})
		if !sums[first.SHA] {
			t.Fatalf("%s: %d bytes that nobody wrote", k, first.Bytes)
		}
		for _, c := range all {
			if got := c.call("get", args{"key": k}); got.SHA != first.SHA {
				t.Errorf("%s: two clients read two values", k)
			}
		}
	}
}

// TestPutZombie leaves a put unfinished: the key is taken until the discard timeout, its space until the release
// timeout, because the writer may still be writing; and the writer comes too late.
func TestPutZombie(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest, "--put_start_discard_timeout_sec=2", "--put_start_release_timeout_sec=5")
	owner, zombie, next := startPeer(t, s.Addr), startPeer(t, s.Addr), startPeer(t, s.Addr)
	owner.lend("10.0.0.1:1", 16*mib)
	began := time.Now()
	lost, code := zombie.start("k", 8*mib)
	if code != wire.OK {
		t.Fatal(code)
	}
	if code := next.put("k", 1*mib); code != wire.ErrObjectAlreadyExists {
		t.Errorf("at once: %v", code)
	}
	if _, code := next.get("k"); code != wire.ErrReplicaIsNotReady {
		t.Errorf("get meanwhile: %v", code)
	}
	var got []wire.Replica
	next.eventually(wire.OK, "put after the discard timeout", func() wire.ErrorCode {
		var code wire.ErrorCode
		got, code = next.start("k", 1*mib, wire.ReplicateConfig{Replicas: 1, HardPin: true}) // not to be evicted below
		return code
	})
	if took := time.Since(began); took < 1900*time.Millisecond {
		t.Errorf("the key was given away after %v", took)
	}
	if a, b := lost[0].Address, got[0].Address; b+1*mib > a && b < a+8*mib {
		t.Errorf("the new replica at %x overlaps the one at %x that may still be written", b, a)
	}
	if code := zombie.end("k"); code != wire.ErrIllegalClient {
		t.Errorf("the late writer's PutEnd: %v", code)
	}
	if code := zombie.revoke("k"); code != wire.ErrIllegalClient {
		t.Errorf("the late writer's PutRevoke: %v", code)
	}
	if code := next.end("k"); code != wire.OK {
		t.Errorf("end: %v", code)
	}
	if _, code := next.get("k"); code != wire.OK {
		t.Errorf("get of the second writer's object: %v", code)
	}
	// 16 MiB hold the lost 8 MiB, 1 MiB and no 8 MiB more until the space is released.
	if code := next.put("big", 8*mib); code != wire.ErrNoAvailableHandle && time.Since(began) < 4*time.Second {
		t.Errorf("put into the space of the lost writer after %v: %v", time.Since(began), code)
	}
	if upstream(t) {
		return // it releases space only when it also finds something to evict
	}
	next.eventually(wire.OK, "put after the release timeout", func() wire.ErrorCode { return next.put("big", 8*mib) })
	if took := time.Since(began); took < 4900*time.Millisecond {
		t.Errorf("the space was given away after %v", took)
	}
}

// TestPlacement: replicas on segments of different names, preferred ones first, full ones passed over.
func TestPlacement(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest)
	p := startPeer(t, s.Addr)
	const n = 4
	used := map[string]int{}
	for i := range n {
		p.lend(fmt.Sprintf("10.0.0.%d:1", i+1), 16*mib)
	}
	for i := range 64 {
		reps, code := p.start(fmt.Sprint("spread-", i), 1000)
		if code != wire.OK {
			t.Fatal(code)
		}
		used[reps[0].Endpoint]++
	}
	if len(used) != n {
		t.Errorf("64 objects lie on %v", used)
	}
	for replicas := uint64(2); replicas <= n+1; replicas++ {
		reps, code := p.start(fmt.Sprint("copies-", replicas), 1000, wire.ReplicateConfig{Replicas: replicas})
		at := map[string]bool{}
		for _, r := range reps {
			at[r.Endpoint] = true
		}
		if want := int(min(replicas, n)); code != wire.OK || len(reps) != want || len(at) != want {
			t.Errorf("%d replicas: %v on %v", replicas, code, at)
		}
	}
	for i := range 2 * n {
		want := fmt.Sprintf("10.0.0.%d:1", i%n+1)
		c := wire.ReplicateConfig{Replicas: 1, PreferredSegment: want}
		if i >= n {
			c = wire.ReplicateConfig{Replicas: 1, PreferredSegments: []string{want}}
		}
		if reps, code := p.start(fmt.Sprint("preferred-", i), 1000, c); code != wire.OK || reps[0].Endpoint != want {
			t.Errorf("preferred %s: %v, %+v", want, code, reps)
		}
	}
	full := wire.ReplicateConfig{Replicas: 1, PreferredSegment: "10.0.0.1:1", HardPin: true}
	if code := p.put("fills", 14*mib, full); code != wire.OK {
		t.Fatal(code)
	}
	if reps, code := p.start("spills", 8*mib, full); code != wire.OK || reps[0].Endpoint == full.PreferredSegment {
		t.Errorf("a put that does not fit its preferred segment: %v, %+v", code, reps)
	}
	if reps, code := p.start("elsewhere", 1000, wire.ReplicateConfig{Replicas: 1, PreferredSegment: "nobody"}); code != wire.OK {
		t.Errorf("an unknown preferred segment: %v, %+v", code, reps)
	}
	if _, code := p.start("huge", 17*mib); code != wire.ErrNoAvailableHandle {
		t.Errorf("larger than every segment: %v", code)
	}
	if code := p.put("after", 1000); code != wire.OK { // a put that can never fit must not disturb the others
		t.Errorf("put after it: %v", code)
	}
}

// TestGracefulUnmount: reads go on, nothing new is placed, and after the grace the segment is gone.
func TestGracefulUnmount(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest)
	p := startPeer(t, s.Addr)
	seg := p.lend("10.0.0.1:1", 16*mib)
	p.mustPut("k", 1000)
	p.lend("10.0.0.2:1", 16*mib)
	if _, code := ask(p, wire.GracefulUnmountSegment, wire.UnmountSegmentRequest{Segment: seg.ID, Client: p.id, GraceMS: 2000}); code != wire.OK {
		t.Fatal(code)
	}
	if _, code := p.get("k"); code != wire.OK {
		t.Errorf("get during the grace: %v", code)
	}
	for i := range 8 {
		reps, code := p.start(fmt.Sprint("new-", i), 1000, wire.ReplicateConfig{Replicas: 1, PreferredSegment: seg.Name})
		if code != wire.OK || reps[0].Endpoint == seg.Name {
			t.Errorf("put during the grace: %v, %+v", code, reps)
		}
	}
	p.eventually(wire.ErrSegmentNotFound, "status after the grace", func() wire.ErrorCode {
		_, code := ask(p, wire.QuerySegmentStatusByID, wire.IDRequest{ID: seg.ID})
		return code
	})
	testenv.Eventually(t, soon, testenv.True("the object is still there", func() bool { return !p.exists("k") }))
}
