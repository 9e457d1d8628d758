package aside

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
)

// fake is a FIFO that notes what it hears and can be held up.
type fake struct {
	mu     sync.Mutex
	heard  []eviction.Event
	calls  []int // events of each Apply
	order  []eviction.Handle
	needs  []eviction.Need
	grown  []uint32
	closed bool
	err    error         // of the next call
	gate   chan struct{} // what each call waits for, nil: nothing
	inside chan string   // told at each call that waits
}

// hold makes the next calls wait until release is called; entered says which call waits.
func (f *fake) hold() (entered <-chan string, release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gate, f.inside = gate, make(chan string, 1)
	return f.inside, func() {
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
	}
}

func (f *fake) enter(call string) error {
	f.mu.Lock()
	gate, inside, err := f.gate, f.inside, f.err
	f.mu.Unlock()
	if gate != nil {
		select {
		case inside <- call:
		default:
		}
		<-gate
	}
	return err
}

func (f *fake) Apply(events []eviction.Event) error {
	if err := f.enter("apply"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, len(events))
	f.heard = append(f.heard, events...)
	for _, e := range events {
		switch e.Kind {
		case eviction.Insert:
			f.order = append(f.order, e.Handle)
		case eviction.Remove:
			f.order = slices.DeleteFunc(f.order, func(h eviction.Handle) bool { return h == e.Handle })
		}
	}
	return nil
}

func (f *fake) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	f.mu.Lock()
	f.needs = append(f.needs, need)
	f.mu.Unlock()
	if err := f.enter("victims"); err != nil {
		return dst, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return append(dst, f.order[:min(need.Max, len(f.order))]...), nil
}

func (f *fake) Grow(n uint32) error {
	f.grown = append(f.grown, n)
	return nil
}

func (f *fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// started is a fake at work aside; the test waits for its end.
func started(t *testing.T, f *fake, o Options) *Policy {
	var g sync.WaitGroup
	p := New(f, 0, o, g.Go)
	t.Cleanup(func() {
		_ = p.Close()
		g.Wait()
		if !f.closed {
			t.Error("the policy was not closed")
		}
	})
	return p
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// settle waits until the policy has heard everything and was asked all that is due.
func settle(t *testing.T, p *Policy) {
	t.Helper()
	for due := 2; due > 0; { // a question may be under way
		if err := p.Visit(soon(t), func(eviction.Policy) {}); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		if due--; p.answers.wanted > 0 {
			due = 2
		}
		p.mu.Unlock()
	}
}

// tell applies events of one kind.
func tell(t *testing.T, p *Policy, kind eviction.EventKind, handles ...eviction.Handle) {
	t.Helper()
	var events []eviction.Event
	for _, h := range handles {
		events = append(events, eviction.Event{Kind: kind, Handle: h, KeyHash: 1000 + uint64(h), Size: 10, Code: eviction.CodeRemoved})
	}
	if err := p.Apply(events); err != nil {
		t.Fatal(err)
	}
}

var anyone = eviction.Need{Max: 100, Tenant: eviction.AnyTenant}

// named waits for victims and returns them.
func named(t *testing.T, p *Policy, need eviction.Need) []eviction.Handle {
	t.Helper()
	if !p.Await(soon(t), need) {
		return nil
	}
	v, err := p.Victims(nil, need)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func upTo(n int) (list []eviction.Handle) {
	for i := range n {
		list = append(list, eviction.Handle(i+1))
	}
	return list
}

var errBroken = errors.New("broken")
