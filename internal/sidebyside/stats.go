package sidebyside

import (
	"fmt"
	"slices"
	"strings"
)

// The sides of a comparison.
const (
	Ours = iota
	Theirs
	Sides
)

// Order is the order of the sides in the n-th run, so that both are the first one equally often.
func Order(n int) []int {
	o := []int{Ours, Theirs}
	if n%2 == 1 {
		slices.Reverse(o)
	}
	return o
}

// Tries is how often Quiet runs something at most.
const Tries = 5

// Quiet repeats a run while other programs use more than limit processors, and returns the least disturbed one. A
// limit of 0 repeats nothing. foreign tells what other programs used during a run.
func Quiet[S any](limit float64, foreign func(S) float64, run func() (S, error)) (S, error) {
	best, err := run()
	for n := 1; err == nil && limit > 0 && foreign(best) > limit && n < Tries; n++ {
		var s S
		if s, err = run(); err == nil && foreign(s) < foreign(best) {
			best = s
		}
	}
	return best, err
}

// Median of an even count is the mean of the middle two; of nothing it is 0.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// Ratio is the median of the ratios a[i]/b[i]; not ok if there is none.
func Ratio(a, b []float64) (r float64, ok bool) {
	var v []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			v = append(v, a[i]/b[i])
		}
	}
	return Median(v), len(v) > 0
}

// Runs lists the single values, smallest first, each by format: "[0.9, 1.1]".
func Runs(v []float64, format string) string {
	var parts []string
	for _, x := range slices.Sorted(slices.Values(v)) {
		parts = append(parts, fmt.Sprintf(format, x))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}
