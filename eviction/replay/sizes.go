package replay

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mooncake-agent/mooncake/core/units"
)

// Capacity is a size of cache as it was asked for and in the units of a trace: bytes, or blocks if the trace has
// no sizes.
type Capacity struct {
	Arg   string
	Units uint64
}

// ladder are the shares of the footprint that "auto" stands for.
var ladder = []float64{0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5}

// ParseCapacities reads a list of sizes, separated by commas: a whole number of blocks (5000), bytes with a unit (64GB,
// 4096B), a share of the trace's footprint (0.05 or 5%), or auto: a ladder of shares from 0.5 to 50 %. blockBytes is the
// size of a block in traces that have no sizes, 0 if it is not known.
func ParseCapacities(list string, t *Trace, blockBytes uint64) ([]Capacity, error) {
	var out []Capacity
	for _, arg := range strings.Split(list, ",") {
		arg = strings.TrimSpace(arg)
		if arg == "auto" {
			for _, share := range ladder {
				out = append(out, Capacity{strconv.FormatFloat(100*share, 'g', -1, 64) + "%", t.share(share)})
			}
			continue
		}
		n, err := t.capacity(arg, blockBytes)
		if err != nil {
			return nil, fmt.Errorf("size %q: %w", arg, err)
		}
		if !slices.ContainsFunc(out, func(c Capacity) bool { return c.Arg == arg }) {
			out = append(out, Capacity{arg, n})
		}
	}
	return out, nil
}

func (t *Trace) share(f float64) uint64 {
	return max(1, uint64(math.Round(f*float64(t.Footprint()))))
}

func (t *Trace) capacity(arg string, blockBytes uint64) (uint64, error) {
	if blocks, err := strconv.ParseUint(arg, 10, 40); err == nil {
		if blocks == 0 {
			return 0, fmt.Errorf("want at least one block")
		}
		return blocks * t.MeanSize(), nil
	}
	text, percent := strings.CutSuffix(arg, "%")
	if f, err := strconv.ParseFloat(text, 64); err == nil {
		if percent {
			f /= 100
		}
		if !(f > 0 && f <= 100) || !percent && f > 1 {
			return 0, fmt.Errorf("want a share of the footprint above 0 and up to 1")
		}
		return t.share(f), nil
	}
	bytes, err := units.ParseSize(arg)
	if err != nil || bytes == 0 {
		return 0, fmt.Errorf("want blocks (5000), bytes with a unit (64GB), a share of the footprint (0.05 or 5%%), or auto")
	}
	if t.Sized() {
		return uint64(bytes), nil
	}
	if blockBytes == 0 {
		return 0, fmt.Errorf("the trace has no block sizes: say how many bytes a block has, or give the size in blocks")
	}
	if n := uint64(bytes) / blockBytes; n > 0 {
		return n, nil
	}
	return 0, fmt.Errorf("less than one block of %d bytes", blockBytes)
}
