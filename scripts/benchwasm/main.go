// Command benchwasm measures eviction policies in WebAssembly: what a store does with guests that behave and with guests
// that do not, how long everything else waits for them, and what an event, a replay and a start cost. It runs the
// benchmarks of the packages concerned and writes Markdown tables.
//
//	go run ./scripts/benchwasm [-reps N] [-only TABLE,...] [-o FILE]
//
// Every table is measured in several repetitions of all its rows, so that a machine that gets slower meanwhile favours
// nobody; figures are medians. With -o the tables replace what stands between their marks in the file.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mooncake-agent/mooncake/internal/procstat"
	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "benchwasm:", err)
		os.Exit(1)
	}
}

// benchmark is a benchmark of a package of this module.
type benchmark struct{ pkg, name, time string }

// table is what is made of some benchmarks.
type table struct {
	name  string
	runs  []benchmark
	write func(w io.Writer, r results) error
}

var tables = []table{
	{"wasm-store", storeRuns(), writeStore},
	{"wasm-slip", []benchmark{{"./plugins/wasm", "^BenchmarkTickerSlip$", "60x"}}, writeSlip},
	{"wasm-speed", []benchmark{
		{"./plugins/wasm", "^BenchmarkEvents$", "500ms"}, {"./plugins/wasm", "^BenchmarkVictims$", "200ms"}, {"./plugins/wasm", "^BenchmarkReplay$", "1x"},
		{"./plugins/examples", "^BenchmarkLoad$", "3x"},
	}, writeSpeed},
}

// storeRuns has each policy in a process of its own, so that none has to clear away what the one before has left, and
// the baseline several times in between.
func storeRuns() (runs []benchmark) {
	row := func(name string) {
		runs = append(runs, benchmark{"./core/master", "^BenchmarkGuests$/^" + name + "$", "200000x"})
	}
	for i, name := range guests {
		if i > 0 && i%4 == 0 {
			row(baseline)
		}
		row(name)
	}
	return runs
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("benchwasm", flag.ContinueOnError)
	f.SetOutput(stderr)
	reps := f.Int("reps", 3, "repetitions")
	only := f.String("only", "", "tables to measure, with commas between them (default: all)")
	out := f.String("o", "", "file whose tables are replaced (default: stdout)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *reps < 1 {
		return errors.New("-reps needs at least 1")
	}
	list := tables
	if *only != "" {
		list = nil
		for name := range strings.SplitSeq(*only, ",") {
			i := slices.IndexFunc(tables, func(t table) bool { return t.name == name })
			if i < 0 {
				return fmt.Errorf("-only: there is no table %q; there are wasm-store, wasm-slip, wasm-speed", name)
			}
			list = append(list, tables[i])
		}
	}
	dir, err := os.MkdirTemp("", "benchwasm")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, t := range list {
		for _, b := range t.runs {
			if err := build(ctx, dir, b.pkg); err != nil {
				return err
			}
		}
		r := results{}
		busy, begin := procstatBusy(), time.Now()
		own := time.Duration(0)
		for rep := range *reps {
			for _, b := range t.runs {
				fmt.Fprintf(stderr, "%s %d/%d: %s %s\n", t.name, rep+1, *reps, b.pkg, b.name)
				used, err := r.measure(ctx, dir, b)
				if err != nil {
					return fmt.Errorf("%s: %w", t.name, err)
				}
				own += used
			}
		}
		foreign := max(0, (procstatBusy()-busy-own).Seconds()/time.Since(begin).Seconds())
		var text bytes.Buffer
		fmt.Fprintf(&text, "%s, `make bench-wasm`. %s, %s. %d repetitions, medians. Other programs used %.2f cores in the mean.\n\n",
			time.Now().Format(time.DateOnly), procstat.Machine(runtime.NumCPU()), runtime.Version(), *reps, foreign)
		if err := t.write(&text, r); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if *out == "" {
			if _, err := fmt.Fprintf(stdout, "\n%s", text.Bytes()); err != nil {
				return err
			}
		} else if err := sidebyside.ReplaceSection(*out, t.name, text.String()); err != nil {
			return err
		}
	}
	return nil
}

// procstatBusy is the time that all processors were busy, 0 if that is not known.
func procstatBusy() time.Duration {
	d, err := procstat.Busy()
	if err != nil {
		return 0
	}
	return d
}

// build makes a package's test binary, once.
func build(ctx context.Context, dir, pkg string) error {
	if _, err := os.Stat(binary(dir, pkg)); err == nil {
		return nil
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary(dir, pkg), pkg)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, sidebyside.Tail(string(text)))
	}
	return nil
}

func binary(dir, pkg string) string { return filepath.Join(dir, filepath.Base(pkg)+".test") }

// measure runs a benchmark and adds its figures. used is the processor time that it took.
func (r results) measure(ctx context.Context, dir string, b benchmark) (used time.Duration, err error) {
	cmd := exec.CommandContext(ctx, binary(dir, b.pkg), "-test.run", "^$", "-test.bench", b.name, "-test.benchtime", b.time, "-test.timeout", "10m")
	cmd.Dir = b.pkg // as go test does
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if s := cmd.ProcessState; s != nil {
		used = s.UserTime() + s.SystemTime()
	}
	if err != nil {
		return used, fmt.Errorf("%s: %w\n%s%s", cmd, err, sidebyside.Tail(out.String()), sidebyside.Tail(errs.String()))
	}
	n, err := r.parse(out.String())
	if err == nil && n == 0 {
		err = fmt.Errorf("%s: no benchmark ran", cmd)
	}
	return used, err
}
