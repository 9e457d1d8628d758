package verbs

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
	"github.com/mooncake-agent/mooncake/transports/verbs/fake"
)

// site is a node with its machine.
type site struct {
	*transporttest.Node
	m  *fake.Machine
	tr *Transport
}

func newSite(t testing.TB, hosts *transporttest.Fabric, f *fake.Fabric, nics int, how func(int, *fake.Spec), change func(*Config)) *site {
	t.Helper()
	m := newMachine(f, nics, how)
	tr := newOn(t, m, change)
	return &site{Node: transporttest.StartNode(t, hosts, tr), m: m, tr: tr}
}

// twoSites are an initiator and a target with a region each.
type twoSites struct {
	a, b          *site
	local, remote *transporttest.Region
	peer          transports.Peer
}

func newSites(t testing.TB, nics, size int, how func(int, *fake.Spec), change func(*Config)) *twoSites {
	t.Helper()
	hosts, f := transporttest.NewFabric(), fake.New()
	s := &twoSites{b: newSite(t, hosts, f, nics, how, change), a: newSite(t, hosts, f, nics, how, change)}
	s.local = s.a.Register(t, size, transports.ReadWrite)
	s.remote = s.b.Register(t, size, transports.ReadWrite)
	transporttest.Fill(s.local.Bytes(), 1)
	s.peer = s.a.Dial(t, s.b.Node)
	return s
}

func (s *twoSites) op(write bool, off, n, cookie int) transports.Op {
	return transports.Op{Write: write, Local: s.local, Offset: uint64(off), Remote: s.remote.Addr() + uint64(off), Len: uint64(n), Cookie: uint64(cookie)}
}

// write moves everything and checks it.
func (s *twoSites) write(t testing.TB) {
	t.Helper()
	transporttest.Set(s.remote.Bytes(), 0)
	if err := transporttest.Move(t, s.peer, s.op(true, 0, len(s.local.Bytes()), 1)); err != nil {
		t.Fatal(err)
	}
	transporttest.CheckFill(t, "remote", s.remote.Bytes(), 1)
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestStatuses: one failing completion of each kind is either made good by another attempt or tells what is wrong.
func TestStatuses(t *testing.T) {
	for st := device.Status(1); st < device.Statuses; st++ {
		t.Run(st.String(), func(t *testing.T) {
			s := newSites(t, 1, 300_000, nil, nil)
			var once atomic.Bool
			s.a.m.Device("mlx5_0").OnWork(func(device.Work) device.Status {
				if once.CompareAndSwap(false, true) {
					return st
				}
				return device.StatusOK
			})
			err := transporttest.Move(t, s.peer, s.op(true, 0, 300_000, 1))
			switch st {
			case device.StatusRemoteAccess, device.StatusRemoteInvalidReq:
				if !errors.Is(err, transports.ErrRejected) {
					t.Fatalf("got %v, want ErrRejected", err)
				}
				time.Sleep(refusedFor)
			case device.StatusLocalProtection, device.StatusLocalAccess, device.StatusLocalLength:
				if !errors.Is(err, transports.ErrNotRegistered) {
					t.Fatalf("got %v, want ErrNotRegistered", err)
				}
			default:
				if err != nil {
					t.Fatalf("one failure was not made good: %v", err)
				}
				transporttest.CheckFill(t, "remote", s.remote.Bytes(), 1)
			}
			if err != nil && !strings.Contains(err.Error(), st.String()) {
				t.Errorf("%q does not name the status", err)
			}
			s.write(t)
		})
	}
}

// TestFirstCompletionFails: a pair of devices whose every connection fails is left alone after a few attempts, and the
// other one is used meanwhile.
func TestFirstCompletionFails(t *testing.T) {
	s := newSites(t, 2, 1<<20, nil, func(c *Config) { c.RailPause = time.Minute })
	var tries atomic.Int64
	s.a.m.Device("mlx5_0").OnWork(func(device.Work) device.Status {
		tries.Add(1)
		return device.StatusRetryExceeded
	})
	for end := time.Now().Add(20 * time.Second); ; {
		s.write(t)
		r := s.a.tr.nics[0].rails.find(nicPath(s.b.Identity().Segment, "mlx5_0"))
		r.mu.Lock()
		paused := r.paused
		r.mu.Unlock()
		if !paused.IsZero() {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the failing pair is not paused")
		}
	}
	before := tries.Load()
	if before > 64 {
		t.Errorf("%d attempts before the pause", before)
	}
	for range 20 {
		s.write(t)
	}
	if n := tries.Load() - before; n > 0 && s.a.tr.nics[0].usable() == nil {
		// the paused device may still carry its second pair
		r := s.a.tr.nics[0].rails.find(nicPath(s.b.Identity().Segment, "mlx5_1"))
		if r == nil {
			t.Errorf("%d attempts over a paused pair", n)
		}
	}
}

// TestFoundWhileFailing: work that finds a connection which has just failed, and is still in the store, takes a new one.
func TestFoundWhileFailing(t *testing.T) {
	s := newSites(t, 1, 1<<20, nil, nil)
	s.write(t)
	all := s.a.tr.nics[0].store.all()
	if len(all) != 1 {
		t.Fatalf("%d connections, want 1", len(all))
	}
	e := all[0]
	set := func(to epState) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.state = to
	}
	set(epDraining) // the first thing that fail does; taking it out of the store comes later
	defer func() {
		set(epReady)
		e.fail(errEvicted)
	}()
	s.write(t)
	if s.a.tr.nics[0].store.find(e.path) == e {
		t.Error("the connection that failed is still in the store")
	}
}

