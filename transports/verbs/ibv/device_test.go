//go:build !noverbs

package ibv

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// These tests need an RDMA device. "make test-rdma" runs them in a machine with soft-RoCE on dummy network devices, where
// MOONCAKE_TEST_RDMA says that it must be there.

const waitLimit = 60 * time.Second // emulated processors

func openDevice(t *testing.T) device.Device {
	t.Helper()
	must := os.Getenv("MOONCAKE_TEST_RDMA") != ""
	p, err := New()
	if err != nil {
		if must {
			t.Fatal(err)
		}
		t.Skipf("skipped: %v", err)
	}
	names, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		if must {
			t.Fatal("no RDMA device")
		}
		t.Skip("skipped: no RDMA device on this host; make test-rdma has one")
	}
	d, err := p.Open(names[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// memoryOf maps n bytes outside the Go heap.
func memoryOf(t *testing.T, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func register(t *testing.T, d device.Device, b []byte, iova uint64) device.Memory {
	t.Helper()
	m, err := d.RegisterMemory(b, iova, device.AccessLocalWrite|device.AccessRemoteRead|device.AccessRemoteWrite|device.AccessRelaxedOrdering)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// pair is two connected queue pairs of one device.
type pair struct {
	d    device.Device
	cq   device.CQ
	a, b device.QP
}

func connect(t *testing.T, d device.Device) *pair {
	t.Helper()
	p := &pair{d: d}
	var err error
	if p.cq, err = d.NewCQ(256); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.cq.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, q := range []*device.QP{&p.a, &p.b} {
		if *q, err = d.NewQP(device.QPOptions{CQ: p.cq, MaxWork: 64, MaxSGE: 4, MaxInline: 64}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := (*q).Destroy(); err != nil {
				t.Error(err)
			}
		})
	}
	gid := routable(t, d)
	port, err := d.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ me, peer device.QP }{{p.a, p.b}, {p.b, p.a}} {
		if err := x.me.Init(device.InitAttr{Port: 1, Access: device.AccessLocalWrite | device.AccessRemoteRead | device.AccessRemoteWrite}); err != nil {
			t.Fatal(err)
		}
		err := x.me.ReceiveReady(device.ReceiveAttr{MTU: port.ActiveMTU, DestQP: x.peer.Num(), MaxReadIn: 16, MinRNRTimer: 12,
			Path: device.Path{Global: true, DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 16, DLID: port.LID, Port: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.me.SendReady(device.SendAttr{Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxReadOut: 16}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// routable is the first entry of the GID table that is an IPv4 address.
func routable(t *testing.T, d device.Device) device.GIDEntry {
	t.Helper()
	gids, err := d.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gids {
		if _, ok := g.GID.IPv4(); ok && g.Type != device.GIDRoCEv1 {
			return g
		}
	}
	t.Fatalf("no IPv4 address in the GID table of %s: %v", d.Name(), gids)
	return device.GIDEntry{}
}

// next waits for n completions as the transport does: poll, arm, poll, wait.
func (p *pair) next(t *testing.T, n int) []device.Completion {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	dst := make([]device.Completion, n)
	for got := 0; ; {
		k, err := p.cq.Poll(dst[got:])
		if got += k; err != nil || got == n {
			if err != nil {
				t.Fatal(err)
			}
			return dst
		}
		if err := p.cq.Arm(); err != nil {
			t.Fatal(err)
		}
		if k, err = p.cq.Poll(dst[got:]); err != nil {
			t.Fatal(err)
		} else if got += k; k > 0 {
			continue
		}
		if err := p.cq.Wait(ctx); err != nil {
			t.Fatalf("%d of %d completions: %v", got, n, err)
		}
	}
}

func TestDevice(t *testing.T) {
	d := openDevice(t)
	l := d.Limits()
	t.Logf("%s: %+v", d.Name(), l)
	if l.Ports < 1 || l.MaxQP < 2 || l.MaxQPWork < 64 || l.MaxCQE < 256 || l.MaxMRSize == 0 || l.MaxReadIn < 1 || l.MaxReadOut < 1 {
		t.Errorf("limits of %s: %+v", d.Name(), l)
	}
	p, err := d.Port(1)
	t.Logf("port 1: %+v, %v", p, err)
	if err != nil || p.State != device.PortActive || p.ActiveMTU.Bytes() < 256 || p.GIDs == 0 || p.LinkLayer == device.LinkUnspecified {
		t.Errorf("port 1 of %s: %+v, %v", d.Name(), p, err)
	}
	if _, err := d.Port(99); err == nil {
		t.Error("port 99 exists")
	}
	gids, err := d.GIDs(1)
	if err != nil || len(gids) == 0 {
		t.Fatalf("GIDs: %v, %v", gids, err)
	}
	for _, g := range gids {
		if file, err := entryOfSysfs(portDir("/sys", d.Name(), 1), g.Index); err != nil || file != g {
			t.Errorf("GID of the library %+v, of /sys %+v, %v", g, file, err)
		}
	}
	if _, err := (&provider{lib: d.(*dev).lib, sysfs: "/sys"}).Open("no such device"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("open of a device that is not there: %v", err)
	}
}

func TestReadAndWrite(t *testing.T) {
	d := openDevice(t)
	p := connect(t, d)
	const n = 300_001
	local, remote := memoryOf(t, n), memoryOf(t, n)
	const elsewhere = 0x7000_0000_0000
	lm, rm := register(t, d, local, uint64(address(&local[0]))), register(t, d, remote, elsewhere)
	for i := range local {
		local[i] = byte(i * 7 / 3)
	}
	want := bytes.Clone(local)
	work := func(id uint64, write bool, at, n int) device.Work {
		return device.Work{ID: id, Write: write, Len: uint32(n), LKey: lm.LKey(), RKey: rm.RKey(), Local: uint64(address(&local[at])), Remote: elsewhere + uint64(at)}
	}
	if k, err := p.a.Post([]device.Work{work(1, true, 0, 100_000), work(2, true, 100_000, 200_000), work(3, true, 300_000, 1)}); k != 3 || err != nil {
		t.Fatal(k, err)
	}
	for i, c := range p.next(t, 3) {
		if c.ID != uint64(i+1) || c.Status != device.StatusOK || c.QP != p.a.Num() {
			t.Errorf("completion %d: %+v", i, c)
		}
	}
	if !bytes.Equal(remote, want) {
		t.Fatal("the peer's memory is not what was written")
	}
	clear(local)
	if k, err := p.a.Post([]device.Work{work(4, false, 0, n), {ID: 5, Write: true}}); k != 2 || err != nil {
		t.Fatal(k, err)
	}
	for i, c := range p.next(t, 2) {
		if c.ID != uint64(i+4) || c.Status != device.StatusOK {
			t.Errorf("completion %d: %+v", i, c)
		}
	}
	if !bytes.Equal(local, want) {
		t.Fatal("what was read is not what the peer has")
	}

	// A key that is none: the work fails, the queue pair is lost, and what follows is flushed.
	bad := work(6, true, 0, 1)
	bad.RKey ^= 0xffff00
	if k, err := p.a.Post([]device.Work{bad, work(7, true, 0, 1)}); k != 2 || err != nil {
		t.Fatal(k, err)
	}
	c := p.next(t, 2)
	if c[0].ID != 6 || c[0].Status != device.StatusRemoteAccess || c[1].ID != 7 || c[1].Status != device.StatusFlushed {
		t.Errorf("after a wrong key: %+v", c)
	}
	if err := p.b.Fail(); err != nil {
		t.Error(err)
	}
}

// A queue pair refuses more than it has room for, says how much it took, and nothing is lost.
func TestFullQueue(t *testing.T) {
	d := openDevice(t)
	p := connect(t, d)
	mem := memoryOf(t, 1<<20)
	m := register(t, d, mem, uint64(address(&mem[0])))
	work := make([]device.Work, 256)
	for i := range work {
		work[i] = device.Work{ID: uint64(i), Write: true, Len: 1 << 16, LKey: m.LKey(), RKey: m.RKey(), Local: uint64(address(&mem[0])), Remote: uint64(address(&mem[1<<19]))}
	}
	n, err := p.a.Post(work)
	if !errors.Is(err, unix.ENOMEM) || n < 64 || n >= 256 {
		t.Fatalf("Post of 256 into a queue of 64 = %d, %v", n, err)
	}
	for i, c := range p.next(t, n) {
		if c.ID != uint64(i) || c.Status != device.StatusOK {
			t.Fatalf("completion %d of %d: %+v", i, n, c)
		}
	}
}

func TestClosing(t *testing.T) {
	d := openDevice(t)
	q, err := d.NewCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("Close of a device with a completion queue: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := q.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with an ended context: %v", err)
	}
	// The queue can be waited for again, and Close ends that.
	ended := make(chan error)
	go func() { ended <- q.Wait(context.Background()) }()
	_, err = d.NewQP(device.QPOptions{CQ: q, MaxWork: 1 << 30, MaxSGE: 1})
	if err == nil {
		t.Error("a queue pair of 2^30 entries")
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, device.ErrClosed) {
			t.Errorf("Wait ended by Close: %v", err)
		}
	case <-time.After(waitLimit):
		t.Fatal("Close does not end Wait")
	}
	if _, err := q.Poll(make([]device.Completion, 1)); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Poll after Close: %v", err)
	}
	if err := q.Arm(); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Arm after Close: %v", err)
	}
	if _, err := d.NewQP(device.QPOptions{CQ: q, MaxWork: 1}); !errors.Is(err, device.ErrClosed) {
		t.Errorf("NewQP on a closed queue: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
	go func() {
		_, err := d.Event(context.Background())
		ended <- err
	}()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, device.ErrClosed) {
			t.Errorf("Event ended by Close: %v", err)
		}
	case <-time.After(waitLimit):
		t.Fatal("Close does not end Event")
	}
	if _, err := d.Port(1); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Port after Close: %v", err)
	}
}

// The network device goes down and comes back: the port's events arrive, and waiting for them takes no thread.
func TestEvents(t *testing.T) {
	if os.Getenv("MOONCAKE_TEST_RDMA") == "" {
		t.Skip("skipped: takes a network device down; make test-rdma runs it in a machine of its own")
	}
	d := openDevice(t)
	netdev := routable(t, d).NetDev
	ip := func(state string) {
		if out, err := exec.Command("ip", "link", "set", netdev, state).CombinedOutput(); err != nil {
			t.Fatalf("ip link set %s %s: %v %s", netdev, state, err, out)
		}
	}
	t.Cleanup(func() { ip("up") })
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	until := func(kind device.EventKind, state device.PortState) {
		t.Helper()
		for {
			e, err := d.Event(ctx)
			if err != nil {
				t.Fatalf("no event %d: %v", kind, err)
			}
			t.Logf("event %+v", e)
			if e.Kind != kind {
				continue
			}
			if e.Port != 1 {
				t.Errorf("%+v: want port 1", e)
			}
			if p, err := d.Port(1); err != nil || p.State != state {
				t.Errorf("after event %d: %+v, %v", kind, p, err)
			}
			return
		}
	}
	ip("down")
	until(device.EventPortError, device.PortDown)
	ip("up")
	until(device.EventPortActive, device.PortActive)
}

// Many goroutines that wait for completions need no threads of their own.
func TestWaitingTakesNoThread(t *testing.T) {
	d := openDevice(t)
	const n = 64
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, n)
	var queues []device.CQ
	for range n {
		q, err := d.NewCQ(16)
		if err != nil {
			t.Fatal(err)
		}
		queues = append(queues, q)
		if err := q.Arm(); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- q.Wait(ctx) }()
	}
	for range 10 {
		runtime.Gosched()
		time.Sleep(10 * time.Millisecond) // for them to reach the poller
	}
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > n/2 {
		t.Errorf("%d threads while %d goroutines wait", len(entries), n)
	}
	cancel()
	for range n {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	for _, q := range queues {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}
