package spin

import (
	"testing"
	"time"
)

func TestPlaces(t *testing.T) {
	old := places
	defer func() { places = old }()
	places = 2
	for i, want := range []bool{true, true, false} {
		if got := Enter(); got != want {
			t.Fatalf("place %d of two: %v", i+1, got)
		}
	}
	Leave()
	if !Enter() {
		t.Error("a place was given back, but is not there")
	}
	Leave()
	Leave()
	places = 0
	if Enter() {
		t.Error("a place on a machine without one")
	}
}

func TestUntil(t *testing.T) {
	n := 0
	if !Until(func() bool { n++; return true }) || n != 1 {
		t.Errorf("%d looks", n)
	}
	begin := time.Now()
	if Until(func() bool { return false }) {
		t.Error("found nothing, says found")
	}
	if time.Since(begin) < Limit {
		t.Error("gave up early")
	}
}

func TestChoiceFollowsTheFasterWay(t *testing.T) {
	var c Choice
	var took func(looked bool) time.Duration
	rounds := func(n int) (looked int) {
		for range n {
			l := c.Look()
			if l {
				looked++
			}
			c.Took(l, took(l))
		}
		return looked
	}
	slow := func(what bool) func(bool) time.Duration {
		return func(l bool) time.Duration {
			if l == what {
				return 90 * time.Microsecond
			}
			return 40 * time.Microsecond
		}
	}
	took = slow(true)
	if n := rounds(1000); n > 100 || n < 10 {
		t.Errorf("looked %d times of 1000 while that was slow", n)
	}
	took = slow(false)
	rounds(1000) // the machine is another one now
	if n := rounds(1000); n < 900 || n > 990 {
		t.Errorf("looked %d times of 1000 while that was fast", n)
	}
	c.Took(true, time.Hour) // something stood still
	if n := rounds(1000); n < 700 {
		t.Errorf("looked %d times of 1000 after an outlier", n)
	}
}