// TestAllFail: with nothing but failures, ops end with an error soon, and later ones at once.
func TestAllFail(t *testing.T) {
	s := newSites(t, 2, 1<<20, nil, func(c *Config) { c.RailPause = time.Minute })
	for _, name := range []string{"mlx5_0", "mlx5_1"} {
		s.a.m.Device(name).OnWork(func(device.Work) device.Status { return device.StatusRetryExceeded })
	}
	var err error
	eventually(t, "an op that fails at once because all is paused", func() bool {
		start := time.Now()
		err = transporttest.Move(t, s.peer, s.op(true, 0, 1<<20, 1))
		if err == nil {
			t.Fatal("an op over devices that fail succeeded")
		}
		return errors.Is(err, transports.ErrUnreachable) && time.Since(start) < 50*time.Millisecond
	})
	if !strings.Contains(err.Error(), "paused") {
		t.Errorf("%q does not say that there is a pause", err)
	}
	for _, name := range []string{"mlx5_0", "mlx5_1"} {
		s.a.m.Device(name).OnWork(nil)
	}
	eventually(t, "work over a paused pair when there is no other", func() bool {
		return transporttest.Move(t, s.peer, s.op(true, 0, 1<<20, 1)) == nil
	})
}

func TestMixedMTU(t *testing.T) {
	hosts, f := transporttest.NewFabric(), fake.New()
	b := newSite(t, hosts, f, 1, func(_ int, s *fake.Spec) { s.Port.ActiveMTU = device.MTUOf(1024) }, nil)
	a := newSite(t, hosts, f, 1, nil, nil)
	for _, dir := range [][2]*site{{a, b}, {b, a}} {
		s := &twoSites{a: dir[0], b: dir[1]}
		s.local, s.remote = s.a.Register(t, 100_000, transports.ReadWrite), s.b.Register(t, 100_000, transports.ReadWrite)
		transporttest.Fill(s.local.Bytes(), 1)
		s.peer = s.a.Dial(t, s.b.Node)
		s.write(t)
	}
	for _, s := range []*site{a, b} {
		if m := s.m.Device("mlx5_0").PathMTUs(); !slices.Equal(m, []int{1024, 1024}) {
			t.Errorf("path MTUs %v, want the smaller one on both queue pairs", m)
		}
	}
}

// TestPeerWithoutMTU: an engine of another make does not tell its MTU; ours is used.
func TestPeerWithoutMTU(t *testing.T) {
	s := newSites(t, 1, 4096, nil, nil)
	m := &transports.Connection{LocalNICPath: "elsewhere:1@mlx5_9", PeerNICPath: s.b.tr.nics[0].path, LocalGID: s.a.tr.nics[0].address().GID.String(),
		QPNum: []uint32{900001, 900002}, HasReadyAck: true}
	reply, err := transports.ParseConnection(s.b.tr.onConnection(context.Background(), m.Encode()))
	if err != nil || reply.ReplyMsg != "" || len(reply.QPNum) != 2 || reply.PathMTU != 4096 || !reply.HasReadyAck || reply.ReadyAck {
		t.Fatalf("%+v, %v", reply, err)
	}
	if mtus := s.b.m.Device("mlx5_0").PathMTUs(); !slices.Equal(mtus, []int{4096, 4096}) {
		t.Errorf("path MTUs %v", mtus)
	}
}

