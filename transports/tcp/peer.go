package tcp

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// laneBurst is how much payload one lane gets before a further one is used: small requests stay
// together, where one system call carries many of them.
const laneBurst = 256 << 10

// inlineWrite is the largest amount that the submitting goroutine writes itself. It never waits for the
// socket: what does not fit is left to the lane's writer.
const inlineWrite = 256 << 10

var (
	_ transports.Peer   = (*Peer)(nil)
	_ transports.Poller = (*Peer)(nil)
)

// Peer implements [transports.Peer]: up to lanes_per_peer connections ("lanes") and one queue before
// them. Whoever adds or completes an op moves queued ops to lanes (assign) and writes what the sockets
// take (pump); each lane has a goroutine that reads answers and one that goes on writing when a socket
// was full.
type Peer struct {
	t      *Transport
	to     target
	ctx    context.Context // ends with Close; bounds connecting
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex
	cond       sync.Cond // room in the queue, or a lane's writer stopped
	waiting    int       // goroutines in cond.Wait
	queue      queue
	lanes      []*lane
	connecting int
	gen        uint64 // of the newest lane
	closed     bool
	free       *call  // not in use
	idleBatch  *batch // not in use
	spent      uint64 // progress of lanes that are gone
	watch      watch

	// What is known about a v1 peer: those before 0.3.10 close after each request.
	multi  bool // it answers several requests on a connection
	single bool // it does not
}

