package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// TestCopiesThatFail ends a copy or a move in every way there is. Afterwards the object must be free: it can be removed,
// which a running copy forbids.
func TestCopiesThatFail(t *testing.T) {
	t.Parallel()
	const from, to = "10.0.0.1:1", "10.0.0.2:1"
	type cluster struct {
		p      *peer // owns from, runs the copies
		target wire.Segment
		other  *peer // owns to
	}
	task := func(c cluster, k string) wire.ObjectTaskRequest {
		return wire.ObjectTaskRequest{Client: c.p.id, Key: k, Tenant: wire.DefaultTenant}
	}
	copyStart := func(t *testing.T, c cluster, k string) {
		if _, code := ask(c.p, wire.CopyStart, wire.CopyStartRequest{Client: c.p.id, Key: k, Tenant: wire.DefaultTenant, Source: from, Targets: []string{to}}); code != wire.OK {
			t.Fatalf("CopyStart: %v", code)
		}
		if code := c.p.remove(k, false); code != wire.ErrObjectHasReplicationTask && code != wire.ErrReplicaIsNotReady {
			t.Errorf("remove during a copy: %v", code)
		}
	}
	moveStart := func(t *testing.T, c cluster, k string) {
		if _, code := ask(c.p, wire.MoveStart, wire.MoveStartRequest{Client: c.p.id, Key: k, Tenant: wire.DefaultTenant, Source: from, Target: to}); code != wire.OK {
			t.Fatalf("MoveStart: %v", code)
		}
	}
	for _, c := range []struct {
		name  string
		ends  func(t *testing.T, c cluster, k string)
		ours  bool // upstream forgets such a copy only after its release timeout
		begin func(t *testing.T, c cluster, k string)
	}{
		{name: "copy ended", begin: copyStart, ends: func(t *testing.T, c cluster, k string) { ask(c.p, wire.CopyEnd, task(c, k)) }},
		{name: "copy revoked", begin: copyStart, ends: func(t *testing.T, c cluster, k string) { ask(c.p, wire.CopyRevoke, task(c, k)) }},
		{name: "move ended", begin: moveStart, ends: func(t *testing.T, c cluster, k string) { ask(c.p, wire.MoveEnd, task(c, k)) }},
		{name: "move revoked", begin: moveStart, ends: func(t *testing.T, c cluster, k string) { ask(c.p, wire.MoveRevoke, task(c, k)) }},
		{name: "target gone before the end", begin: copyStart, ends: func(t *testing.T, c cluster, k string) {
			if _, code := ask(c.other, wire.UnmountSegment, wire.UnmountSegmentRequest{Segment: c.target.ID, Client: c.other.id}); code != wire.OK {
				t.Fatalf("UnmountSegment: %v", code)
			}
			ask(c.p, wire.CopyEnd, task(c, k))
		}},
		{name: "nobody ends it", ours: true, begin: copyStart, ends: func(*testing.T, cluster, string) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.ours {
				oursOnly(t, "forgets an abandoned copy only when it looks for space")
			}
			t.Parallel()
			s := startServer(t, newest, "--put_start_discard_timeout_sec=1", "--put_start_release_timeout_sec=2")
			cl := cluster{p: startPeer(t, s.Addr), other: startPeer(t, s.Addr)}
			cl.p.lend(from, 16*mib)
			cl.target = cl.other.lend(to, 16*mib)
			cl.p.mustPut("k", mib, wire.ReplicateConfig{Replicas: 1, PreferredSegment: from})
			c.begin(t, cl, "k")
			c.ends(t, cl, "k")
			cl.p.eventually(wire.OK, "remove after "+c.name, func() wire.ErrorCode { return cl.p.remove("k", false) })
		})
	}
}

// TestSickSegment: an owner whose memory cannot be written, though it pings, gets no new objects for a while.
func TestSickSegment(t *testing.T) {
	oursOnly(t, "goes on to place objects where no put succeeds")
	t.Parallel()
	s := startServer(t, newest)
	p := startPeer(t, s.Addr)
	p.lend("10.0.0.1:1", 64*mib)
	p.lend("10.0.0.2:1", 64*mib)
	sick := wire.ReplicateConfig{Replicas: 1, PreferredSegment: "10.0.0.1:1"}
	for i := range 3 { // the writers' transfers fail
		k := fmt.Sprint("failed-", i)
		if reps, code := p.start(k, 1000, sick); code != wire.OK || reps[0].Endpoint != sick.PreferredSegment {
			t.Fatalf("put %d: %v %+v", i, code, reps)
		}
		if code := p.revoke(k); code != wire.OK {
			t.Fatal(code)
		}
	}
	for i := range 32 {
		reps, code := p.start(fmt.Sprint("next-", i), 1000)
		if code != wire.OK || reps[0].Endpoint == sick.PreferredSegment {
			t.Fatalf("put %d after three failures there: %v %+v", i, code, reps)
		}
	}
}

