package order

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
)

// recent is the least there is of an order that fetches.
type recent struct {
	Lists
	fetched int
}

func (r *recent) Insert(e *eviction.Event)         { r.PushFront(0, e.Handle) }
func (r *recent) Touch(e *eviction.Event)          { r.MoveFront(0, e.Handle) }
func (r *recent) Remove(e *eviction.Event, _ bool) { r.Lists.Remove(e.Handle) }

func (r *recent) Victims(w *Walk) {
	for h := r.Back(0); h != 0 && w.Offer(h); h = r.Newer(h) {
	}
}

func (r *recent) Fetch(events []eviction.Event) uint32 {
	r.fetched += len(events)
	return r.Lists.Fetch(events)
}

// TestFetch checks that batches of any length, with handles that are absent or too large among them, come to the
// same as their events one by one, where nothing is fetched.
func TestFetch(t *testing.T) {
	const n = fetchFrom
	var orders [2]*recent
	var policies [2]*Policy
	for i := range policies {
		p, err := New(eviction.Spec{Capacity: n, MaxHandles: n}, func(s eviction.Spec, _ *Totals) (Order, error) {
			orders[i] = &recent{Lists: NewLists(s.MaxHandles, 1)}
			return orders[i], nil
		})
		if err != nil {
			t.Fatal(err)
		}
		policies[i] = p
	}
	one := func(events []eviction.Event) error {
		for i := range events {
			if err := policies[1].Apply(events[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	r := rand.New(rand.NewPCG(6, 6))
	resident := map[eviction.Handle]bool{}
	kinds := []eviction.EventKind{eviction.Insert, eviction.Access, eviction.Remove}
	for step := range 2000 {
		var events []eviction.Event
		for range r.IntN(3*ahead) + 1 {
			e := eviction.Event{Kind: kinds[r.IntN(len(kinds))], Handle: 1 + eviction.Handle(r.Uint32N(n)), Size: 1}
			switch {
			case r.IntN(2000) == 0:
				e.Handle = n + 1 + eviction.Handle(r.Uint32N(1<<31))
			case e.Kind == eviction.Insert && resident[e.Handle]:
				e.Kind = eviction.Access
			}
			if e.Kind == eviction.Insert || e.Kind == eviction.Remove {
				resident[e.Handle] = e.Kind == eviction.Insert
			}
			events = append(events, e)
			if e.Handle > n {
				delete(resident, e.Handle)
				break // what follows a bad event is not applied
			}
		}
		err, want := policies[0].Apply(events), one(events)
		if errors.Is(err, eviction.ErrBadEvent) != (events[len(events)-1].Handle > n) || (err == nil) != (want == nil) {
			t.Fatalf("step %d: Apply: %v, one by one: %v", step, err, want)
		}
		var victims [2][]eviction.Handle
		for i, p := range policies {
			victims[i], _ = p.Victims(nil, eviction.Need{Max: 100, Tenant: eviction.AnyTenant})
		}
		if !slices.Equal(victims[0], victims[1]) {
			t.Fatalf("step %d: victims %v, one by one %v", step, victims[0], victims[1])
		}
	}
	if orders[0].fetched == 0 || orders[1].fetched != 0 {
		t.Errorf("%d events were fetched, and %d of those applied one by one", orders[0].fetched, orders[1].fetched)
	}
}
