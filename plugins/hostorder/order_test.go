package hostorder

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
	_ "github.com/mooncake-agent/mooncake/eviction/lru"
)

// alone is a policy that has nothing but the order.
type alone struct{ o Order }

func (p *alone) Apply(events []eviction.Event) error {
	for i := range events {
		if _, err := p.o.Apply(&events[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *alone) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	p.o.Answer()
	return p.o.Fill(dst, &need, need.Max, need.Bytes), nil
}

func (p *alone) Close() error        { return nil }
func (p *alone) MemoryBytes() uint64 { return p.o.MemoryBytes() }

func newAlone(s eviction.Spec) (eviction.Policy, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &alone{Order{Max: s.MaxHandles}}, nil
}

func TestSuite(t *testing.T) {
	evictiontest.Run(t, eviction.FactoryFunc(newAlone), evictiontest.Options{ExactRestore: true, Foreign: true})
}

// The order answers as the built-in lru does, whatever happens.
func TestSameAsLRU(t *testing.T) {
	native, err := eviction.Kind.Build(context.Background(), "lru", module.Env{}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	const handles = 200
	spec := eviction.Spec{Capacity: 1 << 20, MaxHandles: handles, Tenant: eviction.AnyTenant}
	a, err := newAlone(spec)
	if err != nil {
		t.Fatal(err)
	}
	b, err := native.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r := rand.New(rand.NewPCG(1, 2))
	resident := map[eviction.Handle]eviction.Event{}
	answers := 0
	for now := uint64(1); now < 20_000; now++ {
		e := eviction.Event{Handle: eviction.Handle(1 + r.IntN(handles)), NowMS: now, Size: 512, Tenant: uint32(r.IntN(2)), Segment: uint32(1 + r.IntN(3))}
		if old, in := resident[e.Handle]; !in {
			e.Kind = eviction.Insert
			if r.IntN(8) == 0 {
				e.Flags = eviction.FlagSoftPin
			}
			resident[e.Handle] = e
		} else {
			e.Kind = []eviction.EventKind{eviction.Access, eviction.Access, eviction.Remove, eviction.Reject, eviction.Pin, eviction.Unpin, eviction.Moved}[r.IntN(7)]
			e.Tenant = old.Tenant
			switch e.Kind {
			case eviction.Moved:
				old.Segment = e.Segment
				resident[e.Handle] = old
			case eviction.Pin:
				e.Flags = eviction.FlagHardPin
			case eviction.Remove:
				delete(resident, e.Handle)
			}
			e.Segment = old.Segment
		}
		for _, p := range []eviction.Policy{a, b} {
			if err := p.Apply([]eviction.Event{e}); err != nil {
				t.Fatal(err)
			}
		}
		if now%5 != 0 {
			continue
		}
		need := eviction.Need{Max: 1 + r.IntN(8), Tenant: []uint32{eviction.AnyTenant, 0, 1}[r.IntN(3)], Segment: uint32(r.IntN(4)), Flags: eviction.NeedFlags(r.IntN(2))}
		x, err1 := a.Victims(nil, need)
		y, err2 := b.Victims(nil, need)
		if err1 != nil || err2 != nil || !slices.Equal(x, y) {
			t.Fatalf("at %d: %v, %v; lru names %v, %v", now, x, err1, y, err2)
		}
		answers += len(x)
	}
	if answers < 1000 {
		t.Fatalf("only %d victims", answers)
	}
}

func TestCheck(t *testing.T) {
	o := Order{Max: 4}
	for h, f := range map[eviction.Handle]eviction.Flags{1: 0, 2: eviction.FlagHardPin, 3: eviction.FlagSoftPin} {
		if _, err := o.Apply(&eviction.Event{Kind: eviction.Insert, Handle: h, Flags: f, Tenant: 5, Segment: 6, KeyHash: uint64(h)}); err != nil {
			t.Fatal(err)
		}
	}
	o.Answer()
	need := eviction.Need{Max: 9, Tenant: eviction.AnyTenant}
	for _, c := range []struct {
		h    uint32
		want eviction.Code
	}{{1, 0}, {1, eviction.CodeDuplicate}, {2, eviction.CodePinned}, {3, eviction.CodePinned}, {4, eviction.CodeUnknown}, {5, eviction.CodeUnknown}, {0, eviction.CodeUnknown}} {
		if got := o.Check(c.h, &need); got != c.want {
			t.Errorf("handle %d: code %d, want %d", c.h, got, c.want)
		}
	}
	if e, ok := o.Reject(2, eviction.CodePinned); !ok || e.Kind != eviction.Reject || e.KeyHash != 2 || e.Code != eviction.CodePinned {
		t.Errorf("reject %+v, %v", e, ok)
	}
	if _, ok := o.Reject(5, eviction.CodeUnknown); ok {
		t.Error("an event for a handle that is too large")
	}
	o.Answer()
	need.Flags = eviction.NeedSoftPins
	got := []eviction.Handle{3, 1}
	o.SoftLast(got, &need)
	if !slices.Equal(got, []eviction.Handle{1, 3}) {
		t.Errorf("soft pins are at %v", got)
	}
}
