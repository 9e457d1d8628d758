package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
)

// reference is the plainest policy that keeps the contract: a slice, oldest first. Each fault breaks one rule.
type reference struct {
	fault string
	max   eviction.Handle
	order []eviction.Event
	pins  map[eviction.Handle]eviction.Flags
	asked int
}

func (r *reference) find(h eviction.Handle) int {
	return slices.IndexFunc(r.order, func(e eviction.Event) bool { return e.Handle == h })
}

func (r *reference) Apply(events []eviction.Event) error {
	for _, e := range events {
		if e.Handle > r.max && r.fault != "takes any handle" {
			return fmt.Errorf("handle %d: %w", e.Handle, eviction.ErrBadEvent)
		}
		i := r.find(e.Handle)
		switch e.Kind {
		case eviction.Insert, eviction.Restore:
			if e.Handle == 0 {
				return eviction.ErrBadEvent
			}
			if r.fault == "forgets in RESTORE" && e.Kind == eviction.Restore && e.Handle%2 == 0 {
				continue
			}
			r.order = append(r.order, e)
			r.pins[e.Handle] = e.Flags & 3
		case eviction.Access, eviction.Reject:
			if r.fault == "ignores REJECT" && e.Kind == eviction.Reject {
				continue
			}
			if i >= 0 {
				x := r.order[i]
				r.order = append(slices.Delete(r.order, i, i+1), x)
			}
		case eviction.Remove:
			if i >= 0 && r.fault != "keeps removed handles" {
				r.order = slices.Delete(r.order, i, i+1)
			}
		case eviction.Pin, eviction.Unpin:
			if i >= 0 && r.fault != "ignores pins" {
				r.pins[e.Handle] = e.Flags & 3
				if e.Kind == eviction.Unpin {
					r.pins[e.Handle] = 0
				}
			}
		case eviction.Moved:
			if i >= 0 {
				r.order[i].Segment = e.Segment
			}
		}
	}
	return nil
}

func (r *reference) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	r.asked++
	n := 0
	for _, soft := range []eviction.Flags{0, eviction.FlagSoftPin} {
		if soft != 0 && need.Flags&eviction.NeedSoftPins == 0 {
			break
		}
		for i, e := range r.order {
			if r.fault == "changes by asking" && r.asked%3 == 0 {
				e = r.order[len(r.order)-1-i]
			}
			if r.pins[e.Handle] != soft || n >= need.Max ||
				need.Tenant != eviction.AnyTenant && need.Tenant != e.Tenant && r.fault != "ignores the tenant" ||
				need.Segment != 0 && e.Segment != 0 && need.Segment != e.Segment {
				continue
			}
			dst = append(dst, e.Handle)
			if n++; r.fault == "names twice" && n < need.Max {
				dst = append(dst, e.Handle)
				n++
			}
		}
	}
	return dst, nil
}

func (r *reference) Close() error { return nil }

func referenceFactory(fault string) eviction.Factory {
	return eviction.FactoryFunc(func(s eviction.Spec) (eviction.Policy, error) {
		return &reference{fault: fault, max: eviction.Handle(s.MaxHandles), pins: map[eviction.Handle]eviction.Flags{}}, s.Validate()
	})
}

func TestRun(t *testing.T) {
	told := 0
	for _, o := range Run(referenceFactory(""), Options{ExactRestore: true, Foreign: true}, func(Outcome) { told++ }) {
		if len(o.Failures) > 0 {
			t.Errorf("%s fails the reference: %q", o.Name, o.Failures)
		}
	}
	if told != len(Checks())+1 {
		t.Errorf("told of %d checks", told)
	}
	failed := 0
	for _, o := range Run(referenceFactory("ignores pins"), Options{}, nil) {
		if len(o.Failures) > 0 {
			failed++
		}
	}
	if failed < 2 {
		t.Errorf("a policy that ignores pins fails %d checks, want the model's and another", failed)
	}
}

func TestFailuresReportsPanics(t *testing.T) {
	if got := Failures(func(T) { panic("mine") }); len(got) != 1 || !strings.Contains(got[0], "panic: mine") {
		t.Errorf("failures %q", got)
	}
}

func TestSuiteFindsFaults(t *testing.T) {
	for fault, check := range map[string]func(T, eviction.Factory){
		"takes any handle":      badHandle,
		"forgets in RESTORE":    func(t T, f eviction.Factory) { swap(t, f, Options{}) },
		"ignores REJECT":        refusals,
		"keeps removed handles": late,
		"ignores pins":          drain,
		"changes by asking":     determinism,
		"names twice":           drain,
	} {
		if len(Failures(func(t T) { check(t, referenceFactory(fault)) })) == 0 {
			t.Errorf("a policy that %s passes", fault)
		}
		if got := Failures(func(t T) { check(t, referenceFactory("")) }); len(got) != 0 {
			t.Errorf("the check for %q fails the reference: %q", fault, got)
		}
	}
}

func TestHostChecksTheTenant(t *testing.T) {
	got := Failures(func(t T) {
		h := NewHost(t, referenceFactory("ignores the tenant"), Spec(4))
		h.Put([]uint64{1}, 1, 1, 0, 0)
		h.Victims(eviction.Need{Max: 1, Tenant: 2})
	})
	if len(got) != 1 {
		t.Errorf("failures: %q", got)
	}
}
