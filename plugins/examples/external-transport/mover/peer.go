package mover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/mooncake-agent/mooncake/transports"
)

// Peer implements [transports.Peer]: a queue of requests, and up to Config.Connections goroutines that work on it
// and end when it is empty.
type Peer struct {
	t       *Transport
	socket  string
	segment string

	mu     sync.Mutex
	queue  []*job
	busy   map[*job]*line // under way; a nil line still connects
	idle   []*line
	closed bool
	wg     sync.WaitGroup
}

// batch is what the ops of one Submit share.
type batch struct {
	ctx  context.Context
	done transports.Completion
	stop func() bool // of the watch over ctx
	left int         // ops without completion; guarded by Peer.mu
}

// job is one op. It is in the queue or busy, and ends exactly once.
type job struct {
	b   *batch
	op  transports.Op
	end error // set by who stops it while it is busy; guarded by Peer.mu
}

// Submit implements transports.Peer. It does not wait.
func (p *Peer) Submit(ctx context.Context, ops []transports.Op, done transports.Completion) error {
	for i := range ops {
		if o := &ops[i]; o.Local == nil || o.Offset > o.Local.Len() || o.Len > o.Local.Len()-o.Offset {
			return fmt.Errorf("mover: op %d: %d bytes at offset %d: %w", i, o.Len, o.Offset, transports.ErrNotRegistered)
		} else if !p.t.regions.has(o.Local.Addr()) {
			return fmt.Errorf("mover: op %d: its local memory at %#x is not registered here: %w", i, o.Local.Addr(), transports.ErrNotShareable)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("mover: %w", err)
	}
	b := &batch{ctx: ctx, done: done, left: len(ops)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.wrap(transports.ErrClosed)
	}
	for i := range ops {
		p.queue = append(p.queue, &job{b: b, op: ops[i]})
	}
	if len(ops) > 0 {
		b.stop = context.AfterFunc(ctx, func() { p.stopJobs(b, ctx.Err()) })
	}
	for n := min(len(p.queue), p.t.cfg.Connections-len(p.busy)); n > 0; n-- {
		j := p.take()
		p.wg.Go(func() { p.work(j) })
	}
	return nil
}

// take makes the first job busy; nil when there is none. p.mu is held.
func (p *Peer) take() *job {
	if len(p.queue) == 0 {
		return nil
	}
	j := p.queue[0]
	p.queue = p.queue[1:]
	p.busy[j] = nil
	return j
}

// work runs jobs, beginning with j, until none is left.
func (p *Peer) work(j *job) {
	for j != nil {
		l, err := p.run(j)
		p.mu.Lock()
		delete(p.busy, j)
		if j.end != nil {
			err = p.wrap(j.end)
		}
		if l != nil && !p.closed && l.why.Load() == nil {
			p.idle = append(p.idle, l)
		} else if l != nil {
			l.c.Close()
		}
		next := p.take()
		p.mu.Unlock()
		p.report(j, err)
		j = next
	}
}

// run moves one op. The line is returned if it can be used again.
func (p *Peer) run(j *job) (*line, error) {
	o := &j.op
	if o.Len == 0 {
		return nil, nil
	}
	for {
		l, used, err := p.line(j)
		if err != nil {
			return nil, p.wrap(err)
		}
		r := p.t.regions.hold(l, o.Local.Addr()+o.Offset, o.Len)
		if r == nil {
			return l, p.wrap(errLocalGone)
		}
		answered, err := l.move(o.Write, o.Remote, o.LocalBytes())
		r.release(l)
		switch {
		case err == nil, err == errRejected:
			return l, p.wrap(err)
		case used && !answered && l.why.Load() == nil && errors.Is(l.failed(err), transports.ErrInterrupted):
			l.c.Close() // the peer let go of it while it was idle
			continue
		}
		err = l.failed(err)
		l.c.Close()
		return nil, p.wrap(err)
	}
}

// line returns an idle connection, or a new one, and gives it to j.
func (p *Peer) line(j *job) (l *line, used bool, err error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		l, used = p.idle[n-1], true
		p.idle = p.idle[:n-1]
	}
	p.mu.Unlock()
	if l == nil {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: p.socket})
		if err == nil {
			if err = checkUser(c); err != nil {
				c.Close()
			}
		}
		if err != nil {
			return nil, false, fmt.Errorf("%w: %w", transports.ErrUnreachable, err)
		}
		l = newLine(c, p.t.cfg.Stall)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.end != nil { // stopped while it connected
		l.c.Close()
		return nil, false, j.end
	}
	p.busy[j] = l
	return l, used, nil
}

// stopJobs ends the jobs of b, or all with b nil: those in the queue now, the others as soon as their connection is
// closed.
func (p *Peer) stopJobs(b *batch, why error) {
	var over []*job
	p.mu.Lock()
	kept := p.queue[:0:0]
	for _, j := range p.queue {
		if b == nil || j.b == b {
			over = append(over, j)
		} else {
			kept = append(kept, j)
		}
	}
	p.queue = kept
	for j, l := range p.busy {
		if (b == nil || j.b == b) && j.end == nil {
			j.end = why
			if l != nil {
				l.abort(why)
			}
		}
	}
	p.mu.Unlock()
	for _, j := range over {
		p.report(j, p.wrap(why))
	}
}

func (p *Peer) report(j *job, err error) {
	n := j.op.Len
	if err != nil {
		n = 0
	}
	j.b.done(j.op.Cookie, n, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.b.left--; j.b.left == 0 {
		j.b.stop()
	}
}

func (p *Peer) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("mover: segment %q: %w", p.segment, err)
}

// Close implements transports.Peer.
func (p *Peer) Close() error {
	p.mu.Lock()
	p.closed = true
	for _, l := range p.idle {
		l.c.Close()
	}
	p.idle = nil
	p.mu.Unlock()
	p.stopJobs(nil, transports.ErrClosed)
	p.wg.Wait()
	p.t.mu.Lock()
	delete(p.t.peers, p)
	p.t.mu.Unlock()
	return nil
}