// TestOwnership: a segment is its owner's. With the switch for upstream's behaviour anybody can take it away.
func TestOwnership(t *testing.T) {
	t.Parallel()
	try := func(t *testing.T, want wire.ErrorCode, left int, flags ...string) {
		s := startServer(t, newest, flags...)
		owner, stranger := startPeer(t, s.Addr), startPeer(t, s.Addr)
		seg := owner.lend("10.0.0.1:1", 16*mib)
		if _, code := ask(stranger, wire.UnmountSegment, wire.UnmountSegmentRequest{Segment: seg.ID, Client: stranger.id}); code != want {
			t.Errorf("UnmountSegment by a stranger: %v, want %v", code, want)
		}
		s.waitSegments(t, soon, left)
	}
	if upstream(t) {
		try(t, wire.OK, 0)
		return
	}
	t.Run("default", func(t *testing.T) { try(t, wire.ErrIllegalClient, 1) })
	t.Run("as upstream", func(t *testing.T) { try(t, wire.OK, 0, "--compat_unowned_unmount=true") })
}

// TestManyClients has a thousand clients join at once, ping and write. None may be taken for dead.
func TestManyClients(t *testing.T) {
	t.Parallel()
	const clients, workers = 1000, 20
	s := startServer(t, newest, "--client_ttl=10")
	p := startPeer(t, s.Addr)
	segs, ids := make([]wire.Segment, clients), make([]wire.UUID, clients)
	for i := range segs {
		segs[i] = p.newSegment(fmt.Sprintf("10.1.%d.%d:1", i/250, i%250), mib)
		ids[i] = wire.UUID{uint64(i + 1), 77}
	}
	// each calls f for every client, on workers goroutines.
	each := func(ctx context.Context, f func(i int) error) error {
		var wg sync.WaitGroup
		var first atomic.Pointer[error]
		for w := range workers {
			wg.Go(func() {
				for i := w; i < clients && ctx.Err() == nil; i += workers {
					if err := f(i); err != nil && ctx.Err() == nil {
						first.CompareAndSwap(nil, &err)
						return
					}
				}
			})
		}
		wg.Wait()
		if e := first.Load(); e != nil {
			return *e
		}
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := each(ctx, func(i int) error {
		r, err := wire.Invoke(ctx, p.rpc, wire.ReMountSegment, wire.V0_3_13, &wire.ReMountSegmentRequest{Segments: segs[i : i+1], Client: ids[i]})
		if err == nil && r.Code != wire.OK {
			err = r.Code
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var rounds atomic.Int64
	var remount atomic.Int64
	pinged := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			err := each(ctx, func(i int) error {
				r, err := wire.Invoke(ctx, p.rpc, wire.Ping, wire.V0_3_13, &wire.ClientRequest{Client: ids[i]})
				if err == nil && r.Value.Status != wire.ClientOK {
					remount.Add(1)
				}
				return err
			})
			if err != nil {
				pinged <- err
				return
			}
			rounds.Add(1)
		}
		pinged <- nil
	}()
	w := startPeer(t, s.Addr)
	used := map[string]bool{}
	for i := 0; i < 2000; i++ {
		k := fmt.Sprint("k-", i)
		reps, code := w.start(k, 1000)
		if code != wire.OK {
			t.Fatalf("put %d: %v", i, code)
		}
		used[reps[0].Endpoint] = true
		if code := w.end(k); code != wire.OK {
			t.Fatalf("end %d: %v", i, code)
		}
	}
	// For longer than the TTL.
	began := time.Now()
	testenv.Eventually(t, late, func() error {
		if d := time.Since(began); d < 12*time.Second || rounds.Load() < 2 {
			return fmt.Errorf("%d rounds of pings in %v", rounds.Load(), d)
		}
		return nil
	})
	stop()
	if err := <-pinged; err != nil {
		t.Errorf("ping: %v", err)
	}
	if n := remount.Load(); n > 0 {
		t.Errorf("%d pings were told to mount again", n)
	}
	s.waitSegments(t, soon, clients)
	if len(used) < clients/2 {
		t.Errorf("2000 objects lie on %d of %d segments", len(used), clients)
	}
}