// TestPieces: a region larger than a device's max_mr_size is registered in pieces on every device; transfers cross
// their bounds, and the document lists them.
func TestPieces(t *testing.T) {
	const limit, size = 1 << 20, 3<<20 + 512<<10
	s := newSites(t, 2, size, func(i int, sp *fake.Spec) {
		if i == 1 { // the smaller limit counts
			sp.Limits.MaxMRSize = limit
		}
	}, nil)
	s.write(t)
	d := s.b.Descriptor()
	if len(d.Buffers) != 4 || d.Buffers[3].Length != 512<<10 || d.Buffers[0].Length != limit {
		t.Fatalf("buffers: %+v", d.Buffers)
	}
	for i, b := range d.Buffers {
		if len(b.RKey) != 2 || len(b.LKey) != 2 || b.Name != "cpu:0" || b.Addr != s.remote.Addr()+uint64(i)*limit {
			t.Errorf("buffer %d: %+v", i, b)
		}
	}
	if err := transporttest.Move(t, s.peer, s.op(true, limit-3, 7, 1), s.op(false, 2*limit-70_000, 140_001, 2)); err != nil {
		t.Fatal(err)
	}
	if !d.Contains(s.remote.Addr(), size) || d.Contains(s.remote.Addr(), size+1) {
		t.Error("the document does not hold the region as a whole")
	}
}

// TestNoRoomForRegion: an error names the device, the limit and the size, and nothing is left behind.
func TestNoRoomForRegion(t *testing.T) {
	s := newSite(t, transporttest.NewFabric(), fake.New(), 2, func(i int, sp *fake.Spec) {
		sp.Limits.MaxMRSize = 64 << 10
		if i == 1 {
			sp.Limits.MaxMR = 3
		}
	}, nil)
	before := s.m.Counts()
	_, err := s.tr.Register(context.Background(), transporttest.NewRegion(t, 512<<10, transports.ReadWrite))
	if err == nil {
		t.Fatal("8 pieces were registered on a device that takes 3")
	}
	for _, want := range []string{"mlx5_1", units.Size(64 << 10).String(), "piece 4 of 8", "max_mr_size"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}
	if now := s.m.Counts(); now != before {
		t.Errorf("before %+v, after %+v", before, now)
	}
}

// TestQueuePairsRunOut: an idle connection makes room for a new one.
func TestQueuePairsRunOut(t *testing.T) {
	for _, store := range []string{storeFIFO, storeSIEVE} {
		t.Run(store, func(t *testing.T) {
			hosts, f := transporttest.NewFabric(), fake.New()
			a := newSite(t, hosts, f, 1, func(_ int, s *fake.Spec) { s.Limits.MaxQP = 5 }, func(c *Config) { c.EndpointStore = store }) // 2 endpoints
			local := a.Register(t, 4096, transports.ReadWrite)
			var targets []*site
			var peers []transports.Peer
			var regions []*transporttest.Region
			for range 5 {
				b := newSite(t, hosts, f, 1, nil, nil)
				targets = append(targets, b)
				regions = append(regions, b.Register(t, 4096, transports.ReadWrite))
				peers = append(peers, a.Dial(t, b.Node))
			}
			for round := range 3 {
				for i := range targets {
					if err := transporttest.Move(t, peers[i], transports.Op{Write: true, Local: local, Remote: regions[i].Addr(), Len: 4096}); err != nil {
						t.Fatalf("round %d, peer %d: %v", round, i, err)
					}
				}
			}
			if n := a.m.Device("mlx5_0").Counts().QPs; n > 5 {
				t.Errorf("%d queue pairs", n)
			}
		})
	}
}

// TestQueuePairsAllBusy: with every connection in use there is no path, and an error that says why.
func TestQueuePairsAllBusy(t *testing.T) {
	hosts, f := transporttest.NewFabric(), fake.New()
	a := newSite(t, hosts, f, 1, func(_ int, s *fake.Spec) { s.Limits.MaxQP = 2 }, nil)
	local := a.Register(t, 8192, transports.ReadWrite)
	var regions []*transporttest.Region
	var peers []transports.Peer
	for range 2 {
		b := newSite(t, hosts, f, 1, nil, nil)
		regions = append(regions, b.Register(t, 4096, transports.ReadWrite))
		peers = append(peers, a.Dial(t, b.Node))
	}
	a.m.Device("mlx5_0").OnWork(func(device.Work) device.Status { return fake.Hang })
	ctx, cancel := context.WithCancel(context.Background())
	rec := transporttest.NewRecorder(t)
	if err := rec.Submit(ctx, peers[0], transports.Op{Write: true, Local: local, Remote: regions[0].Addr(), Len: 4096}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "work on the device", func() bool { return a.tr.nics[0].queues[0].used.Load() > 0 })
	err := transporttest.Move(t, peers[1], transports.Op{Write: true, Local: local, Offset: 4096, Remote: regions[1].Addr(), Len: 4096})
	if !errors.Is(err, transports.ErrUnreachable) || !strings.Contains(err.Error(), "none is idle") {
		t.Errorf("got %v", err)
	}
	cancel()
	rec.Wait()
	if res, _ := rec.Result(0); !errors.Is(res.Err, context.Canceled) {
		t.Errorf("cancelled work that hangs: %v", res.Err)
	}
}

