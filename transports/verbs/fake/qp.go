package fake

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

type state uint8

const (
	stateReset state = iota
	stateInit
	stateReceive
	stateSend
	stateError
)

// QP is a fake queue pair. One goroutine executes its work in order.
type QP struct {
	d   *Device
	cq  *CQ
	num uint32
	o   device.QPOptions

	mu        sync.Mutex
	state     state
	mtu       device.MTU
	dest      uint32
	dgid      device.GID
	access    device.Access
	queue     []device.Work
	wake      *sync.Cond
	failed    chan struct{} // closed in state error
	destroyed bool
	done      chan struct{} // the goroutine has ended
}

// NewQP implements device.Device.
func (d *Device) NewQP(o device.QPOptions) (device.QP, error) {
	cq, ok := o.CQ.(*CQ)
	if !ok || cq.d != d {
		return nil, d.errorf(unix.EINVAL, "queue pair with a foreign completion queue")
	}
	d.f.mu.Lock()
	d.f.lastQP++
	num := d.f.lastQP
	d.f.mu.Unlock()
	d.mu.Lock()
	switch l := d.spec.Limits; {
	case d.usable() != nil:
		err := d.usable()
		d.mu.Unlock()
		return nil, err
	case o.MaxWork < 1 || o.MaxWork > l.MaxQPWork || o.MaxSGE > l.MaxSGE:
		d.mu.Unlock()
		return nil, d.errorf(unix.EINVAL, "queue pair with %d entries, %d SGEs", o.MaxWork, o.MaxSGE)
	case len(d.qps) >= l.MaxQP:
		d.mu.Unlock()
		return nil, d.errorf(unix.ENOMEM, "queue pair %d", l.MaxQP+1)
	}
	q := &QP{d: d, cq: cq, num: num, o: o, failed: make(chan struct{}), done: make(chan struct{})}
	q.wake = sync.NewCond(&q.mu)
	d.qps[num] = q
	d.mu.Unlock()
	d.f.mu.Lock()
	d.f.qps[num] = q
	d.f.mu.Unlock()
	cq.use(1)
	go q.run()
	return q, nil
}

// Num implements device.QP.
func (q *QP) Num() uint32 { return q.num }

func (q *QP) move(from, to state, what string, f func() error) error {
	q.d.mu.Lock()
	err := q.d.usable()
	q.d.mu.Unlock()
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.destroyed:
		return fmt.Errorf("fake: queue pair %d: %w", q.num, device.ErrClosed)
	case q.state != from:
		return q.d.errorf(unix.EINVAL, "queue pair %d: %s in state %d", q.num, what, q.state)
	}
	if err := f(); err != nil {
		return err
	}
	q.state = to
	return nil
}

// Init implements device.QP.
func (q *QP) Init(a device.InitAttr) error {
	return q.move(stateReset, stateInit, "init", func() error {
		if a.Port < 1 || a.Port > q.d.spec.Limits.Ports || int(a.PKey) >= q.d.spec.Port.PKeys {
			return q.d.errorf(unix.EINVAL, "init with port %d, pkey %d", a.Port, a.PKey)
		}
		q.access = a.Access
		return nil
	})
}

// ReceiveReady implements device.QP.
func (q *QP) ReceiveReady(a device.ReceiveAttr) error {
	return q.move(stateInit, stateReceive, "ready to receive", func() error {
		q.d.mu.Lock()
		gid, known := device.GID{}, false
		for _, e := range q.d.spec.GIDs {
			if e.Index == int(a.Path.SGIDIndex) {
				gid, known = e.GID, true
			}
		}
		port := q.d.spec.Port
		q.d.mu.Unlock()
		switch {
		case a.MTU.Bytes() == 0 || a.MTU > port.ActiveMTU:
			return q.d.errorf(unix.EINVAL, "MTU %d", a.MTU.Bytes())
		case port.LinkLayer == device.LinkEthernet && (!a.Path.Global || !known):
			return q.d.errorf(unix.EINVAL, "no source GID %d", a.Path.SGIDIndex)
		case port.LinkLayer == device.LinkEthernet && (gid.LinkLocal() != a.Path.DGID.LinkLocal() || a.Path.DGID.IsZero()):
			return q.d.errorf(unix.EINVAL, "no route from %v to %v", gid, a.Path.DGID)
		case a.MaxReadIn == 0 || int(a.MaxReadIn) > q.d.spec.Limits.MaxReadIn:
			return q.d.errorf(unix.EINVAL, "max_dest_rd_atomic %d", a.MaxReadIn)
		}
		q.mtu, q.dest, q.dgid = a.MTU, a.DestQP, a.Path.DGID
		return nil
	})
}

// SendReady implements device.QP.
func (q *QP) SendReady(a device.SendAttr) error {
	return q.move(stateReceive, stateSend, "ready to send", func() error {
		if a.MaxReadOut == 0 || int(a.MaxReadOut) > q.d.spec.Limits.MaxReadOut {
			return q.d.errorf(unix.EINVAL, "max_rd_atomic %d", a.MaxReadOut)
		}
		return nil
	})
}

// Fail implements device.QP.
func (q *QP) Fail() error {
	q.toError()
	return nil
}

