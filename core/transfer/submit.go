package transfer

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"github.com/mooncake-agent/mooncake/core/guard"
	"github.com/mooncake-agent/mooncake/transports"
)

// Request is one contiguous move between local memory and a segment.
type Request struct {
	// Write: local → remote. Otherwise remote → local.
	Write bool
	// Local is the local side; its length is the number of bytes. It may be any memory, registered or not. It
	// must stay valid until the request is in a final state, and belongs to the engine so long. Length 0
	// completes at once without touching the wire.
	Local []byte
	// Segment is the other side, from Open.
	Segment *Segment
	// Remote is the absolute address in the segment: a Buffers entry's Addr plus an offset.
	Remote uint64
}

// Submit starts a batch. The requests are executed in any order and in parallel. An error (wrapping
// ErrInvalid, ErrState or ErrUnquiet) means that nothing was started; failures of single requests are
// found in Batch.Status. Submit does not wait for peers: what a peer has no room for is queued, without
// holding up other peers.
//
// The batch ends at its deadline (transfer_timeout plus 1 ns per byte) and, canceled, with ctx or with the
// engine.
func (e *Engine) Submit(ctx context.Context, reqs []Request) (*Batch, error) {
	return e.submit(ctx, reqs, nil, false)
}

// SubmitWithNotify is Submit followed by a notification to the segment of the first request, once every request
// has completed. If one fails, nothing is sent. Batch.Done waits for the notification too.
func (e *Engine) SubmitWithNotify(ctx context.Context, reqs []Request, m Message) (*Batch, error) {
	if len(reqs) == 0 {
		return nil, fmt.Errorf("transfer: submit: %w: a notification needs a request that names its target", ErrInvalid)
	}
	return e.submit(ctx, reqs, &m, false)
}

// Read moves len(local) bytes from remote memory of s into local, and waits for the end.
func (e *Engine) Read(ctx context.Context, s *Segment, local []byte, remote uint64) error {
	return e.one(ctx, Request{Local: local, Segment: s, Remote: remote})
}

// Write moves local into the memory of s at remote, and waits for the end.
func (e *Engine) Write(ctx context.Context, s *Segment, local []byte, remote uint64) error {
	return e.one(ctx, Request{Write: true, Local: local, Segment: s, Remote: remote})
}

func (e *Engine) one(ctx context.Context, r Request) error {
	return e.Transfer(ctx, []Request{r})
}

// Transfer is Submit and Wait: it returns when every request is in a final state. The error is the
// batch's. Called again and again under one context it allocates nothing.
func (e *Engine) Transfer(ctx context.Context, reqs []Request) error {
	b, err := e.submit(ctx, reqs, nil, true)
	if err != nil {
		return err
	}
	b.Spin()
	<-b.signal // the batch ends with ctx
	err = b.Err()
	b.Free()
	return err
}

// userMemory is local memory that is not registered.
type userMemory struct{ b []byte }

var _ transports.Region = (*userMemory)(nil)

func (u *userMemory) Addr() uint64              { return addressOf(u.b) }
func (u *userMemory) Len() uint64               { return uint64(len(u.b)) }
func (u *userMemory) Location() string          { return "*" }
func (u *userMemory) Access() transports.Access { return 0 }
func (u *userMemory) Bytes() []byte             { return u.b }
func (u *userMemory) FD() (int, int64, bool)    { return -1, 0, false }

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// index is the task's place in its batch.
func (t *task) index() uint64 {
	return uint64((uintptr(unsafe.Pointer(t)) - uintptr(unsafe.Pointer(unsafe.SliceData(t.b.tasks)))) / unsafe.Sizeof(task{}))
}

// submit starts a batch; with sync set its submitter waits for b.signal and then calls b.Free.
func (e *Engine) submit(ctx context.Context, reqs []Request, m *Message, sync bool) (*Batch, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	b, err := e.build(ctx, reqs, m)
	if err != nil {
		e.leave()
		return nil, err
	}
	b.sync = sync
	b.arm(ctx)
	if len(reqs) == 0 {
		b.finish()
	} else {
		b.spread(reqs)
	}
	return b, nil
}

// build checks the requests and makes the batch.
func (e *Engine) build(ctx context.Context, reqs []Request, m *Message) (*Batch, error) {
	total := uint64(0)
	for i := range reqs {
		r := &reqs[i]
		if r.Segment == nil || r.Segment.e != e {
			return nil, fmt.Errorf("transfer: submit: request %d: %w: it has no segment of this engine", i, ErrInvalid)
		}
		if len(r.Local) == 0 {
			continue
		}
		if err := e.quar.check(addressOf(r.Local), uint64(len(r.Local))); err != nil {
			return nil, fmt.Errorf("transfer: submit: request %d: %w", i, err)
		}
		total += uint64(len(r.Local))
	}
	b := e.newBatch(ctx, len(reqs), total)
	b.notify = m
	if m != nil {
		b.target = reqs[0].Segment
	}
	for i := range reqs {
		r, t := &reqs[i], &b.tasks[i]
		t.b, t.write, t.remote, t.len = b, r.Write, r.Remote, uint64(len(r.Local))
		if t.len > 0 {
			e.findLocal(t, r.Local)
		}
	}
	return b, nil
}

