package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/mooncake-agent/mooncake/transports"
)

// testBadRemote sends ranges that the target must refuse, alone and between good ones: no memory is
// touched, the good ones arrive, and the peer stays usable.
func testBadRemote(t T, h Harness) {
	const size = 256 << 10
	p := newPair(t, h)
	remote := p.b.Register(t, size, transports.ReadWrite)
	hidden := newRegion(t, size, transports.ReadWrite)
	defer hidden.unmap()
	local := p.a.Register(t, size, transports.ReadWrite)
	peer := p.dial(t)
	end := remote.Addr() + size
	for _, c := range []struct {
		name string
		addr uint64
		n    int
	}{
		{"not registered", hidden.Addr(), 64},
		{"not registered, large", hidden.Addr(), size},
		{"the address of the mapping instead of the published one", uint64(reflect.ValueOf(remote.Bytes()).Pointer()), 64},
		{"one byte past the end", end - 63, 64},
		{"overrun by one, large", remote.Addr() + 1, size},
		{"starts at the end", end, 1},
		{"starts one before", remote.Addr() - 1, 64},
		{"address 0", 0, 64},
		{"wraps around", math.MaxUint64 - 10, 64},
	} {
		for _, write := range []bool{true, false} {
			name := fmt.Sprintf("%s, write=%v", c.name, write)
			Set(remote.Bytes(), 1)
			Set(hidden.Bytes(), 2)
			Fill(local.Bytes(), 3)
			err := Move(t, peer, op(write, local, 0, c.addr, c.n, 1))
			if !errors.Is(err, transports.ErrRejected) {
				t.Errorf("%s: got %v, want ErrRejected", name, err)
			}
			CheckAll(t, name+": remote", remote.Bytes(), 1)
			CheckAll(t, name+": unregistered", hidden.Bytes(), 2)

			r := NewRecorder(t)
			good := make([]transports.Op, 40)
			for i := range good {
				good[i] = op(true, local, uint64(i*1000), remote.Addr()+uint64(i*1000), 1000, i)
			}
			good[17] = op(write, local, 0, c.addr, c.n, 17)
			if err := r.Submit(context.Background(), peer, good...); err != nil {
				t.Fatalf("%s among good ones: %v", name, err)
			}
			r.Wait()
			for cookie, res := range r.Results() {
				if bad := cookie == 17; bad != errors.Is(res.Err, transports.ErrRejected) || (!bad && res.Err != nil) {
					t.Errorf("%s among good ones: op %d: %v", name, cookie, res.Err)
				}
			}
			CheckFill(t, name+": remote", remote.Bytes()[:17_000], 3)
			CheckAll(t, name+": gap", remote.Bytes()[17_000:18_000], 1)
		}
	}
}

func testAdjacent(t T, h Harness) {
	p := newPair(t, h)
	whole := p.b.Register(t, 8192, transports.ReadWrite)
	p.b.Unregister(t, whole)
	lo, hi := part{whole, 0, 4096}, part{whole, 4096, 4096}
	p.b.Add(t, lo)
	p.b.Add(t, hi)
	local := p.a.Register(t, 8192, transports.ReadWrite)
	peer := p.dial(t)
	err := Move(t, peer, op(true, local, 0, lo.Addr()+4000, 200, 1))
	switch {
	case h.Keyed && err != nil:
		t.Errorf("a range across two adjacent regions, each with its key: %v", err)
	case !h.Keyed && !errors.Is(err, transports.ErrRejected):
		t.Errorf("a range across two adjacent regions: %v, want ErrRejected", err)
	}
	if err := Move(t, peer, op(true, local, 0, lo.Addr(), 4096, 2), op(true, local, 0, hi.Addr(), 4096, 3)); err != nil {
		t.Errorf("each of the two: %v", err)
	}
}

// part is a piece of another region.
type part struct {
	*Region
	off, n int
}

func (p part) Addr() uint64  { return p.Region.Addr() + uint64(p.off) }
func (p part) Len() uint64   { return uint64(p.n) }
func (p part) Bytes() []byte { return p.Region.Bytes()[p.off : p.off+p.n] }
func (p part) FD() (int, int64, bool) {
	fd, off, ok := p.Region.FD()
	return fd, off + int64(p.off), ok
}

