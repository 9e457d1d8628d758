package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
)

// failing answers the first n attempts with err.
func failing(n int32, err error) func(transports.Op) error {
	var seen atomic.Int32
	return func(transports.Op) error {
		if seen.Add(1) <= n {
			return fmt.Errorf("fake: %w", err)
		}
		return nil
	}
}

func TestRetry(t *testing.T) {
	const other = `{"buffers":[{"addr":64,"length":64,"name":"n"}],"name":"n","protocol":"tcp","tcp_data_port":2}`
	for _, c := range []struct {
		name     string
		err      error
		fails    int32
		doc      string // of the refresh; "" = the same, "dead" = the daemon is gone
		attempts int
		asks     int32 // for the document, the open included
		want     error
	}{
		{"interrupted once", transports.ErrInterrupted, 1, "", 2, 1, nil},
		{"interrupted twice", transports.ErrInterrupted, 2, "", 2, 1, transports.ErrInterrupted},
		{"closed under us", transports.ErrClosed, 1, "", 2, 1, nil},
		{"unreachable once", transports.ErrUnreachable, 1, "", 2, 2, nil},
		{"unreachable twice", transports.ErrUnreachable, 2, "", 2, 2, transports.ErrUnreachable},
		{"unreachable and moved", transports.ErrUnreachable, 1, other, 2, 2, nil},
		{"unreachable and the daemon too", transports.ErrUnreachable, 1, "dead", 1, 1, handshake.ErrConnect},
		{"rejected once", transports.ErrRejected, 1, "", 2, 2, nil},
		{"rejected twice", transports.ErrRejected, 2, "", 2, 2, transports.ErrRejected},
		{"rejected, document changed", transports.ErrRejected, 1, other, 2, 2, nil},
		{"rejected and the daemon is gone", transports.ErrRejected, 1, "dead", 1, 1, transports.ErrRejected},
		{"protocol, unchanged", transports.ErrProtocol, 1, "", 1, 2, transports.ErrProtocol},
		{"protocol, changed", transports.ErrProtocol, 1, other, 2, 2, nil},
		{"no progress", transports.ErrTimeout, 1, "", 1, 1, transports.ErrTimeout},
		{"something else", errors.New("odd"), 1, "", 1, 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			f.answer = failing(c.fails, c.err)
			e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
			g := newTarget(t, tcpDoc(1, ""))
			s := open(t, e, g.Name)
			switch c.doc {
			case "":
			case "dead":
				g.stop()
			default:
				g.set(c.doc)
			}
			err := e.Read(t.Context(), s, make([]byte, 16), 100)
			if failed := int(c.fails) >= c.attempts; failed != (err != nil) || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("got %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), g.Name) {
				t.Errorf("%v does not name the segment", err)
			}
			if n := f.count(); n != c.attempts {
				t.Errorf("%d attempts, want %d", n, c.attempts)
			}
			if n := g.asks.Load(); n != c.asks {
				t.Errorf("%d requests for the document, want %d", n, c.asks)
			}
		})
	}
	t.Run("rejected outside of the buffers", func(t *testing.T) {
		f := newFake()
		f.answer = failing(1, transports.ErrRejected)
		e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
		s := open(t, e, newTarget(t, other).Name)
		if err := e.Read(t.Context(), s, make([]byte, 16), 1000); !errors.Is(err, transports.ErrRejected) || f.count() != 1 {
			t.Fatalf("%v after %d attempts", err, f.count())
		}
	})
}

