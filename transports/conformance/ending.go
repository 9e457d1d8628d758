package conformance

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// load is a set of ops that keeps a peer busy for a while, half of them reads.
type load struct {
	remote, local *Region
	ops           []transports.Op
	rec           *Recorder
}

const loadOps, loadSize = 40, 1 << 20

func newLoad(t T, a, b *Node) *load {
	t.Helper()
	l := &load{remote: b.Register(t, loadOps*loadSize, transports.ReadWrite), local: a.Register(t, loadOps*loadSize, transports.ReadWrite), rec: NewRecorder(t)}
	Set(l.remote.Bytes(), 0x11)
	Set(l.local.Bytes(), 0x22)
	for i := range loadOps {
		off := uint64(i * loadSize)
		l.ops = append(l.ops, op(i%2 == 0, l.local, off, l.remote.Addr()+off, loadSize, i))
	}
	return l
}

// start submits the ops and returns when the first is done: the others are in flight.
func (l *load) start(t T, ctx context.Context, p transports.Peer) {
	t.Helper()
	if err := l.rec.Submit(ctx, p, l.ops...); err != nil {
		t.Fatal(err)
	}
	waitFor(t, deadline, func() string {
		if l.rec.Count() == 0 {
			return "no op completed"
		}
		return ""
	})
}

// check waits for the end of all ops: each succeeded or failed with one of the errors.
func (l *load) check(t T, allowed ...error) (failed int) {
	t.Helper()
	l.rec.Wait()
	for c, res := range l.rec.Results() {
		switch {
		case res.Err == nil && res.N != loadSize:
			t.Errorf("op %d: success with %d bytes", c, res.N)
		case res.Err != nil:
			failed++
			if !isAny(res.Err, allowed...) {
				t.Errorf("op %d: unexpected error %v", c, res.Err)
			}
		}
	}
	return failed
}

// quiet checks that nobody writes to mem any more: it changes every byte and looks again later.
func quiet(t T, what string, mem []byte) {
	t.Helper()
	Set(mem, 0x77)
	for end := time.Now().Add(150 * time.Millisecond); time.Now().Before(end); time.Sleep(30 * time.Millisecond) {
		CheckAll(t, what, mem, 0x77)
	}
	CheckAll(t, what, mem, 0x77)
}

func testUnregisterRemote(t T, h Harness) {
	p := newPair(t, h)
	l := newLoad(t, p.a, p.b)
	l.start(t, context.Background(), p.dial(t))
	p.b.Unregister(t, l.remote)
	quiet(t, "remote memory after it was unregistered", l.remote.Bytes())
	l.check(t, transports.ErrRejected, transports.ErrInterrupted)
	CheckAll(t, "remote memory at the end", l.remote.Bytes(), 0x77)
	err := Move(t, p.peer, op(true, l.local, 0, l.remote.Addr(), 64, 1))
	if !errors.Is(err, transports.ErrRejected) {
		t.Errorf("op after it was unregistered: %v, want ErrRejected", err)
	}
}

func testUnregisterLocal(t T, h Harness) {
	p := newPair(t, h)
	l := newLoad(t, p.a, p.b)
	other := p.a.Register(t, 4096, transports.ReadWrite)
	l.start(t, context.Background(), p.dial(t))
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := p.a.Registration(l.local).Close(ctx); err != nil {
		t.Fatal(err)
	}
	p.a.Host.Remove(t, l.local)
	quiet(t, "local memory after it was unregistered", l.local.Bytes())
	l.check(t, transports.ErrClosed, transports.ErrInterrupted, transports.ErrNotRegistered)
	if err := Move(t, p.peer, op(true, other, 0, l.remote.Addr(), 4096, 1)); err != nil {
		t.Errorf("the peer is not usable any more: %v", err)
	}
}

func testCancelBefore(t T, h Harness) {
	p := newPair(t, h)
	l := newLoad(t, p.a, p.b)
	peer := p.dial(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.rec.Submit(ctx, peer, l.ops...); err != nil {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Submit: %v, want context.Canceled", err)
		}
		return
	}
	if failed := l.check(t, context.Canceled); failed != loadOps {
		t.Errorf("%d of %d ops failed", failed, loadOps)
	}
}