// load keeps writing until stop, and returns how many ops ended how.
func (s *twoSites) load(t *testing.T) (stop func() (ok int, errs []error)) {
	var wg sync.WaitGroup
	end := make(chan struct{})
	var ok int
	var errs []error
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			if err := transporttest.Move(t, s.peer, s.op(true, 0, len(s.local.Bytes()), 1)); err != nil {
				errs = append(errs, err)
			} else {
				ok++
			}
		}
	})
	return func() (int, []error) {
		close(end)
		wg.Wait()
		return ok, errs
	}
}

// TestPortDown: with two devices nothing fails when the port of one goes down, on either side; it is used again when it
// comes back.
func TestPortDown(t *testing.T) {
	for _, side := range []string{"initiator", "target"} {
		t.Run(side, func(t *testing.T) {
			s := newSites(t, 2, 1<<20, nil, nil)
			at := s.a
			if side == "target" {
				at = s.b
			}
			s.write(t)
			stop := s.load(t)
			dev := at.m.Device("mlx5_0")
			dev.SetPort(false)
			eventually(t, "the device to be given up", func() bool { return at.tr.nics[0].usable() != nil })
			s2 := &twoSites{a: s.a, b: s.b, local: s.local, remote: s.remote, peer: s.a.Dial(t, s.b.Node)}
			s2.write(t)
			dev.SetPort(true)
			eventually(t, "the device to be used again", func() bool { return at.tr.nics[0].usable() == nil })
			eventually(t, "a connection over it", func() bool {
				s2.write(t)
				e := at.tr.nics[0].store.all()
				return len(e) > 0
			})
			if ok, errs := stop(); len(errs) > 0 || ok == 0 {
				t.Errorf("%d ops succeeded, %d failed: %v", ok, len(errs), errors.Join(errs...))
			}
		})
	}
}

// TestOnlyPortDown: with one device ops end soon, and work again when the port is back.
func TestOnlyPortDown(t *testing.T) {
	s := newSites(t, 1, 1<<20, nil, nil)
	s.write(t)
	s.a.m.Device("mlx5_0").SetPort(false)
	eventually(t, "ErrUnreachable", func() bool {
		err := transporttest.Move(t, s.peer, s.op(true, 0, 1<<20, 1))
		return errors.Is(err, transports.ErrUnreachable) && strings.Contains(err.Error(), "not active")
	})
	s.a.m.Device("mlx5_0").SetPort(true)
	eventually(t, "a transfer", func() bool { return transporttest.Move(t, s.peer, s.op(true, 0, 1<<20, 1)) == nil })
}

// TestDeviceDies: a device that reports a fatal error is closed and opened again; regions get new keys, and the
// document is published again.
func TestDeviceDies(t *testing.T) {
	for _, side := range []string{"initiator", "target"} {
		t.Run(side, func(t *testing.T) {
			s := newSites(t, 2, 1<<20, nil, nil)
			at := s.a
			if side == "target" {
				at = s.b
			}
			s.write(t)
			stop := s.load(t)
			keys := s.b.Descriptor().Buffers[0].RKey
			dead := at.m.Device("mlx5_1")
			dead.Die()
			eventually(t, "the device to be closed", func() bool { return dead.Counts() == fake.Counts{} })
			if d := at.Descriptor(); len(d.Devices) != 1 || len(d.Buffers[0].RKey) != 1 || strings.Contains(string(d.PriorityMatrix), "mlx5_1") {
				t.Errorf("document without the device: %+v %s", d, d.PriorityMatrix)
			}
			s.write(t)
			at.m.Revive("mlx5_1")
			eventually(t, "the device to be used again", func() bool { return at.tr.nics[1].usable() == nil })
			d := s.b.Descriptor()
			if len(d.Devices) != 2 || (side == "target") == slices.Equal(d.Buffers[0].RKey, keys) {
				t.Errorf("keys before %v, after %v, devices %v", keys, d.Buffers[0].RKey, d.Devices)
			}
			if ok, errs := stop(); len(errs) > 0 || ok == 0 {
				t.Errorf("%d ops succeeded, %d failed: %v", ok, len(errs), errors.Join(errs...))
			}
			s.peer = s.a.DialDescriptor(t, d)
			s.write(t)
		})
	}
}

