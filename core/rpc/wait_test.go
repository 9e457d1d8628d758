package rpc

import "testing"

// A loop that looks in vain tries more and more seldom; one that finds something goes on looking.
func TestLookout(t *testing.T) {
	tries := func(o *lookout, waits int, find bool) (n int) {
		for range waits {
			if o.pays() {
				n++
				o.found(find)
			}
		}
		return n
	}
	var o lookout
	if n := tries(&o, 1000, true); n != 1000 {
		t.Errorf("found each time, looked %d of 1000 times", n)
	}
	if n := tries(&o, 1+1+1+3+1+7+1, false); n != 4 {
		t.Errorf("looked %d times in vain, want 4: the 1st, 3rd, 7th and 15th", n)
	}
	tries(&o, 1<<12, false)
	if n := tries(&o, 256*10, false); n != 10 {
		t.Errorf("an idle loop looked %d times in 2560 waits, want 10", n)
	}
	for !o.pays() {
	}
	o.found(true)
	if n := tries(&o, 100, true); n != 100 {
		t.Errorf("busy again, looked %d of 100 times", n)
	}
	o = lookout{off: true}
	if n := tries(&o, 100, true); n != 0 {
		t.Errorf("switched off, looked %d times", n)
	}
}
