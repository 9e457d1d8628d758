package shm

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// target is how a peer's memory is reached.
type target struct {
	socket   string
	instance string
	segment  string // for messages
}

// Peer implements [transports.Peer]. Once its link is lost, Submit answers ErrUnreachable at once and has the link
// made again in the background, so that the caller can take another path meanwhile.
type Peer struct {
	t      *Transport
	to     target
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	link    *link // nil while lost
	dialing bool
	closed  bool
	pause   time.Duration
	retryAt time.Time
}

var _ transports.Peer = (*Peer)(nil)

// adopt takes a fresh link. p.mu is held.
func (p *Peer) adopt(l *link) {
	p.link, p.pause = l, 0
	p.wg.Go(l.run)
}

// lost is told by a link that nothing can be copied over it any more.
func (p *Peer) lost(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == l {
		p.link = nil
		p.delay()
	}
}

// delay sets the time of the next attempt. p.mu is held.
func (p *Peer) delay() {
	most := p.t.cfg.ReconnectPause
	p.pause = min(max(2*p.pause, most/16), most)
	p.retryAt = time.Now().Add(p.pause)
}

// current returns the live link, for one Submit that ends with p.wg.Done, or the reason why there is none.
func (p *Peer) current() (*link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, fmt.Errorf("shm: segment %q: %w", p.to.segment, transports.ErrClosed)
	case p.link != nil:
		p.wg.Add(1) // Close waits for the Submit
		return p.link, nil
	case !p.dialing && !time.Now().Before(p.retryAt):
		p.dialing = true
		p.wg.Go(p.redial)
	}
	return nil, fmt.Errorf("shm: segment %q: the connection is lost: %w", p.to.segment, transports.ErrUnreachable)
}

func (p *Peer) redial() {
	l, err := p.t.connect(p.ctx, p, p.to)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing = false
	switch {
	case err != nil:
		p.delay()
	case p.closed:
		l.fail(errPeerClosed)
		p.wg.Go(l.run)
	default:
		p.adopt(l)
	}
}

var errPeerClosed = fmt.Errorf("shm: the peer was closed: %w", transports.ErrClosed)

// checkOps refuses ops whose local range is not inside their region.
func checkOps(ops []transports.Op) (bytes uint64, err error) {
	for i := range ops {
		o := &ops[i]
		if o.Local == nil || o.Offset > o.Local.Len() || o.Len > o.Local.Len()-o.Offset {
			return 0, fmt.Errorf("shm: op %d: %d bytes at offset %d: %w", i, o.Len, o.Offset, transports.ErrNotRegistered)
		}
		bytes += o.Len
	}
	return bytes, nil
}

// Submit implements transports.Peer. Up to 1 MiB is copied before it returns, of more about 8 MiB; the rest is left to
// the transport's copiers. It does not wait for the peer.
func (p *Peer) Submit(ctx context.Context, ops []transports.Op, done transports.Completion) error {
	total, err := checkOps(ops)
	if err != nil {
		return err
	}
	l, err := p.current()
	if err != nil {
		return err
	}
	defer p.wg.Done()
	if err := ctx.Err(); err != nil {
		return canceled(err)
	}
	if total <= inlineBytes {
		l.copyNow(ctx, ops, done)
	} else {
		l.copyLater(ctx, ops, done, total)
	}
	return nil
}

// copyNow moves ops in the calling goroutine, without an allocation.
func (l *link) copyNow(ctx context.Context, ops []transports.Op, done transports.Completion) {
	for i := range ops {
		o := &ops[i]
		if o.Len == 0 {
			done(o.Cookie, 0, nil)
			continue
		}
		err := l.moveOp(o)
		if err == errUnknown {
			l.copyLater(ctx, ops[i:i+1], done, o.Len)
			continue
		}
		n := o.Len
		if err != nil {
			n = 0
		}
		l.t.m.count(o.Write, n, err)
		done(o.Cookie, n, err)
	}
}

func (l *link) moveOp(o *transports.Op) error {
	if o.Remote+o.Len < o.Remote {
		return errWraps
	}
	local := o.LocalBytes()
	return l.move(local, o.Remote, span{o.Remote, o.Remote + o.Len}, o.Write, l.t.regs.local(o.Local.Addr()+o.Offset, o.Len))
}

var errWraps = fmt.Errorf("shm: the range ends beyond the address space: %w", transports.ErrRejected)

// copyLater hands ops to the copiers.
func (l *link) copyLater(ctx context.Context, ops []transports.Op, done transports.Completion, bytes uint64) {
	b := newBatch(l, ctx, len(ops), done)
	b.watch.Start(ctx)
	var first, last *call
	for i := range ops {
		o := &ops[i]
		switch {
		case o.Len == 0:
			done(o.Cookie, 0, nil)
			continue
		case o.Remote+o.Len < o.Remote:
			l.t.m.count(o.Write, 0, errWraps)
			done(o.Cookie, 0, errWraps)
			continue
		}
		c := &b.calls[i]
		*c = call{b: b, l: l, data: o.LocalBytes(), remote: o.Remote, cookie: o.Cookie, write: o.Write, reg: l.t.regs.local(o.Local.Addr()+o.Offset, o.Len)}
		if last == nil {
			first = c
		} else {
			last.next = c
		}
		last = c
		b.left.Add(1)
	}
	if first != nil {
		l.t.pool.add(first, last, bytes, bytes > inlineBytes)
	}
	b.leave()
}

// Close implements transports.Peer.
func (p *Peer) Close() error {
	p.mu.Lock()
	p.closed = true
	l := p.link
	p.mu.Unlock()
	p.cancel()
	if l != nil {
		l.fail(errPeerClosed)
		<-l.done
	}
	p.wg.Wait()
	p.t.forget(p)
	return nil
}