// Thousands of failures of one peer cause one refresh at a time, not thousands.
func TestRefreshesAreShared(t *testing.T) {
	f := newFake()
	f.hang()
	e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
	g := newTarget(t, tcpDoc(1, ""))
	s := open(t, e, g.Name)
	reqs := make([]transfer.Request, 2000)
	for i := range reqs {
		reqs[i] = transfer.Request{Local: make([]byte, 8), Segment: s, Remote: 8}
	}
	b, err := e.Submit(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	f.waitOps(t, len(reqs))
	f.release(fmt.Errorf("fake: %w", transports.ErrUnreachable))
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := g.asks.Load(); n > 20 {
		t.Errorf("%d requests for the document", n)
	}
}

// Requests to a peer that is gone fail soon, but are no reason for a storm of attempts to find it.
func TestRequestsToADeadPeer(t *testing.T) {
	f := newFake()
	f.answer = failing(1<<30, transports.ErrUnreachable)
	e := startEngine(t, func(o *transfer.Options) {
		o.Transports = f.named()
		o.ConnectTimeout = 400 * time.Millisecond
	})
	g := newTarget(t, tcpDoc(1, ""))
	s := open(t, e, g.Name)
	g.stop()
	began := time.Now()
	for i := range 20 {
		if err := e.Read(t.Context(), s, make([]byte, 8), 8); !errors.Is(err, transports.ErrUnreachable) {
			t.Fatalf("read %d: %v", i, err)
		}
	}
	if d := time.Since(began); d > 10*time.Second || d < 500*time.Millisecond {
		t.Errorf("20 reads took %v", d)
	}
}

func TestPaths(t *testing.T) {
	two := func(t *testing.T) (*fake, *fake, *transfer.Engine, *transfer.Segment) {
		a, b := newFake(), newFake()
		a.name, b.name = "first", "second"
		e := startEngine(t, func(o *transfer.Options) { o.Transports = append(a.named(), b.named()...) })
		return a, b, e, open(t, e, newTarget(t, tcpDoc(1, "")).Name)
	}
	read := func(t *testing.T, e *transfer.Engine, s *transfer.Segment) error {
		return e.Read(t.Context(), s, make([]byte, 8), 8)
	}
	t.Run("the first that reaches the peer", func(t *testing.T) {
		a, b, e, s := two(t)
		if err := read(t, e, s); err != nil || a.count() != 1 || b.count() != 0 {
			t.Fatalf("%v, %d, %d", err, a.count(), b.count())
		}
	})
	t.Run("not shareable memory goes over the next", func(t *testing.T) {
		a, b, e, s := two(t)
		a.answer = failing(1<<30, transports.ErrNotShareable)
		for range 3 {
			if err := read(t, e, s); err != nil {
				t.Fatal(err)
			}
		}
		if a.count() != 3 || b.count() != 3 {
			t.Fatalf("%d, %d", a.count(), b.count())
		}
	})
	t.Run("an unreachable one is left alone for a while", func(t *testing.T) {
		a, b, e, s := two(t)
		a.answer = failing(1<<30, transports.ErrUnreachable)
		for range 5 {
			if err := read(t, e, s); err != nil {
				t.Fatal(err)
			}
		}
		if a.count() != 1 || b.count() != 5 {
			t.Fatalf("%d, %d", a.count(), b.count())
		}
	})
	t.Run("a failed dial too", func(t *testing.T) {
		a, b, e, s := two(t)
		a.dial = func(*transports.Descriptor) error { return transports.ErrUnreachable }
		for range 5 {
			if err := read(t, e, s); err != nil {
				t.Fatal(err)
			}
		}
		if a.dials != 1 || b.count() != 5 {
			t.Fatalf("%d, %d", a.dials, b.count())
		}
	})
	t.Run("none reaches", func(t *testing.T) {
		a, b, e, s := two(t)
		no := func(*transports.Descriptor) error {
			return fmt.Errorf("fake: speaks rdma only: %w", transports.ErrUnreachable)
		}
		a.reach, b.reach = no, no
		if err := read(t, e, s); !errors.Is(err, transfer.ErrNoPath) || !strings.Contains(err.Error(), "speaks rdma only") || transfer.Code(err) != -6 {
			t.Fatal(err)
		}
	})
	t.Run("shareable over none", func(t *testing.T) {
		a, b, e, s := two(t)
		a.answer, b.answer = failing(9, transports.ErrNotShareable), failing(9, transports.ErrNotShareable)
		if err := read(t, e, s); !errors.Is(err, transfer.ErrNoPath) || !errors.Is(err, transports.ErrNotShareable) {
			t.Fatal(err)
		}
	})
	t.Run("without transports", func(t *testing.T) {
		e := startEngine(t, func(o *transfer.Options) { o.Transports = []transfer.NamedTransport{} })
		s := open(t, e, newTarget(t, tcpDoc(1, "")).Name)
		if err := read(t, e, s); !errors.Is(err, transfer.ErrNoPath) {
			t.Fatal(err)
		}
	})
}

// A changed descriptor leads to new connections; the old ones go when they are idle.
func TestReroute(t *testing.T) {
	f := newFake()
	e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
	g := newTarget(t, tcpDoc(1, ""))
	s := open(t, e, g.Name)
	f.hang()
	b, err := e.Submit(t.Context(), []transfer.Request{{Local: make([]byte, 8), Segment: s, Remote: 8}})
	if err != nil {
		t.Fatal(err)
	}
	f.waitOps(t, 1)
	g.set(tcpDoc(2, ""))
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := s.Descriptor(); d.TCPDataPort != 2 {
		t.Fatalf("port %d", d.TCPDataPort)
	}
	f.set(func() { f.stuck = false })
	if err := e.Read(t.Context(), s, make([]byte, 8), 8); err != nil {
		t.Fatal(err)
	}
	if f.dials != 2 || f.closed != 0 {
		t.Fatalf("%d dials, %d closed", f.dials, f.closed)
	}
	f.release(nil)
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testDeadline, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.closed != 1 {
			return fmt.Errorf("%d closed", f.closed)
		}
		return nil
	})
	g.stop()
	if err := s.Refresh(t.Context()); !errors.Is(err, handshake.ErrConnect) {
		t.Errorf("refresh: %v", err)
	}
	if d := s.Descriptor(); d.TCPDataPort != 2 {
		t.Error("a failed refresh lost the descriptor")
	}
}

