package verbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// epState is the state of an endpoint. It only grows, but for new → connecting → waiting → connecting.
type epState uint8

const (
	epNew        epState = iota // no queue pairs
	epConnecting                // our message is on its way
	epWaiting                   // connected by the peer, who has not said that it is ready
	epReady
	epDraining // failed; the device may still hold work
	epDead     // queue pairs are destroyed
)

const (
	// drainTimeout is how long a failed connection's work may take to come back before its queue pairs are destroyed.
	drainTimeout = 2 * time.Second
	// readyTimeout is how long a peer that connected may take to say that it is ready.
	readyTimeout = 10 * time.Second
	// postBatch is how many work requests are handed to the device at once.
	postBatch = 32
	// maxPosted bounds the payload with a device on one connection: what a link of 400 Gbit/s carries in 160 µs. When a
	// peer stops answering, the device sends all of it again seven times before it says so.
	maxPosted = 8 << 20
)

// endpoint is the connection of one of our devices with one device of a peer: some queue pairs, and slices that wait
// for them. Either side may have begun it, and both use it. A failed endpoint is never repaired: it leaves the store
// at once, and the next slice makes a new one.
type endpoint struct {
	n            *nic
	q            *queue
	path         string
	server, name string
	loop         bool // the peer's device is this one
	queued       atomic.Bool
	visited      atomic.Bool
	lastUse      atomic.Int64  // Transport.now of the last completion or connection
	dead         chan struct{} // closed in state dead

	mu         sync.Mutex
	state      epState
	up         bool // queue pairs are ready to send
	acked      bool // the peer has said that it is ready
	since      time.Duration
	gid        device.GIDEntry
	qps        []*qpair
	peerQPs    []uint32
	head, tail *slice // waiting, in order
	posted     int
	bytes      int64         // posted
	progress   time.Duration // of the last completion, or of the first work posted
	cause      error         // of the failure
	flushed    chan struct{} // closed when draining and nothing is posted
}

// qpair is one queue pair with what is posted on it.
type qpair struct {
	e      *endpoint
	qp     device.QP
	id     uint32
	next   uint32 // sequence number of the next work request
	posted int
	slots  []*slice // by sequence number
}

func newEndpoint(n *nic, server, name string) *endpoint {
	e := &endpoint{n: n, path: nicPath(server, name), server: server, name: name, dead: make(chan struct{}), flushed: make(chan struct{})}
	e.loop = e.path == n.path
	e.lastUse.Store(int64(n.t.now()))
	return e
}

// idle tells whether nothing waits or is posted, on a connection that is not being made.
func (e *endpoint) idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.head == nil && e.posted == 0 && (e.state == epReady || e.state == epWaiting)
}

func (e *endpoint) hasQP(num uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.qps, func(p *qpair) bool { return p.qp.Num() == num })
}

// enqueue is false when the endpoint has failed.
func (e *endpoint) enqueue(s *slice) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state >= epDraining {
		return false
	}
	s.next, s.ep = nil, e
	if e.head == nil {
		e.head = s
	} else {
		e.tail.next = s
	}
	e.tail = s
	return true
}

func (e *endpoint) pop() *slice {
	s := e.head
	e.head, s.next = s.next, nil
	return s
}

// kick connects, or posts what waits.
func (e *endpoint) kick() {
	var w outcome
	e.mu.Lock()
	switch e.state {
	case epNew:
		if e.head != nil {
			e.state = epConnecting
			if !e.n.t.spawn(e.connect) {
				w.err = errTransportClosed
			}
		}
	case epReady:
		e.post(&w)
	}
	e.mu.Unlock()
	if w.unused > 0 {
		e.q.release(w.unused)
	}
	if w.starved {
		e.q.wait(e)
	}
	if w.err != nil {
		e.failRail(w.err)
	}
	bounce(w.back, w.why)
}

// outcome is what post leaves to be done without the lock.
type outcome struct {
	starved bool   // the completion queue has no room
	unused  int    // entries of it that were reserved for nothing
	err     error  // the endpoint is broken
	back    *slice // slices that cannot go this way, linked
	why     error
}

