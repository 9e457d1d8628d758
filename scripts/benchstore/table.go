package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/internal/procstat"
	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

// table collects the samples of all repetitions.
type table struct {
	p      *plan
	rows   []row
	full   [sides][][2]sample // with room, full
	memory [sides]footprint

	keyGrowth    []keyGrowth
	clientGrowth []clientGrowth

	foreign []float64
}

// row holds one value for each repetition.
type row struct{ first, second [sides][]sample }

func newTable(p *plan) *table { return &table{p: p, rows: make([]row, len(p.points))} }

func (t *table) add(i int, first, second [sides]sample) {
	for side := range sides {
		t.rows[i].first[side] = append(t.rows[i].first[side], first[side])
		t.foreign = append(t.foreign, first[side].foreign)
		if second[side].ops > 0 {
			t.rows[i].second[side] = append(t.rows[i].second[side], second[side])
		}
	}
}

func pick(ss []sample, f func(sample) float64) []float64 {
	v := make([]float64, len(ss))
	for i, s := range ss {
		v[i] = f(s)
	}
	return v
}

func ops(s sample) float64 { return s.ops }
func p50(s sample) float64 { return s.p50 }
func p99(s sample) float64 { return s.p99 }
func cpu(s sample) float64 { return s.cpu }

// ratio is the median of the ratios of the repetitions.
func ratio(a, b []sample, f func(sample) float64) string {
	r, ok := sidebyside.Ratio(pick(a, f), pick(b, f))
	if !ok {
		return "–"
	}
	return fmt.Sprintf("%.2f", r)
}

// runs lists the single values in thousands, smallest first.
func runs(v []float64) string {
	k := make([]float64, len(v))
	for i := range v {
		k[i] = v[i] / 1000
	}
	return sidebyside.Runs(k, "%.1f")
}

func (t *table) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s. %d repetitions of %v a point, medians; ratios (ours / upstream) are medians of the ratios of each repetition.\n",
		procstat.Machine(runtime.NumCPU()), runtime.Version(), t.p.reps, t.p.duration)
	fmt.Fprintf(&b, "%d keys of 40 characters, one replica; one request in flight a connection, generator and masters on the same cores. ", t.p.keys)
	fmt.Fprintf(&b, "Other programs used %.2f cores in the median, %.2f at most.\n\n", sidebyside.Median(t.foreign), slices.Max(append(t.foreign, 0)))
	t.operations(&b)
	t.secondTable(&b)
	t.fullTable(&b)
	t.memoryTable(&b)
	t.growthTables(&b)
	return b.String()
}

func (t *table) operations(b *strings.Builder) {
	b.WriteString("| operation | connections | ours k/s | upstream k/s | ratio | p50 us ours / upstream | p99 us ours / upstream | ratio | master CPU us/op ours / upstream | ratio |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|\n")
	for i, pt := range t.p.points {
		o, u := t.rows[i].first[ours], t.rows[i].first[theirs]
		if len(o) == 0 {
			continue
		}
		med := func(s []sample, f func(sample) float64) float64 { return sidebyside.Median(pick(s, f)) }
		fmt.Fprintf(b, "| %s | %d | %.1f %s | %.1f %s | %s | %.0f / %.0f | %.0f / %.0f | %s | %.1f / %.1f | %s |\n", pt.op, pt.connections,
			med(o, ops)/1000, runs(pick(o, ops)), med(u, ops)/1000, runs(pick(u, ops)), ratio(o, u, ops),
			med(o, p50), med(u, p50), med(o, p99), med(u, p99), ratio(o, u, p99), med(o, cpu), med(u, cpu), ratio(o, u, cpu))
	}
	b.WriteString("\nputstart-end is a pair of calls; batch operations take 100 keys a call, counted as one.\n")
}

func (t *table) secondTable(b *strings.Builder) {
	if !slices.ContainsFunc(t.rows, func(r row) bool { return len(r.second[ours]) > 0 }) {
		return
	}
	b.WriteString("\nThe same points with the second, independent load generator:\n\n")
	b.WriteString("| operation | connections | ours k/s | upstream k/s | ratio | p99 ratio | master CPU ratio |\n|---|---|---|---|---|---|---|\n")
	for i, pt := range t.p.points {
		o, u := t.rows[i].second[ours], t.rows[i].second[theirs]
		if len(o) == 0 {
			continue
		}
		fmt.Fprintf(b, "| %s | %d | %.1f | %.1f | %s | %s | %s |\n", pt.op, pt.connections, sidebyside.Median(pick(o, ops))/1000, sidebyside.Median(pick(u, ops))/1000,
			ratio(o, u, ops), ratio(o, u, p99), ratio(o, u, cpu))
	}
}

func (t *table) fullTable(b *strings.Builder) {
	if len(t.full[ours]) == 0 {
		return
	}
	fmt.Fprintf(b, "\nPuts of %d bytes, 8 connections, into a store with room and into one that %d of them fill, where each needs an eviction:\n\n", t.p.fullValue, t.p.keys)
	b.WriteString("| master | with room k/s | full k/s | full / room | p99 us room | p99 us full | full / room | refused puts |\n|---|---|---|---|---|---|---|---|\n")
	for side := range sides {
		var room, full []sample
		var refused uint64
		for _, pair := range t.full[side] {
			room, full = append(room, pair[0]), append(full, pair[1])
			refused += pair[1].errors
		}
		fmt.Fprintf(b, "| %s | %.1f | %.1f | %s | %.0f | %.0f | %s | %d |\n", sideNames[side], sidebyside.Median(pick(room, ops))/1000, sidebyside.Median(pick(full, ops))/1000,
			ratio(full, room, ops), sidebyside.Median(pick(room, p99)), sidebyside.Median(pick(full, p99)), ratio(full, room, p99), refused)
	}
}

func (t *table) memoryTable(b *strings.Builder) {
	if t.memory[ours].filled == 0 {
		return
	}
	fmt.Fprintf(b, "\nMemory of a master with %d keys of 40 characters, one replica each, resident bytes:\n\n", t.p.memoryKeys)
	b.WriteString("| master | empty MB | filled MB | highest MB | bytes a key | filled at keys/s | longest GC pause |\n|---|---|---|---|---|---|---|\n")
	for side := range sides {
		f := t.memory[side]
		fmt.Fprintf(b, "| %s | %.1f | %.1f | %.1f | %.0f | %.0f | %s |\n", sideNames[side], mb(f.empty), mb(f.filled), mb(f.peak),
			float64(int64(f.filled)-int64(f.empty))/float64(t.p.memoryKeys), f.keysPerSecond, cmp.Or(f.pause, "–"))
	}
}

func mb(n uint64) float64 { return float64(n) / 1e6 }
