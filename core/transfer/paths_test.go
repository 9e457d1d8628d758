package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
	_ "github.com/mooncake-agent/mooncake/transports/shm"
)

// twoPaths is an engine that prefers the path "fast" to "slow".
func twoPaths(t *testing.T) (e *transfer.Engine, fast, slow *fake) {
	fast, slow = newFake(), newFake()
	fast.name, slow.name = "fast", "slow"
	return startEngine(t, func(o *transfer.Options) { o.Transports = append(fast.named(), slow.named()...) }), fast, slow
}

// path returns the status of one path to a segment.
func path(t *testing.T, e *transfer.Engine, name, path string) transfer.PathStatus {
	t.Helper()
	for _, s := range e.Segments() {
		for _, p := range s.Paths {
			if s.Segment == name && p.Path == path {
				return p
			}
		}
	}
	t.Fatalf("no path %s to %s in %+v", path, name, e.Segments())
	return transfer.PathStatus{}
}

// TestFailOver: whatever goes wrong with a path, the transfer goes on over the next one, and later ones come back
// when the better path is healthy again.
func TestFailOver(t *testing.T) {
	for _, err := range []error{transports.ErrUnreachable, transports.ErrInterrupted, transports.ErrTimeout, transports.ErrProtocol} {
		t.Run(err.Error(), func(t *testing.T) {
			t.Parallel()
			e, fast, slow := twoPaths(t)
			fast.set(func() { fast.answer = func(transports.Op) error { return err } })
			s := open(t, e, slow.target(t))
			if p := path(t, e, s.Name(), "fast"); p.State != transfer.PathReady {
				t.Errorf("before the first request: %+v", p)
			}
			if err := e.Write(t.Context(), s, make([]byte, 100), 1); err != nil {
				t.Fatal(err)
			}
			if p := path(t, e, s.Name(), "fast"); p.State != transfer.PathDown || p.Errors != 1 || p.Requests != 0 || !strings.Contains(p.Why, err.Error()) {
				t.Errorf("the failed path: %+v", p)
			}
			if p := path(t, e, s.Name(), "slow"); p.State != transfer.PathUsed || p.Requests != 1 || p.Bytes != 100 || p.Errors != 0 {
				t.Errorf("the next path: %+v", p)
			}
			before := fast.count()
			if err := e.Write(t.Context(), s, make([]byte, 100), 1); err != nil || fast.count() != before {
				t.Errorf("right after the failure: %v, %d requests on the path that is down", err, fast.count()-before)
			}
			fast.set(func() { fast.answer = func(transports.Op) error { return nil } })
			testenv.Eventually(t, testDeadline, func() error {
				if err := e.Write(t.Context(), s, make([]byte, 100), 1); err != nil {
					t.Fatal(err)
				}
				if p := path(t, e, s.Name(), "fast"); p.State != transfer.PathUsed || p.Requests == 0 {
					return fmt.Errorf("not back on the better path: %+v", p)
				}
				return nil
			})
			if p := path(t, e, s.Name(), "slow"); p.State != transfer.PathStandby || p.Why != "fast goes first" {
				t.Errorf("the next path afterwards: %+v", p)
			}
		})
	}
}

// TestNotShareableIsNoFault: memory that a path cannot serve leaves the path healthy for other memory.
func TestNotShareableIsNoFault(t *testing.T) {
	e, fast, slow := twoPaths(t)
	fast.set(func() {
		fast.answer = func(op transports.Op) error {
			if op.Write {
				return transports.ErrNotShareable
			}
			return nil
		}
	})
	s := open(t, e, slow.target(t))
	if err := errors.Join(e.Write(t.Context(), s, make([]byte, 8), 1), e.Read(t.Context(), s, make([]byte, 8), 1)); err != nil {
		t.Fatal(err)
	}
	f, w := path(t, e, s.Name(), "fast"), path(t, e, s.Name(), "slow")
	if f.State != transfer.PathUsed || f.Errors != 0 || f.Requests != 1 || w.Requests != 1 {
		t.Errorf("fast %+v, slow %+v", f, w)
	}
}

// shared is an engine with shared memory before tcp.
func shared(t testing.TB) (*transfer.Engine, transports.Transport, *prometheus.Registry) {
	t.Helper()
	tr := newShm(t)
	reg := prometheus.NewRegistry()
	e := startEngine(t, func(o *transfer.Options) {
		o.Metrics = reg
		o.Transports = []transfer.NamedTransport{{Name: "shm", Transport: tr}, {Name: "tcp", Transport: newTCP(t, nil)}}
	})
	return e, tr, reg
}

