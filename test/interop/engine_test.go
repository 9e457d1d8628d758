package interop

import (
	"context"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/metadata"
	_ "github.com/mooncake-agent/mooncake/metadata/all"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/tcp"
)

func TestMain(m *testing.M) {
	// Connections that net/http keeps for reuse have goroutines.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// engine is our Transfer Engine as a library, with one registered region.
type engine struct {
	*transfer.Engine
	t    *testing.T
	mem  []byte
	addr uint64
	log  *logText
}

// settings change what an engine of a test is made of.
type settings struct {
	options func(*transfer.Options)
	tcp     func(*tcp.Config)
}

// startEngine returns a running engine with size bytes registered (0 = none) that the test's cleanup
// closes.
func startEngine(t *testing.T, name, meta string, size int, s settings) *engine {
	t.Helper()
	e := &engine{t: t, log: new(logText)}
	tr, err := transports.Kind.Build(t.Context(), "tcp", module.Env{}, section(func(c any) {
		if s.tcp != nil {
			s.tcp(c.(*tcp.Config))
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	o := transfer.Options{
		Config: transfer.DefaultConfig(), LocalName: name, AdvertiseHost: "127.0.0.1", BindAddress: "127.0.0.1",
		Transports: []transfer.NamedTransport{{Name: "tcp", Transport: tr}},
		Log:        slog.New(slog.NewTextHandler(e.log, nil)),
	}
	o.TransferTimeout = soon
	if meta != p2p {
		scheme, _, _ := strings.Cut(meta, "://")
		o.MetadataRaw = scheme == "http"
		o.Metadata, err = metadata.Kind.Build(t.Context(), scheme, module.Env{}, section(func(c any) {
			reflect.ValueOf(c).Elem().FieldByName("URL").SetString(meta)
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { o.Metadata.Close() })
	}
	if s.options != nil {
		s.options(&o)
	}
	if e.Engine, err = transfer.New(o); err != nil {
		t.Fatal(err)
	}
	if size > 0 {
		e.mem = mapMemory(t, size)
		r := wrap(t, e.mem)
		e.addr = r.Addr()
		if err := e.Register(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("close %s: %v", e.Name(), err)
		}
	})
	return e
}

// section fills a part's config by a function.
type section func(config any)

func (f section) Decode(into any) error { f(into); return nil }

// logText keeps an engine's log.
type logText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var _ io.Writer = (*logText)(nil)

// mapMemory maps n bytes outside the Go heap for the time of the test.
func mapMemory(t *testing.T, n int) []byte {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(b) })
	return b
}

func wrap(t *testing.T, b []byte) *segment.Region {
	t.Helper()
	r, err := segment.Wrap(b, "cpu:0", transports.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (e *engine) name() string                 { return e.Engine.Name() }
func (e *engine) base() uint64                 { return e.addr }
func (e *engine) fill(off, n int, seed string) { copy(e.mem[off:off+n], pattern(seed, n)) }
func (e *engine) zero(off, n int)              { clear(e.mem[off : off+n]) }
func (e *engine) sha(off, n int) string        { return sum(e.mem[off : off+n]) }
func (e *engine) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(e.t.Context(), d)
}

func (e *engine) open(target string) *transfer.Segment {
	e.t.Helper()
	ctx, cancel := e.within(soon)
	defer cancel()
	s, err := e.Open(ctx, target)
	if err != nil {
		e.t.Fatalf("open %s: %v", target, err)
	}
	return s
}

func (e *engine) requests(target string, write bool, ops []op) []transfer.Request {
	e.t.Helper()
	s := e.open(target)
	reqs := make([]transfer.Request, len(ops))
	for i, o := range ops {
		reqs[i] = transfer.Request{Write: write, Local: e.mem[o.local : o.local+o.n], Segment: s, Remote: o.remote}
	}
	return reqs
}

func (e *engine) move(target string, write bool, ops ...op) error {
	e.t.Helper()
	ctx, cancel := e.within(soon)
	defer cancel()
	return e.Transfer(ctx, e.requests(target, write, ops))
}

// take waits for the notifications that were sent to the engine.
func (e *engine) take() []transfer.Message {
	e.t.Helper()
	ctx, cancel := e.within(soon)
	defer cancel()
	m, err := e.WaitNotifies(ctx)
	if err != nil {
		e.t.Fatalf("no notification: %v", err)
	}
	return m
}
