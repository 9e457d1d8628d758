package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

// sample is one run of one program at one point.
type sample struct {
	gbps     float64 // 10^9 bytes per second
	p50, p99 float64 // microseconds of a batch; 0 if the program does not tell
	cpuPerGB float64 // processor seconds of both sides
	foreign  float64 // processors used by other programs meanwhile
}

func gbps(s sample) float64     { return s.gbps }
func cpuPerGB(s sample) float64 { return s.cpuPerGB }
func p50(s sample) float64      { return s.p50 }
func p99(s sample) float64      { return s.p99 }

func pick(ss []sample, f func(sample) float64) []float64 {
	v := make([]float64, len(ss))
	for i, s := range ss {
		v[i] = f(s)
	}
	return v
}

func med(ss []sample, f func(sample) float64) float64 { return sidebyside.Median(pick(ss, f)) }

// ratio is the median of the ratios of the repetitions.
func ratio(a, b []float64) string {
	r, ok := sidebyside.Ratio(a, b)
	if !ok {
		return "–"
	}
	return fmt.Sprintf("%.2f", r)
}

func speed(ss []sample) string {
	return fmt.Sprintf("%.3f %s", med(ss, gbps), sidebyside.Runs(pick(ss, gbps), "%.2f"))
}

// streams are the numbers of iperf3's parallel streams.
var streams = []int{1, 2, 4}

func measureTCP(ctx context.Context, p *plan) (string, []float64, error) {
	points := p.pointsOr("4KiB,64KiB,64KiBx32,1MiBx16,16MiB,4KiBx1x4,64KiBx32x4,1MiBx16x4")
	w, err := startWheel(ctx, p, maxNeed(points))
	if err != nil {
		return "", nil, err
	}
	defer w.stop()
	plain := make([][]float64, len(streams)) // by number of streams and repetition
	var best []float64
	got, foreign, err := p.repeat(points, func(int) error {
		most := 0.0
		for i, n := range streams {
			p.progress("iperf3, %d streams", n)
			s, err := sidebyside.Quiet(p.maxForeign, func(s sample) float64 { return s.foreign }, func() (sample, error) { return iperf(ctx, p.seconds, n) })
			if err != nil {
				return err
			}
			plain[i] = append(plain[i], s.gbps)
			most = max(most, s.gbps)
		}
		best = append(best, most)
		return nil
	},
		func(pt point) (sample, error) { return runOurs(ctx, p, pt, "tcp", "") },
		func(pt point) (sample, error) { return w.run(ctx, p, pt, w.name) })
	if err != nil {
		return "", nil, err
	}
	idle, err := idleCPU(ctx, p, w)
	if err != nil {
		return "", nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Wheel %s. iperf3 -l 1M, GB/s:", w.version)
	for i, n := range streams {
		fmt.Fprintf(&b, " -P %d %.2f %s", n, sidebyside.Median(plain[i]), sidebyside.Runs(plain[i], "%.2f"))
	}
	b.WriteString(".\n\n| block | op | batch | threads | ours GB/s | wheel GB/s | ours / wheel | ours / iperf3 -P 1 | ours / best iperf3 | wheel / iperf3 -P 1 | ours p50 / p99 us | mean us ours / wheel | CPU s/GB ours / wheel |\n" +
		strings.Repeat("|---", 13) + "|\n")
	for i, pt := range points {
		o, t := got[i][0], got[i][1]
		og, tg := pick(o, gbps), pick(t, gbps)
		mean := func(ss []sample) float64 { return float64(pt.need()) / 1e3 / med(ss, gbps) }
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %s | %s | %s | %s | %s | %s | %.0f / %.0f | %.0f / %.0f | %.2f / %.2f |\n",
			blockName(pt.block), pt.op, pt.batch, pt.threads, speed(o), speed(t), ratio(og, tg), ratio(og, plain[0]), ratio(og, best), ratio(tg, plain[0]),
			med(o, p50), med(o, p99), mean(o), mean(t), med(o, cpuPerGB), med(t, cpuPerGB))
	}
	b.WriteString("\nLatency is that of one batch, the mean from the throughput. CPU is that of both processes; the wheel's includes its start, ours is that of the measured time.\n")
	b.WriteString(threadsTable(points, got))
	fmt.Fprintf(&b, "\nIdle, %v after transfers: our engine used %.2f ms of processor time a second, the wheel's %.0f ms.\n", idle.wait, idle.ours*1e3, idle.wheel*1e3)
	return b.String(), foreign, nil
}

