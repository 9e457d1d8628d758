// Command benchkv measures puts and gets of our Store client and of the Mooncake wheel side by side and prints a
// Markdown table for docs/PERFORMANCE.md.
//
//	go run ./scripts/benchkv [flags]
//
// Each side has its own master and one process that lends memory; a second process puts and gets over TCP on
// loopback: "mooncake bench kv" with shared memory turned off unless -transport says otherwise, and the wheel's Python client. Every point is measured on
// both sides, one right after the other and in changing order, in several repetitions. A ratio is the median of the
// ratios of the repetitions, so that a machine that gets slower meanwhile favours nobody. Reads of a process's
// own memory are compared with a plain copy as well.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "benchkv:", err)
		os.Exit(1)
	}
}

// point is one row of the table.
type point struct {
	op    string // of the wheel; ours is that of ourOp
	size  uint64
	batch int
	own   bool // of memory that the measuring process lends itself
	goal  goal
}

// goal is the ratio that is wanted.
type goal struct {
	speed   float64 // ours / wheel, at least
	latency float64 // p50 ours / wheel, at most
}

func (p point) String() string {
	s := fmt.Sprintf("%s, %s", p.op, sizeName(p.size))
	if p.batch > 1 {
		s += fmt.Sprintf(" x %d", p.batch)
	}
	if p.own {
		s += ", own memory"
	}
	return s
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// points are all rows. "put-from" and "get-into" use registered memory of the wheel's caller; puts of ours never copy.
var points = []point{
	{op: "put", size: 4 * kib, batch: 1},
	{op: "get", size: 4 * kib, batch: 1, goal: goal{latency: 0.5}},
	{op: "put", size: mib, batch: 1, goal: goal{speed: 2}},
	{op: "put-from", size: mib, batch: 1, goal: goal{speed: 2}},
	{op: "get", size: mib, batch: 1, goal: goal{speed: 2}},
	{op: "get-buffer", size: mib, batch: 1, goal: goal{speed: 2}},
	{op: "get-into", size: mib, batch: 1, goal: goal{speed: 2}},
	{op: "put", size: 16 * mib, batch: 1, goal: goal{speed: 2}},
	{op: "put-from", size: 16 * mib, batch: 1, goal: goal{speed: 2}},
	{op: "get", size: 16 * mib, batch: 1, goal: goal{speed: 2}},
	{op: "get-buffer", size: 16 * mib, batch: 1, goal: goal{speed: 2}},
	{op: "get-into", size: 16 * mib, batch: 1, goal: goal{speed: 2}},
	{op: "put", size: 64 * kib, batch: 100, goal: goal{speed: 2}},
	{op: "put-from", size: 64 * kib, batch: 100, goal: goal{speed: 2}},
	{op: "get", size: 64 * kib, batch: 100, goal: goal{speed: 2}},
	{op: "get-into", size: 64 * kib, batch: 100, goal: goal{speed: 2}},
	{op: "get-into", size: mib, batch: 1, own: true},
	{op: "get-into", size: 16 * mib, batch: 1, own: true},
}

// ourOp is the operation of "mooncake bench kv".
func (p point) ourOp() string {
	if p.op == "put-from" {
		return "put"
	}
	return p.op
}

// objects that are read in turn: enough that they do not stay in the processor's cache. What was read is not used again
// before its lease ends, so they must not be many.
func (p point) objects() int {
	if p.size > mib {
		return 8
	}
	return max(16, 2*p.batch)
}

// sample is one run at one point.
type sample struct {
	gbps     float64 // 10^9 bytes per second
	p50, p99 float64 // microseconds of a call
	copied   float64 // GB/s of a plain copy, measured beside
	foreign  float64 // processors used by other programs meanwhile
}

// plan is what the flags say.
type plan struct {
	mooncake, python, upstream string
	transport                  string // of ours
	points                     []point
	duration                   time.Duration
	reps                       int
	maxForeign                 float64
	out                        string
}

func parse(args []string, stderr io.Writer) (*plan, error) {
	f := flag.NewFlagSet("benchkv", flag.ContinueOnError)
	f.SetOutput(stderr)
	p := &plan{}
	f.StringVar(&p.mooncake, "mooncake", "bin/mooncake", "our binary")
	f.StringVar(&p.python, "wheel-python", os.Getenv("MOONCAKE_WHEEL_PYTHON"), "Python interpreter that has the wheel (default: $MOONCAKE_WHEEL_PYTHON, or what make setup installed)")
	f.StringVar(&p.transport, "transport", "tcp", "how our processes reach each other: tcp, or shm before tcp (the wheel has tcp only)")
	only := f.String("only", "", "measure only points whose name has this in it: \"get\", \"1 MiB\", \"x 100\", \"own memory\"")
	f.DurationVar(&p.duration, "seconds", time.Second, "length of each run")
	f.IntVar(&p.reps, "reps", 3, "repetitions")
	f.Float64Var(&p.maxForeign, "max-foreign", 0, "repeat a run, up to 5 times, while other programs use more processors than this; 0 = never (0.15 for figures to publish)")
	f.StringVar(&p.out, "o", "", "file for the table (default: stdout)")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if p.reps < 1 || p.duration < 100*time.Millisecond {
		return nil, errors.New("-reps needs at least 1 and -seconds at least 100ms")
	}
	if p.transport != "tcp" && p.transport != "shm" {
		return nil, fmt.Errorf("-transport: %q is neither tcp nor shm", p.transport)
	}
	for _, pt := range points {
		if p.transport == "shm" && !pt.own {
			pt.goal = goal{}
			if pt.size >= mib {
				pt.goal.speed = 5
			}
		}
		if strings.Contains(pt.String(), *only) {
			p.points = append(p.points, pt)
		}
	}
	if len(p.points) == 0 {
		return nil, fmt.Errorf("-only %q fits no point", *only)
	}
	var err error
	if p.python == "" {
		if p.python, err = sidebyside.FindWheel("wheel-0.3.13.*", "bin", "python"); err != nil {
			return nil, err
		}
	}
	root := filepath.Dir(filepath.Dir(p.python))
	found, err := filepath.Glob(filepath.Join(root, "lib", "python3*", "site-packages", "mooncake", "mooncake_master"))
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("%s has no mooncake_master: is the wheel installed there?", root)
	}
	p.upstream = found[0]
	return p, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	p, err := parse(args, stderr)
	if err != nil {
		return err
	}
	var stores [sidebyside.Sides]*store
	for side := range stores {
		s, err := p.startStore(ctx, side)
		if err != nil {
			return fmt.Errorf("%s: %w", sideNames[side], err)
		}
		defer s.stop()
		stores[side] = s
	}
	t := newTable(p)
	total, done := p.reps*len(p.points), 0
	start, end := "", "\n" // progress: one line that changes on a terminal, else many
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		start, end = "\r\x1b[K", ""
	}
	for rep := range p.reps {
		for i, pt := range p.points {
			done++
			fmt.Fprintf(stderr, "%s%d/%d  %s%s", start, done, total, pt, end)
			for _, side := range sidebyside.Order(rep + i) {
				s, err := sidebyside.Quiet(p.maxForeign, func(s sample) float64 { return s.foreign },
					func() (sample, error) { return stores[side].measure(ctx, pt) })
				if err != nil {
					return fmt.Errorf("%s, %s: %w", pt, sideNames[side], err)
				}
				t.add(i, side, s)
			}
		}
	}
	fmt.Fprint(stderr, start)
	if p.out != "" {
		return os.WriteFile(p.out, []byte(t.markdown()), 0o644)
	}
	_, err = io.WriteString(stdout, t.markdown())
	return err
}

func sizeName(n uint64) string {
	if n >= mib {
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return fmt.Sprintf("%d KiB", n/kib)
}
