package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/internal/spin"
	"github.com/mooncake-agent/mooncake/transports"
)

// State is the state of one request.
type State uint8

const (
	// Waiting: queued or on its way.
	Waiting State = iota
	// Completed: all bytes were moved. A write is visible in the remote memory (with peers that
	// acknowledge writes: tcp_proto_version 2 and up).
	Completed
	// Failed: see Status.Err. An unknown part may have been moved.
	Failed
	// TimedOut: the total deadline passed.
	TimedOut
	// Canceled: Batch.Cancel, the end of the context or Close ended it.
	Canceled
)

func (s State) String() string {
	return [...]string{"waiting", "completed", "failed", "timeout", "canceled"}[s]
}

// Status is the state of one request.
type Status struct {
	State State
	// Bytes known to be moved.
	Bytes uint64
	// Err is nil for Waiting and Completed. It wraps the transports' sentinels, ErrTimeout or ErrCanceled.
	Err error
}

// The states of a task. Whoever changes it from queued or flying to ending owns the change to a final state.
const (
	taskQueued uint32 = iota // in a queue of its peer
	taskFlying               // owned by a transport
	taskEnding
	taskFinal // plus State
)

// How often a task was tried again, and for what.
const (
	triedFresh   = 1 << iota // on a fresh connection
	triedRefresh             // after a refresh of the descriptor
)

type task struct {
	b       *Batch
	next    *task // in a part, or in the peer's list of failed ones
	user    userMemory
	state   atomic.Uint32
	write   bool
	tries   uint8
	path    int // index of the first transport to be considered
	route   *route
	sent    time.Duration // when route got it, after the batch's start
	local   transports.Region
	offset  uint64
	remote  uint64
	len     uint64
	ref     transports.Ref // of registered local memory
	lastErr error

	n   uint64 // these two are valid in a final state
	err error
}

// Batch is a set of requests submitted together. Its methods may be called concurrently.
type Batch struct {
	e      *Engine
	tasks  []task
	part   part // for the first of its segments
	sync   bool // its submitter waits for it, and then frees it
	start  time.Time
	limit  time.Duration
	ctx    batchContext
	timer  *time.Timer
	user   userWatch
	engine transports.Watch // over the engine's end
	land   transports.Completion
	gen    atomic.Uint32 // of the use: part of the cookies, against reports for an earlier one

	pollers [2]transports.Poller // of peers that carry requests, as far as they fit
	bytes   uint64
	waited  waited // how Spin waited

	pending atomic.Int64
	bad     atomic.Int64  // tasks in a final state other than Completed
	signal  chan struct{} // holds a token when complete, for the submitter if sync
	notify  *Message
	target  *Segment
	noteErr error // valid once complete

	mu        sync.Mutex
	armed     bool // between arm and disarm
	complete  bool
	done      chan struct{} // nil while nobody asked for it
	spoiled   bool          // cannot be used again
	grace     *time.Timer
	abandoned int           // tasks whose transport has not reported yet although they are final
	lost      bool          // a transport declared itself unquiet
	quiet     chan struct{} // set with the first of them; closed when all have reported
}

// abandonAfter is how long a transport may take to report an op after its batch has ended. Then the op gets its
// final state without it.
const abandonAfter = 2 * time.Second

// Len is the number of requests.
func (b *Batch) Len() int { return len(b.tasks) }

// Done is closed when every request is in a final state and, for SubmitWithNotify, the notification was
// sent or has failed.
func (b *Batch) Done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		b.done = make(chan struct{})
		if b.complete {
			close(b.done)
		}
	}
	return b.done
}

func (b *Batch) isComplete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.complete
}

// Wait waits for Done and returns Err, or ctx's error if that ends first; the batch goes on then.
func (b *Batch) Wait(ctx context.Context) error {
	if b.isComplete() || b.Spin() {
		return b.Err()
	}
	select {
	case <-b.Done():
		return b.Err()
	case <-ctx.Done():
		return fmt.Errorf("transfer: wait: %w", context.Cause(ctx))
	}
}

// spinMost bounds Spin.
const spinMost = 10 * time.Millisecond

// waited is how a submitter waited for its batch.
type waited uint8

const (
	waitedNot waited = iota
	waitedAsleep
	waitedLooking
)

