package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

// results are figures by benchmark, without "Benchmark" and the number of processors, and unit, one for each
// repetition.
type results map[string]map[string][]float64

var processors = regexp.MustCompile(`-\d+$`)

// parse reads what go test prints and counts the benchmarks.
func (r results) parse(out string) (n int, err error) {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") || len(f)%2 != 0 {
			continue
		}
		if _, err := strconv.Atoi(f[1]); err != nil {
			continue
		}
		name := processors.ReplaceAllString(strings.TrimPrefix(f[0], "Benchmark"), "")
		if r[name] == nil {
			r[name] = map[string][]float64{}
		}
		for i := 2; i < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return n, fmt.Errorf("%s: %q is no number", name, f[i])
			}
			r[name][f[i+1]] = append(r[name][f[i+1]], v)
		}
		n++
	}
	return n, nil
}

// of is the median of a figure; an error says which is missing.
func (r results) of(name, unit string) (float64, error) {
	v := r[name][unit]
	if len(v) == 0 {
		return 0, fmt.Errorf("the benchmark %s says nothing in %s", name, unit)
	}
	return sidebyside.Median(v), nil
}
