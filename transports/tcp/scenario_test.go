package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// pairOf starts a target with one region and a client with one region of the same size.
func pairOf(t testing.TB, size int, change func(*Config)) (server *Transport, remote *transporttest.Region, c *client) {
	t.Helper()
	f := transporttest.NewFabric()
	server = newTestTransport(t, change)
	sn := transporttest.StartNode(t, f, server)
	remote = sn.Register(t, size, transports.ReadWrite)
	tr := newTestTransport(t, change)
	cn := transporttest.StartNode(t, f, tr)
	c = &client{Node: cn, tr: tr, local: cn.Register(t, size, transports.ReadWrite)}
	c.peer = cn.Dial(t, sn)
	return server, remote, c
}

// TestNoTornWrites is scenario S2: at the moment a write completes, every byte of it is in the target's
// memory, also when the target reads slowly.
func TestNoTornWrites(t *testing.T) {
	const size, rounds = 2_400_000, 60
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprintf("slow receiver %v", slow), func(t *testing.T) {
			n := rounds
			_, remote, c := pairOf(t, 4*size, func(c *Config) {
				if slow {
					c.ReceiveBuffer = 32 << 10
				}
			})
			if slow {
				n = 10
			}
			var wg sync.WaitGroup
			for w := range 4 { // four ranges are written at once
				wg.Go(func() {
					lo, hi := w*size, (w+1)*size
					for i := range n {
						want := byte(w*64 + i + 1)
						transporttest.Set(c.local.Bytes()[lo:hi], want)
						o := c.op(true, remote.Addr()+uint64(lo), size, uint64(w))
						o.Offset = uint64(lo)
						torn := make(chan int, 1)
						err := c.peer.Submit(context.Background(), []transports.Op{o}, func(_, _ uint64, err error) {
							if err != nil {
								torn <- -1
								return
							}
							torn <- size - bytes.Count(remote.Bytes()[lo:hi], []byte{want})
						})
						if err != nil {
							t.Error(err)
							return
						}
						if k := <-torn; k != 0 {
							t.Errorf("writer %d, round %d: %d bytes were not there at completion (-1: the write failed)", w, i, k)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestRejectedLargeWrite is the second half of S2: it ends as rejected while its payload is on the way,
// in both directions at once, and its memory is free when it completes.
func TestRejectedLargeWrite(t *testing.T) {
	const size = 32 << 20
	server, remote, c := pairOf(t, size, nil)
	for i := range 10 {
		var after atomic.Bool
		done := make(chan error, 2)
		ops := []transports.Op{c.op(true, remote.Addr()+1, size, 1), c.op(false, remote.Addr(), 4<<20, 2)}
		if err := c.peer.Submit(context.Background(), ops, func(cookie, _ uint64, err error) {
			if cookie == 1 {
				after.Store(true)
				done <- err
			} else if err != nil {
				done <- err
			} else {
				done <- io.EOF
			}
		}); err != nil {
			t.Fatal(err)
		}
		var errs []error
		for range 2 {
			select {
			case err := <-done:
				errs = append(errs, err)
			case <-time.After(20 * time.Second):
				t.Fatalf("round %d: not completed: %v so far", i, errs)
			}
		}
		if !errors.Is(errors.Join(errs...), transports.ErrRejected) || !errors.Is(errors.Join(errs...), io.EOF) {
			t.Fatalf("round %d: %v; want the write rejected, the read done", i, errs)
		}
	}
	if v := testutil.ToFloat64(server.m.rejected.WithLabelValues("unregistered")); v != 10 {
		t.Errorf("rejected_total = %v, want 10: the connection of a rejection is not used again", v)
	}
	transporttest.CheckAll(t, "remote", remote.Bytes()[:4096], 0)
}

// TestSocketCount is scenario S3: under load to two peers there are never more than lanes×peers sockets.
func TestSocketCount(t *testing.T) {
	const lanes = 3
	f := transporttest.NewFabric()
	tr := newTestTransport(t, func(c *Config) { c.LanesPerPeer = lanes })
	a := transporttest.StartNode(t, f, tr)
	local := a.Register(t, 10<<20, transports.ReadWrite)
	var servers [2]*Transport
	var peers [2]transports.Peer
	var remotes [2]*transporttest.Region
	for i := range 2 {
		servers[i] = newTestTransport(t, nil)
		b := transporttest.StartNode(t, f, servers[i])
		remotes[i] = b.Register(t, 10<<20, transports.ReadWrite)
		peers[i] = a.Dial(t, b)
	}
	end := time.Now().Add(700 * time.Millisecond)
	var most atomic.Int64
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for k := 0; time.Now().Before(end); k++ {
				n, off, to := 1+rnd.IntN(1<<20), uint64(w)<<20, k%2
				o := transports.Op{Write: k%3 == 0, Local: local, Offset: off, Remote: remotes[to].Addr() + off, Len: uint64(n)}
				if err := transporttest.Move(t, peers[to], o); err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), int64(testutil.ToFloat64(tr.m.lanes))))
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n > 2*lanes {
		t.Errorf("%d lanes open at once, want at most %d", n, 2*lanes)
	}
	for i, s := range servers {
		if v := testutil.ToFloat64(s.m.accepted); v > lanes {
			t.Errorf("target %d accepted %v connections for %d lanes", i, v, lanes)
		}
	}
}

// TestPeerDiesInMidTransfer is scenario S4: peers that die in mid-transfer, over and over.
func TestPeerDiesInMidTransfer(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var mu sync.Mutex
	f := newFakeTarget(t, 1<<20, func(_, _ int, h header, c net.Conn) bool {
		mu.Lock()
		k := rnd.IntN(5)
		part := rnd.Int64N(int64(h.size))
		mu.Unlock()
		switch k {
		case 0:
			return true
		case 1:
			c.(*fakeConn).Conn.(*net.TCPConn).SetLinger(0)
		case 2:
			if h.write() { // a reader sends nothing more, and a peer that waits for it is alive
				io.CopyN(io.Discard, c, part)
			}
		case 3:
			c.Write(statusBytes(statusOK)[:1+part%8])
		case 4:
			if !h.write() {
				c.Write(append(statusBytes(statusOK), make([]byte, part)...))
			}
		}
		return false
	})
	c := newClient(t, f.descriptor(2), func(c *Config) { c.ReconnectPause = time.Millisecond })
	r := transporttest.NewRecorder(t)
	for i := range 1000 {
		if err := r.Submit(context.Background(), c.peer, c.op(i%2 == 0, fakeBase, 1+i*997%200_000, uint64(i))); err != nil && !errors.Is(err, transports.ErrUnreachable) {
			t.Fatal(err)
		}
	}
	r.Wait()
	for i, res := range r.Results() {
		if res.Err != nil && !errors.Is(res.Err, transports.ErrInterrupted) && !errors.Is(res.Err, transports.ErrUnreachable) {
			t.Errorf("op %d: %v", i, res.Err)
		}
		if res.Err != nil && len(res.Err.Error()) > 300 {
			t.Errorf("op %d: error of %d bytes", i, len(res.Err.Error()))
		}
	}
}

// stall makes a fake target stop at a certain point of every request until release is called.
type stall struct {
	where   string
	release chan struct{}
	late    atomic.Int64 // requests that went on after release
}

func (s *stall) hook(_, _ int, h header, c net.Conn) bool {
	half := make([]byte, h.size/2)
	switch s.where {
	case "no status":
		if h.write() {
			io.CopyN(io.Discard, c, int64(h.size))
		}
	case "half of a read":
		c.Write(append(statusBytes(statusOK), half...))
	case "write not read":
	}
	<-s.release
	s.late.Add(1)
	if !h.write() { // late bytes
		if s.where == "no status" {
			c.Write(statusBytes(statusOK))
			c.Write(half)
		}
		c.Write(bytes.Repeat([]byte{0xee}, len(half)))
	}
	return false
}

// TestStalledPeer is scenario S6: a peer that stops (as under SIGSTOP) ends requests with ErrTimeout, the
// state is final, and bytes that come late do not land in memory that is in use again.
func TestStalledPeer(t *testing.T) {
	for _, c := range []struct {
		where            string
		write            bool
		size             int
		status, progress time.Duration
	}{
		{"no status", true, 4096, 150 * time.Millisecond, time.Minute},
		{"no status", false, 4096, 150 * time.Millisecond, time.Minute},
		{"half of a read", false, 1 << 20, time.Minute, 150 * time.Millisecond},
		{"write not read", true, 8 << 20, time.Minute, 150 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%s, write=%v", c.where, c.write), func(t *testing.T) {
			s := &stall{where: c.where, release: make(chan struct{})}
			f := newFakeTarget(t, 8<<20, s.hook)
			release := sync.OnceFunc(func() { close(s.release) })
			t.Cleanup(release)
			cl := newClient(t, f.descriptor(2), func(cfg *Config) {
				cfg.StatusTimeout, cfg.ProgressTimeout, cfg.LanesPerPeer = c.status, c.progress, 1
				cfg.SendBuffer = 256 << 10
			})
			start := time.Now()
			err := transporttest.Move(t, cl.peer, cl.op(c.write, fakeBase, c.size, 1))
			if !errors.Is(err, transports.ErrTimeout) {
				t.Fatalf("got %v, want ErrTimeout", err)
			}
			if d := time.Since(start); d < 140*time.Millisecond || d > 5*time.Second {
				t.Errorf("after %v, want about 150ms", d)
			}
			transporttest.Set(cl.local.Bytes(), 0x33)
			release()
			waitUntil(t, func() string {
				if s.late.Load() == 0 {
					return "the peer has not gone on"
				}
				return ""
			})
			time.Sleep(20 * time.Millisecond) // late bytes would need a moment
			transporttest.CheckAll(t, "memory in use again", cl.local.Bytes(), 0x33)
			if v := testutil.ToFloat64(cl.tr.m.stalled[roleClient]); v != 1 {
				t.Errorf("stalled_total = %v", v)
			}
		})
	}
}

// TestStalledPeerFailsWhatWaits: ops that never got a lane do not wait once per window.
func TestStalledPeerFailsWhatWaits(t *testing.T) {
	s := &stall{where: "no status", release: make(chan struct{})}
	f := newFakeTarget(t, 8<<20, s.hook)
	defer close(s.release)
	c := newClient(t, f.descriptor(2), func(cfg *Config) {
		cfg.StatusTimeout, cfg.ProgressTimeout = 150*time.Millisecond, 150*time.Millisecond
		cfg.LanesPerPeer, cfg.PipelineWindow = 1, 1
	})
	r := transporttest.NewRecorder(t)
	start := time.Now()
	for i := range 200 {
		if err := r.Submit(context.Background(), c.peer, c.op(true, fakeBase, 64, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	r.Wait()
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("200 ops on a stalled peer took %v to fail", d)
	}
	for i, res := range r.Results() {
		if !errors.Is(res.Err, transports.ErrTimeout) {
			t.Errorf("op %d: %v", i, res.Err)
		}
	}
}

// TestCancelStalled: a context ends the wait for a stalled peer at once, for what is on the wire, what
// waits and what has no room yet.
func TestCancelStalled(t *testing.T) {
	s := &stall{where: "write not read", release: make(chan struct{})}
	f := newFakeTarget(t, 8<<20, s.hook)
	defer close(s.release)
	c := newClient(t, f.descriptor(2), func(cfg *Config) { cfg.MaxQueued, cfg.PipelineWindow = 20, 4 })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ops := make([]transports.Op, 200)
	for i := range ops {
		ops[i] = c.op(i%2 == 0, fakeBase, 100_000, uint64(i))
	}
	r := transporttest.NewRecorder(t)
	submitted := make(chan error, 1)
	go func() { submitted <- r.Submit(ctx, c.peer, ops...) }()
	waitUntil(t, func() string {
		p := c.peer.(*Peer)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.waiting == 0 {
			return "Submit does not wait for room"
		}
		return ""
	})
	start := time.Now()
	cancel()
	if err := <-submitted; err != nil {
		t.Fatalf("Submit after it had accepted some: %v", err)
	}
	r.Wait()
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("cancelling took %v", d)
	}
	for i, res := range r.Results() {
		if !errors.Is(res.Err, context.Canceled) {
			t.Errorf("op %d: %v", i, res.Err)
		}
	}
}

// TestCancelBeforeAnythingWasAccepted: Submit without room refuses, and reports nothing.
func TestCancelBeforeAnythingWasAccepted(t *testing.T) {
	s := &stall{where: "write not read", release: make(chan struct{})}
	f := newFakeTarget(t, 8<<20, s.hook)
	defer close(s.release)
	c := newClient(t, f.descriptor(2), func(cfg *Config) { cfg.MaxQueued, cfg.PipelineWindow, cfg.LanesPerPeer = 1, 1, 1 })
	first := transporttest.NewRecorder(t)
	for i := range 2 { // one on the wire, one in the queue
		if err := first.Submit(context.Background(), c.peer, c.op(true, fakeBase, 64, uint64(i))); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			waitUntil(t, func() string {
				if _, n := f.counts(); n == 0 {
					return "nothing on the wire"
				}
				return ""
			})
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	r := transporttest.NewRecorder(t)
	if err := r.Submit(ctx, c.peer, c.op(true, fakeBase, 64, 9)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	if n := r.Count(); n != 0 {
		t.Errorf("%d completions", n)
	}
	c.peer.Close()
	first.Wait()
}

// TestStuckUsersAreDropped: a region can be unregistered although a peer stalls in the middle of it; the
// bound is the context's.
func TestStuckUsersAreDropped(t *testing.T) {
	t.Run("served", func(t *testing.T) {
		_, n, mem := rawServer(t, 6<<20, nil)
		conn := rawDial(t, n)
		conn.Write(append(headerBytes(opWrite|flagV2, goldenAddr, 1<<20), bytes.Repeat([]byte{1}, 1000)...))
		waitUntil(t, func() string {
			if mem.Bytes()[999] == 0 {
				return "the write has not begun"
			}
			return ""
		})
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		reg := n.Registration(slice{placed{mem, goldenAddr}, 0, 6 << 20})
		if err := reg.Close(ctx); err != nil {
			t.Fatalf("close: %v", err)
		}
		transporttest.Set(mem.Bytes()[:2000], 9)
		conn.Write(make([]byte, 5000))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection lives: %v", err)
		}
		transporttest.CheckAll(t, "memory", mem.Bytes()[:2000], 9)
	})
	t.Run("our own", func(t *testing.T) {
		s := &stall{where: "half of a read", release: make(chan struct{})}
		f := newFakeTarget(t, 1<<20, s.hook)
		defer close(s.release)
		c := newClient(t, f.descriptor(2), nil)
		r := transporttest.NewRecorder(t)
		if err := r.Submit(context.Background(), c.peer, c.op(false, fakeBase, 1<<20, 1)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		reg := c.Registration(c.local)
		if err := reg.Close(ctx); err != nil {
			t.Fatalf("close: %v", err)
		}
		r.Wait()
		if res, _ := r.Result(1); !errors.Is(res.Err, transports.ErrClosed) {
			t.Errorf("op: %v, want ErrClosed", res.Err)
		}
	})
	t.Run("refused meanwhile", func(t *testing.T) {
		s := &stall{where: "half of a read", release: make(chan struct{})}
		f := newFakeTarget(t, 1<<20, s.hook)
		defer close(s.release)
		c := newClient(t, f.descriptor(2), nil)
		r := transporttest.NewRecorder(t)
		if err := r.Submit(context.Background(), c.peer, c.op(false, fakeBase, 1<<20, 1)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		closed := make(chan error, 1)
		reg := c.Registration(c.local).(*registration)
		go func() { closed <- reg.Close(ctx) }()
		waitUntil(t, func() string {
			if !reg.closing.Load() {
				return "Close has not begun"
			}
			return ""
		})
		if err := c.write(t, fakeBase, 64); !errors.Is(err, transports.ErrClosed) {
			t.Errorf("an op on a region that is being unregistered: %v", err)
		}
		cancel()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		r.Wait()
	})
}

// TestErrorMessages: one message that names what, where and why.
func TestErrorMessages(t *testing.T) {
	f := newFakeTarget(t, 4096, nil)
	c := newClient(t, f.descriptor(2), nil)
	err := c.write(t, 4096, 64)
	for _, want := range []string{"tcp: ", "write of 64 bytes", "0x1000", f.ln.Addr().String(), "remote range rejected", "status 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
}