func newPeer(t *Transport, to target) *Peer {
	p := &Peer{t: t, to: to}
	p.cond.L = &p.mu
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Submit implements transports.Peer. Small ops are on the wire when it returns. It blocks while
// max_queued ops wait. It must not be called from a Completion, nor may Close.
func (p *Peer) Submit(ctx context.Context, ops []transports.Op, done transports.Completion) error {
	for i := range ops {
		if err := checkLocal(&ops[i]); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("tcp: %s: %w", p.to.addr, err)
	}
	now := p.t.now()
	fin := finishedLists.Get().(*finishedList)
	defer finishedLists.Put(fin)
	p.mu.Lock()
	if err := p.refusal(); err != nil {
		p.mu.Unlock()
		return err
	}
	b := p.idleBatch
	if b == nil {
		b = new(batch)
		b.watch.F = func() { p.cancelled(b) }
	} else {
		p.idleBatch, b.next = b.next, nil
	}
	b.ctx, b.done, b.left = ctx, done, 1
	b.watch.Start(ctx)
	accepted := false
	for i := range ops {
		err := p.enqueue(b, &ops[i], now, fin)
		if err != nil && !accepted {
			p.leave(b)
			p.mu.Unlock()
			fin.run(p.t)
			return err
		}
		accepted = true
		if err != nil {
			*fin = append(*fin, finished{done: done, cookie: ops[i].Cookie, write: ops[i].Write, reason: "refused", err: err})
		}
	}
	p.pump(fin)
	p.leave(b)
	p.mu.Unlock()
	fin.run(p.t)
	return nil
}

// Poll implements [transports.Poller].
func (p *Peer) Poll() (moved bool) {
	var busy [4]*lane
	n := 0
	p.mu.Lock()
	for _, l := range p.lanes {
		if l.head < l.tail && n < len(busy) {
			busy[n] = l
			n++
		}
	}
	p.mu.Unlock()
	fin := finishedLists.Get().(*finishedList)
	for _, l := range busy[:n] {
		moved = l.poll(fin) || moved
	}
	fin.run(p.t)
	finishedLists.Put(fin)
	return moved
}

// checkLocal refuses ops whose local range is not inside their region.
func checkLocal(op *transports.Op) error {
	if op.Local == nil && op.Len > 0 {
		return fmt.Errorf("tcp: op %d has no local memory: %w", op.Cookie, transports.ErrNotRegistered)
	}
	if op.Len > 0 && (op.Offset > op.Local.Len() || op.Len > op.Local.Len()-op.Offset) {
		return fmt.Errorf("tcp: op %d: local range of %d bytes at offset %d leaves its region of %d bytes: %w",
			op.Cookie, op.Len, op.Offset, op.Local.Len(), transports.ErrNotRegistered)
	}
	return nil
}

// refusal tells why nothing can be submitted now, or nil. p.mu is held.
func (p *Peer) refusal() error {
	if p.closed {
		return fmt.Errorf("tcp: %s: %w", p.to.addr, transports.ErrClosed)
	}
	if len(p.lanes) == 0 && p.connecting == 0 {
		return p.t.pauses.check(p.to.addr, p.t.now())
	}
	return nil
}

// enqueue adds one op, waiting for room. It may release and take p.mu.
func (p *Peer) enqueue(b *batch, op *transports.Op, now time.Duration, fin *finishedList) error {
	if op.Len == 0 {
		*fin = append(*fin, finished{done: b.done, cookie: op.Cookie})
		return nil
	}
	if op.Remote+op.Len < op.Remote {
		return fmt.Errorf("tcp: %d bytes at %#x end beyond the address space: %w", op.Len, op.Remote, transports.ErrRejected)
	}
	for p.queue.n >= p.t.cfg.MaxQueued {
		if p.pump(fin); p.queue.n < p.t.cfg.MaxQueued {
			break
		}
		if len(*fin) > 0 { // they may be what our caller's completions wait for
			p.mu.Unlock()
			fin.run(p.t)
			p.mu.Lock()
			continue
		}
		if err := b.ctx.Err(); err != nil {
			return fmt.Errorf("tcp: %s: %w", p.to.addr, err)
		}
		if p.closed {
			break
		}
		p.wait()
	}
	if err := b.ctx.Err(); err != nil {
		return fmt.Errorf("tcp: %s: %w", p.to.addr, err)
	}
	if err := p.refusal(); err != nil {
		return err
	}
	reg, closing := p.t.regions.acquire(op.Local.Addr()+op.Offset, op.Len)
	if closing {
		return fmt.Errorf("tcp: local region at %#x is being unregistered: %w", op.Local.Addr(), transports.ErrClosed)
	}
	c := p.free
	if c == nil {
		c = new(call)
	} else {
		p.free = c.next
	}
	*c = call{b: b, data: op.LocalBytes(), remote: op.Remote, cookie: op.Cookie, write: op.Write, start: now, reg: reg}
	h := header{size: op.Len, addr: op.Remote, op: opRead}
	if op.Write {
		h.op = opWrite
	}
	if p.to.v2 {
		h.op |= flagV2
	}
	h.put(c.hdr[:])
	p.queue.push(c)
	b.left++
	b.queued++
	return nil
}

// leave ends one use of b: an op's, or Submit's own. p.mu is held.
func (p *Peer) leave(b *batch) {
	if b.left--; b.left > 0 {
		return
	}
	if b.watch.Stop() { // otherwise cancelled has begun and still looks at b
		b.ctx, b.done, b.next = nil, nil, p.idleBatch
		p.idleBatch = b
	}
}

// end takes c out of the game: its memory is not touched any more. p.mu is held.
func (p *Peer) end(c *call, err error, reason string, fin *finishedList) {
	f := finished{done: c.b.done, cookie: c.cookie, start: c.start, write: c.write, reason: reason, err: err}
	if err == nil {
		f.n = uint64(len(c.data))
	}
	*fin = append(*fin, f)
	c.reg.release()
	p.leave(c.b)
	*c = call{next: p.free}
	p.free = c
}

// pump moves queued ops to lanes and writes what the sockets take without waiting. p.mu is held; it is
// released during system calls.
func (p *Peer) pump(fin *finishedList) {
	for {
		p.assign(fin)
		i := slices.IndexFunc(p.lanes, func(l *lane) bool { return l.sent < l.tail && !l.writing && !l.broken })
		if i < 0 {
			return
		}
		l := p.lanes[i]
		l.writing = true
		if l.unsent > inlineWrite {
			l.wake <- struct{}{}
			continue
		}
		l.writeNow(fin)
	}
}

// assign moves ops from the queue to lanes, in order, as far as the lanes take them. p.mu is held.
func (p *Peer) assign(fin *finishedList) {
	moved := false
	for p.queue.n > 0 {
		l := p.pick(p.queue.head)
		if l == nil {
			err := p.hopeless(p.queue.head)
			if err == nil {
				break
			}
			c := p.queue.pop()
			c.b.queued--
			p.end(c, err, "unreachable", fin)
			moved = true
			continue
		}
		c := p.queue.pop()
		c.b.queued--
		l.push(c)
		moved = true
	}
	if moved {
		p.signal()
	}
}

// hopeless is the reason why no lane will take c before the peer's pause ends, or nil. p.mu is held.
func (p *Peer) hopeless(c *call) error {
	if p.connecting > 0 || slices.ContainsFunc(p.lanes, func(l *lane) bool { return l.gen > c.minGen }) {
		return nil
	}
	return p.t.pauses.check(p.to.addr, p.t.now())
}

// pick chooses the lane for c: the first that is not well filled, else the one with the least payload;
// and it opens a further lane when the open ones have enough to do. p.mu is held.
func (p *Peer) pick(c *call) *lane {
	var best *lane
	for i := 0; i < len(p.lanes); i++ {
		l := p.lanes[i]
		if !l.takes(c) {
			continue
		}
		if !l.fresh() {
			l.drop(cause{kind: causeStale}) // takes it out of p.lanes
			i--
			continue
		}
		if l.bytes < laneBurst {
			return l
		}
		if best == nil || l.bytes < best.bytes {
			best = l
		}
	}
	if best == nil && len(p.lanes)+p.connecting >= p.t.cfg.LanesPerPeer {
		// None will do, not even an idle one: such a lane makes room for a new one.
		if i := slices.IndexFunc(p.lanes, (*lane).idle); i >= 0 {
			p.lanes[i].drop(cause{kind: causeStale})
		}
	}
	p.open()
	return best
}

// failQueue completes everything that is not yet on a lane. p.mu is held.
func (p *Peer) failQueue(err error, reason string, fin *finishedList) {
	for p.queue.n > 0 {
		c := p.queue.pop()
		c.b.queued--
		p.end(c, err, reason, fin)
	}
	p.signal()
}

func (p *Peer) wait() {
	p.waiting++
	p.cond.Wait()
	p.waiting--
}

func (p *Peer) signal() {
	if p.waiting > 0 {
		p.cond.Broadcast()
	}
}

// cancelled runs when the context of a batch has ended. Ops that wait are completed; lanes that carry
// one are dropped, and their readers complete it.
func (p *Peer) cancelled(b *batch) {
	var fin finishedList
	p.mu.Lock()
	if b.queued > 0 {
		p.queue.filter(func(c *call) bool {
			err := c.b.ctx.Err()
			if err == nil {
				return false
			}
			c.b.queued--
			p.end(c, fmt.Errorf("tcp: %s: before it was sent: %w", p.to.addr, err), "cancelled", &fin)
			return true
		})
	}
	p.dropLanes(func(c *call) bool { return c.b == b }, cause{kind: causeCancel})
	p.cond.Broadcast()
	p.mu.Unlock()
	fin.run(p.t)
}

// dropUsers ends ops whose local memory is in r.
func (p *Peer) dropUsers(r *registration) {
	var fin finishedList
	p.mu.Lock()
	p.queue.filter(func(c *call) bool {
		if c.reg != r {
			return false
		}
		c.b.queued--
		p.end(c, fmt.Errorf("tcp: local region is being unregistered: %w", transports.ErrClosed), "cancelled", &fin)
		return true
	})
	p.dropLanes(func(c *call) bool { return c.reg == r }, cause{kind: causeRegion, reg: r})
	p.mu.Unlock()
	fin.run(p.t)
}

// dropLanes drops the lanes that carry a call for which hit is true. p.mu is held.
func (p *Peer) dropLanes(hit func(*call) bool, why cause) {
	for _, l := range slices.Clone(p.lanes) {
		if l.carries(hit) {
			l.drop(why)
		}
	}
}

// sweep drops lanes without progress and closes idle ones.
func (p *Peer) sweep(now time.Duration) {
	var fin finishedList
	cfg := &p.t.cfg
	p.mu.Lock()
	count := p.spent
	for _, l := range slices.Clone(p.lanes) {
		count += l.progress.Load()
		limit := cfg.ProgressTimeout
		switch {
		case l.idle():
			l.watch = watch{}
			if now-l.idleSince >= cfg.IdleTimeout {
				l.drop(cause{kind: causeIdle})
			}
			continue
		case l.awaitsStatus():
			limit = cfg.StatusTimeout
		}
		if l.watch.stalled(now, l.progress.Load(), limit) {
			p.t.m.stalled[roleClient].Inc()
			l.drop(cause{kind: causeTimeout, after: limit})
		}
	}
	if p.queue.n == 0 || p.connecting > 0 {
		p.watch = watch{}
	} else if p.watch.stalled(now, count, max(cfg.ProgressTimeout, cfg.StatusTimeout)) {
		p.failQueue(fmt.Errorf("tcp: %s: waited for %v while no request made progress: %w", p.to.addr, now-p.watch.since, transports.ErrTimeout), "timeout", &fin)
	}
	p.pump(&fin) // a pause may be over
	p.mu.Unlock()
	fin.run(p.t)
}

// Close implements transports.Peer.
func (p *Peer) Close() error {
	var fin finishedList
	p.mu.Lock()
	p.closed = true
	p.cancel()
	p.failQueue(fmt.Errorf("tcp: %s: %w", p.to.addr, transports.ErrClosed), "closed", &fin)
	for _, l := range slices.Clone(p.lanes) {
		l.drop(cause{kind: causeClosed})
	}
	p.cond.Broadcast()
	p.mu.Unlock()
	fin.run(p.t)
	p.wg.Wait()
	p.t.forget(p)
	return nil
}
