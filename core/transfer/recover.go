package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// failNext fails the first tasks of the queue that wanted the path; r is the route that could not be dialled, nil when
// there is none.
func (p *peer) failNext(r *route, path int, err error) {
	var hit []*task
	p.mu.Lock()
	for q := p.first; q != nil; q = q.next {
		for q.head != nil && (q.head.path == path || q.head.state.Load() != taskQueued) {
			t := q.head
			q.head = t.next
			t.next = nil
			if t.state.CompareAndSwap(taskQueued, taskEnding) {
				hit = append(hit, t)
			}
		}
	}
	p.mu.Unlock()
	for _, t := range hit {
		if r == nil {
			if t.lastErr != nil {
				err = fmt.Errorf("%w (before that: %w)", err, t.lastErr)
			}
			t.finish(Failed, 0, err)
			continue
		}
		t.route = r
		p.failed(t, 0, err)
	}
}

// failed decides what becomes of a task, owned by the caller, whose attempt failed.
func (p *peer) failed(t *task, n uint64, err error) {
	if s, why, over := t.b.ending(); over {
		t.finish(s, n, why)
		return
	}
	e := p.s.e
	r := t.route
	fresh := false
	switch {
	case errors.Is(err, transports.ErrNotShareable):
		t.path = r.index + 1
		fresh = true
		e.m.switches.WithLabelValues(r.t.Name, reason(err)).Inc()
	case pathFault(err) && p.sidestep(r, err):
		t.path = r.index + 1
		fresh = true
		e.m.switches.WithLabelValues(r.t.Name, reason(err)).Inc()
	case t.tries&triedRefresh == 0 && (errors.Is(err, transports.ErrUnreachable) || errors.Is(err, transports.ErrRejected) || errors.Is(err, transports.ErrProtocol)):
		t.tries |= triedRefresh
	case t.tries == 0 && (errors.Is(err, transports.ErrInterrupted) || errors.Is(err, transports.ErrClosed)):
		t.tries |= triedFresh
		fresh = true
	default:
		t.finish(Failed, n, fmt.Errorf("segment %q: %w", p.s.name, err))
		return
	}
	t.lastErr = err
	t.state.Store(taskQueued)
	if s, why, over := t.b.ending(); over { // the sweep may have come before
		if t.state.CompareAndSwap(taskQueued, taskEnding) {
			t.finish(s, n, why)
		}
		return
	}
	if fresh {
		if t.tries&triedFresh != 0 {
			e.m.retries.WithLabelValues(reason(err)).Inc()
		}
		p.requeue(t)
		return
	}
	p.mu.Lock()
	t.next = p.failedOnes
	p.failedOnes = t
	start := !p.recovering
	p.recovering = true
	p.mu.Unlock()
	if start {
		e.bg.Go(p.recover)
	}
}

const (
	// recoverDelay is given to a peer that could not be reached although its descriptor has not changed.
	recoverDelay = 150 * time.Millisecond
	// refreshPause is the shortest time between two attempts to read a descriptor, the first of which failed.
	refreshPause = 50 * time.Millisecond
)

// recover reads the descriptor again for everything that failed meanwhile and tries what has a chance.
func (p *peer) recover() {
	e := p.s.e
	for {
		p.mu.Lock()
		list := p.failedOnes
		p.failedOnes = nil
		if list == nil {
			p.recovering = false
			p.mu.Unlock()
			return
		}
		pause := time.Until(p.pauseUntil)
		p.mu.Unlock()
		p.sleep(pause)
		ctx, cancel := context.WithTimeout(e.ctx, e.opt.ConnectTimeout+min(e.opt.HandshakeTimeout, 2*e.opt.ConnectTimeout))
		changed, err := p.s.refresh(ctx)
		cancel()
		if err != nil {
			p.mu.Lock()
			p.pauseUntil = time.Now().Add(refreshPause)
			p.mu.Unlock()
		}
		var again *task
		wait := false
		for t := list; t != nil; {
			next := t.next
			retry, delay := worthRetry(t, p.s.desc.Load(), changed, err)
			if retry {
				t.next, again = again, t
				wait = wait || delay
			} else if t.state.CompareAndSwap(taskQueued, taskEnding) {
				why := t.lastErr
				if err != nil {
					why = fmt.Errorf("%w (and %w)", why, err)
				}
				t.finish(Failed, 0, fmt.Errorf("segment %q: %w", p.s.name, why))
			}
			t = next
		}
		if wait {
			p.sleep(recoverDelay)
		}
		for t := again; t != nil; {
			next := t.next
			e.m.retries.WithLabelValues(reason(t.lastErr)).Inc()
			p.requeue(t)
			t = next
		}
	}
}

// sleep waits for d or for the end of the engine.
func (p *peer) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-p.s.e.ctx.Done():
	}
}

// worthRetry decides after a refresh of the descriptor d (err: it failed) whether t has a chance, and whether the
// peer should get a moment before.
func worthRetry(t *task, d *transports.Descriptor, changed bool, err error) (retry, delay bool) {
	if changed {
		t.path = 0
		return true, false
	}
	known := err == nil || errors.Is(err, metadata.ErrUnavailable) // or cannot be known now
	switch {
	case errors.Is(t.lastErr, transports.ErrUnreachable):
		return known, true
	case errors.Is(t.lastErr, transports.ErrRejected):
		return known && d.Contains(t.remote, t.len), false
	}
	return false, false
}