// threadsTable compares points that differ in threads only.
func threadsTable(points []point, got [][][]sample) string {
	var b strings.Builder
	for i, many := range points {
		for k, one := range points {
			if many.threads == 1 || one.threads != 1 || one.block != many.block || one.op != many.op || one.batch != many.batch {
				continue
			}
			if b.Len() == 0 {
				b.WriteString("\n| block | op | batch | threads | ours / ours with 1 | wheel / wheel with 1 | ours / wheel |\n|---|---|---|---|---|---|---|\n")
			}
			rate := func(p, side int) []float64 { return pick(got[p][side], gbps) }
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %s | %s | %s |\n", blockName(many.block), many.op, many.batch, many.threads,
				ratio(rate(i, 0), rate(k, 0)), ratio(rate(i, 1), rate(k, 1)), ratio(rate(i, 0), rate(i, 1)))
		}
	}
	return b.String()
}

func measurePairs(ctx context.Context, p *plan) (string, []float64, error) {
	points := p.pointsOr("4KiB,64KiBx32,1MiBx16,16MiB")
	w, err := startWheel(ctx, p, maxNeed(points))
	if err != nil {
		return "", nil, err
	}
	defer w.stop()
	own, err := startTarget(ctx, p, "tcp", maxNeed(points))
	if err != nil {
		return "", nil, err
	}
	defer own.stop()
	got, foreign, err := p.repeat(points, func(int) error { return nil },
		func(pt point) (sample, error) { return runOurs(ctx, p, pt, "tcp", w.name, w.pid()) },
		func(pt point) (sample, error) { return w.run(ctx, p, pt, own.name, own.pid()) },
		func(pt point) (sample, error) { return w.run(ctx, p, pt, w.name) })
	if err != nil {
		return "", nil, err
	}
	var b strings.Builder
	b.WriteString("| block | op | batch | ours to wheel GB/s | wheel to ours GB/s | wheel to wheel GB/s | ours to wheel / wheel to wheel | wheel to ours / wheel to wheel |\n|---|---|---|---|---|---|---|---|\n")
	for i, pt := range points {
		g := got[i]
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s | %s |\n", blockName(pt.block), pt.op, pt.batch, speed(g[0]), speed(g[1]), speed(g[2]),
			ratio(pick(g[0], gbps), pick(g[2], gbps)), ratio(pick(g[1], gbps), pick(g[2], gbps)))
	}
	return b.String(), foreign, nil
}

func measureShm(ctx context.Context, p *plan) (string, []float64, error) {
	points := p.pointsOr("4KiB,64KiB,1MiB,16MiB,16MiBx1x4")
	c, err := newCopier(maxNeed(points))
	if err != nil {
		return "", nil, err
	}
	defer c.close()
	got, foreign, err := p.repeat(points, func(int) error { return nil },
		func(pt point) (sample, error) { return runOurs(ctx, p, pt, "shm", "") },
		func(pt point) (sample, error) { return c.run(ctx, p, pt) })
	if err != nil {
		return "", nil, err
	}
	var b strings.Builder
	b.WriteString("A copy is one call of memmove between two mappings of memfds, in one thread.\n\n" +
		"| block | op | threads | ours GB/s | copy GB/s | ours / copy | ours p50 / p99 us | copy p50 us | CPU s/GB ours |\n|---|---|---|---|---|---|---|---|---|\n")
	for i, pt := range points {
		o, t := got[i][0], got[i][1]
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %.1f / %.0f | %.1f | %.2f |\n", blockName(pt.block), pt.op, pt.threads, speed(o), speed(t),
			ratio(pick(o, gbps), pick(t, gbps)), med(o, p50), med(o, p99), med(t, p50), med(o, cpuPerGB))
	}
	return b.String(), foreign, nil
}