// findLocal finds the region that local lies in, and holds it until the task ends.
func (e *Engine) findLocal(t *task, local []byte) {
	r, off, ref, err := e.index.FindRegion(addressOf(local), t.len)
	if err == nil {
		if unsafe.SliceData(ref.Data) == unsafe.SliceData(local) {
			t.local, t.offset, t.ref = r, off, ref
			return
		}
		ref.Release() // a region whose published address is not its own
	}
	t.user.b = local
	t.local = &t.user
}

// spread groups the tasks by segment and starts them.
func (b *Batch) spread(reqs []Request) {
	type group struct {
		s *Segment
		q *part
	}
	var room [4]group
	groups := room[:0]
	last := -1
	var done []*task
	for i := range reqs {
		t := &b.tasks[i]
		if t.len == 0 || t.remote+t.len < t.remote {
			done = append(done, t)
			continue
		}
		s := reqs[i].Segment
		if last < 0 || groups[last].s != s {
			last = -1
			for j := range groups {
				if groups[j].s == s {
					last = j
					break
				}
			}
			if last < 0 {
				last = len(groups)
				q := &b.part
				if last > 0 {
					q = new(part)
				}
				q.b = b
				groups = append(groups, group{s, q})
			}
		}
		groups[last].q.push(t)
	}
	for _, t := range done {
		if !t.state.CompareAndSwap(taskQueued, taskEnding) {
			continue
		}
		if t.len == 0 {
			t.finish(Completed, 0, nil)
		} else {
			t.finish(Failed, 0, fmt.Errorf("segment %q: %w: the range ends beyond the address space", reqs[t.index()].Segment.name, transports.ErrRejected))
		}
	}
	// Of several peers only the last is served by this goroutine: a transport may block it.
	for i, g := range groups {
		inline := i == len(groups)-1
		if g.s.Local() {
			b.e.copyPart(g.s, g.q, inline)
		} else {
			g.s.peer.enqueue(g.q, inline)
		}
	}
}

// inlineCopy is how much a submitter that does not wait copies by itself.
const inlineCopy = 256 << 10

// copyPart moves bytes inside this process. The caller has proved by the instance id that the segment is
// ours: the same host name or address would not be enough.
func (e *Engine) copyPart(s *Segment, q *part, inline bool) {
	total := uint64(0)
	for t := q.head; t != nil; t = t.next {
		total += t.len
	}
	if inline && (q.b.sync || total <= inlineCopy) {
		e.copyTasks(s, q.head)
		return
	}
	e.bg.Go(func() { e.copyTasks(s, q.head) })
}

func (e *Engine) copyTasks(s *Segment, t *task) {
	for t != nil {
		next := t.next
		// A copy cannot be stopped, so the task counts as ending from its start on.
		if t.state.CompareAndSwap(taskQueued, taskEnding) {
			before := time.Since(t.b.start)
			err := e.copyOne(t)
			s.copied(t, time.Since(t.b.start)-before, err)
			if err != nil {
				t.finish(Failed, 0, fmt.Errorf("segment %q: local copy: %w", e.id.Segment, err))
			} else {
				t.finish(Completed, t.len, nil)
			}
		}
		t = next
	}
}

func (s *Segment) copied(t *task, took time.Duration, err error) {
	s.peer.mu.Lock()
	if err == nil {
		s.peer.copies.ok(t.len, took)
	} else {
		s.peer.copies.failed(err)
	}
	s.peer.mu.Unlock()
	if err == nil {
		s.e.m.copies[opIndex(t.write)].Add(float64(t.len))
	}
}

func (e *Engine) copyOne(t *task) error {
	ref, err := e.index.Find(t.remote, t.len)
	if err != nil {
		return fmt.Errorf("%w: %w", transports.ErrRejected, err)
	}
	defer ref.Release()
	need := transports.RemoteRead
	if t.write {
		need = transports.RemoteWrite
	}
	if ref.Access&need == 0 {
		return fmt.Errorf("%w: the region does not allow a %s", transports.ErrRejected, opName(t.write))
	}
	local := t.local.Bytes()[t.offset : t.offset+t.len]
	if t.write {
		return guard.Copy(ref.Data, local)
	}
	return guard.Copy(local, ref.Data)
}

// Elapsed is the time since submission; for callers that report latencies.
func (b *Batch) Elapsed() time.Duration { return time.Since(b.start) }
