package replay

import (
	"math"
	"slices"
)

// A source makes the requests of one kind of traffic, one at a time. The families "mixed", "changes", "alternate"
// and "tenants" are put together from sources whose parameters are drawn at random, to find traffic that deceives
// a policy that learns: they stand for no workload in particular.
type source interface {
	// next returns the chain of the next request at the generator's present time. A partial block may be added
	// to it if tail is true.
	next(g *generator) (chain []uint64, tail bool)
}

// sources draws one.
var sources = []func(g *generator) source{
	newTalks, newLibrary, newRounds, newScan, newSingles, newTrap, newFlood, newStack,
}

func (g *generator) draw() source { return sources[g.r.IntN(len(sources))](g) }

// between draws from lo to hi, alike over orders of magnitude.
func (g *generator) between(lo, hi float64) float64 {
	return lo * math.Exp(g.r.Float64()*math.Log(hi/lo))
}

func (g *generator) count(lo, hi int) int { return int(g.between(float64(lo), float64(hi)+1)) }

// step adds one request of a source.
func (g *generator) step(s source, pause float64) error {
	g.now += g.r.ExpFloat64() * pause
	chain, tail := s.next(g)
	if tail {
		_, err := g.turn(chain, 0)
		return err
	}
	return g.add(chain)
}

// mixed is one source for all the trace.
func (g *generator) mixed() error {
	s, pause := g.draw(), g.between(20, 2000)
	for !g.full() {
		if err := g.step(s, pause); err != nil {
			return err
		}
	}
	return nil
}

// changes draws new sources at random times, each time all at once.
func (g *generator) changes() error {
	start := g.b.t.Accesses()
	all := g.until - start
	ends := []int{g.until}
	for range 1 + g.r.IntN(8) {
		ends = append(ends, start+g.r.IntN(all))
	}
	slices.Sort(ends)
	for _, end := range ends {
		s, pause := g.draw(), g.between(20, 2000)
		for g.b.t.Accesses() < end {
			if err := g.step(s, pause); err != nil {
				return err
			}
		}
	}
	return nil
}

// alternate changes between two sources that go on where they stopped.
func (g *generator) alternate() error {
	two := [2]source{g.draw(), g.draw()}
	pause := g.between(20, 2000)
	period := g.count((g.until-g.b.t.Accesses())/40, (g.until-g.b.t.Accesses())/2)
	for i := 0; !g.full(); i++ {
		end := min(g.until, g.b.t.Accesses()+period)
		for g.b.t.Accesses() < end {
			if err := g.step(two[i%2], pause); err != nil {
				return err
			}
		}
	}
	return nil
}

// tenants share the cache: two to five sources at a time, of which one is replaced now and then.
func (g *generator) tenants() error {
	parts := make([]source, 2+g.r.IntN(4))
	weight := make([]float64, len(parts))
	sum := 0.0
	for i := range parts {
		parts[i], weight[i] = g.draw(), g.between(0.1, 1)
		sum += weight[i]
	}
	pause := g.between(20, 1000)
	span := g.until - g.b.t.Accesses()
	change := g.b.t.Accesses() + g.count(span/5, span*2)
	for !g.full() {
		x, i := g.r.Float64()*sum, 0
		for i < len(parts)-1 && x >= weight[i] {
			x -= weight[i]
			i++
		}
		if g.b.t.Accesses() >= change {
			parts[i] = g.draw()
			change += g.count(span/5, span*2)
		}
		if err := g.step(parts[i], pause); err != nil {
			return err
		}
	}
	return nil
}

// talks are conversations that go on after a while.
type talks struct {
	prompts [][]uint64
	open    []later
	first   float64
	more    int
	wait    float64 // ms
	spread  float64
	goOn    float64
}

func newTalks(g *generator) source {
	return &talks{
		prompts: append(g.prompts(g.count(1, 10), g.count(1, 30)), nil), first: g.between(1, 60), more: g.count(1, 8),
		wait: g.between(1000, 3_000_000), spread: g.between(0.1, 1.5), goOn: 0.3 + 0.65*g.r.Float64(),
	}
}

func (s *talks) next(g *generator) ([]uint64, bool) {
	g.queue, s.open = s.open, g.queue
	defer func() { g.queue, s.open = s.open, g.queue }()
	l, ok := g.due(g.now)
	if ok {
		l.chain = append(slices.Clone(l.chain), g.fresh(1+g.r.IntN(s.more))...)
	} else {
		l = later{chain: append(slices.Clone(s.prompts[g.r.IntN(len(s.prompts))]), g.fresh(1+int(g.log(s.first, 1)))...)}
	}
	if g.r.Float64() < s.goOn && len(l.chain) < 400 {
		g.schedule(later{at: g.now + g.log(s.wait, s.spread), chain: l.chain, turn: l.turn + 1})
	}
	return l.chain, true
}

