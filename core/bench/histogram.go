package bench

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets whose width is 1/64 of their size, as HDR histograms do: exact
// below 64 ns, within 1.6 % above. The zero value is empty. Not for concurrent use.
type histogram struct {
	counts [64 * subBuckets]uint64
	n      uint64
}

const (
	subBits    = 6
	subBuckets = 1 << subBits
)

// bucket is the index of a value: its highest bits, with the exponent in front.
func bucket(v uint64) int {
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift*subBuckets + int(v>>shift)
}

// middle is the value that stands for a bucket: the inverse of bucket.
func middle(i int) uint64 {
	shift := max(i/subBuckets-1, 0)
	low := uint64(i-shift*subBuckets) << shift
	return low + (1<<shift)/2
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucket(uint64(max(d, 0)))]++
	h.n++
}

func (h *histogram) merge(o *histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
}

// microseconds returns the value below or at which the share p (0..1) of all values lies; 0 when empty.
func (h *histogram) microseconds(p float64) float64 {
	if h.n == 0 {
		return 0
	}
	rank := max(uint64(p*float64(h.n)+0.5), 1)
	var seen uint64
	for i, c := range h.counts {
		if seen += c; seen >= rank {
			return float64(middle(i)) / 1000
		}
	}
	return 0
}

func (h *histogram) latency() Latency {
	return Latency{h.microseconds(0.5), h.microseconds(0.99), h.microseconds(0.999)}
}
