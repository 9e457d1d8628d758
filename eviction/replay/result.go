package replay

import "time"

// Result of one policy at one size. Ratios are between 0 and 1.
type Result struct {
	Requests  uint64 `json:"requests"`
	Accesses  uint64 `json:"accesses"`
	Hits      uint64 `json:"hits"`
	Prefix    uint64 `json:"prefix_hits"` // leading resident blocks at arrival
	Tokens    uint64 `json:"tokens"`
	TokenHits uint64 `json:"token_hits"` // tokens in the leading resident blocks
	Bytes     uint64 `json:"bytes"`
	ByteHits  uint64 `json:"byte_hits"`
	Inserts   uint64 `json:"inserts"`
	Evictions uint64 `json:"evictions"`
	// Regret counts evictions of blocks that were asked for again within Options.Regret.
	Regret uint64 `json:"regret"`
	// Refused blocks were not stored because the policy did not want them, NoSpace ones because nothing could go.
	Refused uint64 `json:"refused"`
	NoSpace uint64 `json:"no_space"`
	// RefusedAsked counts refused blocks that were asked for within Options.Regret.
	RefusedAsked uint64 `json:"refused_then_asked"`
	// What the host did about the policy: victims not taken because of a lease, victims that were not resident
	// or named twice, evictions by the host's own LRU because the policy named nobody that could go, failures
	// after which a new instance was made, and times the guard found the policy worse than LRU.
	Leased  uint64 `json:"leased"`
	Strikes uint64 `json:"strikes"`
	Helped  uint64 `json:"helped"`
	Faults  uint64 `json:"faults"`
	Alarms  uint64 `json:"guard_alarms"`
	// Fault is the first failure.
	Fault string `json:"fault,omitempty"`
	// Elapsed is the processor time of the whole run, warm-up included, and Replayed the accesses in it; Memory what the policy
	// said it holds at the end, and Peak the most blocks that were resident.
	Elapsed  time.Duration `json:"elapsed_ns"`
	Replayed uint64        `json:"replayed"`
	Memory   uint64        `json:"memory_bytes"`
	Peak     uint64        `json:"peak_blocks"`
}

// BlockHit is the share of block accesses that found their block.
func (r *Result) BlockHit() float64 { return ratio(r.Hits, r.Accesses) }

// PrefixHit is the share of blocks whose prefill is saved.
func (r *Result) PrefixHit() float64 { return ratio(r.Prefix, r.Accesses) }

// TokenHit is the share of input tokens whose prefill is saved; 0 in traces without lengths.
func (r *Result) TokenHit() float64 { return ratio(r.TokenHits, r.Tokens) }

// ByteHit is the share of bytes that were found.
func (r *Result) ByteHit() float64 { return ratio(r.ByteHits, r.Bytes) }

// NanosPerAccess is the processor time of the run for each block access, simulator included.
func (r *Result) NanosPerAccess() float64 { return ratio(uint64(r.Elapsed), r.Replayed) }

// BytesPerKey is what the policy holds for each block of a full cache.
func (r *Result) BytesPerKey() float64 { return ratio(r.Memory, r.Peak) }

func ratio(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func (r *Result) count(t *Trace, q *Request, matched uint32) {
	r.Requests++
	r.Accesses += uint64(q.n)
	r.Prefix += uint64(matched)
	r.Tokens += uint64(q.Tokens)
	r.TokenHits += min(uint64(matched)*uint64(t.BlockTokens), uint64(q.Tokens))
}

// restart forgets what was counted while the cache warmed up.
func (r *Result) restart() { *r = Result{Peak: r.Peak, Fault: r.Fault} }