// One op that the transport refuses at once does not spoil the others of the batch.
func TestOneRefusedOp(t *testing.T) {
	f := &picky{newFake()}
	e := startEngine(t, func(o *transfer.Options) {
		o.Transports = []transfer.NamedTransport{{Name: "picky", Transport: f}}
	})
	s := open(t, e, newTarget(t, tcpDoc(1, "")).Name)
	var reqs []transfer.Request
	for i := range 10 {
		reqs = append(reqs, transfer.Request{Local: make([]byte, 8), Segment: s, Remote: uint64(100 + i)})
	}
	b, err := e.Submit(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	<-b.Done()
	for i := range reqs {
		if want := i != 4; (b.Status(i).State == transfer.Completed) != want {
			t.Errorf("request %d: %+v", i, b.Status(i))
		}
	}
}

// picky refuses a whole Submit when it holds an op at address 104.
type picky struct{ *fake }

func (p *picky) Dial(ctx context.Context, d *transports.Descriptor) (transports.Peer, error) {
	h, err := p.fake.Dial(ctx, d)
	return &pickyPeer{h}, err
}

type pickyPeer struct{ transports.Peer }

func (p *pickyPeer) Submit(ctx context.Context, ops []transports.Op, done transports.Completion) error {
	for _, op := range ops {
		if op.Remote == 104 {
			return errors.New("picky: not this one")
		}
	}
	return p.Peer.Submit(ctx, ops, done)
}

func TestForgetAndConcurrentOpen(t *testing.T) {
	f := newFake()
	e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
	g := newTarget(t, tcpDoc(1, ""))
	var wg sync.WaitGroup
	segs := make([]*transfer.Segment, 50)
	for i := range segs {
		wg.Go(func() { segs[i], _ = e.Open(t.Context(), g.Name) })
	}
	wg.Wait()
	for _, s := range segs {
		if s == nil || s != segs[0] {
			t.Fatal("not one segment")
		}
	}
	if n := g.asks.Load(); n > 5 {
		t.Errorf("%d requests for the document", n)
	}
	e.Forget(g.Name)
	again := open(t, e, g.Name)
	if again == segs[0] {
		t.Error("not forgotten")
	}
	for _, s := range []*transfer.Segment{again, segs[0]} { // both work
		if err := e.Read(t.Context(), s, make([]byte, 8), 8); err != nil {
			t.Error(err)
		}
	}
	g.set("null")
	e.Forget(g.Name)
	if _, err := e.Open(t.Context(), g.Name); !errors.Is(err, transfer.ErrNoSegment) {
		t.Errorf("got %v", err)
	}
	for _, bad := range []string{`[]`, `{}`, `{"protocol":"tcp","tcp_data_port":"1"}`, `{"protocol":"tcp","buffers":[{"addr":0}]}`} {
		g.set(bad)
		if _, err := e.Open(t.Context(), g.Name); !errors.Is(err, transports.ErrBadDescriptor) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
