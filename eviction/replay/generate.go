package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Families are the kinds of traffic that [Generate] makes.
var Families = map[string]string{
	"chat":      "conversations of several turns under a few system prompts, minutes between turns",
	"agent":     "tool loops: many quick turns that add a block or two, side questions that branch off",
	"rag":       "long shared documents of very different popularity, each read with a new question",
	"oneshot":   "requests that never come back, among a few that always do",
	"loop":      "documents read round and round: the worst case of recency",
	"zipf":      "single blocks, independent, popularity by Zipf's law: no chains and nothing to learn from age",
	"uniform":   "single blocks, independent, all alike: nothing to learn at all",
	"recent":    "conversations go on the more likely the more recent they are: the best case of recency",
	"phases":    "chat, rag, loop and oneshot in turn, an hour each",
	"reversed":  "long first requests come back and short ones do not; then, suddenly, the other way round",
	"mixed":     "one source with random parameters: talks, documents, rounds, scans, single blocks, floods, a stack, a trap",
	"changes":   "one such source after the other, changing all at once at random times",
	"alternate": "two such sources by turns, which go on where they stopped",
	"tenants":   "two to five such sources at a time",
}

// Generate makes a trace of about accesses block accesses, the same for the same family, seed and size.
func Generate(family string, seed uint64, accesses int) (*Trace, error) {
	if _, ok := Families[family]; !ok {
		return nil, fmt.Errorf("no family %q of generated traces: %w", family, ErrTrace)
	}
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x6d6f6f6e)), b: NewBuilder(fmt.Sprintf("generated:%s:%d", family, seed), 512)}
	parts := []string{family}
	if family == "phases" {
		parts = []string{"chat", "rag", "loop", "oneshot"}
	}
	for i, p := range parts {
		g.until = accesses * (i + 1) / len(parts)
		if err := g.run(p); err != nil {
			return nil, err
		}
	}
	return g.b.Trace(), nil
}

// generator holds the conversations that may go on, as chains of block names.
type generator struct {
	r     *rand.Rand
	b     *Builder
	now   float64 // ms
	next  uint64  // name of the next new block
	until int     // accesses
	queue []later // in order of time
}

type later struct {
	at    float64
	chain []uint64
	turn  int
}

func (g *generator) run(family string) error {
	g.queue = nil
	switch family {
	case "chat":
		return g.conversations(g.prompts(5, 8), 60_000, 250, 0.55, func() int { return 1 + int(g.log(12, 1)) }, func() int { return 1 + g.r.IntN(3) })
	case "agent":
		return g.conversations(g.prompts(3, 20), 4_000, 700, 0.92, func() int { return 2 + int(g.log(6, 1)) }, func() int { return 1 + int(g.log(0.7, 0.8)) })
	case "rag":
		return g.documents(400, 24, 1.0, false)
	case "loop":
		return g.documents(200, 24, 0, true)
	case "oneshot":
		return g.oneshot()
	case "zipf":
		return g.single(20_000, 0.9)
	case "uniform":
		return g.single(4000, 0)
	case "recent":
		return g.recent()
	case "mixed":
		return g.mixed()
	case "changes":
		return g.changes()
	case "alternate":
		return g.alternate()
	case "tenants":
		return g.tenants()
	default:
		return g.reversed()
	}
}

func (g *generator) full() bool { return g.b.t.Accesses() >= g.until }

// log draws from a log-normal distribution.
func (g *generator) log(median, sigma float64) float64 {
	return median * math.Exp(sigma*g.r.NormFloat64())
}

func (g *generator) fresh(n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = g.next
		g.next++
	}
	return out
}

func (g *generator) prompts(n, blocks int) [][]uint64 {
	out := make([][]uint64, n)
	for i := range out {
		out[i] = g.fresh(1 + g.r.IntN(blocks))
	}
	return out
}

func (g *generator) add(chain []uint64) error {
	return g.b.Add(uint64(g.now), uint32(len(chain)*512), 100, chain)
}

