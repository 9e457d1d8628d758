package rdma

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/mooncake-agent/mooncake/core/metahttp"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
)

var sizes = []int{1, 7, 4096, 65535, 65536, 65537, 65536 + 16384, 65536 + 16385, 1<<20 + 3}

// exchange proves writes and reads of i to and from o: each size alone and batches, content and guards checked on the
// receiving side.
func exchange(t *testing.T, i, o *driver, sizes ...int) {
	t.Helper()
	for _, n := range sizes {
		op := op{local: 4096 + n%5, remote: 8192 + guard + n%8, n: n}
		seed := fmt.Sprint(n)
		i.fill(op.local, n, "write"+seed)
		o.zero(op.remote-guard, n+2*guard)
		if err := i.move(o, true, op); err != nil {
			t.Fatalf("write of %d bytes: %v\n%s", n, err, i.Stderr())
		}
		if err := o.check(op.remote, n, "write"+seed); err != nil {
			t.Fatalf("write: %v", err)
		}
		o.fill(op.remote, n, "read"+seed)
		i.zero(op.local-guard, n+2*guard)
		if err := i.move(o, false, op); err != nil {
			t.Fatalf("read of %d bytes: %v\n%s", n, err, i.Stderr())
		}
		if err := i.check(op.local, n, "read"+seed); err != nil {
			t.Fatalf("read: %v", err)
		}
	}
}

// exchangeBatch writes and reads count ranges of n bytes as one batch each. The local ranges lie in the opposite order
// of the remote ones.
func exchangeBatch(t *testing.T, i, o *driver, count, n int) {
	t.Helper()
	step := n + 2*guard
	ops := make([]op, count)
	i.zero(0, 4096+count*step+guard)
	o.zero(8192, count*step+guard)
	for k := range ops {
		ops[k] = op{4096 + (count-1-k)*step, 8192 + k*step + guard, n}
		i.fill(ops[k].local, n, fmt.Sprintf("w%d", k))
	}
	if err := i.move(o, true, ops...); err != nil {
		t.Fatalf("write batch of %d x %d: %v\n%s", count, n, err, i.Stderr())
	}
	for k := range ops {
		if err := o.check(ops[k].remote, n, fmt.Sprintf("w%d", k)); err != nil {
			t.Fatalf("write batch, op %d: %v", k, err)
		}
		o.fill(ops[k].remote, n, fmt.Sprintf("r%d", k))
	}
	i.zero(0, 4096+count*step+guard)
	if err := i.move(o, false, ops...); err != nil {
		t.Fatalf("read batch of %d x %d: %v\n%s", count, n, err, i.Stderr())
	}
	for k := range ops {
		if err := i.check(ops[k].local, n, fmt.Sprintf("r%d", k)); err != nil {
			t.Fatalf("read batch, op %d: %v", k, err)
		}
	}
}

// pieces registers the memory of d again, as several buffers.
func (d *driver) pieces() {
	d.t.Helper()
	d.call("unregister", args{"addr": d.base})
	for _, p := range []struct{ off, n int }{{0, 1 << 20}, {1 << 20, 2 << 20}, {3<<20 + 8192, 1<<20 - 8192}} {
		d.call("register", args{"addr": d.base + uint64(p.off), "len": p.n})
	}
}

// metaServer runs our HTTP metadata server, which speaks as upstream's do.
func metaServer(t *testing.T) string {
	t.Helper()
	b, err := metadata.Kind.Build(t.Context(), "memory", module.Env{}, section{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := metahttp.New(metahttp.DefaultConfig(), b, nil, module.Env{})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.Close()
		b.Close()
	})
	return s.URL + "/metadata"
}

// pairs are which engines meet. Each is initiator and target.
var pairs = [][2]side{{ours, ours}, {ours, wheel}}

// Engines of both kinds find each other directly and through a metadata server, and move data in both directions.
func TestExchange(t *testing.T) {
	machine(t)
	for _, m := range []struct {
		name string
		meta func(t *testing.T) string
	}{
		{"p2p", func(*testing.T) string { return p2p }},
		{"http", metaServer},
	} {
		for _, pair := range pairs {
			t.Run(m.name+"/"+pair[0].name+" and "+pair[1].name, func(t *testing.T) {
				meta := m.meta(t)
				name := func(s string) string {
					if meta == p2p {
						return host
					}
					return s
				}
				a, b := pair[0].start(t, name("node-a"), meta), pair[1].start(t, name("node-b"), meta)
				for _, way := range [][2]*driver{{a, b}, {b, a}} {
					exchange(t, way[0], way[1], sizes...)
					exchangeBatch(t, way[0], way[1], 16, 61)
					exchangeBatch(t, way[0], way[1], 16, 65537)
				}
				for _, way := range [][2]*driver{{a, b}, {b, a}} {
					exchangePieces(t, way[0], way[1])
				}
			})
		}
	}
}

// exchangePieces gives o several buffers, each with keys of its own, and moves data to and from their edges.
func exchangePieces(t *testing.T, i, o *driver) {
	t.Helper()
	o.pieces()
	for _, at := range []int{0, 1<<20 - 70000, 1 << 20, 3<<20 - 70000, 3<<20 + 8192, 4<<20 - 70000} {
		seed := fmt.Sprint(at)
		i.zero(2<<20-guard, 70000+2*guard)
		i.fill(2<<20, 70000, seed)
		if err := i.move(o, true, op{2 << 20, at, 70000}); err != nil {
			t.Fatalf("write at %d: %v\n%s", at, err, i.Stderr())
		}
		i.zero(2<<20, 70000)
		if err := i.move(o, false, op{2 << 20, at, 70000}); err != nil {
			t.Fatalf("read at %d: %v\n%s", at, err, i.Stderr())
		}
		if err := i.check(2<<20, 70000, seed); err != nil {
			t.Errorf("at %d: %v", at, err)
		}
	}
}

// One side is killed without a word and started again: transfers work again, in both directions.
func TestRestart(t *testing.T) {
	machine(t)
	for _, pair := range pairs {
		t.Run(pair[0].name+" and "+pair[1].name, func(t *testing.T) {
			a, b := pair[0].start(t, host, p2p), pair[1].start(t, host, p2p)
			exchange(t, a, b, 65537)
			for _, victim := range []*driver{b, a} {
				victim.Kill()
				victim.restart()
				exchange(t, a, b, 65537)
				exchange(t, b, a, 65537)
			}
		})
	}
}
