package conformance

import "github.com/mooncake-agent/mooncake/eviction"

// Churn is the cheapest host there is, for measuring: the next key goes in, a victim goes out when it is
// full, every third step reads something.
type Churn struct {
	T    T
	P    eviction.Policy
	N    uint32 // handles
	Next uint64 // steps done

	ev      [3]eviction.Event
	victims [1]eviction.Handle
}

// Step does one insert and what goes with it.
func (c *Churn) Step() {
	h := eviction.Handle(c.Next + 1)
	ev := c.ev[:0]
	if c.Next >= uint64(c.N) {
		v, err := c.P.Victims(c.victims[:0], Any(1))
		if err != nil || len(v) != 1 {
			c.T.Fatalf("Victims = %v, %v", v, err)
		}
		h = v[0]
		ev = append(ev, eviction.Event{Kind: eviction.Remove, Code: eviction.CodeEvicted, Handle: h, Size: 512, NowMS: c.Next, KeyHash: Mix(uint64(h))})
	}
	k := c.Next
	if k%8 == 7 {
		k = k / 2 // sometimes a key that was here before
	}
	ev = append(ev, eviction.Event{Kind: eviction.Insert, Handle: h, Size: 512, NowMS: c.Next, KeyHash: Mix(k), Req: uint32(c.Next / 8), Added: 8, Depth: 7 - uint32(c.Next%8)})
	if c.Next%3 == 0 {
		used := 1 + eviction.Handle(Mix(c.Next)%min(uint64(c.N), c.Next+1))
		ev = append(ev, eviction.Event{Kind: eviction.Access, Handle: used, NowMS: c.Next, Size: 512, KeyHash: Mix(uint64(used))})
	}
	if err := c.P.Apply(ev); err != nil {
		c.T.Fatalf("Apply: %v", err)
	}
	c.Next++
}

// Mix spreads a small number over 64 bits, as a hash of a key.
func Mix(x uint64) uint64 {
	x ^= x >> 31
	x *= 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// Filled returns a policy with n resident objects after two rounds of eviction. The caller closes it.
func Filled(t T, f eviction.Factory, n uint32) eviction.Policy {
	t.Helper()
	p, err := f.New(Spec(n))
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	c := Churn{T: t, P: p, N: n}
	for range 3 * n {
		c.Step()
	}
	return p
}