func (g *generator) schedule(l later) {
	i, _ := slices.BinarySearchFunc(g.queue, l, func(a, b later) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	g.queue = slices.Insert(g.queue, i, l)
}

// due takes the next continuation if it comes before the time given.
func (g *generator) due(before float64) (later, bool) {
	if len(g.queue) == 0 || g.queue[0].at > before {
		return later{}, false
	}
	l := g.queue[0]
	g.queue = g.queue[1:]
	g.now = max(g.now, l.at)
	return l, true
}

// turn adds a request that extends a chain by full blocks and ends in a partial one, which no later turn has.
func (g *generator) turn(chain []uint64, add int) ([]uint64, error) {
	chain = append(slices.Clone(chain), g.fresh(add)...)
	tail := append(slices.Clone(chain), g.fresh(1)...)
	return chain, g.b.Add(uint64(g.now), uint32(len(tail)*512-g.r.IntN(500)-1), 100, tail)
}

// conversations start every mean gap/concurrency ms and go on with the probability given.
func (g *generator) conversations(prompts [][]uint64, gap, concurrency, goOn float64, first, more func() int) error {
	start := g.now
	for !g.full() {
		start += g.r.ExpFloat64() * gap / concurrency * 3
		for {
			l, ok := g.due(start)
			if !ok {
				break
			}
			chain, err := g.turn(l.chain, more())
			if err != nil {
				return err
			}
			g.goOn(later{chain: chain, turn: l.turn + 1}, gap, goOn)
		}
		g.now = max(g.now, start)
		chain, err := g.turn(prompts[g.r.IntN(len(prompts))], first())
		if err != nil {
			return err
		}
		g.goOn(later{chain: chain}, gap, goOn)
	}
	return nil
}

// goOn lets a conversation continue; the longer it is the surer.
func (g *generator) goOn(l later, gap, p float64) {
	if g.r.Float64() < p*(0.5+0.5*float64(min(l.turn, 3))/3) && len(l.chain) < 400 {
		l.at = g.now + g.log(gap, 0.8)
		g.schedule(l)
	}
}

func (g *generator) documents(n, blocks int, skew float64, round bool) error {
	docs := g.prompts(n, 2*blocks)
	z := newZipf(g.r, n, skew)
	for i := 0; !g.full(); i++ {
		g.now += g.r.ExpFloat64() * 500
		d := i % n
		if !round {
			d = z.draw()
		}
		if _, err := g.turn(docs[d], g.r.IntN(2)); err != nil {
			return err
		}
	}
	return nil
}

func (g *generator) oneshot() error {
	often := g.prompts(30, 30)
	for !g.full() {
		g.now += g.r.ExpFloat64() * 300
		chain := often[g.r.IntN(len(often))]
		if g.r.IntN(4) > 0 {
			chain = g.fresh(1 + int(g.log(20, 1)))
		}
		if err := g.add(chain); err != nil {
			return err
		}
	}
	return nil
}

func (g *generator) single(n int, skew float64) error {
	names := g.fresh(n)
	z := newZipf(g.r, n, skew)
	for !g.full() {
		g.now += g.r.ExpFloat64() * 20
		if err := g.add(names[z.draw():][:1]); err != nil {
			return err
		}
	}
	return nil
}

func (g *generator) recent() error {
	var open [][]uint64 // most recent last
	for !g.full() {
		g.now += g.r.ExpFloat64() * 400
		if k := int(g.log(20, 1.2)); k < len(open) && g.r.IntN(3) > 0 {
			at := len(open) - 1 - k
			chain, err := g.turn(open[at], 1+g.r.IntN(2))
			if err != nil {
				return err
			}
			open = append(slices.Delete(open, at, at+1), chain)
			continue
		}
		chain, err := g.turn(nil, 1+int(g.log(6, 0.8)))
		if err != nil {
			return err
		}
		open = append(open, chain)
	}
	return nil
}

func (g *generator) reversed() error {
	half := g.b.t.Accesses() + (g.until-g.b.t.Accesses())/2
	start := g.now
	for !g.full() {
		start += g.r.ExpFloat64() * 400
		for {
			l, ok := g.due(start)
			if !ok {
				break
			}
			if _, err := g.turn(l.chain, 1); err != nil {
				return err
			}
		}
		g.now = max(g.now, start)
		short := g.r.IntN(2) == 0
		n := 24 + g.r.IntN(16)
		if short {
			n = 2 + g.r.IntN(3)
		}
		chain, err := g.turn(nil, n)
		if err != nil {
			return err
		}
		if comesBack := short == (g.b.t.Accesses() > half); comesBack && g.r.IntN(5) > 0 {
			g.schedule(later{at: g.now + g.log(60_000, 0.5), chain: chain})
		}
	}
	return nil
}

// zipf draws 0..n-1 with probability proportional to (i+1)^-skew.
type zipf struct {
	r   *rand.Rand
	cum []float64
}

func newZipf(r *rand.Rand, n int, skew float64) *zipf {
	z := &zipf{r: r, cum: make([]float64, n)}
	sum := 0.0
	for i := range z.cum {
		sum += math.Pow(float64(i+1), -skew)
		z.cum[i] = sum
	}
	return z
}

func (z *zipf) draw() int {
	i, _ := slices.BinarySearch(z.cum, z.r.Float64()*z.cum[len(z.cum)-1])
	return min(i, len(z.cum)-1)
}