func testCancelInFlight(t T, h Harness) {
	p := newPair(t, h)
	l := newLoad(t, p.a, p.b)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l.start(t, ctx, p.dial(t))
	cancel()
	cancel() // idempotent
	if err := l.rec.WaitFor(10 * time.Second); err != nil {
		t.Fatalf("after cancel: %v", err)
	}
	quiet(t, "local memory after all completions", l.local.Bytes())
	l.check(t, context.Canceled)
	if err := Move(t, p.peer, op(true, l.local, 0, l.remote.Addr(), 4096, 1)); err != nil {
		t.Errorf("the peer is not usable any more: %v", err)
	}
	CheckAll(t, "remote", l.remote.Bytes()[:4096], 0x77)
}

// testCancelOthers: ops that share the peer with cancelled ones arrive, and in full.
func testCancelOthers(t T, h Harness) {
	p := newPair(t, h)
	l := newLoad(t, p.a, p.b)
	src := p.a.Register(t, 64*10_000, transports.ReadWrite)
	dst := p.b.Register(t, 64*10_000, transports.ReadWrite)
	Fill(src.Bytes(), 8)
	peer := p.dial(t)
	for range 5 {
		Set(dst.Bytes(), 0)
		l.rec = NewRecorder(t)
		ctx, cancel := context.WithCancel(context.Background())
		if err := l.rec.Submit(ctx, peer, l.ops...); err != nil {
			t.Fatal(err)
		}
		r := NewRecorder(t)
		for i := range 64 {
			off := uint64(i * 10_000)
			if err := r.Submit(context.Background(), peer, op(true, src, off, dst.Addr()+off, 10_000, i)); err != nil {
				t.Fatal(err)
			}
			if i == 20 {
				cancel()
			}
		}
		r.Wait()
		for c, res := range r.Results() {
			if res.Err != nil {
				t.Errorf("op %d, which nobody cancelled: %v", c, res.Err)
			}
		}
		CheckFill(t, "destination", dst.Bytes(), 8)
		l.check(t, context.Canceled)
		cancel()
	}
}

func testClosePeer(t T, h Harness) {
	p := newPair(t, h)
	l := newLoad(t, p.a, p.b)
	l.start(t, context.Background(), p.dial(t))
	if err := p.peer.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := l.rec.WaitFor(time.Second); err != nil {
		t.Errorf("after Close has returned: %v", err)
	}
	quiet(t, "local memory", l.local.Bytes())
	l.check(t, transports.ErrClosed)
	if err := Move(t, p.peer, l.ops[0]); !errors.Is(err, transports.ErrClosed) {
		t.Errorf("Submit after Close: %v, want ErrClosed", err)
	}
	if err := p.peer.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := Move(t, p.a.Dial(t, p.b), op(true, l.local, 0, l.remote.Addr(), 64, 1)); err != nil {
		t.Errorf("a new peer handle: %v", err)
	}
}

func testCloseTransport(t T, h Harness) {
	p := newPair(t, h)
	l := newLoad(t, p.a, p.b)
	l.start(t, context.Background(), p.dial(t))
	if err := p.a.T.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := l.rec.WaitFor(time.Second); err != nil {
		t.Errorf("after Close has returned: %v", err)
	}
	quiet(t, "local memory", l.local.Bytes())
	l.check(t, transports.ErrClosed)
}

func testRemoteDies(t T, h Harness) {
	p := newPair(t, h)
	l := newLoad(t, p.a, p.b)
	l.start(t, context.Background(), p.dial(t))
	if err := p.b.T.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	quiet(t, "memory of the closed target", l.remote.Bytes())
	if err := l.rec.WaitFor(10 * time.Second); err != nil {
		t.Fatalf("after the target has gone: %v", err)
	}
	l.check(t, transports.ErrInterrupted, transports.ErrUnreachable, transports.ErrTimeout)
	quiet(t, "local memory", l.local.Bytes())
	if n := p.b.Refs(); n != 0 {
		t.Errorf("%d Refs were not released", n)
	}
}

