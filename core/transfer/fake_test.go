package transfer_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
)

// fake is a transport whose ops end when and how the test wants.
type fake struct {
	name string

	mu     sync.Mutex
	reach  func(*transports.Descriptor) error
	dial   func(*transports.Descriptor) error
	answer func(op transports.Op) error // called for each op, which completes with the result
	stuck  bool                         // ops are kept instead
	deaf   bool                         // the end of the context does not end kept ops
	kept   []*keptOp
	ops    int
	bytes  map[*fakePeer]uint64 // kept
	most   uint64               // kept at once by one peer
	dials  int
	closed int // peers
	start  error
}

type keptOp struct {
	op   transports.Op
	p    *fakePeer
	once sync.Once
	done transports.Completion
}

func newFake() *fake {
	return &fake{name: "fake", bytes: map[*fakePeer]uint64{}, answer: func(transports.Op) error { return nil }}
}

func (f *fake) named() []transfer.NamedTransport {
	return []transfer.NamedTransport{{Name: f.name, Transport: f}}
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) hang() { f.set(func() { f.stuck = true }) }

// release completes everything that is kept and keeps nothing more.
func (f *fake) release(err error) {
	f.set(func() { f.stuck = false })
	f.flush(err)
}

// flush completes what is kept so far.
func (f *fake) flush(err error) {
	f.mu.Lock()
	kept := f.kept
	f.kept = nil
	f.mu.Unlock()
	for _, k := range kept {
		k.finish(err)
	}
}

func (k *keptOp) finish(err error) {
	k.once.Do(func() {
		k.p.f.set(func() { k.p.f.bytes[k.p] -= k.op.Len })
		n := k.op.Len
		if err != nil {
			n = 0
		}
		k.done(k.op.Cookie, n, err)
	})
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops
}

// waitOps waits until n ops have reached the transport.
func (f *fake) waitOps(t testing.TB, n int) {
	t.Helper()
	testenv.Eventually(t, testDeadline, func() error {
		if got := f.count(); got < n {
			return fmt.Errorf("%d of %d ops have arrived", got, n)
		}
		return nil
	})
}

func (f *fake) Start(context.Context, transports.Host) error { return f.start }
func (f *fake) Describe(*transports.Descriptor)              {}
func (f *fake) Close() error                                 { f.release(transports.ErrClosed); return nil }

func (f *fake) Reach(d *transports.Descriptor) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reach != nil {
		return f.reach(d)
	}
	return nil
}

func (f *fake) Dial(_ context.Context, d *transports.Descriptor) (transports.Peer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials++
	if f.dial != nil {
		if err := f.dial(d); err != nil {
			return nil, err
		}
	}
	return &fakePeer{f: f}, nil
}

func (f *fake) Register(_ context.Context, r transports.Region) (transports.Registration, error) {
	return &fakeRegistration{f, r}, nil
}

type fakeRegistration struct {
	f *fake
	r transports.Region
}

func (g *fakeRegistration) Close(ctx context.Context) error {
	return testenvPoll(ctx, func() error {
		g.f.mu.Lock()
		defer g.f.mu.Unlock()
		for _, k := range g.f.kept {
			if k.op.Local == g.r {
				return fmt.Errorf("fake: region in use: %w", transports.ErrUnquiet)
			}
		}
		return nil
	})
}

// testenvPoll polls until cond is nil or ctx ends.
func testenvPoll(ctx context.Context, cond func() error) error {
	for {
		err := cond()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

type fakePeer struct {
	f      *fake
	closed atomic.Bool
}

func (p *fakePeer) Submit(ctx context.Context, ops []transports.Op, done transports.Completion) error {
	f := p.f
	if p.closed.Load() {
		return transports.ErrClosed
	}
	for _, op := range ops {
		f.mu.Lock()
		f.ops++
		if f.stuck {
			k := &keptOp{op: op, p: p, done: done}
			f.kept = append(f.kept, k)
			f.bytes[p] += op.Len
			f.most = max(f.most, f.bytes[p])
			deaf := f.deaf
			f.mu.Unlock()
			if !deaf {
				context.AfterFunc(ctx, func() { k.finish(ctx.Err()) })
			}
			continue
		}
		answer := f.answer
		f.mu.Unlock()
		if err := answer(op); err != nil {
			done(op.Cookie, 0, err)
		} else {
			done(op.Cookie, op.Len, nil)
		}
	}
	return nil
}

func (p *fakePeer) Close() error {
	if !p.closed.Swap(true) {
		p.f.set(func() { p.f.closed++ })
	}
	return nil
}

// target is a peer without a data plane: a daemon that hands out a document.
type target struct {
	Name string
	doc  atomic.Pointer[string]
	asks atomic.Int32
	stop func()
}

const buffersDoc = `"buffers":[{"addr":1,"length":1099511627776,"name":"n"}],"name":"n"`

func newTarget(t testing.TB, doc string) *target {
	t.Helper()
	s := handshake.NewServer(handshake.ServerConfig{})
	g := &target{}
	g.doc.Store(&doc)
	s.Handle(handshake.TypeMetadata, func(context.Context, net.Addr, []byte) []byte {
		g.asks.Add(1)
		return []byte(*g.doc.Load())
	})
	s.HandleNotify(func(net.Addr, handshake.Message) {})
	ln, err := handshake.Listen(context.Background(), "127.0.0.1", handshake.DefaultPorts)
	if err != nil {
		t.Fatal(err)
	}
	g.Name = ln.Addr().String()
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(ln) }()
	var once sync.Once
	g.stop = func() { once.Do(func() { s.Close(); <-served }) }
	t.Cleanup(g.stop)
	return g
}

func (g *target) set(doc string) { g.doc.Store(&doc) }

// tcpDoc is a document that a tcp transport (and a fake) can reach.
func tcpDoc(port int, more string) string {
	return fmt.Sprintf(`{%s,"protocol":"tcp","tcp_data_host":"127.0.0.1","tcp_data_port":%d,"tcp_proto_version":2%s}`, buffersDoc, port, more)
}

func (f *fake) target(t testing.TB) string { return newTarget(t, tcpDoc(1, "")).Name }