func newShm(t testing.TB) transports.Transport {
	t.Helper()
	tr, err := transports.Kind.Build(context.Background(), "shm", module.Env{Name: "shm"}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func registerArena(t testing.TB, e *transfer.Engine, n uint64) (mem []byte, addr uint64) {
	t.Helper()
	return registerPieces(t, e, 1, n)
}

// registerPieces registers n regions of the given size that lie side by side.
func registerPieces(t testing.TB, e *transfer.Engine, n int, size uint64) (mem []byte, addr uint64) {
	t.Helper()
	a, err := segment.New(t.Context(), "test", uint64(n)*size, segment.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	rs := make([]*segment.Region, n)
	list := make([]transports.Region, n)
	for i := range rs {
		if rs[i], err = a.Region(uint64(i)*size, size, transports.ReadWrite); err != nil {
			t.Fatal(err)
		}
		list[i] = rs[i]
	}
	if err := e.RegisterBatch(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closeEngine(t, e)
		for _, r := range rs {
			r.Close()
		}
		if err := a.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return a.Bytes(), rs[0].Addr()
}

// TestSharedMemory: memory with a descriptor is reached over shm, other memory of the same segment over tcp, and
// everything over tcp when shm goes away in the middle.
func TestSharedMemory(t *testing.T) {
	b, bshm, _ := shared(t)
	mem, addr := registerArena(t, b, 8<<20)
	plain, plainAddr := register(t, b, 1<<20)
	a, _, reg := shared(t)
	s := open(t, a, b.Name())
	want := pattern(5<<20, 1)
	if err := a.Write(t.Context(), s, want, addr); err != nil || !bytes.Equal(mem[:len(want)], want) {
		t.Fatalf("write to shared memory: %v, equal: %v", err, bytes.Equal(mem[:len(want)], want))
	}
	if p := path(t, a, s.Name(), "shm"); p.State != transfer.PathUsed || p.Bytes != 5<<20 {
		t.Errorf("shm: %+v", p)
	}
	if err := a.Write(t.Context(), s, want[:1<<20], plainAddr); err != nil || !bytes.Equal(plain, want[:1<<20]) {
		t.Fatalf("write to other memory: %v", err)
	}
	if p, q := path(t, a, s.Name(), "tcp"), path(t, a, s.Name(), "shm"); p.Bytes != 1<<20 || p.State != transfer.PathStandby || q.State != transfer.PathUsed {
		t.Errorf("tcp %+v\nshm %+v", p, q)
	}
	if err := bshm.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Write(t.Context(), s, want, addr); err != nil {
		t.Fatalf("write after shm has gone: %v", err)
	}
	if p := path(t, a, s.Name(), "tcp"); p.State != transfer.PathUsed {
		t.Errorf("tcp: %+v", p)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP mooncake_transfer_path_bytes_total Bytes moved by this engine as initiator, by the way they went: a transport, or copy inside the process.
# TYPE mooncake_transfer_path_bytes_total counter
mooncake_transfer_path_bytes_total{op="read",path="copy"} 0
mooncake_transfer_path_bytes_total{op="write",path="copy"} 0
mooncake_transfer_path_bytes_total{op="read",path="shm"} 0
mooncake_transfer_path_bytes_total{op="write",path="shm"} 5.24288e+06
mooncake_transfer_path_bytes_total{op="read",path="tcp"} 0
mooncake_transfer_path_bytes_total{op="write",path="tcp"} 6.291456e+06
# HELP mooncake_transfer_path_switches_total Requests that left a path for the next one, by the path they left and why.
# TYPE mooncake_transfer_path_switches_total counter
mooncake_transfer_path_switches_total{path="shm",reason="not_shareable"} 1
mooncake_transfer_path_switches_total{path="shm",reason="unreachable"} 1
`), "mooncake_transfer_path_bytes_total", "mooncake_transfer_path_switches_total"); err != nil {
		t.Error(err)
	}
	own := open(t, a, a.Name())
	local, localAddr := registerArena(t, a, 1<<20)
	if err := a.Write(t.Context(), own, want[:100], localAddr); err != nil || !bytes.Equal(local[:100], want[:100]) {
		t.Fatalf("own segment: %v", err)
	}
	if p := path(t, a, own.Name(), "copy"); p.State != transfer.PathUsed || p.Bytes != 100 || p.Requests != 1 {
		t.Errorf("copy: %+v", p)
	}
}
