package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/mooncake-agent/mooncake/transports"
)

func testSizes(t T, h Harness) {
	sizes := []int{1, 7, 8, 24, 511, 4095, 4096, 4097, 65535, 65536, 65537, 1<<20 + 3, 4 << 20, 16<<20 + 1, 64<<20 + 3}
	p := newPair(t, h)
	remote := p.b.Register(t, h.Largest, transports.ReadWrite)
	local := p.a.Register(t, h.Largest, transports.ReadWrite)
	peer := p.dial(t)
	for i, n := range sizes {
		if n > h.Largest {
			break
		}
		Set(remote.Bytes()[:n], 0)
		Fill(local.Bytes()[:n], i)
		if err := Move(t, peer, op(true, local, 0, remote.Addr(), n, 1)); err != nil {
			t.Fatalf("write of %d bytes: %v", n, err)
		}
		CheckFill(t, fmt.Sprintf("remote memory after a write of %d", n), remote.Bytes()[:n], i)
		Set(local.Bytes()[:n], 0)
		if err := Move(t, peer, op(false, local, 0, remote.Addr(), n, 2)); err != nil {
			t.Fatalf("read of %d bytes: %v", n, err)
		}
		CheckFill(t, fmt.Sprintf("local memory after a read of %d", n), local.Bytes()[:n], i)
	}
}

func testZeroLength(t T, h Harness) {
	p := newPair(t, h)
	remote := p.b.Register(t, 4096, transports.ReadWrite)
	local := p.a.Register(t, 4096, transports.ReadWrite)
	peer := p.dial(t)
	Set(remote.Bytes(), 7)
	err := Move(t, peer,
		op(true, local, 0, remote.Addr(), 0, 1), op(false, local, 4096, remote.Addr()+4096, 0, 2),
		op(true, local, 0, 1, 0, 3), op(false, local, 0, remote.Addr(), 16, 4))
	if err != nil {
		t.Fatal(err)
	}
	CheckAll(t, "remote", remote.Bytes(), 7)
	if err := Move(t, peer); err != nil {
		t.Fatalf("no ops at all: %v", err)
	}
}

func testUnaligned(t T, h Harness) {
	p := newPair(t, h)
	remote := p.b.Register(t, 1<<20, transports.ReadWrite)
	local := p.a.Register(t, 1<<20, transports.ReadWrite)
	peer := p.dial(t)
	for _, off := range []int{1, 3, 4095} {
		n := 70001
		Set(remote.Bytes(), 0xee)
		Fill(local.Bytes()[off:off+n], off)
		if err := Move(t, peer, op(true, local, uint64(off), remote.Addr()+uint64(2*off), n, 1)); err != nil {
			t.Fatal(err)
		}
		CheckAll(t, "before the range", remote.Bytes()[:2*off], 0xee)
		CheckFill(t, "range", remote.Bytes()[2*off:2*off+n], off)
		CheckAll(t, "behind the range", remote.Bytes()[2*off+n:], 0xee)
		Set(local.Bytes(), 0xdd)
		if err := Move(t, peer, op(false, local, uint64(off), remote.Addr()+uint64(2*off), n, 1)); err != nil {
			t.Fatal(err)
		}
		CheckAll(t, "before the local range", local.Bytes()[:off], 0xdd)
		CheckFill(t, "local range", local.Bytes()[off:off+n], off)
		CheckAll(t, "behind the local range", local.Bytes()[off+n:], 0xdd)
	}
}