// Spin looks for answers itself while they keep coming, and for a moment ([spin.Limit]) after the last, but not longer
// than 10 ms, and tells whether the batch is complete then. It is for those who are about to wait for Done: being woken
// for an answer often takes longer than the answer. Where it turns out that looking takes longer, it does not look.
func (b *Batch) Spin() bool {
	look := b.e.waits.of(b.bytes).Look() && spin.Enter()
	if look {
		defer spin.Leave()
	}
	b.mu.Lock()
	complete, pollers := b.complete, b.pollers
	if look = look && pollers[0] != nil; look {
		b.waited = waitedLooking
	} else {
		b.waited = waitedAsleep
	}
	b.mu.Unlock()
	if complete || !look {
		return complete
	}
	for begin := time.Now(); ; {
		moved := spin.Until(func() bool {
			moved := b.pending.Load() == 0
			for _, p := range pollers {
				moved = p != nil && p.Poll() || moved
			}
			return moved
		})
		if !moved || b.pending.Load() == 0 || time.Since(begin) > spinMost {
			return b.isComplete()
		}
	}
}

// waits are the ways to wait for batches of 2^i bytes.
type waits [40]spin.Choice

func (w *waits) of(bytes uint64) *spin.Choice { return &w[min(bits.Len64(bytes), len(w)-1)] }

// carriedBy notes who can be asked for the answers.
func (b *Batch) carriedBy(h transports.Peer) {
	p, ok := h.(transports.Poller)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.pollers {
		if b.pollers[i] == nil || b.pollers[i] == p {
			b.pollers[i] = p
			return
		}
	}
}

// Status returns the state of request i (0 ≤ i < Len), in the order of submission.
func (b *Batch) Status(i int) Status {
	t := &b.tasks[i]
	s := t.state.Load()
	if s < taskFinal {
		return Status{}
	}
	return Status{State: State(s - taskFinal), Bytes: t.n, Err: t.err}
}

// Err is nil until Done and when everything succeeded. Otherwise it names the first request that did not
// complete and wraps its error, or wraps ErrNotify when only the notification failed.
func (b *Batch) Err() error {
	if !b.isComplete() {
		return nil
	}
	if n := b.bad.Load(); n > 0 {
		for i := range b.tasks {
			if s := b.Status(i); s.State != Completed {
				t := &b.tasks[i]
				if len(b.tasks) == 1 {
					return fmt.Errorf("transfer: %s of %d bytes at %#x: %w", opName(t.write), t.len, t.remote, s.Err)
				}
				return fmt.Errorf("transfer: %d of %d requests failed; request %d, %s of %d bytes at %#x: %w",
					n, len(b.tasks), i, opName(t.write), t.len, t.remote, s.Err)
			}
		}
	}
	return b.noteErr
}

// Cancel ends what is not complete yet: queued requests at once, others when their transport has let go of
// their memory. It does not wait; see Done. It is idempotent.
func (b *Batch) Cancel() { b.end(ErrCanceled) }

// Quiet waits until no transport can touch the local memory of this batch any more. After Done that is
// always so, except for requests whose error wraps ErrUnquiet. For those it waits until their transport
// reported after all. When a transport has declared itself unquiet it answers ErrUnquiet at once: only
// Unregister of the region helps.
func (b *Batch) Quiet(ctx context.Context) error {
	select {
	case <-b.Done():
	case <-ctx.Done():
		return fmt.Errorf("transfer: %w: %w", ErrUnquiet, context.Cause(ctx))
	}
	b.mu.Lock()
	quiet, lost := b.quiet, b.lost
	b.mu.Unlock()
	if lost {
		return fmt.Errorf("transfer: %w: a transport gave up; unregister the region", ErrUnquiet)
	}
	if quiet == nil {
		return nil
	}
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("transfer: %w: %w", ErrUnquiet, context.Cause(ctx))
	}
}

// end ends the batch for the given reason, unless it has ended before.
func (b *Batch) end(cause error) {
	if b.ctx.end(cause) {
		go b.sweep()
	}
}

// ending returns the final state and error of a task whose batch has ended; ok is false while it has not.
func (b *Batch) ending() (s State, err error, ok bool) {
	if err = b.ctx.why(); err == nil {
		return 0, nil, false
	}
	if errors.Is(err, ErrTimeout) {
		return TimedOut, err, true
	}
	if !errors.Is(err, ErrCanceled) {
		err = fmt.Errorf("%w: %w", ErrCanceled, err)
	}
	return Canceled, err, true
}