// TestHang: work that a device keeps to itself ends by slice_timeout, and its memory is not given back before the
// queue pair is gone.
func TestHang(t *testing.T) {
	s := newSites(t, 2, 1<<20, nil, func(c *Config) { c.SliceTimeout = 200 * time.Millisecond })
	s.a.m.Device("mlx5_0").OnWork(func(device.Work) device.Status { return fake.Hang })
	s.write(t)
}

func TestUnregisterWhileHanging(t *testing.T) {
	s := newSites(t, 1, 1<<20, nil, nil)
	s.a.m.Device("mlx5_0").OnWork(func(device.Work) device.Status { return fake.Hang })
	rec := transporttest.NewRecorder(t)
	if err := rec.Submit(context.Background(), s.peer, s.op(true, 0, 1<<20, 1)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "work on the device", func() bool { return s.a.tr.nics[0].queues[0].used.Load() > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := s.a.Registration(s.local).Close(ctx); err != nil {
		t.Fatalf("close: %v", err)
	}
	rec.Wait()
	if res, _ := rec.Result(1); !errors.Is(res.Err, transports.ErrClosed) {
		t.Errorf("op: %v", res.Err)
	}
}

// TestTransportClosedWhileConnecting: Close ends a connection that is being made.
func TestTransportClosedWhileConnecting(t *testing.T) {
	s := newSites(t, 1, 4096, nil, nil)
	entered := make(chan struct{})
	s.b.OnSignal(typeConnection, func(ctx context.Context, _ net.Addr, _ []byte) []byte {
		close(entered)
		<-ctx.Done()
		return nil
	})
	rec := transporttest.NewRecorder(t)
	if err := rec.Submit(context.Background(), s.peer, s.op(true, 0, 4096, 1)); err != nil {
		t.Fatal(err)
	}
	<-entered
	if err := s.a.tr.Close(); err != nil {
		t.Error(err)
	}
	rec.Wait()
	if res, _ := rec.Result(1); !errors.Is(res.Err, transports.ErrClosed) {
		t.Errorf("op: %v", res.Err)
	}
}

// TestNoUsableDevice: Start says what is wrong with each device.
func TestNoUsableDevice(t *testing.T) {
	f := fake.New()
	for name, c := range map[string]struct {
		how    func(int, *fake.Spec)
		change func(*Config)
		want   string
	}{
		"port down":   {how: func(_ int, s *fake.Spec) { s.Port.State = device.PortDown }, want: "port 1 is not active"},
		"no GIDs":     {how: func(_ int, s *fake.Spec) { s.GIDs = nil }, want: "no usable GID"},
		"pinned GID":  {change: func(c *Config) { c.GIDIndex = 9 }, want: "entry 9 is empty"},
		"wrong port":  {change: func(c *Config) { c.Port = 3 }, want: "port 3 is configured"},
		"wrong names": {change: func(c *Config) { c.Devices = []string{"mlx4_0"} }, want: "none of"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newOn(t, newMachine(f, 2, c.how), c.change)
			err := tr.Start(context.Background(), transporttest.NewFabric().NewHost())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	tr := newOn(t, f.Machine(), nil)
	if err := tr.Start(context.Background(), transporttest.NewFabric().NewHost()); err == nil || !strings.Contains(err.Error(), "no RDMA devices") {
		t.Errorf("got %v", err)
	}
}

func TestDeviceList(t *testing.T) {
	tr := newOn(t, newMachine(fake.New(), 4, nil), func(c *Config) { c.Devices = []string{"mlx5_2", "mlx5_0", "mlx5_2", "gone"} })
	if err := tr.Start(context.Background(), transporttest.NewFabric().NewHost()); err != nil {
		t.Fatal(err)
	}
	d := &transports.Descriptor{Name: "x"}
	tr.Describe(d)
	if len(d.Devices) != 2 || d.Devices[0].Name != "mlx5_2" || d.Devices[1].Name != "mlx5_0" {
		t.Errorf("devices: %+v", d.Devices)
	}
}
