package adaptive

import (
	"encoding/binary"
	"encoding/json"
	"math"

	"github.com/cespare/xxhash/v2"
)

// stateMagic names the layout of the learned state: magic, the numbers of the hedge, then used and risk as float32 for
// every class and age, little-endian, and the xxhash64 of all that.
const stateMagic = "mcadapt3"

const stateSize = len(stateMagic) + 1 + 8*hedgeNumbers + 2*4*classes*ageBins + 8

// hedgeNumbers is how many numbers of a hedge outlive the instance.
const hedgeNumbers = 5 + shadows

func (h *hedge) numbers() [hedgeNumbers]*float64 {
	return [...]*float64{&h.total, &h.base, &h.balance, &h.uses, &h.noise, &h.hits[lru], &h.hits[index], &h.hits[self]}
}

// Save implements eviction.StateSaver: the evidence and the account of hits won and lost.
func (p *Policy) Save(dst []byte) ([]byte, error) {
	s := p.adaptive.sample
	start := len(dst)
	dst = append(dst, stateMagic...)
	behind := byte(0)
	if s.hedge.behind {
		behind = 1
	}
	dst = append(dst, behind)
	le := binary.LittleEndian
	for _, x := range s.hedge.numbers() {
		dst = le.AppendUint64(dst, math.Float64bits(*x))
	}
	for _, m := range []*[classes][ageBins]float32{&s.hazard.used, &s.hazard.risk} {
		for c := range m {
			for _, x := range m[c] {
				dst = le.AppendUint32(dst, math.Float32bits(x))
			}
		}
	}
	return le.AppendUint64(dst, xxhash.Sum64(dst[start:])), nil
}

// Load implements eviction.StateSaver.
func (p *Policy) Load(state []byte) (taken bool, err error) {
	le := binary.LittleEndian
	if len(state) != stateSize || string(state[:len(stateMagic)]) != stateMagic ||
		le.Uint64(state[stateSize-8:]) != xxhash.Sum64(state[:stateSize-8]) || state[len(stateMagic)] > 1 {
		return false, nil
	}
	s := p.adaptive.sample
	at := state[len(stateMagic):]
	s.hedge.behind, at = at[0] == 1, at[1:]
	for _, x := range s.hedge.numbers() {
		*x = math.Float64frombits(le.Uint64(at))
		at = at[8:]
	}
	for _, m := range []*[classes][ageBins]float32{&s.hazard.used, &s.hazard.risk} {
		for c := range m {
			for b := range m[c] {
				m[c][b] = math.Float32frombits(le.Uint32(at))
				at = at[4:]
			}
		}
	}
	s.tabulate()
	return true, nil
}

// Stats implements eviction.Statser: whether the index is followed or LRU, what share of the sampled uses each
// would have hit lately, what was won over LRU in all, and how much is known.
func (p *Policy) Stats() (json.RawMessage, error) {
	s := p.adaptive.sample
	h := &s.hedge
	following := "lru"
	if h.free {
		following = "index"
	}
	return json.Marshal(map[string]any{
		"following": following, "sampled_uses": h.total, "sampled_keys": s.keys.Len(),
		"sampled_share": float64(s.limit) / math.MaxUint64, "memory_bytes": p.MemoryBytes(),
		"hit_lru": h.hits[lru] / max(1, h.uses), "hit_index": h.hits[index] / max(1, h.uses), "hit_self": h.hits[self] / max(1, h.uses),
		"won_hits": h.balance, "missing": h.missing, "missing_allowed": h.allowed(),
	})
}
