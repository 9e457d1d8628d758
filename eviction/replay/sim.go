package replay

import (
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Options of a run. The zero value is the method of the package comment.
type Options struct {
	// HeadFirst visits the blocks of a request from the first to the deepest.
	HeadFirst bool
	// GetPut delivers a request as a client's two calls, the way a store sees it: a batch get of the leading
	// resident blocks, then a batch put of the absent ones. Blocks behind a gap that are resident are not
	// touched, because the client cannot use them.
	GetPut bool
	// Admission asks a policy that is an eviction.Admitter before a block is inserted that needs an eviction.
	Admission bool
	// WarmUp is the number of requests at the start that are replayed but not counted.
	WarmUp int
	// Seed is given to the policy.
	Seed uint64
	// Regret is how soon an evicted block must be asked for again to count as regretted; 0 is DefaultRegret.
	Regret time.Duration
	// Lease protects a block that was read from eviction for so long.
	Lease time.Duration
	// PrefillBase and PrefillToken are the time until the absent blocks of a request are stored: a + b for each
	// token that was not found. Requests in between do not find them. It implies GetPut.
	PrefillBase, PrefillToken time.Duration
	// Watermark and EvictRatio imitate upstream's master when Watermark is not 0: room is made only when a greater share than
	// Watermark is in use, and then for at least EvictRatio of the objects at once, least recently used first as
	// the policy has it.
	Watermark, EvictRatio float64
	// Guard lets a shadow LRU watch the policy, as in the store: a policy that is worse by more than a point for ten
	// minutes of the trace is replaced by LRU.
	Guard bool
}

// DefaultRegret is the window of Result.Regret.
const DefaultRegret = 5 * time.Minute

func (o *Options) regretMS() uint64 {
	if o.Regret <= 0 {
		return uint64(DefaultRegret.Milliseconds())
	}
	return uint64(o.Regret.Milliseconds())
}

func (o *Options) delayed() bool { return o.PrefillBase > 0 || o.PrefillToken > 0 }

// delayMS is how long the prefill of a request takes of which matched blocks were found.
func (o *Options) delayMS(t *Trace, r *Request, matched uint32) uint64 {
	tokens := uint64(r.Tokens)
	if tokens == 0 {
		tokens = uint64(r.n) * uint64(t.BlockTokens)
	}
	tokens -= min(tokens, uint64(matched)*uint64(t.BlockTokens))
	return uint64(max(0, o.PrefillBase+time.Duration(tokens)*o.PrefillToken).Milliseconds())
}

const batchMax = 256

// sim is the store as far as policies can tell.
type sim struct {
	t       *Trace
	o       Options
	f       eviction.Factory
	spec    eviction.Spec
	p       eviction.Policy   // nil after a failure: the host's LRU serves
	admit   eviction.Admitter // nil without admission
	cap     uint64
	used    uint64
	count   uint64 // resident blocks
	st      []state
	ids     []uint32 // by handle
	free    []eviction.Handle
	planned []eviction.Handle // by position in the present request: handles of its blocks, resident or reserved
	absent  []bool            // by position: the handle is reserved
	events  []eviction.Event
	victims []eviction.Handle
	now     uint64
	uses    uint64
	puts    uint32 // number of the last batch
	regret  uint64
	lease   []uint64 // by id: protected until; nil without leases
	refused []uint64 // by id: when it was refused, plus 1; nil without admission
	waiting prefills
	host    host
	res     Result
}

// state of a block. at is the number of its last use while it is resident, afterwards the time of its eviction
// in ms, plus 1, or 0 if it was never evicted or that was counted.
type state struct {
	at     uint64
	handle eviction.Handle // 0 = not resident
}

// call is one batch on its way to the policy.
type call struct {
	r     *Request
	chain []uint32
	base  eviction.Event
	added uint32
}

// Run replays t through a policy of f with capacity bytes (blocks, in traces without sizes).
func Run(t *Trace, f eviction.Factory, capacity uint64, o Options) (Result, error) {
	s, err := newSim(t, f, capacity, o)
	if err != nil {
		return Result{}, err
	}
	watch := startWatch()
	for i := range t.Requests {
		if i == o.WarmUp {
			s.res.restart()
		}
		s.request(i)
	}
	s.flush()
	s.res.Elapsed, s.res.Replayed = watch.stop(), uint64(t.Accesses())
	return s.finish()
}

func newSim(t *Trace, f eviction.Factory, capacity uint64, o Options) (*sim, error) {
	// Every resident block needs a handle, and those that one request adds are named before they are inserted.
	smallest, longest := ^uint64(0), uint32(0)
	for id := range t.sizes {
		smallest = min(smallest, max(1, t.sizes[id]))
	}
	if t.sizes == nil {
		smallest = 1
	}
	for i := range t.Requests {
		longest = max(longest, t.Requests[i].n)
	}
	handles := min(capacity/smallest, uint64(t.Unique())) + uint64(longest) + 1
	if handles > 1<<31 {
		return nil, fmt.Errorf("%s: %d handles needed: %w", t.Name, handles, ErrTrace)
	}
	s := &sim{
		t: t, o: o, f: f, cap: capacity, st: make([]state, t.Unique()), regret: o.regretMS(),
		ids: make([]uint32, handles+1), free: make([]eviction.Handle, 0, handles),
		planned: make([]eviction.Handle, longest), absent: make([]bool, longest), events: make([]eviction.Event, 0, batchMax),
		spec: eviction.Spec{
			Capacity: capacity, MaxHandles: uint32(handles), BlockTokens: t.BlockTokens, Seed: o.Seed,
			Tenant: eviction.AnyTenant, BatchMax: batchMax,
		},
	}
	for h := handles; h > 0; h-- {
		s.free = append(s.free, eviction.Handle(h))
	}
	if o.Lease > 0 {
		s.lease = make([]uint64, t.Unique())
	}
	if o.Admission {
		s.refused = make([]uint64, t.Unique())
	}
	if o.Guard {
		s.host.guard = newGuard(t)
	}
	return s, s.instance()
}

func (s *sim) request(i int) {
	r := &s.t.Requests[i]
	for s.waiting.due(r.TimeMS) {
		s.stored(s.waiting.take())
	}
	s.now = r.TimeMS
	if s.host.retryAt != 0 && s.now >= s.host.retryAt {
		s.retry()
	}
	switch r.Kind {
	case Stored:
		s.stored(prefill{at: s.now, request: uint32(i)})
	case Removed:
		s.removed(i)
	default:
		s.wanted(i)
	}
}

func (s *sim) wanted(i int) {
	r, chain := &s.t.Requests[i], s.t.Blocks(i)
	c := call{r: r, chain: chain}
	matched, whole := uint32(0), true
	twoCalls := s.o.GetPut || s.o.delayed()
	for k, id := range chain {
		h := s.st[id].handle
		s.absent[k] = h == 0
		if h == 0 {
			whole = false
			c.added++
			if s.st[id].at != 0 || s.refused != nil {
				s.missed(id)
			}
			if !twoCalls {
				h = s.takeHandle()
			}
		} else if whole {
			matched++
		}
		s.planned[k] = h
	}
	s.res.count(s.t, r, matched)
	if s.host.guard != nil {
		s.host.guard.wanted(s, chain, matched)
	}
	c.base = s.base(r, matched)
	if twoCalls {
		s.getPut(i, &c)
		return
	}
	for j := range chain {
		k := len(chain) - 1 - j
		if s.o.HeadFirst {
			k = j
		}
		s.visit(&c, k)
	}
}

// base is what all events of a batch have in common.
func (s *sim) base(r *Request, matched uint32) eviction.Event {
	s.puts++
	e := eviction.Event{Req: s.puts, Matched: matched, Tenant: r.Tenant, NowMS: s.now, Flags: eviction.FlagTailFirst}
	if s.o.HeadFirst {
		e.Flags = 0
	}
	return e
}

// missed counts a block that was asked for and is gone.
func (s *sim) missed(id uint32) {
	if at := s.st[id].at; at != 0 && s.now+1-at <= s.regret {
		s.res.Regret++
	}
	s.st[id].at = 0
	if s.refused != nil {
		if at := s.refused[id]; at != 0 && s.now+1-at <= s.regret {
			s.res.RefusedAsked++
		}
		s.refused[id] = 0
	}
}

// getPut visits the found prefix, deepest first, and then what is absent, deepest first, now or when it is
// computed.
func (s *sim) getPut(i int, c *call) {
	matched := int(c.base.Matched)
	get := *c
	get.base.Matched, get.added = 0, 0
	for j := range matched {
		k := matched - 1 - j
		if s.o.HeadFirst {
			k = j
		}
		s.visit(&get, k)
	}
	for _, id := range c.chain[matched:] {
		size := s.t.Size(id)
		s.res.Bytes += size
		if s.st[id].handle != 0 {
			s.res.Hits++
			s.res.ByteHits += size
		}
	}
	if matched == len(c.chain) {
		s.puts++ // the numbers of calls do not depend on what is found
		return
	}
	p := prefill{at: s.now, request: uint32(i), matched: uint32(matched)}
	if s.o.delayed() {
		p.at += s.o.delayMS(s.t, c.r, uint32(matched))
		s.waiting.add(p)
		return
	}
	s.stored(p)
}

// stored puts the blocks of a request behind those that were found, deepest first; what is there already stays as
// it is.
func (s *sim) stored(p prefill) {
	s.now = max(s.now, p.at)
	r, chain := &s.t.Requests[p.request], s.t.Blocks(int(p.request))
	c := call{r: r, chain: chain, base: s.base(r, p.matched)}
	for k := int(p.matched); k < len(chain); k++ {
		h := s.st[chain[k]].handle
		if s.absent[k] = h == 0; h == 0 {
			h = s.takeHandle()
			c.added++
		}
		s.planned[k] = h
	}
	if p.matched > 0 {
		s.planned[p.matched-1] = s.st[chain[p.matched-1]].handle // 0 if it has gone since
	}
	for j := int(p.matched); j < len(chain); j++ {
		k := len(chain) - 1 - j + int(p.matched)
		if s.o.HeadFirst {
			k = j
		}
		if s.absent[k] {
			s.insert(&c, k)
		}
	}
}

func (s *sim) removed(i int) {
	for _, id := range s.t.Blocks(i) {
		if s.st[id].handle != 0 {
			s.remove(id, eviction.CodeRemoved)
			s.st[id].at = 0
		}
	}
}

// describe makes the next event: block k of the call.
func (s *sim) describe(c *call, k int, kind eviction.EventKind, h eviction.Handle) *eviction.Event {
	e := s.next()
	*e = c.base
	id := c.chain[k]
	e.Kind, e.Handle = kind, h
	e.KeyHash, e.Size, e.Depth = s.t.keys[id], s.t.Size(id), uint32(k)
	if k > 0 {
		e.Parent = s.planned[k-1]
	}
	if k == len(c.chain)-1 && s.t.partial(c.r) {
		e.Flags |= eviction.FlagPartial
	}
	return e
}

// visit touches or inserts block k of the chain.
func (s *sim) visit(c *call, k int) {
	id := c.chain[k]
	size := s.t.Size(id)
	s.res.Bytes += size
	st := &s.st[id]
	if st.handle == 0 {
		if !s.absent[k] { // it was resident when the request came and has been evicted since
			s.planned[k] = s.takeHandle()
			s.missed(id)
		}
		s.insert(c, k)
		return
	}
	s.res.Hits++
	s.res.ByteHits += size
	s.describe(c, k, eviction.Access, st.handle)
	s.uses++
	st.at = s.uses
	if s.lease != nil {
		s.lease[id] = s.now + uint64(s.o.Lease.Milliseconds())
	}
	if s.host.lru != nil {
		s.host.lru.touch(st.handle)
	}
}

// insert stores block k of the call, whose handle is reserved, if there is room.
func (s *sim) insert(c *call, k int) {
	id, h := c.chain[k], s.planned[k]
	e := s.describe(c, k, eviction.Ghost, 0)
	size := e.Size
	if s.used+size > s.cap { // what follows needs e no more
		if s.refuses(c, k, h) || size > s.cap || !s.room(size) {
			s.free = append(s.free, h)
			return
		}
		s.describe(c, k, eviction.Insert, h).Added = c.added
	} else {
		ghost := *e
		in := s.next()
		*in = ghost
		in.Kind, in.Handle, in.Added = eviction.Insert, h, c.added
	}
	s.uses++
	s.st[id] = state{s.uses, h}
	s.ids[h] = id
	s.used += size
	s.count++
	s.res.Peak = max(s.res.Peak, s.count)
	s.res.Inserts++
	if s.host.lru != nil {
		s.host.lru.push(h)
	}
	if s.o.Watermark > 0 {
		s.aboveWatermark()
	}
}

// refuses asks for admission if that is wanted and block k needs an eviction.
func (s *sim) refuses(c *call, k int, h eviction.Handle) bool {
	size := s.t.Size(c.chain[k])
	if s.admit == nil || s.used+size <= s.cap {
		return false
	}
	s.flush()
	if s.admit == nil {
		return false
	}
	s.describe(c, k, eviction.Insert, h).Added = c.added
	var no [1]bool
	err := s.admit.Admit(s.events, no[:])
	s.events = s.events[:0]
	if err != nil {
		s.failed(fmt.Errorf("admit: %w", err))
		return false
	}
	if no[0] {
		s.res.Refused++
		s.refused[c.chain[k]] = s.now + 1
	}
	return no[0]
}

func (s *sim) takeHandle() eviction.Handle {
	h := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return h
}

// next returns the place of the next event.
func (s *sim) next() *eviction.Event {
	n := len(s.events)
	if n == batchMax {
		s.flush()
		n = 0
	}
	s.events = s.events[:n+1]
	return &s.events[n]
}

// flush tells the policy what has happened.
func (s *sim) flush() {
	if len(s.events) == 0 {
		return
	}
	if s.p != nil {
		if err := s.p.Apply(s.events); err != nil {
			s.failed(fmt.Errorf("apply: %w", err))
		}
	}
	s.events = s.events[:0]
}

// remove takes a resident block out.
func (s *sim) remove(id uint32, code eviction.Code) {
	st := &s.st[id]
	h, size := st.handle, s.t.Size(id)
	*st = state{at: s.now + 1}
	s.used -= size
	s.count--
	s.free = append(s.free, h)
	if s.host.lru != nil {
		s.host.lru.remove(h)
	}
	*s.next() = eviction.Event{Kind: eviction.Remove, Code: code, Handle: h, Size: size, NowMS: s.now, KeyHash: s.t.keys[id]}
}
