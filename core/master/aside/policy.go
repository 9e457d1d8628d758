package aside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mooncake-agent/mooncake/eviction"
)

const (
	loss     = 1 << 15 // waiting events above which reads are dropped
	hard     = 1 << 18 // waiting events that are a fault
	applyMax = 256     // events of one Apply
	wakeAt   = 256     // waiting events for which the goroutine is woken
)

// ErrBehind: the policy is slower than what happens.
var ErrBehind = errors.New("the policy cannot keep up")

// ErrClosed: there is no policy any more.
var ErrClosed = errors.New("aside: the policy is closed")

// Options of a policy aside.
type Options struct {
	// Ahead is how many victims the host takes at a time; twice as many are named ahead at least.
	Ahead int
	// Dropped is called for each event that was dropped, Used for each victim that was used after it was named; nil is
	// nobody. They are called from Apply.
	Dropped, Used func()
}

// Policy stands for a policy that works aside. Apply, Victims, Grow and Close never wait for it and may be called
// from any goroutine; the order of Apply calls is the caller's business.
type Policy struct {
	inner eviction.Policy // the goroutine's
	o     Options
	wake  chan struct{}

	mu       sync.Mutex // a leaf
	queue    []eviction.Event
	pushed   uint64 // events ever
	visits   []*visit
	grow     uint32 // largest handle that the policy must take, 0: as it is
	answers  answers
	resident int
	answered chan struct{} // closed at the next answer
	err      error
	closed   bool
}

var (
	_ eviction.Policy = (*Policy)(nil)
	_ eviction.Grower = (*Policy)(nil)
)

// visit is somebody who wants to see the policy between its calls.
type visit struct {
	ctx  context.Context
	f    func(eviction.Policy)
	done chan struct{}
	was  bool // f has run
}

// New lets inner, which may have been told what is resident and nothing else so far, work aside from now on, on a
// goroutine that spawn starts. The goroutine ends, and closes inner, after Close. resident is the number of objects that
// inner knows.
func New(inner eviction.Policy, resident int, o Options, spawn func(func())) *Policy {
	p := &Policy{inner: inner, o: o, wake: make(chan struct{}, 1), answered: make(chan struct{}), resident: resident}
	p.answers.base = 2 * max(1, o.Ahead)
	p.answers.want(plain)
	p.kick()
	spawn(p.run)
	return p
}

func (p *Policy) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Apply queues events for the policy. Its error is that of an earlier one, or ErrBehind; either ends the policy.
func (p *Policy) Apply(events []eviction.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || p.closed {
		return p.state()
	}
	for i := range events {
		p.push(&events[i])
	}
	p.pushed += uint64(len(events))
	if len(p.queue) >= hard {
		p.err = fmt.Errorf("%w: %d events wait", ErrBehind, len(p.queue))
		p.queue = nil
		p.kick()
		return p.err
	}
	if len(p.queue) >= wakeAt || p.answers.wanted > 0 {
		p.kick()
	}
	return nil
}

// state is why nothing can be done; called with mu held.
func (p *Policy) state() error {
	if p.err != nil {
		return p.err
	}
	return ErrClosed
}

// push queues one event and follows what it says of victims that were named.
func (p *Policy) push(e *eviction.Event) {
	switch e.Kind {
	case eviction.Insert, eviction.Restore:
		p.resident++
		p.answers.more()
	case eviction.Remove:
		p.resident--
	case eviction.Tick:
		p.answers.tick()
	}
	named := p.answers.follow(e)
	if len(p.queue) < loss || e.Kind != eviction.Access && e.Kind != eviction.Probe && e.Kind != eviction.Ghost {
		p.queue = append(p.queue, *e)
	} else if p.o.Dropped != nil {
		p.o.Dropped()
	}
	if named && e.Kind == eviction.Access {
		p.queue = append(p.queue, used(e))
		if p.o.Used != nil {
			p.o.Used()
		}
	}
}

// used is the refusal of a victim that was read after it was named.
func used(e *eviction.Event) eviction.Event {
	return eviction.Event{
		Kind: eviction.Reject, Code: eviction.CodeUsed, Handle: e.Handle, Tenant: e.Tenant, Size: e.Size, NowMS: e.NowMS, KeyHash: e.KeyHash, Group: e.Group,
	}
}

// Victims appends what was named ahead for such a question, see the package comment. Need.Bytes does not count.
func (p *Policy) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || p.closed {
		return dst, p.state()
	}
	a := p.answers.want(question{need.Tenant, need.Segment, need.Flags})
	n := len(dst)
	if dst = a.take(dst, need.Max); len(dst) == n {
		p.answers.ran(a)
		p.kick()
	}
	return dst, nil
}

// Await waits until there are victims for a question, and reports that. Without the policy has named nobody although
// it heard all that was told before the call, or ctx has ended.
func (p *Policy) Await(ctx context.Context, need eviction.Need) bool {
	q := question{need.Tenant, need.Segment, need.Flags}
	p.mu.Lock()
	told := p.pushed
	for {
		a := p.answers.want(q)
		if a.left > 0 || a.known && a.heard >= told || p.err != nil || p.closed {
			some := a.left > 0
			p.mu.Unlock()
			return some
		}
		p.answers.again(a)
		answered := p.answered
		p.mu.Unlock()
		p.kick()
		select {
		case <-answered:
		case <-ctx.Done():
			return false
		}
		p.mu.Lock()
	}
}

// Grow implements eviction.Grower: the policy hears of it before any later event.
func (p *Policy) Grow(maxHandles uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || p.closed {
		return p.state()
	}
	p.grow = max(p.grow, maxHandles)
	return nil
}

// Visit runs f between two calls of the policy, on its goroutine, when the policy has heard all that was told before. f
// may run, or not, after ctx has ended; then the error is that of ctx, and what f writes must not be looked at.
func (p *Policy) Visit(ctx context.Context, f func(eviction.Policy)) error {
	v := &visit{ctx: ctx, f: f, done: make(chan struct{})}
	p.mu.Lock()
	if p.err != nil || p.closed {
		defer p.mu.Unlock()
		return p.state()
	}
	p.visits = append(p.visits, v)
	p.mu.Unlock()
	p.kick()
	select {
	case <-v.done:
		if v.was {
			return nil
		}
		return cmp.Or(ctx.Err(), ErrClosed)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Waiting is how many events the policy has not been told yet, and what they and the answers take in bytes.
func (p *Policy) Waiting() (events int, bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bytes = uint64(cap(p.queue))*eviction.EventSize + uint64(cap(p.answers.named))*8 + uint64(cap(p.answers.spare))*4
	for _, a := range p.answers.list {
		bytes += uint64(cap(a.handles)) * 4
	}
	return len(p.queue), bytes
}

// Close implements eviction.Policy. The goroutine ends after the call that it is in.
func (p *Policy) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.queue = nil
	p.kick()
	return nil
}