// sweep runs when the batch's context has ended: tasks that no transport has are final now, the others get a
// grace period.
func (b *Batch) sweep() {
	b.mu.Lock()
	armed := b.armed
	b.mu.Unlock()
	if !armed { // not in use; if it is about to be, arm calls again
		return
	}
	s, err, _ := b.ending()
	flying := false
	for i := range b.tasks {
		t := &b.tasks[i]
		if t.state.CompareAndSwap(taskQueued, taskEnding) {
			t.finish(s, 0, err)
		} else if t.state.Load() < taskFinal {
			flying = true
		}
	}
	if !flying {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending.Load() > 0 && b.grace == nil {
		b.grace = time.AfterFunc(abandonAfter, b.abandon)
	}
}

// abandon gives tasks a final state whose transport does not report. Their memory is quarantined.
func (b *Batch) abandon() {
	s, err, _ := b.ending()
	err = fmt.Errorf("%w: the transport still owns the local memory: %w", ErrUnquiet, err)
	b.mu.Lock()
	b.quiet, b.abandoned = make(chan struct{}), 1 // one more until all are counted
	b.mu.Unlock()
	defer b.oneQuiet()
	for i := range b.tasks {
		t := &b.tasks[i]
		b.mu.Lock()
		hit := t.state.CompareAndSwap(taskFlying, taskEnding)
		if hit {
			b.abandoned++
			b.e.quar.add(t)
		}
		b.mu.Unlock()
		if hit {
			b.e.log.Error("a transport does not let go of local memory", "segment", t.route.p.s.name, "transport", t.route.t.Name, "bytes", t.len)
			t.finishKeeping(s, 0, err)
		}
	}
}

// late takes the report about an abandoned task.
func (b *Batch) late(t *task) {
	b.e.quar.remove(t)
	b.oneQuiet()
}

func (b *Batch) oneQuiet() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.abandoned--; b.abandoned == 0 {
		close(b.quiet)
	}
}

// cookie names the task to its transport.
func (t *task) cookie() uint64 { return uint64(t.b.gen.Load())<<32 | t.index() }

// landed is the transports' completion callback.
func (b *Batch) landed(cookie, n uint64, err error) {
	if uint32(cookie>>32) != b.gen.Load() {
		b.e.log.Error("a transport reported a request a second time; the report is ignored")
		return
	}
	t := &b.tasks[uint32(cookie)]
	r := t.route
	mine := t.state.CompareAndSwap(taskFlying, taskEnding)
	r.p.landed(t, n, err)
	switch {
	case !mine:
		b.late(t)
	case err == nil:
		t.finish(Completed, n, nil)
	case errors.Is(err, transports.ErrUnquiet):
		b.e.quar.add(t)
		b.mu.Lock()
		b.lost = true
		b.mu.Unlock()
		t.finishKeeping(Failed, n, fmt.Errorf("%s: %w", r.t.Name, err))
	default:
		r.p.failed(t, n, err)
	}
}

// finish gives t, which the caller owns, its final state and its local memory back.
func (t *task) finish(s State, n uint64, err error) {
	t.ref.Release()
	t.finishKeeping(s, n, err)
}

// finishKeeping is finish for local memory that is not quiet.
func (t *task) finishKeeping(s State, n uint64, err error) {
	b := t.b
	t.n, t.err = n, err
	t.state.Store(taskFinal + uint32(s))
	if s == Completed {
		b.e.m.completed(t.write, n, time.Since(b.start))
	} else {
		b.bad.Add(1)
		b.e.m.failed(t.write, s, n, err)
	}
	if b.pending.Add(-1) == 0 {
		b.finish()
	}
}

// finish runs once, after the last task.
func (b *Batch) finish() {
	if b.notify != nil && b.bad.Load() == 0 {
		if b.e.bg.Go(func() {
			// The batch's own deadline bounds the notification too.
			if err := b.e.notify(&b.ctx, b.target.name, *b.notify); err != nil {
				b.noteErr = fmt.Errorf("transfer: %w: %w", ErrNotify, err)
			}
			b.close()
		}) {
			return
		}
		b.noteErr = fmt.Errorf("transfer: %w: %w", ErrNotify, ErrState)
	}
	b.close()
}

// close tells those who wait. A sync batch belongs to its submitter from then on.
func (b *Batch) close() {
	e := b.e
	b.mu.Lock()
	b.disarm()
	if b.grace != nil {
		b.grace.Stop()
	}
	if !b.ctx.clean() {
		b.spoiled = true
		b.ctx.end(ErrCanceled) // lets go those who watch it
	}
	b.complete = true
	if b.waited != waitedNot {
		e.waits.of(b.bytes).Took(b.waited == waitedLooking, time.Since(b.start))
	}
	b.signal <- struct{}{}
	if b.done != nil {
		close(b.done)
	}
	b.mu.Unlock()
	e.leave()
}
