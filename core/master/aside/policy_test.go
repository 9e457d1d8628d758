package aside

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Nobody waits for a policy that is held up in a call.
func TestNobodyWaits(t *testing.T) {
	f := &fake{}
	p := started(t, f, Options{Ahead: 4})
	tell(t, p, eviction.Insert, upTo(20)...)
	if v := named(t, p, anyone); !slices.Equal(v, upTo(8)) {
		t.Fatalf("named ahead: %v", v)
	}
	for _, call := range []string{"apply", "victims"} {
		entered, release := f.hold()
		first := eviction.Handle(1)
		for in := ""; in != call; {
			tell(t, p, eviction.Tick, 0) // asks anew
			select {
			case in = <-entered:
				if in != call { // the other call: let it go on and hold the next
					release()
					entered, release = f.hold()
				}
			case <-soon(t).Done():
				t.Fatalf("%s was never called", call)
			}
		}
		v, err := p.Victims(nil, anyone)
		if err != nil || len(v) == 0 {
			t.Fatalf("held up in %s: %v, %v", call, v, err)
		}
		first = v[0]
		tell(t, p, eviction.Remove, v...)
		if v, err := p.Victims(nil, anyone); err != nil || len(v) != 0 {
			t.Errorf("held up in %s, all taken: %v, %v", call, v, err)
		}
		if err := p.Grow(1000); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := p.Visit(ctx, func(eviction.Policy) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a visit: %v", err)
		}
		if p.Await(ctx, anyone) {
			t.Error("Await found victims")
		}
		cancel()
		release()
		if v := named(t, p, anyone); len(v) == 0 || v[0] <= first {
			t.Errorf("after %s: %v", call, v)
		}
	}
	if v, err := p.Victims(nil, anyone); err != nil || len(v) == 0 {
		t.Fatal(v, err)
	}
	entered, release := f.hold()
	tell(t, p, eviction.Tick, 0)
	<-entered
	if err := p.Close(); err != nil { // does not wait either
		t.Error(err)
	}
	release()
}