func (q *QP) toError() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != stateError {
		q.state = stateError
		close(q.failed)
		q.wake.Signal()
	}
}

// Post implements device.QP.
func (q *QP) Post(work []device.Work) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.destroyed:
		return 0, fmt.Errorf("fake: queue pair %d: %w", q.num, device.ErrClosed)
	case q.state != stateSend && q.state != stateError:
		return 0, q.d.errorf(unix.EINVAL, "post in state %d", q.state)
	}
	n := min(len(work), q.o.MaxWork-len(q.queue))
	q.queue = append(q.queue, work[:n]...)
	q.wake.Signal()
	if n < len(work) {
		return n, q.d.errorf(unix.ENOMEM, "send queue of %d entries is full", q.o.MaxWork)
	}
	return n, nil
}

// Destroy implements device.QP.
func (q *QP) Destroy() error {
	q.toError()
	q.mu.Lock()
	again := q.destroyed
	q.destroyed = true
	q.queue = nil
	q.wake.Signal()
	q.mu.Unlock()
	<-q.done
	if again {
		return nil
	}
	q.d.mu.Lock()
	delete(q.d.qps, q.num)
	q.d.mu.Unlock()
	q.d.f.mu.Lock()
	delete(q.d.f.qps, q.num)
	q.d.f.mu.Unlock()
	q.cq.use(-1)
	return nil
}

// run executes work until Destroy.
func (q *QP) run() {
	defer close(q.done)
	for {
		q.mu.Lock()
		for len(q.queue) == 0 && !q.destroyed {
			q.wake.Wait()
		}
		if q.destroyed {
			q.mu.Unlock()
			return
		}
		w := q.queue[0]
		failed := q.state == stateError
		q.mu.Unlock()
		s := device.StatusFlushed
		if !failed {
			s = q.execute(w)
		}
		if s != device.StatusOK {
			q.toError()
		}
		q.mu.Lock()
		if q.destroyed { // the queue was taken away
			q.mu.Unlock()
			return
		}
		q.queue = q.queue[:copy(q.queue, q.queue[1:])]
		q.mu.Unlock()
		q.cq.push(device.Completion{ID: w.ID, Status: s, QP: q.num})
	}
}

// unanswered is how work ends that the peer does not answer.
func (q *QP) unanswered() device.Status {
	t := time.NewTimer(RetryTime)
	defer t.Stop()
	select {
	case <-t.C:
		return device.StatusRetryExceeded
	case <-q.failed:
		return device.StatusFlushed
	}
}

func (q *QP) execute(w device.Work) device.Status {
	q.d.mu.Lock()
	hook, down := q.d.hook, q.d.spec.Port.State != device.PortActive
	q.d.mu.Unlock()
	if hook != nil {
		if s := hook(w); s == Hang {
			<-q.failed
			return device.StatusFlushed
		} else if s != device.StatusOK {
			return s
		}
	}
	q.d.f.mu.Lock()
	r := q.d.f.qps[q.dest]
	q.d.f.mu.Unlock()
	if down || r == nil || !r.answers(q) {
		return q.unanswered()
	}
	if w.Len == 0 {
		return device.StatusOK
	}
	need, localNeed := device.AccessRemoteRead, device.AccessLocalWrite
	if w.Write {
		need, localNeed = device.AccessRemoteWrite, 0
	}
	l, m := q.d.find(w.LKey), r.d.find(w.RKey)
	unlock := lock(l, m)
	defer func() { unlock() }()
	local := l.slice(w.Local, w.Len, localNeed)
	if local == nil {
		return device.StatusLocalProtection
	}
	remote := m.slice(w.Remote, w.Len, need)
	if remote == nil || r.access&need == 0 {
		if !r.answers(q) { // it went meanwhile, and its memory after it
			unlock()
			unlock = func() {}
			return q.unanswered()
		}
		return device.StatusRemoteAccess
	}
	move(w.Write, local, remote)
	return device.StatusOK
}

func move(write bool, local, remote []byte) {
	if write {
		copy(remote, local)
	} else {
		copy(local, remote)
	}
}

// answers tells whether packets of p reach this queue pair and are taken.
func (q *QP) answers(p *QP) bool {
	q.d.mu.Lock()
	up := !q.d.dead && q.d.spec.Port.State == device.PortActive
	known := false
	for _, e := range q.d.spec.GIDs {
		known = known || e.GID == p.dgid
	}
	q.d.mu.Unlock()
	if q == p {
		return up && known
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return up && known && !q.destroyed && (q.state == stateReceive || q.state == stateSend) && q.dest == p.num && q.mtu == p.mtu
}

// PathMTUs lists the path MTUs in bytes of the device's queue pairs that are connected.
func (d *Device) PathMTUs() (out []int) {
	d.mu.Lock()
	qps := make([]*QP, 0, len(d.qps))
	for _, q := range d.qps {
		qps = append(qps, q)
	}
	d.mu.Unlock()
	for _, q := range qps {
		q.mu.Lock()
		if q.state == stateReceive || q.state == stateSend {
			out = append(out, q.mtu.Bytes())
		}
		q.mu.Unlock()
	}
	return out
}