// post hands waiting slices to the queue pairs. mu is held.
func (e *endpoint) post(w *outcome) {
	var work [postBatch]device.Work
	var list [postBatch]*slice
	for e.head != nil && w.err == nil && e.bytes < maxPosted {
		p := e.roomiest()
		want := 0
		if p != nil {
			want = min(postBatch, p.room())
		}
		if want == 0 {
			return
		}
		got := e.q.reserve(want)
		if got == 0 {
			w.starved = true
			return
		}
		k, ahead := 0, e.bytes
		for k < got && e.head != nil && ahead < maxPosted {
			s := e.pop()
			if s.op != nil && s.op.aborted.Load() {
				s.next, w.back = w.back, s
				continue
			}
			wr := device.Work{ID: uint64(p.id)<<32 | uint64(p.next+uint32(k)), Write: true}
			if s.op != nil {
				key, ok := s.local.key(e.n)
				if !ok {
					s.next, w.back = w.back, s
					w.why = fmt.Errorf("verbs: the region at %#x is not registered on device %s: %w", s.local.addr, e.n.name, transports.ErrUnreachable)
					continue
				}
				wr.Write, wr.Len, wr.LKey, wr.RKey, wr.Local, wr.Remote = s.op.write, s.len, key, s.rkey(), s.addr, s.remote
			}
			work[k], list[k] = wr, s
			ahead += int64(s.len)
			k++
		}
		n, err := 0, error(nil)
		if k > 0 {
			n, err = p.qp.Post(work[:k])
		}
		if e.posted == 0 {
			e.progress = e.n.t.now()
		}
		for i := range n {
			p.slots[p.next%uint32(len(p.slots))] = list[i]
			p.next++
			e.bytes += int64(list[i].len)
		}
		p.posted += n
		e.posted += n
		w.unused += got - n
		for i := k - 1; i >= n; i-- { // back to the front
			list[i].next = e.head
			if e.head == nil {
				e.tail = list[i]
			}
			e.head = list[i]
		}
		if err != nil && (n == 0 || !errors.Is(err, unix.ENOMEM)) {
			w.err = fmt.Errorf("verbs: device %s: post: %w: %w", e.n.name, err, transports.ErrInterrupted)
		}
	}
}

// roomiest returns the queue pair with the least to do.
func (e *endpoint) roomiest() *qpair {
	var best *qpair
	for _, p := range e.qps {
		if best == nil || p.posted < best.posted {
			best = p
		}
	}
	return best
}

// room is how many work requests may be posted: not more than there are free slots in a row.
func (p *qpair) room() int {
	free := len(p.slots) - p.posted
	for i := range min(free, postBatch) {
		if p.slots[(p.next+uint32(i))%uint32(len(p.slots))] != nil {
			return i
		}
	}
	return free
}

// completed takes completions of one queue pair.
func (p *qpair) completed(wcs []device.Completion) {
	e := p.e
	var done, back *slice
	var cause error
	n := 0
	now := e.n.t.now()
	e.mu.Lock()
	for _, wc := range wcs {
		slot := &p.slots[uint32(wc.ID)%uint32(len(p.slots))]
		s := *slot
		if s == nil {
			continue
		}
		*slot = nil
		n++
		e.bytes -= int64(s.len)
		switch {
		case wc.Status == device.StatusOK:
			s.next, done = done, s
			continue
		case wc.Status != device.StatusFlushed:
			s.err = &workError{device: e.n.name, peer: e.path, status: wc.Status, vendor: wc.Vendor}
			if cause == nil {
				cause = s.err
			}
			e.n.t.m.work.WithLabelValues(e.n.name, wc.Status.String()).Inc()
		case e.cause == nil && cause == nil: // the queue pair failed, and its event comes later
			cause = fmt.Errorf("verbs: device %s: a queue pair to %s failed: %w", e.n.name, e.path, transports.ErrInterrupted)
		}
		s.next, back = back, s
	}
	p.posted -= n
	e.posted -= n
	e.progress = now
	if e.state == epDraining && e.posted == 0 {
		e.setFlushed()
	}
	if back != nil && e.cause != nil && cause == nil {
		cause = e.cause
	}
	more := e.head != nil && e.state == epReady
	e.mu.Unlock()
	e.lastUse.Store(int64(now))
	if back != nil {
		e.failRail(cause) // first, so that no slice comes back to it
	}
	e.q.release(n)
	if more && back == nil {
		e.kick()
	}
	finishSlices(done)
	bounce(back, cause)
}

func (e *endpoint) setFlushed() {
	select {
	case <-e.flushed:
	default:
		close(e.flushed)
	}
}

// failRail is fail for a failure that speaks against this pair of devices.
func (e *endpoint) failRail(why error) {
	if !e.fail(why) || blameless(why) {
		return
	}
	if r := e.n.rails.find(e.path); r != nil {
		r.failed(why)
	}
}

