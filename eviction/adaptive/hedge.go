package adaptive

// hedge keeps the policy from falling behind LRU, over all that it has seen. What the index gives up before LRU
// would is what can be lost: each block that lru holds and self does not is one hit less if it is asked for. So
// there are never more of those than what was won so far, and a small share of all uses, can pay for, if they are
// asked for as often as what lru holds is.
type hedge struct {
	total   float64          // sampled uses
	base    float64          // hits of lru
	balance float64          // hits of self above those of lru
	uses    float64          // in the sliding window
	hits    [shadows]float64 // in the sliding window
	missing int              // members of lru that are not in self
	noise   float64          // sum of the squares of what index hit more or less than lru, by request
	behind  bool             // index hits less than lru, by more than chance would have it
	free    bool             // the index may choose among all blocks
	since   int              // uses since the window was last looked at
	req     uint32           // the present request
	run     [shadows]float64 // hits since its last miss
}

const (
	// unproved and proved are what the policy may lose to LRU, as a share of all uses: half of the 0.3 points that
	// are promised until the index hits more than chance explains, by sure standard errors.
	unproved = 0.0015
	proved   = 0.005
	sure     = 2
	// mostLost is how many blocks may be missing for each hit that may be lost, where few would be asked for.
	mostLost = 4
	// window is over how many uses the shadows are compared, in rooms of a shadow cache.
	window = 4
	// leastRoom is the smallest cache in which anything can be learned.
	leastRoom = 17
)

// judge counts hits in leading blocks: the blocks of a request come deepest first, so those behind its last miss
// count. What was thrown out during the request was there when it came.
func (h *hedge) judge(s *sample, slot, req uint32) {
	if req != h.req || req == 0 {
		h.settle()
		h.req = req
	}
	h.total++
	h.uses++
	for i := range h.run {
		if s.in[slot]>>i&1 != 0 || req != 0 && s.left[i][slot] == req {
			h.run[i]++
		} else {
			h.run[i] = 0
		}
	}
}

func (h *hedge) settle() {
	for i, n := range h.run {
		h.hits[i] += n
	}
	d := h.run[index] - h.run[lru]
	h.noise += d * d
	h.base += h.run[lru]
	h.balance += h.run[self] - h.run[lru]
	h.run = [shadows]float64{}
}

// weigh decides whether the index may choose among all blocks.
func (h *hedge) weigh(s *sample) {
	if h.since++; h.since >= s.room/16+16 {
		h.since = 0
		if d := h.lead(); d*d > h.noise {
			h.behind = d < 0
		}
		if w := window * float64(s.room); h.uses > w {
			f := w / h.uses
			h.uses *= f
			h.noise *= f
			for i := range h.hits {
				h.hits[i] *= f
			}
		}
	}
	h.free = s.room >= leastRoom && !h.behind && float64(h.missing) <= h.allowed()
}

// lead is what index hit above lru in the window.
func (h *hedge) lead() float64 { return h.hits[index] - h.hits[lru] }

// allowed is how many blocks may be missing now.
func (h *hedge) allowed() float64 {
	share := unproved
	if d := h.lead(); d > 0 && d*d > sure*sure*h.noise {
		share = proved
	}
	return (h.balance + share*h.total) / h.cost()
}

// cost is how many hits a missing block is taken to lose: as many as a use of lru has, lately or in all. A block
// that was given up early is worth less by what is known, but traffic that changes makes that worthless.
func (h *hedge) cost() float64 {
	return max(h.hits[lru]/max(1, h.uses), h.base/max(1, h.total), 1.0/mostLost)
}
