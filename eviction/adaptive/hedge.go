package adaptive

// hedge keeps the policy from falling behind LRU, over all that it has seen. What the index gives up before LRU
// would is what can be lost: each block that lru holds and self does not is one hit less if it is asked for. So
// there are never more of those than what was won so far, and a small share of all uses, can pay for, if they are
// asked for as often as what lru holds is. When the traffic turns they are asked for more often; then nothing more is
// given up early.
type hedge struct {
	total   float64          // sampled uses
	base    float64          // hits of lru
	balance float64          // hits of self above those of lru
	uses    float64          // in the sliding window
	hits    [shadows]float64 // in the sliding window
	endUses float64          // of partial blocks, in the sliding window
	endHits float64          // those of them that lru had
	missing int              // members of lru that are not in self
	ends    int              // those of them that are partial blocks
	noise   float64          // sum of the squares of what index hit more or less than lru, by request
	behind  bool             // index hits less than lru, by more than chance would have it
	lately  float64          // balance, fading with the uses since
	wavered float64          // sum of the squares of what it changed by, by request, fading alike
	free    bool             // the index may choose among all blocks
	since   int              // uses since the window was last looked at
	length  float64          // sampled uses of the present request
	req     uint32           // the present request
	run     [shadows]float64 // hits since its last miss
}

const (
	// share of all uses is what the policy may lose to LRU by and by: a third of the 0.3 points that are promised. The
	// rest is for traffic that turns.
	share = 0.001
	// mostLost is how many blocks may be missing for each hit that may be lost, where few would be asked for.
	mostLost = 4
	// leastEnd is the least that a missing partial block counts.
	leastEnd = 0.5
	// fading is after how many uses, in rooms of a shadow cache, a loss is no reason any more to give up nothing
	// early, and sure by how many standard errors it must be one.
	fading = 0.5
	sure   = 1.5
	// window is over how many uses the shadows are compared, in rooms of a shadow cache.
	window = 4
	// leastRoom is the smallest cache in which anything can be learned.
	leastRoom = 17
)

// judge counts hits in leading blocks: the blocks of a request come deepest first, so those behind its last miss
// count. What was thrown out during the request was there when it came.
func (h *hedge) judge(s *sample, slot, req uint32) {
	if req != h.req || req == 0 {
		h.settle(s.room)
		h.req = req
	}
	h.total++
	h.uses++
	h.length++
	for i := range h.run {
		if s.in[slot]>>i&1 != 0 || req != 0 && s.left[i][slot] == req {
			h.run[i]++
		} else {
			h.run[i] = 0
		}
	}
}

// settle books what the last request hit.
func (h *hedge) settle(room int) {
	for i, n := range h.run {
		h.hits[i] += n
	}
	d := h.run[index] - h.run[lru]
	h.noise += d * d
	h.base += h.run[lru]
	d = h.run[self] - h.run[lru]
	h.balance += d
	left := max(0, 1-h.length/(fading*float64(max(1, room))))
	h.lately = h.lately*left + d
	h.wavered = h.wavered*left + d*d
	h.run, h.length = [shadows]float64{}, 0
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
			h.endUses *= f
			h.endHits *= f
			for i := range h.hits {
				h.hits[i] *= f
			}
		}
	}
	h.free = s.room >= leastRoom && !h.behind && !h.losing() && h.risk() <= h.allowed()
}

// losing tells that self hits less than lru just now, by more than chance would have it. The window is too long to
// see soon enough that traffic has turned.
func (h *hedge) losing() bool { return h.lately < 0 && h.lately*h.lately > sure*sure*h.wavered }

// lead is what index hit above lru in the window.
func (h *hedge) lead() float64 { return h.hits[index] - h.hits[lru] }

// risk is how many hits the missing blocks stand for. A partial block is asked for again only with the very same
// prompt: it counts for less as long as that was rare.
func (h *hedge) risk() float64 {
	end := min(1, max(leastEnd, 2*(h.endHits+1)/(h.endUses+2)))
	return float64(h.missing-h.ends) + end*float64(h.ends)
}

// allowed is how great the risk may be now.
func (h *hedge) allowed() float64 { return (h.balance + share*h.total) / h.cost() }

// cost is how many hits a missing block is taken to lose: as many as a use of lru has, lately or in all. A block
// that was given up early is worth less by what is known, but traffic that changes makes that worthless.
func (h *hedge) cost() float64 {
	return max(h.hits[lru]/max(1, h.uses), h.base/max(1, h.total), 1.0/mostLost)
}
