package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// point is one row of a table.
type point struct {
	block          uint64
	op             string
	batch, threads int
}

// need is the memory of each side.
func (p point) need() uint64 { return p.block * uint64(p.batch) * uint64(p.threads) }

func (p point) String() string {
	return fmt.Sprintf("%s %s x %d, threads: %d", p.op, blockName(p.block), p.batch, p.threads)
}

// parsePoints reads BLOCK[xBATCH[xTHREADS]],... Each is measured as write and as read.
func parsePoints(s string) (out []point, err error) {
	if s == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(s, ",") {
		f := strings.Split(strings.TrimSpace(one), "x")
		n := []int{1, 1}
		if len(f) > 3 {
			return nil, fmt.Errorf("%q is not BLOCK[xBATCH[xTHREADS]]", one)
		}
		block, err := parseBlock(f[0])
		if err != nil {
			return nil, err
		}
		for i, v := range f[1:] {
			if n[i], err = strconv.Atoi(v); err != nil || n[i] < 1 {
				return nil, fmt.Errorf("%q in %q is not a positive number", v, one)
			}
		}
		for _, op := range []string{"write", "read"} {
			out = append(out, point{block, op, n[0], n[1]})
		}
	}
	return out, nil
}

// pointsOr returns the points of the flags, or those.
func (p *plan) pointsOr(s string) []point {
	if p.points != nil {
		return p.points
	}
	points, err := parsePoints(s)
	if err != nil {
		panic(err) // a constant
	}
	return points
}

func maxNeed(points []point) uint64 {
	need := uint64(1 << 20)
	for _, pt := range points {
		need = max(need, pt.need())
	}
	return need
}

var blockUnits = []string{"B", "KiB", "MiB", "GiB"}

func parseBlock(s string) (uint64, error) {
	for i, u := range slices.Backward(blockUnits) {
		if n, ok := strings.CutSuffix(s, u); ok || i == 0 {
			v, err := strconv.ParseUint(strings.TrimSpace(n), 10, 34)
			if err != nil || v == 0 {
				return 0, fmt.Errorf("%q is not a block size; write 4KiB, 1MiB or a number of bytes", s)
			}
			return v << (10 * i), nil
		}
	}
	return 0, fmt.Errorf("%q is not a block size", s)
}

func blockName(n uint64) string {
	i := 0
	for n >= 1024 && n%1024 == 0 && i < len(blockUnits)-1 {
		n, i = n/1024, i+1
	}
	return fmt.Sprintf("%d %s", n, blockUnits[i])
}
