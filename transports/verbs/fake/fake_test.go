package fake

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ends is a connected pair of queue pairs with a region each.
type ends struct {
	d  [2]*Device
	cq [2]device.CQ
	qp [2]device.QP
	mr [2]device.Memory
	b  [2][]byte
}

func connect(t *testing.T, mtu [2]device.MTU) *ends {
	t.Helper()
	f, e := New(), &ends{}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		d, err := f.Machine(RoCE("x", byte(i+1), 1)).Open("x")
		ok(err)
		e.d[i] = d.(*Device)
		e.cq[i], err = d.NewCQ(16)
		ok(err)
		e.qp[i], err = d.NewQP(device.QPOptions{CQ: e.cq[i], MaxWork: 4, MaxSGE: 1})
		ok(err)
		e.b[i] = make([]byte, 100)
		e.mr[i], err = d.RegisterMemory(e.b[i], 0x1000, device.AccessLocalWrite|device.AccessRemoteRead|device.AccessRemoteWrite)
		ok(err)
	}
	for i := range 2 {
		g, _ := e.d[1-i].GIDs(1)
		ok(e.qp[i].Init(device.InitAttr{Port: 1, Access: device.AccessRemoteRead | device.AccessRemoteWrite}))
		ok(e.qp[i].ReceiveReady(device.ReceiveAttr{MTU: mtu[i], DestQP: e.qp[1-i].Num(), MaxReadIn: 1, Path: device.Path{Global: true, SGIDIndex: 3, DGID: g[3].GID}}))
		ok(e.qp[i].SendReady(device.SendAttr{MaxReadOut: 1}))
	}
	t.Cleanup(func() {
		for i := range 2 {
			for _, err := range []error{e.qp[i].Destroy(), e.cq[i].Close(), e.mr[i].Close(), e.d[i].Close()} {
				if err != nil {
					t.Error(err)
				}
			}
			if c := e.d[i].Counts(); c != (Counts{}) {
				t.Errorf("left: %+v", c)
			}
		}
	})
	return e
}

// wait returns the next completion of the first end, by event.
func (e *ends) wait(t *testing.T) device.Completion {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		if err := e.cq[0].Arm(); err != nil {
			t.Fatal(err)
		}
		var wc [1]device.Completion
		n, err := e.cq[0].Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			return wc[0]
		}
		if err := e.cq[0].Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func (e *ends) post(t *testing.T, w device.Work) device.Status {
	t.Helper()
	if n, err := e.qp[0].Post([]device.Work{w}); n != 1 || err != nil {
		t.Fatalf("posted %d: %v", n, err)
	}
	c := e.wait(t)
	if c.ID != w.ID || c.QP != e.qp[0].Num() {
		t.Fatalf("completion %+v of %+v", c, w)
	}
	return c.Status
}

func TestMove(t *testing.T) {
	e := connect(t, [2]device.MTU{5, 5})
	copy(e.b[0], "hello")
	w := device.Work{ID: 7, Write: true, Len: 5, LKey: e.mr[0].LKey(), RKey: e.mr[1].RKey(), Local: 0x1000, Remote: 0x1000 + 95}
	if s := e.post(t, w); s != device.StatusOK || string(e.b[1][95:]) != "hello" {
		t.Errorf("%v %q", s, e.b[1][95:])
	}
	w.Write, w.Local = false, 0x1000+50
	if s := e.post(t, w); s != device.StatusOK || string(e.b[0][50:55]) != "hello" {
		t.Errorf("%v %q", s, e.b[0][50:55])
	}
	if s := e.post(t, device.Work{ID: 9, Write: true}); s != device.StatusOK {
		t.Errorf("a write of 0 bytes: %v", s)
	}
	w.Remote++
	if s := e.post(t, w); s != device.StatusRemoteAccess {
		t.Errorf("a byte too many: %v", s)
	}
	if s := e.post(t, device.Work{ID: 10, Write: true}); s != device.StatusFlushed {
		t.Errorf("after a failure: %v", s)
	}
}

func TestUnanswered(t *testing.T) {
	for name, c := range map[string]struct {
		mtu   [2]device.MTU
		spoil func(*ends)
	}{
		"mixed MTU":   {mtu: [2]device.MTU{5, 3}, spoil: func(*ends) {}},
		"port down":   {mtu: [2]device.MTU{5, 5}, spoil: func(e *ends) { e.d[1].SetPort(false) }},
		"peer failed": {mtu: [2]device.MTU{5, 5}, spoil: func(e *ends) { e.qp[1].Fail() }},
		"peer gone":   {mtu: [2]device.MTU{5, 5}, spoil: func(e *ends) { e.qp[1].Destroy() }},
	} {
		t.Run(name, func(t *testing.T) {
			e := connect(t, c.mtu)
			c.spoil(e)
			if s := e.post(t, device.Work{Write: true}); s != device.StatusRetryExceeded {
				t.Error(s)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	s := RoCE("x", 1, 1)
	s.Limits.MaxQP, s.Limits.MaxMR, s.Limits.MaxMRSize = 1, 1, 100
	d, err := New().Machine(s).Open("x")
	if err != nil {
		t.Fatal(err)
	}
	cq, _ := d.NewCQ(1)
	qp, err := d.NewQP(device.QPOptions{CQ: cq, MaxWork: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.NewQP(device.QPOptions{CQ: cq, MaxWork: 1}); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("second queue pair: %v", err)
	}
	if _, err := d.RegisterMemory(make([]byte, 101), 1, 0); !errors.Is(err, unix.EIO) {
		t.Errorf("region above the limit: %v", err)
	}
	for range 2 {
		if err := d.Close(); !errors.Is(err, unix.EBUSY) {
			t.Errorf("close with open objects: %v", err)
		}
	}
	if err := cq.Close(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("close of a completion queue in use: %v", err)
	}
	for _, err := range []error{qp.Destroy(), qp.Destroy(), cq.Close(), d.Close(), d.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Port(1); !errors.Is(err, device.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}