// testScatter moves many ranges of mixed sizes in one Submit, reads and writes mixed.
func testScatter(t T, h Harness) {
	const n, slot = 600, 40 << 10
	p := newPair(t, h)
	remote := p.b.Register(t, n*slot, transports.ReadWrite)
	local := p.a.Register(t, n*slot, transports.ReadWrite)
	peer := p.dial(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	ops := make([]transports.Op, n)
	for i := range ops {
		size, off := 1+rnd.IntN(slot), i*slot
		if i%3 == 0 {
			size = 1 + rnd.IntN(64)
		}
		ops[i] = op(i%2 == 0, local, uint64(off), remote.Addr()+uint64(off), size, i)
		src := local
		if i%2 != 0 {
			src = remote
		}
		Fill(src.Bytes()[off:off+size], i)
	}
	if err := Move(t, peer, ops...); err != nil {
		t.Fatal(err)
	}
	for i := range ops {
		from, to := ops[i].Offset, ops[i].Offset+ops[i].Len
		CheckFill(t, fmt.Sprintf("local %d", i), local.Bytes()[from:to], i)
		CheckFill(t, fmt.Sprintf("remote %d", i), remote.Bytes()[from:to], i)
		end := uint64(i+1) * slot
		CheckAll(t, fmt.Sprintf("local gap %d", i), local.Bytes()[to:end], 0)
		CheckAll(t, fmt.Sprintf("remote gap %d", i), remote.Bytes()[to:end], 0)
	}
}

func testManyOutstanding(t T, h Harness) {
	const n, size = 5000, 4096
	p := newPair(t, h)
	remote := p.b.Register(t, n*size, transports.ReadWrite)
	local := p.a.Register(t, n*size, transports.ReadWrite)
	peer := p.dial(t)
	Fill(local.Bytes(), 9)
	ops := make([]transports.Op, n)
	for i := range ops {
		ops[i] = op(true, local, uint64(i*size), remote.Addr()+uint64(i*size), size, i)
	}
	r := NewRecorder(t)
	for i := 0; i < n; i += 1250 {
		if err := r.Submit(context.Background(), peer, ops[i:i+1250]...); err != nil {
			t.Fatal(err)
		}
	}
	r.Wait()
	for c, res := range r.Results() {
		if res.Err != nil {
			t.Fatalf("op %d: %v", c, res.Err)
		}
	}
	CheckFill(t, "remote", remote.Bytes(), 9)
}

func testConcurrent(t T, h Harness) {
	const workers, rounds, size = 12, 20, 96 << 10
	f := NewFabric()
	a := StartNode(t, f, h.New(t))
	local := a.Register(t, workers*size, transports.ReadWrite)
	var peers []transports.Peer
	var remotes []*Region
	for range 2 {
		b := StartNode(t, f, h.New(t))
		remotes = append(remotes, b.Register(t, workers*size, transports.ReadWrite))
		peers = append(peers, a.Dial(t, b))
	}
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			mine := local.Bytes()[w*size : (w+1)*size]
			rnd := rand.New(rand.NewPCG(uint64(w), 5))
			for round := range rounds {
				to := (w + round) % 2
				n := 1 + rnd.IntN(size)
				Fill(mine[:n], w+round)
				addr := remotes[to].Addr() + uint64(w*size)
				for _, write := range []bool{true, false} {
					if err := Move(t, peers[to], op(write, local, uint64(w*size), addr, n, round)); err != nil {
						errs <- fmt.Errorf("worker %d, round %d: %w", w, round, err)
						return
					}
					if write {
						Set(mine[:n], 0)
					}
				}
				CheckFill(t, fmt.Sprintf("worker %d round %d", w, round), mine[:n], w+round)
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

func testBothWays(t T, h Harness) {
	const size = 8 << 20
	f := NewFabric()
	n := []*Node{StartNode(t, f, h.New(t)), StartNode(t, f, h.New(t))}
	var src, dst [2]*Region
	for i := range n {
		src[i] = n[i].Register(t, size, transports.ReadWrite)
		dst[i] = n[i].Register(t, size, transports.ReadWrite)
		Fill(src[i].Bytes(), i)
	}
	var wg sync.WaitGroup
	for i := range n {
		peer := n[i].Dial(t, n[1-i])
		wg.Go(func() {
			ops := make([]transports.Op, 16)
			for k := range ops {
				off := uint64(k * size / 16)
				ops[k] = op(true, src[i], off, dst[1-i].Addr()+off, size/16, k)
			}
			if err := Move(t, peer, ops...); err != nil {
				t.Errorf("node %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for i := range n {
		CheckFill(t, "destination", dst[i].Bytes(), 1-i)
	}
}

func testOwnSegment(t T, h Harness) {
	a := StartNode(t, NewFabric(), h.New(t))
	src := a.Register(t, 300_001, transports.ReadWrite)
	dst := a.Register(t, 300_001, transports.ReadWrite)
	Fill(src.Bytes(), 3)
	if err := Move(t, a.Dial(t, a), op(true, src, 0, dst.Addr(), 300_001, 1)); err != nil {
		t.Fatal(err)
	}
	CheckFill(t, "destination", dst.Bytes(), 3)
}
