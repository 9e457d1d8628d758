package replay

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Analysis describes a trace without any policy.
type Analysis struct {
	Trace       string `json:"trace"`
	SHA256      string `json:"trace_sha256,omitempty"`
	Requests    int    `json:"requests"`
	Accesses    int    `json:"accesses"`
	Unique      int    `json:"unique_blocks"`
	Footprint   uint64 `json:"footprint"` // bytes, or blocks in traces without sizes
	Sized       bool   `json:"sized"`
	BlockTokens uint32 `json:"block_tokens"`
	Tenants     int    `json:"tenants"`
	// PerTenant is given when there are several.
	PerTenant   []TenantShare `json:"per_tenant,omitempty"`
	Duration    float64       `json:"duration_s"`
	InputTokens uint64        `json:"input_tokens"`
	Partial     int           `json:"partial_blocks"` // requests whose last block is not full
	Stored      int           `json:"puts_without_get"`
	Removed     int           `json:"removals"`
	// Infinite is the prefix hit of a cache that holds everything, OnceOnly the share of blocks used once.
	Infinite float64 `json:"infinite_prefix_hit"`
	OnceOnly float64 `json:"used_once"`
	// Chain is the distribution of blocks a request, Reuse of uses a block, Gap of seconds between two uses.
	Chain Quantiles `json:"blocks_per_request"`
	Reuse Quantiles `json:"uses_per_block"`
	Gap   Quantiles `json:"reuse_gap_s"`
	// WorkingSets are the blocks used within windows of several lengths.
	WorkingSets []WorkingSet `json:"working_sets"`
	// Needs is the size at which tail-first LRU has a share of the block hits of an infinite cache.
	Needs []Need `json:"lru_needs"`
}

// Quantiles of a distribution.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P10  float64 `json:"p10"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// WorkingSet is what is used within windows of one length that follow each other: bytes, or blocks in traces without
// sizes.
type WorkingSet struct {
	Window  float64 `json:"window_s"`
	Windows int     `json:"windows"`
	Mean    float64 `json:"mean"`
	Max     uint64  `json:"max"`
}

// Need is a size of LRU: bytes, or blocks in traces without sizes.
type Need struct {
	Share float64 `json:"share_of_infinite"`
	Size  uint64  `json:"size"`
}

// Analyze reads a trace twice and needs memory for each access.
func Analyze(t *Trace) Analysis {
	inf := Infinite(t, Options{})
	a := Analysis{
		Trace: t.Name, SHA256: t.SHA256, Requests: len(t.Requests), Accesses: t.Accesses(), Unique: t.Unique(), Footprint: t.Footprint(),
		Sized: t.Sized(), BlockTokens: t.BlockTokens, Infinite: inf.PrefixHit(),
	}
	if len(t.Requests) == 0 {
		return a
	}
	start, end := t.start(), t.Requests[len(t.Requests)-1].TimeMS
	a.Duration = float64(end-start) / 1000
	uses := make([]uint32, t.Unique())
	last := make([]uint64, t.Unique())
	var chains, gaps []float64
	for i := range t.Requests {
		r := &t.Requests[i]
		switch r.Kind {
		case Stored:
			a.Stored++
			continue
		case Removed:
			a.Removed++
			continue
		}
		a.InputTokens += uint64(r.Tokens)
		if t.partial(r) {
			a.Partial++
		}
		chains = append(chains, float64(r.n))
		for _, id := range t.Blocks(i) {
			if uses[id] > 0 {
				gaps = append(gaps, float64(r.TimeMS-last[id])/1000)
			}
			uses[id]++
			last[id] = r.TimeMS
		}
	}
	shares := t.tenants()
	if a.Tenants = len(shares); a.Tenants > 1 {
		a.PerTenant = shares
	}
	var reuse []float64
	once := 0
	for _, n := range uses {
		if n > 0 {
			reuse = append(reuse, float64(n))
		}
		if n == 1 {
			once++
		}
	}
	a.OnceOnly = ratio(uint64(once), uint64(len(reuse)))
	a.Chain, a.Reuse, a.Gap = quantiles(chains), quantiles(reuse), quantiles(gaps)
	for _, w := range []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour} {
		if ms := uint64(w.Milliseconds()); ms <= end-start {
			a.WorkingSets = append(a.WorkingSets, workingSet(t, ms))
		}
	}
	a.Needs = needs(t)
	return a
}

func quantiles(x []float64) Quantiles {
	if len(x) == 0 {
		return Quantiles{}
	}
	slices.Sort(x)
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	at := func(p float64) float64 { return x[int(math.Ceil(p*float64(len(x))))-1] }
	return Quantiles{sum / float64(len(x)), at(0.1), at(0.5), at(0.9), at(0.99), x[len(x)-1]}
}

func workingSet(t *Trace, windowMS uint64) WorkingSet {
	w := WorkingSet{Window: float64(windowMS) / 1000}
	in := make([]uint64, t.Unique()) // number of the last window that had it, plus 1
	start := t.start()
	now, size, sum := uint64(0), uint64(0), uint64(0)
	end := func() {
		if size > 0 {
			w.Windows++
			sum += size
			w.Max = max(w.Max, size)
		}
		size = 0
	}
	for i := range t.Requests {
		r := &t.Requests[i]
		if n := (r.TimeMS-start)/windowMS + 1; n != now {
			end()
			now = n
		}
		if r.Kind != Wanted {
			continue
		}
		for _, id := range t.Blocks(i) {
			if in[id] != now {
				in[id] = now
				size += t.Size(id)
			}
		}
	}
	end()
	if w.Windows > 0 {
		w.Mean = float64(sum) / float64(w.Windows)
	}
	return w
}

// needs finds the stack distance of each reuse (what else was used since, by size): LRU of at least that size
// hits. Mattson et al., "Evaluation techniques for storage hierarchies", 1970; with a Fenwick tree over accesses.
func needs(t *Trace) []Need {
	tree := make(fenwick, t.Accesses()+1)
	last := make([]int, t.Unique()) // place of the last use, plus 1
	type reuse struct{ size, n uint64 }
	var hits []reuse
	at := 0
	for i := range t.Requests {
		chain := t.Blocks(i)
		if t.Requests[i].Kind == Removed {
			for _, id := range chain {
				if last[id] > 0 {
					tree.add(last[id], -int64(t.Size(id)))
					last[id] = 0
				}
			}
			continue
		}
		for k := len(chain) - 1; k >= 0; k-- {
			id := chain[k]
			at++
			if l := last[id]; l > 0 {
				if t.Requests[i].Kind == Wanted {
					hits = append(hits, reuse{uint64(tree.sum(at) - tree.sum(l-1)), 1})
				}
				tree.add(l, -int64(t.Size(id)))
			}
			tree.add(at, int64(t.Size(id)))
			last[id] = at
		}
	}
	slices.SortFunc(hits, func(a, b reuse) int { return cmp.Compare(a.size, b.size) })
	var out []Need
	for _, share := range []float64{0.5, 0.8, 0.9, 0.95, 0.99, 1} {
		if len(hits) > 0 {
			out = append(out, Need{share, hits[int(math.Ceil(share*float64(len(hits))))-1].size})
		}
	}
	return out
}

// fenwick holds sums of prefixes; places count from 1.
type fenwick []int64

func (f fenwick) add(i int, n int64) {
	for ; i < len(f); i += i & -i {
		f[i] += n
	}
}

func (f fenwick) sum(i int) (s int64) {
	for ; i > 0; i -= i & -i {
		s += f[i]
	}
	return s
}