func testBadLocal(t T, h Harness) {
	p := newPair(t, h)
	remote := p.b.Register(t, 8192, transports.ReadWrite)
	local := p.a.Register(t, 4096, transports.ReadWrite)
	peer := p.dial(t)
	for _, bad := range []transports.Op{
		op(true, local, 1, remote.Addr(), 4096, 1),
		op(false, local, 4097, remote.Addr(), 1, 1),
		op(true, local, math.MaxUint64, remote.Addr(), 2, 1),
		op(true, nil, 0, remote.Addr(), 8, 1),
	} {
		r := NewRecorder(t)
		if err := r.Submit(context.Background(), peer, op(true, local, 0, remote.Addr(), 16, 0), bad); err == nil {
			t.Errorf("local offset %d, %d bytes: accepted", bad.Offset, bad.Len)
			r.Wait()
		}
	}
}

func testAccess(t T, h Harness) {
	if !h.Access {
		t.Skip("the transport does not enforce access")
	}
	p := newPair(t, h)
	ro := p.b.Register(t, 4096, transports.RemoteRead)
	wo := p.b.Register(t, 4096, transports.RemoteWrite)
	local := p.a.Register(t, 4096, transports.ReadWrite)
	peer := p.dial(t)
	for _, c := range []struct {
		name  string
		r     *Region
		write bool
		ok    bool
	}{
		{"read a readable region", ro, false, true},
		{"write a read-only region", ro, true, false},
		{"write a writable region", wo, true, true},
		{"read a write-only region", wo, false, false},
	} {
		Set(c.r.Bytes(), 5)
		Set(local.Bytes(), 6)
		err := Move(t, peer, op(c.write, local, 0, c.r.Addr(), 4096, 1))
		if c.ok != (err == nil) || (!c.ok && !errors.Is(err, transports.ErrRejected)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if !c.ok {
			CheckAll(t, c.name, c.r.Bytes(), 5)
			CheckAll(t, c.name, local.Bytes(), 6)
		}
	}
}

func testReach(t T, h Harness) {
	p := newPair(t, h)
	p.b.Register(t, 4096, transports.ReadWrite)
	if err := p.a.T.Reach(p.b.Descriptor()); err != nil {
		t.Errorf("a node of the same kind: %v", err)
	}
	d := &transports.Descriptor{Name: "x", Protocol: "nvlink", DialHost: "127.0.0.1"}
	if err := p.a.T.Reach(d); !errors.Is(err, transports.ErrUnreachable) {
		t.Errorf("foreign protocol: got %v, want ErrUnreachable", err)
	}
	if peer, err := p.a.T.Dial(context.Background(), d); !errors.Is(err, transports.ErrUnreachable) {
		t.Errorf("dial of a foreign protocol: got %v, %v, want ErrUnreachable", peer, err)
	}
}

// testDescribe: publishing again gives the same document, and Dial does not keep the descriptor.
func testDescribe(t T, h Harness) {
	p := newPair(t, h)
	remote := p.b.Register(t, 4096, transports.ReadWrite)
	local := p.a.Register(t, 4096, transports.ReadWrite)
	d := p.b.Descriptor()
	again := p.b.Descriptor()
	p.b.T.Describe(again)
	if !reflect.DeepEqual(d, again) {
		t.Errorf("described once and three times:\n%+v\n%+v", d, again)
	}
	peer := p.a.DialDescriptor(t, d)
	*d = transports.Descriptor{}
	if err := Move(t, peer, op(true, local, 0, remote.Addr(), 4096, 1)); err != nil {
		t.Error(err)
	}
}

func testRegisterBeforeStart(t T, h Harness) {
	f := NewFabric()
	tr := h.New(t)
	r := newRegion(t, 4096, transports.ReadWrite)
	reg, err := tr.Register(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	b := StartNode(t, f, tr)
	b.own = append(b.own, r)
	b.Host.Add(r)
	b.regs[r] = reg
	a := StartNode(t, f, h.New(t))
	local := a.Register(t, 4096, transports.ReadWrite)
	Fill(local.Bytes(), 4)
	if err := Move(t, a.Dial(t, b), op(true, local, 0, r.Addr(), 4096, 1)); err != nil {
		t.Fatal(err)
	}
	CheckFill(t, "remote", r.Bytes(), 4)
}

func testRegisterAgain(t T, h Harness) {
	p := newPair(t, h)
	remote := p.b.Register(t, 4096, transports.ReadWrite)
	local := p.a.Register(t, 4096, transports.ReadWrite)
	peer := p.dial(t)
	for i := range 3 {
		if err := Move(t, peer, op(true, local, 0, remote.Addr(), 4096, 1)); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		p.b.Unregister(t, remote)
		if err := Move(t, peer, op(true, local, 0, remote.Addr(), 4096, 1)); !errors.Is(err, transports.ErrRejected) {
			t.Fatalf("round %d, unregistered: got %v, want ErrRejected", i, err)
		}
		p.b.Add(t, remote)
		if h.Keyed {
			peer = p.dial(t)
		}
	}
}
