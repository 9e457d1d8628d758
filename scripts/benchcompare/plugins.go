package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

func init() { sections = append(sections, section{"plugins", measurePlugins}) }

// pluginBenchmarks is the package that measures transports in processes of their own against the same in process.
const pluginBenchmarks = "./plugins/external/transport"

// measurePlugins runs the Go benchmarks of external transports: each alternates between the sides by itself.
func measurePlugins(ctx context.Context, p *plan) (string, []float64, error) {
	dir, err := os.MkdirTemp("", "benchcompare")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "bench.test")
	if _, err := sidebyside.Measure(command(ctx, "go", "test", "-c", "-o", program, pluginBenchmarks)); err != nil {
		return "", nil, err
	}
	got := map[string]map[string][]float64{} // by benchmark and unit, one value for each repetition
	var foreign []float64
	for rep := range p.reps {
		p.progress("plugins, %d/%d", rep+1, p.reps)
		r, err := sidebyside.Quiet(p.maxForeign, func(r sidebyside.Run) float64 { return r.Foreign }, func() (sidebyside.Run, error) {
			cmd := command(ctx, program, "-test.run", "^$", "-test.bench", "Move|Call|Operation", "-test.benchtime", p.seconds.String())
			cmd.Dir = pluginBenchmarks
			return sidebyside.Measure(cmd)
		})
		if err != nil {
			return "", nil, err
		}
		foreign = append(foreign, r.Foreign)
		for name, units := range parseBenchmarks(r.Stdout) {
			if got[name] == nil {
				got[name] = map[string][]float64{}
			}
			for u, v := range units {
				got[name][u] = append(got[name][u], v)
			}
		}
	}
	table, err := pluginTable(got)
	return table, foreign, err
}

// parseBenchmarks reads the output of Go benchmarks: their names without "Benchmark" and the number of processors, and
// what each says of itself by unit.
func parseBenchmarks(out string) map[string]map[string]float64 {
	all := map[string]map[string]float64{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
		units := map[string]float64{}
		for i := 2; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				units[f[i+1]] = v
			}
		}
		all[name] = units
	}
	return all
}

// pluginTable shows the benchmarks that measurePlugins runs.
func pluginTable(got map[string]map[string][]float64) (string, error) {
	var b strings.Builder
	missing := ""
	value := func(name, unit string) []float64 {
		v := got[name][unit]
		if len(v) == 0 {
			missing = name + " " + unit
		}
		return v
	}
	b.WriteString("The mover of plugins/examples/external-transport, between two nodes: its plugins against the same in process.\n\n" +
		"| block | op | in flight | plugin MB/s | plugin / in process |\n|---|---|---|---|---|\n")
	for _, r := range []struct {
		kib, deep int
		op        string
	}{{1024, 1, "write"}, {1024, 1, "read"}, {1024, 8, "write"}, {1024, 8, "read"}, {64, 1, "write"}, {64, 8, "write"}} {
		name := fmt.Sprintf("Move/%dKiB/%s/%d_in_flight", r.kib, r.op, r.deep)
		ratios := value(name, "ratio")
		fmt.Fprintf(&b, "| %s | %s | %d | %.0f | %.2f %s |\n", blockName(uint64(r.kib)<<10), r.op, r.deep, sidebyside.Median(value(name, "MB/s")),
			sidebyside.Median(ratios), sidebyside.Runs(ratios, "%.2f"))
	}
	b.WriteString("\n| what | p50 us | p99 us |\n|---|---|---|\n")
	for _, r := range []struct{ name, what string }{
		{"Call", "a control call (gRPC over a Unix socket, TLS)"},
		{"Operation/plugin", "64 bytes through the plugins"},
		{"Operation/in_process", "64 bytes in process"},
	} {
		p50s := value(r.name, "p50-us")
		fmt.Fprintf(&b, "| %s | %.0f %s | %.0f |\n", r.what, sidebyside.Median(p50s), sidebyside.Runs(p50s, "%.0f"), sidebyside.Median(value(r.name, "p99-us")))
	}
	if missing != "" {
		return "", fmt.Errorf("%s: benchmark %s is missing in the output", pluginBenchmarks, missing)
	}
	return b.String(), nil
}