// The policy hears everything in order, in batches, and room for a handle before the handle.
func TestTellsInOrder(t *testing.T) {
	f := &fake{}
	p := started(t, f, Options{Ahead: 1})
	var want []uint64
	var events []eviction.Event
	for i := range uint64(3000) {
		want = append(want, i)
		events = append(events, eviction.Event{Kind: eviction.Insert, Handle: eviction.Handle(i + 1), KeyHash: i})
	}
	if err := p.Apply(events[:1000]); err != nil {
		t.Fatal(err)
	}
	if err := p.Grow(4096); err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(events[1000:]); err != nil {
		t.Fatal(err)
	}
	settle(t, p)
	var got []uint64
	for _, e := range f.heard {
		got = append(got, e.KeyHash)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if most := slices.Max(f.calls); most > applyMax {
		t.Errorf("%d events in one call", most)
	}
	if !slices.Equal(f.grown, []uint32{4096}) {
		t.Errorf("grown to %v", f.grown)
	}
}

// What happens to a victim takes it off, also while the policy thinks about its next answer.
func TestEventsTakeVictimsOff(t *testing.T) {
	var used int
	f := &fake{}
	p := started(t, f, Options{Ahead: 8, Used: func() { used++ }})
	tell(t, p, eviction.Insert, upTo(100)...)
	if v := named(t, p, anyone); !slices.Equal(v, upTo(16)) {
		t.Fatal(v)
	}
	tell(t, p, eviction.Remove, 1)
	tell(t, p, eviction.Reject, 2)
	tell(t, p, eviction.Pin, 3)
	tell(t, p, eviction.Access, 4)
	tell(t, p, eviction.Moved, 5)
	tell(t, p, eviction.Probe, 6)
	tell(t, p, eviction.Access, 99) // was not named
	if v, err := p.Victims(nil, eviction.Need{Max: 3, Tenant: eviction.AnyTenant}); err != nil || !slices.Equal(v, []eviction.Handle{6, 7, 8}) {
		t.Errorf("left: %v, %v", v, err)
	}
	settle(t, p)
	want := eviction.Event{Kind: eviction.Reject, Code: eviction.CodeUsed, Handle: 4, KeyHash: 1004, Size: 10}
	if at := slices.Index(f.heard, want); used != 1 || at < 1 || f.heard[at-1].Kind != eviction.Access || f.heard[at-1].Handle != 4 {
		t.Errorf("used %d times, the refusal is event %d of %v", used, at, f.heard[100:])
	}

	entered, release := f.hold()
	for in := ""; in != "victims"; in = <-entered {
		tell(t, p, eviction.Tick, 0)
		if in == "apply" {
			release()
			entered, release = f.hold()
		}
	}
	tell(t, p, eviction.Remove, 6, 7)
	tell(t, p, eviction.Insert, 6) // another object
	release()
	settle(t, p)
	for _, h := range named(t, p, anyone) {
		if h == 6 || h == 7 {
			t.Errorf("%d is named", h)
		}
	}
}

// Each question has its own answers; the first time there are none yet.
func TestQuestions(t *testing.T) {
	f := &fake{}
	p := started(t, f, Options{Ahead: 2})
	tell(t, p, eviction.Insert, upTo(40)...)
	tenant := eviction.Need{Max: 5, Tenant: 7, Segment: 3, Flags: eviction.NeedSoftPins}
	if v, err := p.Victims(nil, tenant); err != nil || len(v) != 0 {
		t.Fatalf("%v, %v", v, err)
	}
	if v := named(t, p, tenant); !slices.Equal(v, upTo(4)) {
		t.Error(v)
	}
	f.mu.Lock()
	if !slices.Contains(f.needs, eviction.Need{Max: 4, Tenant: 7, Segment: 3, Flags: eviction.NeedSoftPins}) {
		t.Errorf("asked %+v", f.needs)
	}
	f.mu.Unlock()
	for range forgetAfter + 2 {
		tell(t, p, eviction.Tick, 0)
	}
	settle(t, p)
	if v, err := p.Victims(nil, tenant); err != nil || len(v) != 0 {
		t.Errorf("after a minute: %v, %v", v, err)
	}
	if v, err := p.Victims(nil, anyone); err != nil || len(v) == 0 {
		t.Errorf("the plain question is forgotten too: %v, %v", v, err)
	}
	for n := range 3 * questionsMax {
		if _, err := p.Victims(nil, eviction.Need{Max: 1, Tenant: uint32(n)}); err != nil {
			t.Fatal(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.answers.list); n > questionsMax {
		t.Errorf("%d questions are remembered", n)
	}
	waiting := 0
	for _, a := range p.answers.list {
		if a.wanted {
			waiting++
		}
	}
	if waiting != p.answers.wanted {
		t.Errorf("%d answers are wanted, counted are %d", waiting, p.answers.wanted)
	}
}

// Who runs out of victims gets more at a time, as far as they are few of what is resident; in quiet times fewer again.
func TestHowManyAhead(t *testing.T) {
	f := &fake{}
	p := started(t, f, Options{Ahead: 4})
	for i := range 20 {
		tell(t, p, eviction.Insert, upTo(20_000)[i*1000:(i+1)*1000]...)
	}
	last := func() int {
		settle(t, p)
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.needs[len(f.needs)-1].Max
	}
	if n := last(); n != 8 {
		t.Fatalf("asked for %d at first", n)
	}
	for range 20 {
		v := named(t, p, eviction.Need{Max: 1 << 20, Tenant: eviction.AnyTenant})
		tell(t, p, eviction.Remove, v...)
		if _, err := p.Victims(nil, anyone); err != nil {
			t.Fatal(err)
		}
		settle(t, p)
	}
	if n, most := last(), p.resident/share; n <= 64 || n > max(most*2, 8) || n > mostAhead {
		t.Errorf("asked for %d with %d resident", n, p.resident)
	}
	for range 20 {
		tell(t, p, eviction.Tick, 0)
		settle(t, p)
	}
	if n := last(); n != 8 {
		t.Errorf("asked for %d in the end", n)
	}
}

// A policy that does not keep up loses reads first, then it is given up.
func TestTooSlow(t *testing.T) {
	dropped := 0
	f := &fake{}
	p := started(t, f, Options{Ahead: 4, Dropped: func() { dropped++ }})
	settle(t, p)
	entered, release := f.hold()
	defer release()
	tell(t, p, eviction.Tick, 0)
	<-entered
	batch := make([]eviction.Event, 1024)
	fill := func(kind eviction.EventKind, n int) (err error) {
		for i := range batch {
			batch[i] = eviction.Event{Kind: kind, Handle: eviction.Handle(i + 1)}
		}
		for ; n > 0 && err == nil; n -= len(batch) {
			err = p.Apply(batch)
		}
		return err
	}
	if err := fill(eviction.Access, loss); err != nil || dropped != 0 {
		t.Fatalf("%v, %d dropped", err, dropped)
	}
	if err := fill(eviction.Ghost, 2048); err != nil || dropped != 2048 {
		t.Errorf("%v, %d dropped, want 2048", err, dropped)
	}
	if err := fill(eviction.Insert, 4096); err != nil || dropped != 2048 {
		t.Errorf("%v, %d dropped", err, dropped)
	}
	if n, bytes := p.Waiting(); n != loss+4096 || bytes < uint64(n)*eviction.EventSize {
		t.Errorf("%d events wait in %d bytes, want %d", n, bytes, loss+4096)
	}
	if err := fill(eviction.Remove, hard); !errors.Is(err, ErrBehind) {
		t.Errorf("%v", err)
	}
	if _, err := p.Victims(nil, anyone); !errors.Is(err, ErrBehind) {
		t.Errorf("Victims: %v", err)
	}
}

// An error of the policy comes back from the next call, whoever waits goes on.
func TestErrors(t *testing.T) {
	for _, call := range []string{"apply", "victims"} {
		f := &fake{}
		p := started(t, f, Options{Ahead: 4})
		settle(t, p)
		f.mu.Lock()
		f.err = errBroken
		f.mu.Unlock()
		if call == "apply" {
			tell(t, p, eviction.Tick, 0)
		}
		if p.Await(soon(t), eviction.Need{Max: 1, Tenant: 3}) {
			t.Error("victims of a broken policy")
		}
		if err := p.Apply([]eviction.Event{{Kind: eviction.Tick}}); !errors.Is(err, errBroken) {
			t.Errorf("Apply: %v", err)
		}
		if _, err := p.Victims(nil, anyone); !errors.Is(err, errBroken) {
			t.Errorf("Victims: %v", err)
		}
		if err := p.Grow(1 << 20); !errors.Is(err, errBroken) {
			t.Errorf("Grow: %v", err)
		}
		if err := p.Visit(soon(t), func(eviction.Policy) { t.Error("a visit") }); !errors.Is(err, errBroken) {
			t.Errorf("Visit: %v", err)
		}
	}
	f := &fake{}
	p := started(t, f, Options{})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Apply after Close: %v", err)
	}
	if p.Await(soon(t), anyone) {
		t.Error("Await after Close")
	}
}

// Without victims Await ends as soon as the policy has said so.
func TestAwaitNobody(t *testing.T) {
	f := &fake{}
	p := started(t, f, Options{Ahead: 4})
	if p.Await(soon(t), anyone) {
		t.Error("victims of an empty store")
	}
	tell(t, p, eviction.Insert, 1)
	if v := named(t, p, anyone); !slices.Equal(v, upTo(1)) {
		t.Error(v)
	}
}

// Whoever waits when the policy is closed is sent away, not left to a deadline.
func TestCloseEndsWaits(t *testing.T) {
	for range 200 {
		f := &fake{}
		p := started(t, f, Options{})
		done := make(chan error, 2)
		ctx := soon(t)
		go func() { done <- p.Visit(ctx, func(eviction.Policy) {}) }()
		go func() {
			p.Await(ctx, eviction.Need{Max: 1, Tenant: 3})
			done <- nil
		}()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
				t.Fatal(err)
			}
		}
	}
}
