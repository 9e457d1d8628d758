// Command benchcompare measures our Transfer Engine beside the one of the Mooncake wheel, plain TCP (iperf3) and plain
// copies, all on this machine in one run, and writes Markdown tables.
//
//	go run ./scripts/benchcompare [flags]
//
// It has sections, each a table of its own:
//
//	tcp    both engines over loopback, with iperf3 of 1, 2 and 4 streams before each repetition, and what idle engines cost
//	pairs  each engine as initiator with each as target
//	shm    our engine over shared memory, and a copy between two mappings
//	rdma   both engines and perftest over soft-RoCE; only in the machine of make bench-rdma, so only with -only rdma
//
// Every point is measured on all sides right after one another and in changing order, in several repetitions. A
// ratio is the median of the ratios of the repetitions, so that a machine that gets slower meanwhile favours nobody.
// With -o the tables replace what stands between "<!-- make bench: SECTION -->" and "<!-- end -->" in a file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/mooncake-agent/mooncake/internal/procstat"
	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "benchcompare:", err)
		os.Exit(1)
	}
}

// plan is what the flags say.
type plan struct {
	args                  []string
	mooncake, wheelPython string
	sections              []section
	points                []point // instead of the section's own
	seconds               time.Duration
	reps                  int
	maxForeign            float64
	out                   string
	progress              func(format string, args ...any)
}

// section makes one table.
type section struct {
	name    string
	measure func(ctx context.Context, p *plan) (table string, foreign []float64, err error)
}

var (
	sections = []section{{"tcp", measureTCP}, {"pairs", measurePairs}, {"shm", measureShm}}
	// elsewhere are measured only when asked for: they need another machine.
	elsewhere = []section{{"rdma", measureRDMA}}
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	p, err := parse(args, stderr)
	if err != nil {
		return err
	}
	start, end := "", "\n" // progress: one line that changes on a terminal, else many
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		start, end = "\r\x1b[K", ""
	}
	p.progress = func(format string, args ...any) { fmt.Fprintf(stderr, start+format+end, args...) }
	for _, s := range p.sections {
		table, foreign, err := s.measure(ctx, p)
		fmt.Fprint(stderr, start)
		if err != nil {
			return fmt.Errorf("section %s: %w", s.name, err)
		}
		text := p.header(s.name, foreign) + "\n" + table
		if p.out == "" {
			if _, err = io.WriteString(stdout, "\n"+text); err != nil {
				return err
			}
		} else if err := sidebyside.ReplaceSection(p.out, s.name, text); err != nil { // each at once: a stop loses nothing
			return err
		}
	}
	return nil
}

// header says what the figures are.
func (p *plan) header(name string, foreign []float64) string {
	args := slices.Clone(p.args)
	drop := []string{"-o", "-mooncake", "-wheel-python"} // they say nothing about the figures
	command := "make bench"
	if name == "rdma" { // which says -only rdma itself
		drop, command = append(drop, "-only"), "make bench-rdma"
	}
	for _, local := range drop {
		if i := slices.Index(args, local); i >= 0 && i+1 < len(args) {
			args = slices.Delete(args, i, i+2)
		}
	}
	if len(p.sections) > 1 {
		args = append(args, "-only", name)
	}
	if len(args) > 0 {
		command += ` ARGS="` + strings.Join(args, " ") + `"`
	}
	return fmt.Sprintf("%s, `%s`. %s, %s. %d repetitions of %v a point, medians; ratios are medians of the ratios of each repetition. "+
		"GB = 10^9 bytes. Other programs used %.2f cores in the median, %.2f at most.\n",
		time.Now().Format(time.DateOnly), command, procstat.Machine(runtime.NumCPU()), runtime.Version(), p.reps, p.seconds,
		sidebyside.Median(foreign), slices.Max(append(foreign, 0)))
}

func parse(args []string, stderr io.Writer) (*plan, error) {
	f := flag.NewFlagSet("benchcompare", flag.ContinueOnError)
	f.SetOutput(stderr)
	p := &plan{args: args}
	f.StringVar(&p.mooncake, "mooncake", "bin/mooncake", "our binary")
	f.StringVar(&p.wheelPython, "wheel-python", os.Getenv("MOONCAKE_WHEEL_PYTHON"), "Python interpreter that has the wheel (default: $MOONCAKE_WHEEL_PYTHON, or what make setup installed)")
	only := f.String("only", "", "sections to measure, with commas between them (default: all)")
	points := f.String("points", "", "points instead of the usual ones, BLOCK[xBATCH[xTHREADS]] with commas between them: 64KiBx32,1MiBx16x4")
	f.DurationVar(&p.seconds, "seconds", time.Second, "length of each run, whole seconds")
	f.IntVar(&p.reps, "reps", 3, "repetitions")
	f.Float64Var(&p.maxForeign, "max-foreign", 0, "repeat a run, up to 5 times, while other programs use more processors than this; 0 = never (0.15 for figures to publish)")
	f.StringVar(&p.out, "o", "", "file whose sections are replaced (default: stdout)")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if p.reps < 1 || p.seconds < time.Second || p.seconds%time.Second != 0 {
		return nil, errors.New("-reps needs at least 1 and -seconds whole seconds")
	}
	p.sections = sections
	if *only != "" {
		p.sections = nil
		for name := range strings.SplitSeq(*only, ",") {
			known := slices.Concat(sections, elsewhere)
			i := slices.IndexFunc(known, func(s section) bool { return s.name == name })
			if i < 0 {
				return nil, fmt.Errorf("-only: there is no section %q; there are tcp, pairs, shm, rdma", name)
			}
			p.sections = append(p.sections, known[i])
		}
	}
	var err error
	if p.points, err = parsePoints(*points); err != nil {
		return nil, fmt.Errorf("-points: %w", err)
	}
	if p.wheelPython == "" {
		p.wheelPython, err = sidebyside.FindWheel("wheel-0.3.13.*", "bin", "python")
	}
	return p, err
}

// repeat measures all points with all sides, p.reps times. before is called at each repetition's start.
func (p *plan) repeat(points []point, before func(rep int) error, sides ...func(pt point) (sample, error)) ([][][]sample, []float64, error) {
	out := make([][][]sample, len(points)) // by point and side
	for i := range out {
		out[i] = make([][]sample, len(sides))
	}
	var foreign []float64
	done, total := 0, p.reps*len(points)
	for rep := range p.reps {
		if err := before(rep); err != nil {
			return nil, nil, err
		}
		for i, pt := range points {
			done++
			p.progress("%d/%d  %s", done, total, pt)
			for k := range sides {
				k = (k + rep + i) % len(sides) // another one goes first each time
				s, err := sidebyside.Quiet(p.maxForeign, func(s sample) float64 { return s.foreign }, func() (sample, error) { return sides[k](pt) })
				if err != nil {
					return nil, nil, fmt.Errorf("%s: %w", pt, err)
				}
				out[i][k] = append(out[i][k], s)
				foreign = append(foreign, s.foreign)
			}
		}
	}
	return out, foreign, nil
}
