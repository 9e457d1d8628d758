package replay

import "container/heap"

// Infinite is the result of a cache that holds everything: the most that any policy can hit. Of the options WarmUp and
// the time of prefill count.
func Infinite(t *Trace, o Options) Result {
	watch := startWatch()
	seen := make([]bool, t.Unique())
	var res Result
	var waiting prefills
	store := func(p prefill) {
		for _, id := range t.Blocks(int(p.request))[p.matched:] {
			if !seen[id] {
				seen[id] = true
				res.Inserts++
			}
		}
	}
	for i := range t.Requests {
		if i == o.WarmUp {
			res.restart()
		}
		r := &t.Requests[i]
		for waiting.due(r.TimeMS) {
			store(waiting.take())
		}
		p := prefill{at: r.TimeMS, request: uint32(i)}
		switch r.Kind {
		case Removed:
			for _, id := range t.Blocks(i) {
				seen[id] = false
			}
			continue
		case Stored:
			store(p)
			continue
		}
		whole := true
		for _, id := range t.Blocks(i) {
			size := t.Size(id)
			res.Bytes += size
			if seen[id] {
				res.Hits++
				res.ByteHits += size
				if whole {
					p.matched++
				}
			} else {
				whole = false
			}
		}
		res.count(t, r, p.matched)
		if o.delayed() {
			p.at += o.delayMS(t, r, p.matched)
			waiting.add(p)
		} else {
			store(p)
		}
	}
	res.Elapsed, res.Replayed = watch.stop(), uint64(t.Accesses())
	return res
}

// Min is Belady's MIN on requests, which no online policy can beat in block hits when all sizes are equal: the
// victim is the block whose next request is farthest away, among those of the same request the deepest. With
// Options.Admission it may also leave out the new block. Of the other options WarmUp and the time of prefill count.
func Min(t *Trace, capacity uint64, o Options) Result {
	watch := startWatch()
	m := newMin(t, capacity)
	m.bypass = o.Admission
	var waiting prefills
	for i := range t.Requests {
		if i == o.WarmUp {
			m.res.restart()
		}
		r := &t.Requests[i]
		for waiting.due(r.TimeMS) {
			m.store(waiting.take())
		}
		p := prefill{at: r.TimeMS, request: uint32(i)}
		switch {
		case r.Kind == Removed:
			for _, id := range t.Blocks(i) {
				if m.at[id] >= 0 {
					heap.Remove(m, int(m.at[id]))
					m.used -= t.Size(id)
				}
			}
		case r.Kind == Stored:
			m.pass(r, i)
			m.store(p)
		case o.delayed():
			p.matched = m.want(r, i)
			m.pass(r, i)
			p.at += o.delayMS(t, r, p.matched)
			waiting.add(p)
		default:
			m.want(r, i)
			m.visit(r, i)
		}
	}
	m.res.Elapsed, m.res.Replayed = watch.stop(), uint64(t.Accesses())
	return m.res
}

// minSim is a heap of resident ids, the next victim first.
type minSim struct {
	t         *Trace
	cap, used uint64
	bypass    bool
	next      []uint32 // by access: the next request that wants the block
	due       []uint32 // by id: the same, as of now
	depth     []uint32 // by id
	at        []int32  // place in the heap by id, -1 not resident
	heap      []uint32
	res       Result
}

func newMin(t *Trace, capacity uint64) *minSim {
	m := &minSim{t: t, cap: capacity, next: nextUses(t), at: make([]int32, t.Unique()), due: make([]uint32, t.Unique()), depth: make([]uint32, t.Unique())}
	for id := range m.at {
		m.at[id] = -1
	}
	return m
}

// want counts what a request finds.
func (m *minSim) want(r *Request, i int) (matched uint32) {
	chain := m.t.Blocks(i)
	for int(matched) < len(chain) && m.at[chain[matched]] >= 0 {
		matched++
	}
	m.res.count(m.t, r, matched)
	return matched
}

// visit uses the blocks of a request, deepest first, and stores those that are absent.
func (m *minSim) visit(r *Request, i int) {
	chain := m.t.Blocks(i)
	for k := len(chain) - 1; k >= 0; k-- {
		id := chain[k]
		m.hit(id)
		m.use(id, r, k)
		if m.at[id] < 0 {
			m.insert(id)
		}
	}
}

func (m *minSim) hit(id uint32) {
	size := m.t.Size(id)
	m.res.Bytes += size
	if m.at[id] >= 0 {
		m.res.Hits++
		m.res.ByteHits += size
	}
}

// use moves a block on to its next use.
func (m *minSim) use(id uint32, r *Request, k int) {
	m.due[id], m.depth[id] = m.next[int(r.first)+k], uint32(k)
	if m.at[id] >= 0 {
		heap.Fix(m, int(m.at[id]))
	}
}

// pass is visit without storing.
func (m *minSim) pass(r *Request, i int) {
	chain := m.t.Blocks(i)
	for k := len(chain) - 1; k >= 0; k-- {
		if r.Kind == Wanted {
			m.hit(chain[k])
		}
		m.use(chain[k], r, k)
	}
}

func (m *minSim) store(p prefill) {
	chain := m.t.Blocks(int(p.request))
	for k := len(chain) - 1; k >= int(p.matched); k-- {
		if m.at[chain[k]] < 0 {
			m.insert(chain[k])
		}
	}
}

func (m *minSim) insert(id uint32) {
	size := m.t.Size(id)
	if size > m.cap {
		return
	}
	for m.used+size > m.cap {
		if m.bypass && !m.before(m.heap[0], id) {
			m.res.Refused++
			return
		}
		gone := heap.Pop(m).(uint32)
		m.used -= m.t.Size(gone)
		m.res.Evictions++
	}
	m.used += size
	m.res.Inserts++
	heap.Push(m, id)
	m.res.Peak = max(m.res.Peak, uint64(len(m.heap)))
}

// nextUses gives for each access the number of the next request that wants the same block, unless a client
// removes it before.
func nextUses(t *Trace) []uint32 {
	next := make([]uint32, len(t.blocks))
	last := make([]uint32, t.Unique())
	for id := range last {
		last[id] = ^uint32(0)
	}
	for i := len(t.Requests) - 1; i >= 0; i-- {
		r := &t.Requests[i]
		for k, id := range t.Blocks(i) {
			next[int(r.first)+k] = last[id]
			switch r.Kind {
			case Wanted:
				last[id] = uint32(i)
			case Removed:
				last[id] = ^uint32(0)
			}
		}
	}
	return next
}

func (m *minSim) Len() int           { return len(m.heap) }
func (m *minSim) Less(i, j int) bool { return m.before(m.heap[i], m.heap[j]) }

// before tells whether a goes before b.
func (m *minSim) before(a, b uint32) bool {
	if m.due[a] != m.due[b] {
		return m.due[a] > m.due[b]
	}
	if m.depth[a] != m.depth[b] {
		return m.depth[a] > m.depth[b]
	}
	return a > b
}

func (m *minSim) Swap(i, j int) {
	m.heap[i], m.heap[j] = m.heap[j], m.heap[i]
	m.at[m.heap[i]], m.at[m.heap[j]] = int32(i), int32(j)
}

func (m *minSim) Push(x any) {
	m.at[x.(uint32)] = int32(len(m.heap))
	m.heap = append(m.heap, x.(uint32))
}

func (m *minSim) Pop() any {
	id := m.heap[len(m.heap)-1]
	m.heap = m.heap[:len(m.heap)-1]
	m.at[id] = -1
	return id
}