// fail gives the endpoint up: slices that wait look for another way, and those with the device follow when it has given
// them back. It is false when that has happened before.
func (e *endpoint) fail(why error) bool {
	e.mu.Lock()
	if e.state >= epDraining {
		e.mu.Unlock()
		return false
	}
	e.state, e.cause = epDraining, why
	waiting := e.head
	e.head, e.tail = nil, nil
	for _, p := range e.qps {
		if err := p.qp.Fail(); err != nil {
			e.n.t.log.Debug("queue pair to error state", "device", e.n.name, "peer", e.path, "err", err)
		}
	}
	if e.posted == 0 {
		e.setFlushed()
	}
	e.mu.Unlock()
	e.n.store.remove(e)
	e.n.t.drains.Go(e.drain)
	bounce(waiting, why)
	return true
}

// drain waits for the device to give everything back, and destroys the queue pairs.
func (e *endpoint) drain() {
	t := time.NewTimer(drainTimeout)
	select {
	case <-e.flushed:
	case <-t.C:
	}
	t.Stop()
	e.mu.Lock()
	qps := e.qps
	e.mu.Unlock()
	var broken error
	for _, p := range qps { // nobody posts or connects any more
		if err := p.qp.Destroy(); err != nil {
			broken = fmt.Errorf("verbs: device %s does not give up a queue pair: %w: %w", e.n.name, err, transports.ErrUnquiet)
		}
	}
	if broken != nil {
		e.n.t.log.Error("queue pairs cannot be destroyed", "device", e.n.name, "peer", e.path, "err", broken)
	}
	if e.q != nil {
		e.q.mu.Lock()
		for _, p := range qps {
			delete(e.q.qps, p.id)
		}
		e.q.mu.Unlock()
	}
	e.mu.Lock()
	e.state = epDead
	why, left := e.cause, 0
	if broken != nil {
		why = broken
	}
	var back *slice
	for _, p := range qps {
		for i, s := range p.slots {
			if s != nil {
				p.slots[i] = nil
				s.next, back = back, s
				left++
			}
		}
		p.posted = 0
	}
	e.posted = 0
	e.mu.Unlock()
	if left > 0 {
		e.q.release(left)
	}
	e.n.mu.Lock()
	e.n.alive--
	e.n.quiet.Broadcast()
	e.n.mu.Unlock()
	e.n.t.m.endpoints.WithLabelValues(e.n.name).Dec()
	close(e.dead)
	bounce(back, why)
}

// sweep takes out waiting slices whose op was given up.
func (e *endpoint) sweep() {
	var out, keep, last *slice
	e.mu.Lock()
	for e.head != nil {
		s := e.pop()
		switch {
		case s.op != nil && s.op.aborted.Load():
			s.next, out = out, s
		case keep == nil:
			keep, last = s, s
		default:
			last.next, last = s, s
		}
	}
	e.head, e.tail = keep, last
	e.mu.Unlock()
	bounce(out, nil)
}

// carries tells whether a posted slice belongs to an op that match likes.
func (e *endpoint) carries(match func(*op) bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.qps {
		for _, s := range p.slots {
			if s != nil && s.op != nil && match(s.op) {
				return true
			}
		}
	}
	return false
}

// stalled tells whether posted work has not moved for a while.
func (e *endpoint) stalled(now time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.posted > 0 && now-e.progress > abortGrace
}

// probe asks an idle connection whether the peer is there.
func (e *endpoint) probe() {
	e.lastUse.Store(int64(e.n.t.now()))
	if e.enqueue(&slice{}) {
		e.kick()
	}
}

// workError is a work request that the device reported as failed.
type workError struct {
	device, peer string
	status       device.Status
	vendor       uint32
}

func (w *workError) Error() string {
	return fmt.Sprintf("verbs: device %s to %s: %v (vendor code %d)", w.device, w.peer, w.status, w.vendor)
}

// Unwrap tells what it means for the transfer.
func (w *workError) Unwrap() error {
	switch w.status {
	case device.StatusRemoteAccess, device.StatusRemoteInvalidReq:
		return transports.ErrRejected
	case device.StatusLocalProtection, device.StatusLocalAccess, device.StatusLocalLength:
		return transports.ErrNotRegistered
	}
	return transports.ErrInterrupted
}

// blameless tells whether a failure says nothing about the pair of devices: it was asked for, or is about memory.
func blameless(err error) bool {
	for _, e := range []error{transports.ErrRejected, transports.ErrNotRegistered, errEvicted, errGID, errReplaced, errTransportClosed, errPeerDown} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
