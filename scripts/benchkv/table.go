package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/internal/procstat"
	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

// table collects the samples of all repetitions.
type table struct {
	p    *plan
	rows [][sidebyside.Sides][]sample
}

func newTable(p *plan) *table {
	return &table{p: p, rows: make([][sidebyside.Sides][]sample, len(p.points))}
}

func (t *table) add(i, side int, s sample) { t.rows[i][side] = append(t.rows[i][side], s) }

func pick(ss []sample, f func(sample) float64) []float64 {
	v := make([]float64, len(ss))
	for i, s := range ss {
		v[i] = f(s)
	}
	return v
}

func gbps(s sample) float64 { return s.gbps }
func p50(s sample) float64  { return s.p50 }
func p99(s sample) float64  { return s.p99 }

// ratio is the median of the ratios of the repetitions.
func ratio(a, b []float64) string {
	r, ok := sidebyside.Ratio(a, b)
	if !ok {
		return "–"
	}
	return fmt.Sprintf("%.2f", r)
}

func (t *table) markdown() string {
	var b strings.Builder
	var foreign []float64
	for _, r := range t.rows {
		for _, ss := range r {
			foreign = append(foreign, pick(ss, func(s sample) float64 { return s.foreign })...)
		}
	}
	fmt.Fprintf(&b, "%s, %s. %d repetitions of %v a point, medians; ratios (ours / wheel) are medians of the ratios of each repetition. GB = 10^9 bytes.\n",
		procstat.Machine(runtime.NumCPU()), runtime.Version(), t.p.reps, t.p.duration)
	fmt.Fprintf(&b, "Other programs used %.2f cores in the median, %.2f at most.\n\n", sidebyside.Median(foreign), slices.Max(append(foreign, 0)))
	b.WriteString("| operation | ours GB/s | wheel GB/s | ratio | goal | p50 us ours / wheel | ratio | goal | p99 us ours / wheel |\n|---|---|---|---|---|---|---|---|---|\n")
	own := false
	for i, pt := range t.p.points {
		o, w := t.rows[i][sidebyside.Ours], t.rows[i][sidebyside.Theirs]
		med := func(s []sample, f func(sample) float64) float64 { return sidebyside.Median(pick(s, f)) }
		fmt.Fprintf(&b, "| %s | %.2f %s | %.2f %s | %s | %s | %.0f / %.0f | %s | %s | %.0f / %.0f |\n", pt,
			med(o, gbps), sidebyside.Runs(pick(o, gbps), "%.2f"), med(w, gbps), sidebyside.Runs(pick(w, gbps), "%.2f"),
			ratio(pick(o, gbps), pick(w, gbps)), wanted("≥ ", pt.goal.speed), med(o, p50), med(w, p50),
			ratio(pick(o, p50), pick(w, p50)), wanted("≤ ", pt.goal.latency), med(o, p99), med(w, p99))
		own = own || pt.own
	}
	if !own {
		return b.String()
	}
	b.WriteString("\nReads of memory that the reading process lends itself, beside a plain copy from shared memory:\n\n")
	b.WriteString("| operation | ours GB/s | copy GB/s | ours / copy | wheel / copy |\n|---|---|---|---|---|\n")
	for i, pt := range t.p.points {
		if !pt.own {
			continue
		}
		o, w := t.rows[i][sidebyside.Ours], t.rows[i][sidebyside.Theirs]
		copied := func(s sample) float64 { return s.copied }
		fmt.Fprintf(&b, "| %s | %.2f | %.2f | %s | %s |\n", pt, sidebyside.Median(pick(o, gbps)), sidebyside.Median(pick(o, copied)),
			ratio(pick(o, gbps), pick(o, copied)), ratio(pick(w, gbps), pick(w, copied)))
	}
	return b.String()
}

func wanted(sign string, goal float64) string {
	if goal == 0 {
		return ""
	}
	return sign + fmt.Sprintf("%.1f", goal)
}
