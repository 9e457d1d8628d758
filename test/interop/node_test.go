package interop

import (
	"errors"
	"syscall"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/internal/testenv/rawte"
)

// nodeMemory is the segment of a running node, seen through data connections of the test's own.
type nodeMemory struct {
	*testenv.Node
	t    *testing.T
	addr uint64
	data string
}

// startNode runs a node with a segment of memSize and finds it as a peer would.
func startNode(t *testing.T, name, meta string, more testenv.Config, env ...string) *nodeMemory {
	t.Helper()
	c := testenv.Config{"local_hostname": name, "metadata_server": meta, "global_segment_size": memSize}
	for k, v := range more {
		c[k] = v
	}
	n := testenv.StartNode(t, c, env...)
	return findNode(t, n, meta)
}

func findNode(t *testing.T, n *testenv.Node, meta string) *nodeMemory {
	t.Helper()
	d, err := rawte.Find(meta, n.Segment, soon)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Buffers) != 1 || d.Buffers[0].Length != memSize {
		t.Fatalf("published buffers: %+v, want one of %d bytes", d.Buffers, memSize)
	}
	return &nodeMemory{Node: n, t: t, addr: d.Buffers[0].Addr, data: d.DataAddr()}
}

func (n *nodeMemory) name() string { return n.Segment }
func (n *nodeMemory) base() uint64 { return n.addr }

func (n *nodeMemory) dial() *rawte.Data {
	n.t.Helper()
	d, err := rawte.DialData(n.data, soon)
	if err != nil {
		n.t.Fatalf("data port of %s: %v", n.Segment, err)
	}
	return d
}

func (n *nodeMemory) put(off int, b []byte) {
	n.t.Helper()
	d := n.dial()
	defer d.Close()
	if err := d.WriteAt(b, n.addr+uint64(off)); err != nil {
		n.t.Fatalf("write %d bytes to %s: %v", len(b), n.Segment, err)
	}
}

func (n *nodeMemory) fill(off, size int, seed string) { n.t.Helper(); n.put(off, pattern(seed, size)) }
func (n *nodeMemory) zero(off, size int)              { n.t.Helper(); n.put(off, make([]byte, size)) }

func (n *nodeMemory) sha(off, size int) string {
	n.t.Helper()
	d := n.dial()
	defer d.Close()
	b := make([]byte, size)
	if err := d.ReadAt(b, n.addr+uint64(off)); err != nil {
		n.t.Fatalf("read %d bytes of %s: %v", size, n.Segment, err)
	}
	return sum(b)
}

// stop ends the node as an operator does and checks that it leaves nothing in the service.
func (n *nodeMemory) stop(meta string) {
	n.t.Helper()
	n.Stop(soon, syscall.SIGTERM)
	if meta == p2p {
		return
	}
	for _, key := range []string{"mooncake/ram/" + n.Segment, "mooncake/rpc_meta/" + n.Segment} {
		if v, err := rawte.GetKey(meta, key, soon); !errors.Is(err, rawte.ErrNoKey) {
			n.t.Errorf("after SIGTERM: %s = %q, %v", key, v, err)
		}
	}
}

// services are all ways to find each other that the wheel has.
var services = append(wheelServices,
	metaService{"etcd", func(t *testing.T) string { return "etcd://" + testenv.Etcd(t).Addr }},
	metaService{"http ours", startOurMeta})

// The wheel writes to and reads from a node, over every service.
func TestWheelToNode(t *testing.T) {
	for _, m := range services {
		t.Run(m.name, func(t *testing.T) {
			meta := m.start(t)
			n := startNode(t, nameFor(meta, "node-a"), meta, nil)
			w := startWheel(t, nameFor(meta, "wheel-b"), meta, memSize)
			exchange(t, w, n)
			if got := w.call("first", args{"target": n.name()}).Addr; got != n.base() {
				t.Errorf("first buffer %#x, want %#x", got, n.base())
			}
			if rc := w.call("probe", args{"target": n.name()}).RC; rc != 0 {
				t.Errorf("probe: %d", rc)
			}
			if err := w.notify(n.name(), n.base(), "wheel-b", "done"); err != nil {
				t.Error(err)
			}
			if err := w.move(n.name(), true, op{0, n.base() + 1<<46, 64}); err == nil {
				t.Error("a write outside of every buffer was acknowledged")
			}
			if err := w.move(n.name(), false, op{0, n.base() + memSize - 63, 64}); err == nil {
				t.Error("a read one byte past the end succeeded")
			}
			n.Alive(t)
			w.Stop(soon)
			n.stop(meta)
		})
	}
}

// Older framing and no connection pool, as users of the wheel can set them.
func TestWheelToNodeVariants(t *testing.T) {
	for _, v := range []struct{ name, env string }{
		{"v1", "MC_TCP_PROTO=1"},
		{"pool off", "MC_TCP_ENABLE_CONNECTION_POOL=0"},
		{"16 lanes", "MC_TCP_LANES_PER_PEER=16"},
		{"small slices", "MC_TCP_SLICE_SIZE=4096"},
	} {
		t.Run(v.name, func(t *testing.T) {
			n := startNode(t, "127.0.0.1", p2p, nil)
			w := startWheel(t, "127.0.0.1", p2p, memSize, v.env)
			exchange(t, w, n)
			n.Alive(t)
		})
	}
}
