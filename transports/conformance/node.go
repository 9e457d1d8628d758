package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// deadline bounds every wait of the suite. Only a broken transport reaches it.
const deadline = 60 * time.Second

// Node is a started transport with its host.
type Node struct {
	*Host
	T    transports.Transport
	mu   sync.Mutex
	regs map[transports.Region]transports.Registration
	own  []*Region // unmapped after the transport was closed
}

// StartNode starts tr on a new host of f. It is closed when the test ends, if it was not before.
func StartNode(t T, f *Fabric, tr transports.Transport) *Node {
	t.Helper()
	n := &Node{Host: f.NewHost(), T: tr, regs: map[transports.Region]transports.Registration{}}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := tr.Start(ctx, n.Host); err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, r := range n.own {
			r.unmap()
		}
	})
	return n
}

// Register maps and registers a region.
func (n *Node) Register(t T, size int, access transports.Access) *Region {
	t.Helper()
	r := newRegion(t, size, access)
	n.mu.Lock()
	n.own = append(n.own, r)
	n.mu.Unlock()
	n.Add(t, r)
	return r
}

// Add registers r.
func (n *Node) Add(t T, r transports.Region) {
	t.Helper()
	reg, err := n.T.Register(context.Background(), r)
	if err != nil {
		t.Fatalf("register: %v", err)
	}
	n.Host.Add(r)
	n.mu.Lock()
	n.regs[r] = reg
	n.mu.Unlock()
}

// Registration returns the transport's registration of r.
func (n *Node) Registration(r transports.Region) transports.Registration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.regs[r]
}

// Unregister ends all access to r as the engine does: unfindable, then Registration.Close.
func (n *Node) Unregister(t T, r transports.Region) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	n.Host.Remove(t, r)
	if err := n.Registration(r).Close(ctx); err != nil {
		t.Fatalf("close registration: %v", err)
	}
}

// Descriptor is what the node would publish now.
func (n *Node) Descriptor() *transports.Descriptor {
	d := &transports.Descriptor{Name: n.Identity().Segment, Buffers: n.Buffers(), DialHost: n.Identity().Host}
	n.T.Describe(d)
	return d
}

// Dial returns a peer handle for to; closed when the test ends.
func (n *Node) Dial(t T, to *Node) transports.Peer {
	t.Helper()
	return n.DialDescriptor(t, to.Descriptor())
}

// DialDescriptor is Dial for any descriptor.
func (n *Node) DialDescriptor(t T, d *transports.Descriptor) transports.Peer {
	t.Helper()
	if err := n.T.Reach(d); err != nil {
		t.Fatalf("reach: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	p, err := n.T.Dial(ctx, d)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// Recorder collects completions and notices when one comes twice or was never asked for.
type Recorder struct {
	t        T
	mu       sync.Mutex
	results  map[uint64]Result
	expected map[uint64]bool
	left     int
	done     chan struct{} // closed and renewed whenever left falls to 0
}

// Result is one completion.
type Result struct {
	N   uint64
	Err error
	At  time.Time
}

// NewRecorder returns an empty recorder.
func NewRecorder(t T) *Recorder {
	return &Recorder{t: t, results: map[uint64]Result{}, expected: map[uint64]bool{}, done: make(chan struct{})}
}

// Expect announces ops; call it before Submit.
func (r *Recorder) Expect(ops []transports.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range ops {
		if r.expected[ops[i].Cookie] {
			r.t.Errorf("the test uses cookie %d twice", ops[i].Cookie)
		}
		r.expected[ops[i].Cookie] = true
	}
	if r.left == 0 {
		r.done = make(chan struct{})
	}
	r.left += len(ops)
}

// Forget takes an announcement back, after Submit refused.
func (r *Recorder) Forget(ops []transports.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range ops {
		if _, reported := r.results[ops[i].Cookie]; reported {
			r.t.Errorf("op %d was refused by Submit and completed", ops[i].Cookie)
		}
		delete(r.expected, ops[i].Cookie)
	}
	if r.left -= len(ops); r.left == 0 {
		close(r.done)
	}
}

// Done is the Completion to pass to Submit.
func (r *Recorder) Done(cookie, n uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.expected[cookie] {
		r.t.Errorf("completion for op %d, which was not submitted", cookie)
		return
	}
	if _, twice := r.results[cookie]; twice {
		r.t.Errorf("op %d completed twice", cookie)
		return
	}
	r.results[cookie] = Result{N: n, Err: err, At: time.Now()}
	if r.left--; r.left == 0 {
		close(r.done)
	}
}

// Wait waits until every announced op is completed.
func (r *Recorder) Wait() {
	r.t.Helper()
	if err := r.WaitFor(deadline); err != nil {
		r.t.Fatal(err)
	}
}

// WaitFor is Wait with a limit.
func (r *Recorder) WaitFor(limit time.Duration) error {
	r.mu.Lock()
	done, none := r.done, r.left == 0
	r.mu.Unlock()
	if none {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-time.After(limit):
		r.mu.Lock()
		defer r.mu.Unlock()
		return fmt.Errorf("%d of %d ops not completed after %v", r.left, len(r.expected), limit)
	}
}

// Result returns the completion of one op.
func (r *Recorder) Result(cookie uint64) (Result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	res, ok := r.results[cookie]
	return res, ok
}

// Results returns all completions so far.
func (r *Recorder) Results() map[uint64]Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[uint64]Result, len(r.results))
	for k, v := range r.results {
		out[k] = v
	}
	return out
}

// Count returns how many ops are completed.
func (r *Recorder) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.results)
}

// Submit announces and submits ops.
func (r *Recorder) Submit(ctx context.Context, p transports.Peer, ops ...transports.Op) error {
	r.Expect(ops)
	err := p.Submit(ctx, ops, r.Done)
	if err != nil {
		r.Forget(ops)
	}
	return err
}

// Move runs ops to their end and returns the first error: Submit's or an op's.
func Move(t T, p transports.Peer, ops ...transports.Op) error {
	t.Helper()
	r := NewRecorder(t)
	if err := r.Submit(context.Background(), p, ops...); err != nil {
		return err
	}
	r.Wait()
	for i := range ops {
		res, _ := r.Result(ops[i].Cookie)
		if res.Err != nil {
			return res.Err
		}
		if res.N != ops[i].Len {
			return fmt.Errorf("op %d reports %d bytes, want %d", ops[i].Cookie, res.N, ops[i].Len)
		}
	}
	return nil
}

// waitFor polls cond, which returns why it does not hold yet.
func waitFor(t T, limit time.Duration, cond func() (why string)) {
	t.Helper()
	end := time.Now().Add(limit)
	for {
		why := cond()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(why)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// isAny tells whether err wraps one of the targets.
func isAny(err error, targets ...error) bool {
	for _, e := range targets {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
