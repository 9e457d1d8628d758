package replay

import (
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
)

// spy is LRU by hand that keeps what it was told.
type spy struct {
	told  *[]eviction.Event
	order []eviction.Handle
}

func (s *spy) Apply(events []eviction.Event) error {
	*s.told = append(*s.told, events...)
	for _, e := range events {
		switch e.Kind {
		case eviction.Access, eviction.Remove:
			s.order = slices.DeleteFunc(s.order, func(h eviction.Handle) bool { return h == e.Handle })
		}
		switch e.Kind {
		case eviction.Access, eviction.Insert:
			s.order = append(s.order, e.Handle)
		}
	}
	return nil
}

func (s *spy) Victims(dst []eviction.Handle, _ eviction.Need) ([]eviction.Handle, error) {
	return append(dst, s.order[0]), nil
}

func (s *spy) Close() error { return nil }

type told struct {
	kind                         eviction.EventKind
	key                          int
	depth, req, matched, added   uint32
	partial, tailFirst, hasChild bool
}

// TestEvents checks what a policy is told, in the order of the store and in that of two client calls.
func TestEvents(t *testing.T) {
	b := NewBuilder("t", 512)
	for i, names := range [][]uint64{{0, 1}, {0, 1, 2, 3}} {
		if err := b.Add(uint64(i), uint32(len(names)*512-1), 0, names); err != nil {
			t.Fatal(err)
		}
	}
	tr := b.Trace()
	const g, in, ac = eviction.Ghost, eviction.Insert, eviction.Access
	for name, c := range map[string]struct {
		o    Options
		want []told
	}{
		"one call": {Options{}, []told{
			{g, 1, 1, 1, 0, 0, true, true, true}, {in, 1, 1, 1, 0, 2, true, true, true},
			{g, 0, 0, 1, 0, 0, false, true, false}, {in, 0, 0, 1, 0, 2, false, true, false},
			{g, 3, 3, 2, 2, 0, true, true, true}, {in, 3, 3, 2, 2, 2, true, true, true},
			{g, 2, 2, 2, 2, 0, false, true, true}, {in, 2, 2, 2, 2, 2, false, true, true},
			{ac, 1, 1, 2, 2, 0, false, true, true}, {ac, 0, 0, 2, 2, 0, false, true, false},
		}},
		"head first": {Options{HeadFirst: true}, []told{
			{g, 0, 0, 1, 0, 0, false, false, false}, {in, 0, 0, 1, 0, 2, false, false, false},
			{g, 1, 1, 1, 0, 0, true, false, true}, {in, 1, 1, 1, 0, 2, true, false, true},
			{ac, 0, 0, 2, 2, 0, false, false, false}, {ac, 1, 1, 2, 2, 0, false, false, true},
			{g, 2, 2, 2, 2, 0, false, false, true}, {in, 2, 2, 2, 2, 2, false, false, true},
			{g, 3, 3, 2, 2, 0, true, false, true}, {in, 3, 3, 2, 2, 2, true, false, true},
		}},
		"get and put": {Options{GetPut: true}, []told{
			{g, 1, 1, 2, 0, 0, true, true, true}, {in, 1, 1, 2, 0, 2, true, true, true},
			{g, 0, 0, 2, 0, 0, false, true, false}, {in, 0, 0, 2, 0, 2, false, true, false},
			{ac, 1, 1, 3, 0, 0, false, true, true}, {ac, 0, 0, 3, 0, 0, false, true, false},
			{g, 3, 3, 4, 2, 0, true, true, true}, {in, 3, 3, 4, 2, 2, true, true, true},
			{g, 2, 2, 4, 2, 0, false, true, true}, {in, 2, 2, 4, 2, 2, false, true, true},
		}},
	} {
		var events []eviction.Event
		f := eviction.FactoryFunc(func(eviction.Spec) (eviction.Policy, error) { return &spy{told: &events}, nil })
		res, err := Run(tr, f, 10, c.o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []told
		for _, e := range events {
			got = append(got, told{
				e.Kind, slices.Index(tr.keys, e.KeyHash), e.Depth, e.Req, e.Matched, e.Added,
				e.Flags&eviction.FlagPartial != 0, e.Flags&eviction.FlagTailFirst != 0, e.Parent != 0,
			})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: events\n got %v\nwant %v", name, got, c.want)
		}
		if res.Hits != 2 || res.Prefix != 2 || res.Inserts != 4 || res.TokenHits != 1024 {
			t.Errorf("%s: %+v, want 2 hits, 2 prefix hits, 4 inserts, 1024 token hits", name, res)
		}
	}
}

// choosy refuses every block with an odd depth.
type choosy struct{ spy }

func (c *choosy) Admit(events []eviction.Event, refuse []bool) error {
	for i, e := range events {
		refuse[i] = e.Depth%2 == 1
	}
	return nil
}

// TestAdmission checks that only inserts that need an eviction are asked for, and only if that is wanted.
func TestAdmission(t *testing.T) {
	b := NewBuilder("t", 512)
	for _, names := range [][]uint64{{0, 1, 2, 3}, {4, 5, 6, 7}, {4, 5, 6, 7}} {
		if err := b.Add(0, 2048, 0, names); err != nil {
			t.Fatal(err)
		}
	}
	var events []eviction.Event
	f := eviction.FactoryFunc(func(eviction.Spec) (eviction.Policy, error) { return &choosy{spy{told: &events}}, nil })
	for _, c := range []struct {
		admission              bool
		refused, inserts, hits uint64
	}{{false, 0, 8, 4}, {true, 4, 6, 2}} {
		r, err := Run(b.Trace(), f, 4, Options{Admission: c.admission})
		if err != nil {
			t.Fatal(err)
		}
		if r.Refused != c.refused || r.Inserts != c.inserts || r.Hits != c.hits {
			t.Errorf("admission %v: %d refused, %d inserts, %d hits, want %d, %d, %d", c.admission, r.Refused, r.Inserts, r.Hits, c.refused, c.inserts, c.hits)
		}
	}
}
