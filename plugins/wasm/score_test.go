package wasm

import (
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
	"github.com/mooncake-agent/mooncake/plugins/abi"
)

func TestScoreOrder(t *testing.T) {
	p := instanceOf(t, guest(t, "score_nan"), spec(10)) // NaN for odd handles, minus the handle for even ones
	for h := eviction.Handle(1); h <= 6; h++ {
		tell(t, p, insert(h, uint64(h)))
	}
	if got, want := victims(t, p, 6), []eviction.Handle{6, 4, 2, 1, 3, 5}; !slices.Equal(got, want) {
		t.Errorf("victims %v, want %v: lowest score first, NaN last, oldest first among equals", got, want)
	}
	tell(t, p, eviction.Event{Kind: eviction.Reject, Handle: 6, Code: eviction.CodeLeased, NowMS: 7})
	if got := victims(t, p, 2); !slices.Equal(got, []eviction.Handle{4, 2}) {
		t.Errorf("a refused one is named again before others: %v", got)
	}
	for now := range uint64(10) {
		tell(t, p, tick(10+now))
	}
	if got := victims(t, p, 1); !slices.Equal(got, []eviction.Handle{6}) {
		t.Errorf("a refusal holds for ever: %v", got)
	}
	if s := status(p); s.Fallbacks != 0 || s.Events == 0 {
		t.Errorf("%d fallbacks, %d candidates scored", s.Fallbacks, s.Events)
	}
}

// The window: 48 from the tail, 16 by chance, and the question changes nothing.
func TestScoreWindow(t *testing.T) {
	p := instanceOf(t, guest(t, "score_lru"), spec(1000)).(*policy)
	for h := eviction.Handle(1); h <= 1000; h++ {
		tell(t, p, insert(h, uint64(h)))
	}
	first := victims(t, p, 1)
	if !slices.Equal(first, []eviction.Handle{1}) {
		t.Errorf("victim %v, want the oldest", first)
	}
	if n := len(p.rank.at); n != abi.MaxCandidates {
		t.Errorf("%d candidates, want %d", n, abi.MaxCandidates)
	}
	chosen := slices.Clone(p.rank.records[1 : abi.MaxCandidates+1])
	for i := range abi.TailCandidates {
		if e := chosen[i]; e.Handle != eviction.Handle(i+1) || e.NowMS != uint64(i+1) || e.Kind != eviction.Candidate {
			t.Fatalf("candidate %d is %+v", i, e)
		}
	}
	for _, e := range chosen[abi.TailCandidates:] {
		if e.Handle <= abi.TailCandidates {
			t.Errorf("a candidate by chance is one of the tail: %d", e.Handle)
		}
	}
	if again := victims(t, p, 1); !slices.Equal(first, again) || !slices.Equal(chosen, p.rank.records[1:abi.MaxCandidates+1]) {
		t.Error("asking twice shows other candidates")
	}
	tell(t, p, eviction.Event{Kind: eviction.Access, Handle: 1, NowMS: 2000})
	victims(t, p, 1)
	if slices.Equal(chosen[abi.TailCandidates:], p.rank.records[abi.TailCandidates+1:abi.MaxCandidates+1]) {
		t.Error("the candidates by chance are always the same")
	}
	if e := p.order.At(1); e.Uses != 1 || e.LastMS != 2000 {
		t.Errorf("%d uses, last at %d", e.Uses, e.LastMS)
	}
	// A long answer never names one twice and goes on behind the window.
	long, err := p.Victims(nil, evictiontest.Any(300))
	if err != nil || len(long) != 300 {
		t.Fatalf("%d victims, %v", len(long), err)
	}
	slices.Sort(long)
	if n := len(slices.Compact(long)); n != 300 {
		t.Errorf("%d different victims of 300", n)
	}
}
