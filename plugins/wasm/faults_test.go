package wasm

import (
	"errors"
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
)

func insert(h eviction.Handle, now uint64) eviction.Event {
	return eviction.Event{Kind: eviction.Insert, Handle: h, Size: 512, NowMS: now, KeyHash: uint64(h) * 77}
}

func tick(now uint64) eviction.Event { return eviction.Event{Kind: eviction.Tick, NowMS: now} }

func tell(t *testing.T, p eviction.Policy, events ...eviction.Event) {
	t.Helper()
	if err := p.Apply(events); err != nil {
		t.Fatal(err)
	}
}

func victims(t *testing.T, p eviction.Policy, n int) []eviction.Handle {
	t.Helper()
	v, err := p.Victims(nil, evictiontest.Any(n))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func status(p eviction.Policy) eviction.Supervision { return p.(eviction.Supervised).Supervision() }

// Discard, wait, start again with RESTORE, wait longer, quarantine: all on now_ms.
func TestFaultsAndQuarantine(t *testing.T) {
	p := instanceOf(t, guest(t, "trap"), spec(10))
	tell(t, p, insert(1, 1000), insert(2, 1000), insert(3, 1000))
	want := []eviction.Handle{1, 2, 3}
	step := func(state eviction.GuestState, instances, faults, retry uint64) {
		t.Helper()
		if got := victims(t, p, 3); !slices.Equal(got, want) {
			t.Errorf("victims %v, want %v", got, want)
		}
		s := status(p)
		if s.State != state || s.Instances != instances || s.Faults["trap"] != faults || s.RetryMS != retry {
			t.Errorf("at %d: %s, %d instances, %d faults, next start at %d; want %s, %d, %d, %d",
				p.(*policy).order.Now, s.State, s.Instances, s.Faults["trap"], s.RetryMS, state, instances, faults, retry)
		}
	}
	step(eviction.GuestWaiting, 1, 1, 2000)
	tell(t, p, tick(1999))
	step(eviction.GuestWaiting, 1, 1, 2000)
	tell(t, p, tick(2000)) // starts again
	if s := status(p); s.State != eviction.GuestRunning || s.Instances != 2 {
		t.Errorf("%s, %d instances after the wait", s.State, s.Instances)
	}
	if n := status(p).Events; n != 6 {
		t.Errorf("%d events delivered, want 3 INSERTs and 3 RESTOREs", n)
	}
	step(eviction.GuestWaiting, 2, 2, 6000)
	tell(t, p, tick(6000))
	step(eviction.GuestQuarantined, 3, 3, 0)
	tell(t, p, tick(1<<40))
	step(eviction.GuestQuarantined, 3, 3, 0)
}

// Three faults in more than ten minutes are no quarantine.
func TestFaultsFarApart(t *testing.T) {
	p := instanceOf(t, guest(t, "trap"), spec(10))
	tell(t, p, insert(1, 0))
	for i := range uint64(6) {
		now := (i + 1) * (faultWindow/2 + 1)
		tell(t, p, tick(now))
		victims(t, p, 1)
		if s := status(p); s.Faults["trap"] != i+1 || s.State != eviction.GuestWaiting {
			t.Fatalf("fault %d: %d, %s", i, s.Faults["trap"], s.State)
		}
	}
}

// While it is filled, a policy tells its caller of faults, so that a swap fails.
func TestFaultDuringRestoreIsAnError(t *testing.T) {
	p := instanceOf(t, guest(t, "spin"), spec(10))
	e := insert(1, 5)
	e.Kind = eviction.Restore
	err := p.Apply([]eviction.Event{e})
	var fault *Fault
	if !errors.As(err, &fault) || fault.Kind != FaultFuel {
		t.Fatalf("Apply of a RESTORE = %v", err)
	}
	if s := status(p); s.State == eviction.GuestRunning || s.Faults["out_of_fuel"] != 1 {
		t.Errorf("%s, %v", s.State, s.Faults)
	}
	if got := victims(t, p, 1); !slices.Equal(got, []eviction.Handle{1}) {
		t.Errorf("victims %v", got)
	}
}

// A guest that was started again is told what is resident now, oldest first, with pins.
func TestRestoreReplay(t *testing.T) {
	p := instanceOf(t, guest(t, "lru"), spec(1000)).(*policy)
	for h := eviction.Handle(1); h <= 600; h++ {
		tell(t, p, insert(h, uint64(h)))
	}
	tell(t, p, eviction.Event{Kind: eviction.Access, Handle: 1, NowMS: 700}, eviction.Event{Kind: eviction.Remove, Handle: 2, NowMS: 700},
		eviction.Event{Kind: eviction.Pin, Handle: 3, Flags: eviction.FlagHardPin, NowMS: 700},
		eviction.Event{Kind: eviction.Pin, Handle: 4, Flags: eviction.FlagSoftPin, NowMS: 700})
	need := evictiontest.Any(1000)
	need.Flags = eviction.NeedSoftPins
	want, err := p.Victims(nil, need)
	if err != nil || len(want) != 598 || want[597] != 4 {
		t.Fatalf("%d victims, %v", len(want), err)
	}
	if err := p.handle(faultf(FaultTrap, "test", "made up")); err != nil {
		t.Fatal(err)
	}
	got, err := p.Victims(nil, need) // by the host
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the host names %v, %v, the guest %v", got, err, want)
	}
	tell(t, p, tick(1<<20))
	if s := status(p); s.State != eviction.GuestRunning || s.Instances != 2 {
		t.Fatalf("%s, %d instances", s.State, s.Instances)
	}
	before := status(p).Fallbacks
	got, err = p.Victims(nil, need)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("after RESTORE: %v, %v, want %v", got, err, want)
	}
	if n := status(p).Fallbacks - before; n != 0 {
		t.Errorf("%d of them by the host", n)
	}
}