// library are documents of unequal popularity that drifts.
type library struct {
	docs  [][]uint64
	z     *zipf
	every int // requests after which each document is a rank less popular; 0 never
	n     int
}

func newLibrary(g *generator) source {
	n := g.count(10, 1000)
	s := &library{docs: g.prompts(n, g.count(2, 60)), z: newZipf(g.r, n, 1.3*g.r.Float64())}
	if g.r.IntN(2) == 0 {
		s.every = g.count(1, 100)
	}
	return s
}

func (s *library) next(g *generator) ([]uint64, bool) {
	if s.n++; s.every > 0 && s.n%s.every == 0 {
		i := (s.n / s.every) % len(s.docs)
		s.docs[i] = g.fresh(len(s.docs[i])) // a new one in its place
	}
	return s.docs[s.z.draw()], g.r.IntN(2) == 0
}

// rounds reads all its documents, then all again, in the same order or in another.
type rounds struct {
	docs    [][]uint64
	shuffle bool
	n       int
}

func newRounds(g *generator) source {
	return &rounds{docs: g.prompts(g.count(5, 600), g.count(1, 40)), shuffle: g.r.IntN(3) == 0}
}

func (s *rounds) next(g *generator) ([]uint64, bool) {
	i := s.n % len(s.docs)
	if i == 0 && s.shuffle {
		g.r.Shuffle(len(s.docs), func(i, j int) { s.docs[i], s.docs[j] = s.docs[j], s.docs[i] })
	}
	s.n++
	return s.docs[i], false
}

// scan never comes back.
type scan struct{ long float64 }

func newScan(g *generator) source { return &scan{g.between(1, 100)} }

func (s *scan) next(g *generator) ([]uint64, bool) {
	return g.fresh(1 + min(500, int(g.log(s.long, 1)))), false
}

// singles are blocks without chains; which of them are popular moves on.
type singles struct {
	names []uint64
	z     *zipf
	drift float64 // ranks a request
	at    float64
}

func newSingles(g *generator) source {
	n := g.count(200, 30_000)
	s := &singles{names: g.fresh(n), z: newZipf(g.r, n, 1.3*g.r.Float64())}
	if g.r.IntN(2) == 0 {
		s.drift = g.between(0.001, 1)
	}
	return s
}

func (s *singles) next(g *generator) ([]uint64, bool) {
	s.at += s.drift
	i := (s.z.draw() + int(s.at)) % len(s.names)
	return s.names[i : i+1], false
}

// trap makes short chains come back and long ones not, or the other way round, and changes its mind.
type trap struct {
	open  []later
	wait  float64
	every int
	n     int
}

func newTrap(g *generator) source {
	return &trap{wait: g.between(1000, 1_000_000), every: g.count(50, 5000)}
}

func (s *trap) next(g *generator) ([]uint64, bool) {
	g.queue, s.open = s.open, g.queue
	defer func() { g.queue, s.open = s.open, g.queue }()
	if l, ok := g.due(g.now); ok {
		return l.chain, true
	}
	s.n++
	short := g.r.IntN(2) == 0
	n := 16 + g.r.IntN(32)
	if short {
		n = 1 + g.r.IntN(3)
	}
	chain := g.fresh(n)
	if short == (s.n/s.every%2 == 0) {
		g.schedule(later{at: g.now + g.log(s.wait, 0.5), chain: chain})
	}
	return chain, true
}

// flood is a few chains that are asked for again and again among many that are not.
type flood struct {
	often [][]uint64
	long  float64
	share float64
}

func newFlood(g *generator) source {
	return &flood{g.prompts(g.count(5, 200), g.count(1, 40)), g.between(1, 60), g.r.Float64()}
}

func (s *flood) next(g *generator) ([]uint64, bool) {
	if g.r.Float64() < s.share {
		return g.fresh(1 + min(400, int(g.log(s.long, 0.7)))), false
	}
	return s.often[g.r.IntN(len(s.often))], false
}

// stack goes back to what was used lately, the nearer the likelier.
type stack struct {
	open   [][]uint64 // most recent last
	depth  float64
	spread float64
	first  float64
}

func newStack(g *generator) source {
	return &stack{depth: g.between(2, 300), spread: g.between(0.5, 2), first: g.between(1, 20)}
}

func (s *stack) next(g *generator) ([]uint64, bool) {
	if k := int(g.log(s.depth, s.spread)); k < len(s.open) && g.r.IntN(3) > 0 {
		at := len(s.open) - 1 - k
		chain := append(slices.Clone(s.open[at]), g.fresh(g.r.IntN(3))...)
		if len(chain) > 400 {
			chain = chain[:400]
		}
		s.open = append(slices.Delete(s.open, at, at+1), chain)
		return chain, true
	}
	chain := g.fresh(1 + int(g.log(s.first, 0.8)))
	s.open = append(s.open, chain)
	return chain, true
}