func testRemoteGone(t T, h Harness) {
	p := newPair(t, h)
	remote := p.b.Register(t, 4096, transports.ReadWrite)
	local := p.a.Register(t, 4096, transports.ReadWrite)
	d := p.b.Descriptor()
	if err := p.b.T.Close(); err != nil {
		t.Fatal(err)
	}
	peer, err := p.a.T.Dial(context.Background(), d)
	if err == nil {
		defer peer.Close()
		for range 3 { // the second and third attempt fall into a pause, if there is one
			if err = Move(t, peer, op(true, local, 0, remote.Addr(), 4096, 1)); err == nil {
				break
			}
			if !errors.Is(err, transports.ErrUnreachable) {
				t.Errorf("got %v, want ErrUnreachable", err)
			}
		}
	}
	if err == nil {
		t.Error("a transfer to a closed target succeeded")
	}
}

// testDeadAmongHealthy: the latency of a healthy peer does not change when another one dies.
func testDeadAmongHealthy(t T, h Harness) {
	f := NewFabric()
	a, dead, healthy := StartNode(t, f, h.New(t)), StartNode(t, f, h.New(t)), StartNode(t, f, h.New(t))
	local := a.Register(t, 4096, transports.ReadWrite)
	r1 := dead.Register(t, 4096, transports.ReadWrite)
	r2 := healthy.Register(t, 4096, transports.ReadWrite)
	p1, p2 := a.Dial(t, dead), a.Dial(t, healthy)
	if err := Move(t, p1, op(true, local, 0, r1.Addr(), 4096, 1)); err != nil {
		t.Fatal(err)
	}
	if err := dead.T.Close(); err != nil {
		t.Fatal(err)
	}
	var slowest []time.Duration
	rec := NewRecorder(t)
	for i := range 200 {
		if err := rec.Submit(context.Background(), p1, op(true, local, 0, r1.Addr(), 4096, i)); err != nil && !errors.Is(err, transports.ErrUnreachable) {
			t.Errorf("dead peer: %v", err)
		}
		start := time.Now()
		if err := Move(t, p2, op(true, local, 0, r2.Addr(), 4096, i)); err != nil {
			t.Fatalf("healthy peer: %v", err)
		}
		slowest = append(slowest, time.Since(start))
	}
	rec.Wait()
	slices.Sort(slowest)
	if p90 := slowest[180]; p90 > 50*time.Millisecond {
		t.Errorf("90th percentile of the healthy peer's latency is %v", p90)
	}
}

func testAfterClose(t T, h Harness) {
	p := newPair(t, h)
	remote := p.b.Register(t, 4096, transports.ReadWrite)
	local := p.a.Register(t, 4096, transports.ReadWrite)
	peer := p.dial(t)
	d := p.b.Descriptor()
	reg := p.a.Registration(local)
	for i := range 2 {
		if err := p.a.T.Close(); err != nil {
			t.Errorf("close %d: %v", i+1, err)
		}
	}
	if err := Move(t, peer, op(true, local, 0, remote.Addr(), 64, 1)); !errors.Is(err, transports.ErrClosed) {
		t.Errorf("Submit: %v, want ErrClosed", err)
	}
	if err := peer.Close(); err != nil {
		t.Errorf("close of a peer: %v", err)
	}
	if q, err := p.a.T.Dial(context.Background(), d); !errors.Is(err, transports.ErrClosed) {
		t.Errorf("Dial: %v, %v, want ErrClosed", q, err)
	}
	if r, err := p.a.T.Register(context.Background(), local); !errors.Is(err, transports.ErrClosed) {
		t.Errorf("Register: %v, %v, want ErrClosed", r, err)
	}
	if err := reg.Close(context.Background()); err != nil {
		t.Errorf("Registration.Close: %v", err)
	}
	if err := p.a.T.Start(context.Background(), p.a.Host); err == nil {
		t.Error("Start after Close succeeded")
	}
}
