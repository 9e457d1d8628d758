package adaptive

import (
	"math"
	"math/bits"
)

// Ages are counted in bins of half an octave of milliseconds.
const ageBins = 64

func ageBin(ms uint64) int {
	if ms < 2 {
		return int(ms)
	}
	// 2 bins an octave: [2^k, 1.5·2^k) and [1.5·2^k, 2^(k+1))
	k := bits.Len64(ms) - 1
	return min(2*k+int(ms>>(k-1)&1), ageBins-1)
}

// binWidth is the length of a bin in milliseconds.
var binWidth = func() (w [ageBins]float64) {
	w[0], w[1] = 1, 1
	for b := 2; b < ageBins; b++ {
		w[b] = math.Exp2(float64(b/2)) / 2
	}
	return w
}()

// hazard estimates, for each class and age, how likely a block that was not used for so long is to be used
// before it gets one bin older, and from that what it is worth to keep it.
//
// The estimate has three layers, because most classes have little data: one curve over age for all blocks, main
// effects that say by which factor each value of turn, added and reuse is above or below it, and what was seen
// of the class itself, with the weight of its own evidence against prior.
type hazard struct {
	used [classes][ageBins]float32 // blocks used at that age
	risk [classes][ageBins]float32 // blocks that reached that age

	mergedUsed, mergedRisk [classes][ageBins]float32 // scratch
}

// binEnd is the age at which a block leaves a bin.
func binEnd(b int) uint64 {
	switch {
	case b < 2:
		return uint64(b) + 1
	case b == ageBins-1:
		return math.MaxUint64
	}
	return uint64(2+b&1)<<(b/2)/2 + uint64(1)<<(b/2)/2
}

// table is the index by class and age: the greatest number of hits per millisecond that keeping a block can
// earn from now on, over all times to give it up (the Gittins index of a block).
type table [classes][ageBins]float32

func (t *table) at(class int, age uint64) float32 { return t[class][ageBin(age)] }

// Evidence is weighed as if this many blocks had behaved as the coarser layer says.
const (
	priorClass  = 200 // blocks at an age, of a class against its main effects
	priorEffect = 20  // uses, of a main effect against none
)

// decay forgets: old evidence loses weight by the factor keep.
func (z *hazard) decay(keep float32) {
	for c := range z.used {
		for b := range z.used[c] {
			z.used[c][b] *= keep
			z.risk[c][b] *= keep
		}
	}
}

// effects are factors by feature value.
type effects struct {
	turn  [turns]float64
	added [addeds]float64
	reuse [reuses]float64
}

func (f *effects) of(class int) float64 {
	if class == partial {
		return 1
	}
	t, a, r := features(class)
	return f.turn[t] * f.added[a] * f.reuse[r]
}

// index computes the table. With coarse set, added is not told apart: less to learn, for short histories.
func (z *hazard) index(t *table, coarse bool) {
	used, risk := &z.used, &z.risk
	if coarse {
		used, risk = z.merged()
	}
	base, f := fit(used, risk, coarse)
	var q [ageBins]float64
	for c := range classes {
		level := f.of(c)
		for b := range q {
			own := float64(priorClass)
			if c == partial {
				own = 1
			}
			q[b] = min(1, (float64(used[c][b])+own*base[b]*level)/(float64(risk[c][b])+own))
		}
		indexOf(&t[c], &q)
	}
}

// merged adds up the classes that differ only in added.
func (z *hazard) merged() (used, risk *[classes][ageBins]float32) {
	used, risk = &z.mergedUsed, &z.mergedRisk
	clear(used[:])
	clear(risk[:])
	used[partial], risk[partial] = z.used[partial], z.risk[partial]
	for c := range partial {
		t, _, r := features(c)
		for a := range addeds {
			from := (t*addeds+a)*reuses + r
			for b := range ageBins {
				used[c][b] += z.used[from][b]
				risk[c][b] += z.risk[from][b]
			}
		}
	}
	return used, risk
}

// fit finds the common curve and the main effects by turns: each is set so that it explains as many uses as
// were seen, given the others.
func fit(used, risk *[classes][ageBins]float32, coarse bool) (base [ageBins]float64, f effects) {
	var uses [classes]float64
	for c := range classes {
		for b := range ageBins {
			uses[c] += float64(used[c][b])
		}
	}
	for i := range f.turn {
		f.turn[i] = 1
	}
	for i := range f.added {
		f.added[i] = 1
	}
	for i := range f.reuse {
		f.reuse[i] = 1
	}
	curve := func() {
		for b := range base {
			var n, d float64
			for c := range partial {
				n += float64(risk[c][b]) * f.of(c)
				d += float64(used[c][b])
			}
			base[b] = 0
			if n > 0 {
				base[b] = d / n
			}
		}
	}
	for range 4 {
		curve()
		var expect [classes]float64
		for c := range partial {
			for b := range base {
				expect[c] += float64(risk[c][b]) * base[b]
			}
		}
		effect := func(factor []float64, feature func(int) int) {
			var seen, due [addeds]float64
			for c := range partial {
				i := feature(c)
				seen[i] += uses[c]
				due[i] += expect[c] * f.of(c) / factor[i]
			}
			for i := range factor {
				factor[i] = (seen[i] + priorEffect) / (due[i] + priorEffect)
			}
		}
		effect(f.turn[:], func(c int) int { t, _, _ := features(c); return t })
		effect(f.reuse[:], func(c int) int { _, _, r := features(c); return r })
		if !coarse {
			effect(f.added[:], func(c int) int { _, a, _ := features(c); return a })
		}
	}
	curve()
	return base, f
}

// indexOf turns the chances of one class into its index: from each age on, the best ratio of hits to time over
// all ages at which the block could be given up. Going backwards, a bin is joined with the stretch after it as
// long as that has the better ratio.
func indexOf(out *[ageBins]float32, q *[ageBins]float64) {
	type stretch struct{ hits, time float64 }
	var stack [ageBins]stretch
	var bin [ageBins]stretch
	alive := 1.0
	for b := range bin {
		p := min(q[b], 0.999) // never 0 alive, or the ages beyond had no ratio
		bin[b] = stretch{alive * p, alive * (1 - p/2) * binWidth[b]}
		alive = max(alive*(1-p), 1e-30)
	}
	n := 0
	for b := ageBins - 1; b >= 0; b-- {
		s := bin[b]
		for n > 0 && stack[n-1].hits*s.time > s.hits*stack[n-1].time {
			n--
			s.hits += stack[n].hits
			s.time += stack[n].time
		}
		stack[n] = s
		n++
		out[b] = float32(s.hits / s.time)
	}
}
