//go:build !noverbs

package ibv

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

var _ device.QP = (*qp)(nil)

type qp struct {
	dev  *dev
	num  uint32
	post uintptr // function of the device's table

	mu sync.Mutex
	qp uintptr // *ibv_qp, 0 = destroyed
	// The chain given to post, which copies what it needs: wr[i] points to wr[i+1] and sge[i].
	wr  []cSendWR
	sge []cSGE
	bad *uintptr

	fast fast
}

func (d *dev) NewQP(o device.QPOptions) (device.QP, error) {
	done, err := d.use()
	if err != nil {
		return nil, err
	}
	defer done()
	c, ok := o.CQ.(*cq)
	if !ok || c.dev != d {
		return nil, fmt.Errorf("verbs: ibv_create_qp on %s: the completion queue is not of this device: %w", d.name, unix.EINVAL)
	}
	c.mu.Lock() // the queue must not be destroyed meanwhile
	defer c.mu.Unlock()
	if c.cq == 0 {
		return nil, c.closed()
	}
	a := &cQPInitAttr{
		SendCQ: c.cq,
		RecvCQ: c.cq,
		Cap: cQPCap{
			MaxSendWR: uint32(o.MaxWork), MaxRecvWR: uint32(o.MaxWork),
			MaxSendSGE: uint32(o.MaxSGE), MaxRecvSGE: uint32(o.MaxSGE),
			MaxInlineData: uint32(o.MaxInline),
		},
		QPType: qptRC,
	}
	r, errno := d.lib.call(d.lib.createQP, d.pd, uintptr(unsafe.Pointer(a)))
	p, err := pointer(fmt.Sprintf("ibv_create_qp with %d entries on %s", o.MaxWork, d.name), r, errno)
	if err != nil {
		return nil, err
	}
	d.child(1)
	return &qp{dev: d, num: at[cQP](p).QPNum, post: at[cContext](d.ctx).Ops.PostSend, qp: p, bad: new(uintptr)}, nil
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) closed() error {
	return fmt.Errorf("verbs: queue pair %d of %s: %w", q.num, q.dev.name, device.ErrClosed)
}

func (q *qp) modify(to string, a *cQPAttr, mask uintptr) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.qp == 0 {
		return q.closed()
	}
	r, errno := q.dev.lib.call(q.dev.lib.modifyQP, q.qp, uintptr(unsafe.Pointer(a)), mask)
	return status(fmt.Sprintf("ibv_modify_qp of %d on %s to %s", q.num, q.dev.name, to), r, errno)
}

func (q *qp) Init(a device.InitAttr) error {
	return q.modify("init", &cQPAttr{State: qpsInit, PKeyIndex: a.PKey, Port: uint8(a.Port), AccessFlags: uint32(a.Access)},
		qpState|qpPKeyIndex|qpPort|qpAccessFlags)
}

func (q *qp) ReceiveReady(a device.ReceiveAttr) error {
	p := a.Path
	ah := cAHAttr{DLID: p.DLID, SL: p.SL, SrcPathBits: p.SrcPathBits, Port: uint8(p.Port)}
	if p.Global {
		ah.IsGlobal = 1
		ah.GRH = cGlobalRoute{DGID: p.DGID, FlowLabel: p.FlowLabel, SGIDIndex: p.SGIDIndex, HopLimit: p.HopLimit, TrafficClass: p.TrafficClass}
	}
	return q.modify("ready to receive", &cQPAttr{State: qpsRTR, PathMTU: uint32(a.MTU), DestQP: a.DestQP, RecvPSN: a.RecvPSN,
		MaxDestReadAt: a.MaxReadIn, MinRNRTimer: a.MinRNRTimer, AH: ah},
		qpState|qpAV|qpPathMTU|qpDestQP|qpRecvPSN|qpMaxDestReads|qpMinRNRTimer)
}

func (q *qp) SendReady(a device.SendAttr) error {
	return q.modify("ready to send", &cQPAttr{State: qpsRTS, Timeout: a.Timeout, RetryCount: a.RetryCount, RNRRetry: a.RNRRetry,
		SendPSN: a.SendPSN, MaxReadAtomic: a.MaxReadOut},
		qpState|qpTimeout|qpRetryCount|qpRNRRetry|qpSendPSN|qpMaxReadOut)
}

func (q *qp) Fail() error { return q.modify("error", &cQPAttr{State: qpsErr}, qpState) }

func (q *qp) Post(work []device.Work) (int, error) {
	if len(work) == 0 {
		return 0, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.qp == 0 {
		return 0, q.closed()
	}
	q.chain(work)
	*q.bad = 0
	r := q.fast.postSend(q.post, q.qp, &q.wr[0], q.bad)
	if r == 0 {
		return len(work), nil
	}
	n := 0 // a driver that does not tell which one accepted none
	if *q.bad != 0 {
		n = int((*q.bad - address(&q.wr[0])) / size[cSendWR]())
	}
	return n, status(fmt.Sprintf("ibv_post_send of %d on queue pair %d of %s", len(work), q.num, q.dev.name), uintptr(r), 0)
}

func (q *qp) chain(work []device.Work) {
	if n := len(work); n > len(q.wr) {
		q.wr, q.sge = make([]cSendWR, n), make([]cSGE, n)
		for i := range n {
			w := &q.wr[i]
			w.SGList, w.SendFlags = address(&q.sge[i]), sendSignaled
		}
	}
	for i := range work {
		f, w := &work[i], &q.wr[i]
		q.sge[i] = cSGE{Addr: f.Local, Length: f.Len, LKey: f.LKey}
		w.ID, w.RemoteAddr, w.RKey, w.Opcode = f.ID, f.Remote, f.RKey, wrRead
		if w.NumSGE = 1; f.Len == 0 {
			w.NumSGE = 0
		}
		if f.Write {
			w.Opcode = wrWrite
		}
		if w.Next = 0; i+1 < len(work) {
			w.Next = address(&q.wr[i+1])
		}
	}
}

func (q *qp) Destroy() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.qp == 0 {
		return nil
	}
	r, errno := q.dev.lib.call(q.dev.lib.destroyQP, q.qp)
	if err := status(fmt.Sprintf("ibv_destroy_qp of %d on %s", q.num, q.dev.name), r, errno); err != nil {
		return err
	}
	q.qp = 0
	q.wr, q.sge = nil, nil
	q.dev.child(-1)
	return nil
}