func TestGrow(t *testing.T) {
	p := instanceOf(t, guest(t, "abilities"), spec(4))
	for h := eviction.Handle(1); h <= 4; h++ {
		tell(t, p, insert(h, 1))
	}
	tell(t, p, eviction.Event{Kind: eviction.Access, Handle: 2, NowMS: 2})
	if err := p.Apply([]eviction.Event{insert(5, 3)}); !errors.Is(err, eviction.ErrBadEvent) {
		t.Fatalf("a handle that is too large: %v", err)
	}
	g := p.(eviction.Grower)
	if err := g.Grow(8); err != nil {
		t.Fatal(err)
	}
	tell(t, p, insert(8, 4))
	if got, want := victims(t, p, 8), []eviction.Handle{1, 3, 4, 2, 8}; !slices.Equal(got, want) {
		t.Errorf("victims %v, want %v", got, want)
	}
	if raw, err := p.(eviction.Statser).Stats(); err != nil || string(raw) != `{"even":1,"odd":0,"params":0}` {
		t.Errorf("what it had learned: %s, %v", raw, err)
	}
	if s := status(p); s.Instances != 2 || s.Fallbacks != 0 {
		t.Errorf("%d instances, %d fallbacks", s.Instances, s.Fallbacks)
	}
	if err := g.Grow(2); err != nil || p.(both).policy.spec.MaxHandles != 8 {
		t.Errorf("Grow to less: %v", err)
	}
}

// Victims that are no answer are left out, and the guest hears why.
func TestProtectedVictims(t *testing.T) {
	p := instanceOf(t, guest(t, "removed"), spec(40)).(*policy) // names 1, 2, 3 ...
	for h := eviction.Handle(1); h <= 6; h++ {
		e := insert(h, 1)
		e.Tenant, e.Segment = uint32(h%2), uint32(h%3)
		tell(t, p, e)
	}
	tell(t, p, eviction.Event{Kind: eviction.Pin, Handle: 1, Flags: eviction.FlagHardPin}, eviction.Event{Kind: eviction.Pin, Handle: 2, Flags: eviction.FlagSoftPin})
	ask := func(need eviction.Need, want ...eviction.Handle) {
		t.Helper()
		if got, err := p.Victims(nil, need); err != nil || !slices.Equal(got, want) {
			t.Errorf("%+v: %v, %v, want %v", need, got, err, want)
		}
	}
	ask(eviction.Need{Max: 6, Tenant: eviction.AnyTenant}, 3, 4, 5, 6)
	if p.told.Protected != 2 || p.told.Strikes["unknown"] != 0 {
		t.Errorf("%d protected, strikes %v", p.told.Protected, p.told.Strikes)
	}
	var codes []eviction.Code
	for _, e := range p.pending {
		if e.Kind != eviction.Reject || e.Size != 512 || e.KeyHash == 0 {
			t.Errorf("pending %+v", e)
		}
		codes = append(codes, e.Code)
	}
	if want := []eviction.Code{eviction.CodePinned, eviction.CodePinned}; !slices.Equal(codes, want) {
		t.Errorf("refusals %v, want %v", codes, want)
	}
	ask(eviction.Need{Max: 6, Tenant: eviction.AnyTenant, Flags: eviction.NeedSoftPins}, 3, 4, 5, 6, 2)
	ask(eviction.Need{Max: 6, Tenant: 1}, 3, 5)
	ask(eviction.Need{Max: 6, Tenant: eviction.AnyTenant, Segment: 1}, 3, 4, 6) // 3 and 6 are on several
	ask(eviction.Need{Max: 6, Bytes: 600, Tenant: eviction.AnyTenant}, 3, 4, 5, 6)
	tell(t, p, eviction.Event{Kind: eviction.Remove, Handle: 3})
	ask(eviction.Need{Max: 3, Bytes: 600, Tenant: eviction.AnyTenant}, 4, 5) // the host adds what is missing
	if p.told.Strikes["unknown"] != 1 || p.told.Fallbacks == 0 {
		t.Errorf("strikes %v, %d fallbacks", p.told.Strikes, p.told.Fallbacks)
	}
}
