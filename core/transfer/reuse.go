package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// userWatch is the watch over the submitter's context. A submitter who uses one context again and again keeps
// its watch from batch to batch.
type userWatch struct {
	done <-chan struct{} // of the last context
	stop func() bool     // nil while there is no watch
	keep bool
}

const (
	// keptBatches is how many batches an engine keeps for further use.
	keptBatches = 16
	// keptTasks is how many requests such a batch may have room for.
	keptTasks = 4096
)

// spares are batches that can be used again.
type spares struct {
	mu   sync.Mutex
	list []*Batch
}

func (s *spares) get() *Batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.list)
	if n == 0 {
		return nil
	}
	b := s.list[n-1]
	s.list[n-1] = nil
	s.list = s.list[:n-1]
	return b
}

func (s *spares) put(b *Batch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) >= keptBatches {
		return false
	}
	s.list = append(s.list, b)
	return true
}

// newBatch returns a batch of n tasks that is not armed.
func (e *Engine) newBatch(ctx context.Context, n int, bytes uint64) *Batch {
	b := e.spare.get()
	if b != nil && !b.fits(ctx) {
		b.discard()
		b = nil
	}
	if b == nil {
		b = &Batch{e: e, signal: make(chan struct{}, 1)}
		b.land = b.landed
		b.engine.F = func() { b.end(context.Cause(e.ctx)) }
	}
	if cap(b.tasks) < n {
		b.tasks = make([]task, n)
	}
	b.tasks = b.tasks[:n]
	b.start = time.Now()
	b.limit = e.opt.TransferTimeout + time.Duration(min(bytes, 1<<61))
	b.bytes = bytes
	b.pending.Store(int64(n))
	e.m.batches.Inc()
	return b
}

// fits tells whether a spare batch can be used under ctx: nothing that belongs to an earlier context can end it.
func (b *Batch) fits(ctx context.Context) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if u := &b.user; u.stop != nil && u.done != ctx.Done() {
		if !u.stop() {
			return false
		}
		u.stop = nil
	}
	return b.ctx.clean()
}

// arm starts what ends the batch: its deadline, the end of ctx, the end of the engine. The tasks must be complete.
func (b *Batch) arm(ctx context.Context) {
	b.mu.Lock() // disarm may come before this returns
	defer b.mu.Unlock()
	if b.timer == nil {
		b.timer = time.AfterFunc(b.limit, func() { b.end(fmt.Errorf("%w: %v after submission", ErrTimeout, b.limit)) })
	} else {
		b.timer.Reset(b.limit)
	}
	b.e.watches.Add(&b.engine)
	u, done := &b.user, ctx.Done()
	u.keep = b.sync && done != nil && done == u.done
	u.done = done
	if u.stop == nil && done != nil {
		u.stop = context.AfterFunc(ctx, func() { b.end(userCause(ctx)) })
	}
	b.armed = true
	if b.ctx.Err() != nil { // sweep may have been too early
		go b.sweep()
	}
}

func userCause(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, cause)
	}
	return fmt.Errorf("%w: %w", ErrCanceled, cause)
}

// disarm undoes arm. What may come in spite of it spoils the batch for further use. b.mu is held.
func (b *Batch) disarm() {
	b.armed = false
	ok := b.timer.Stop()
	ok = b.engine.Stop() && ok
	if u := &b.user; u.stop != nil && !u.keep {
		ok = u.stop() && ok
		u.stop = nil
	}
	if !ok {
		b.spoiled = true
	}
}

// Free gives a complete batch back to the engine, which then needs no memory for a later one. The batch must not be used
// after it. It is never necessary.
func (b *Batch) Free() {
	b.mu.Lock()
	if !b.complete {
		b.mu.Unlock()
		return
	}
	// Of a request that failed something may be left in a queue.
	ok := b.bad.Load() == 0 && !b.spoiled && b.grace == nil && b.quiet == nil && !b.lost && b.notify == nil && cap(b.tasks) <= keptTasks && b.ctx.clean()
	if ok {
		b.gen.Add(1)
		clear(b.tasks)
		b.pollers, b.waited = [2]transports.Poller{}, waitedNot
		b.part, b.complete, b.sync, b.done, b.target, b.noteErr = part{}, false, false, nil, nil, nil
		select {
		case <-b.signal:
		default:
		}
	}
	b.mu.Unlock()
	if !ok || !b.e.spare.put(b) {
		b.discard()
	}
}

// discard ends a batch that is not used again.
func (b *Batch) discard() {
	b.mu.Lock()
	if u := &b.user; u.stop != nil {
		u.stop()
		u.stop = nil
	}
	b.mu.Unlock()
	b.ctx.end(ErrCanceled)
}
