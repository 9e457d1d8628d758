package policy

import (
	"slices"
	"testing"
)

// recent is the order of last use.
type recent struct{ lists Lists }

func (r *recent) Insert(e *Event)         { r.lists.PushFront(0, e.Handle) }
func (r *recent) Touch(e *Event)          { r.lists.MoveFront(0, e.Handle) }
func (r *recent) Remove(e *Event, _ bool) { r.lists.Remove(e.Handle) }
func (r *recent) Victims()                { OfferAll(&r.lists, 0) }

// Keep goes through what it does besides the order; the conformance suite runs it as a guest.
func TestKeep(t *testing.T) {
	p := Keep(&Config{MaxHandles: 9}, &recent{NewLists(9, 1)})
	send := func(kind uint8, handles ...uint32) {
		t.Helper()
		for _, h := range handles {
			if err := p.Apply([]Event{{Kind: kind, Handle: h, Segment: h % 2, Flags: FlagLeased}}); err != nil {
				t.Fatalf("kind %d of handle %d: %v", kind, h, err)
			}
		}
	}
	want := func(n Need, want ...uint32) {
		t.Helper()
		n.Tenant, n.Max = AnyTenant, max(n.Max, 1)
		if got := p.Victims(make([]uint32, 0, 9), n); !slices.Equal(got, want) {
			t.Fatalf("victims %v, want %v", got, want)
		}
	}
	all := Need{Max: 9}
	send(Insert, 1, 2, 3, 4)
	send(Access, 1)
	send(Tick, 0)
	send(200, 3)
	want(all, 2, 3, 4, 1)
	want(Need{Max: 2}, 2, 3)
	want(Need{Max: 9, Segment: 2}, 2, 4) // segment 0 is anywhere
	send(Reject, 2)
	want(all, 3, 4, 1, 2)
	if err := p.Apply([]Event{{Kind: Pin, Handle: 3, Flags: FlagSoftPin}, {Kind: Pin, Handle: 4, Flags: FlagHardPin}}); err != nil {
		t.Fatal(err)
	}
	want(all, 1, 2)
	want(Need{Max: 9, Flags: NeedSoftPins}, 1, 2, 3)
	send(Unpin, 4)
	send(Access, 2)
	want(all, 1, 4, 2)
	send(Remove, 1, 2, 2)
	want(all, 4)
	for _, bad := range []Event{{Kind: Insert, Handle: 0}, {Kind: Insert, Handle: 10}, {Kind: Restore, Handle: 4}} {
		p = Keep(&Config{MaxHandles: 9}, &recent{NewLists(9, 1)})
		send(Insert, 4)
		if err := p.Apply([]Event{bad}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
