// Command benchstore measures our Store master and the one of the Mooncake wheel side by side and prints
// Markdown tables for docs/PERFORMANCE.md: operations per second, latency, the master's processor time for
// an operation, memory for a key, and puts into a full store.
//
//	go run ./scripts/benchstore [flags]
//
// Every point is measured by "mooncake bench store" against both masters, one right after the other and in changing
// order, in several repetitions. A ratio is the median of the ratios of the repetitions, so that a machine that gets
// slower meanwhile favours nobody. With -loadgen DIR a second, independent load generator (a Go program that prints
// JSON) measures the same points.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "benchstore:", err)
		os.Exit(1)
	}
}

// point is one row of the table of operations.
type point struct {
	op          string
	connections int
}

// sample is one run at one point.
type sample struct {
	ops      float64 // per second
	p50, p99 float64 // microseconds
	cpu      float64 // microseconds of the master for an operation
	errors   uint64
	foreign  float64 // processors used by other programs meanwhile
}

// plan is what the flags say.
type plan struct {
	mooncake, upstream string
	loadgen            string // directory of the second generator's source; built into loadgenBin
	loadgenBin         string
	points             []point
	keys, memoryKeys   uint64
	growthKeys         []uint64
	growthClients      []uint64
	fullValue          uint64
	duration           time.Duration
	reps               int
	maxForeign         float64
	out                string
	masterFlags        []string
}

func parse(args []string, stderr io.Writer) (*plan, error) {
	f := flag.NewFlagSet("benchstore", flag.ContinueOnError)
	f.SetOutput(stderr)
	p := &plan{}
	f.StringVar(&p.mooncake, "mooncake", "bin/mooncake", "our binary")
	f.StringVar(&p.upstream, "upstream", "", "upstream's mooncake_master (default: that of the newest wheel that make setup installed)")
	f.StringVar(&p.loadgen, "loadgen", os.Getenv("MOONCAKE_LOADGEN"), "directory of a second load generator's source (default: $MOONCAKE_LOADGEN; empty = none)")
	ops := f.String("ops", "exist,get,putstart-end,mixed,batchexist,batchget", "operations")
	connections := f.String("connections", "1,8,64", "connections; batch operations are measured up to 8")
	f.Uint64Var(&p.keys, "keys", 100_000, "keys in the store")
	f.Uint64Var(&p.memoryKeys, "memory-keys", 500_000, "keys of the memory measurement; 0 = none")
	growthKeys := f.String("growth-keys", "", "numbers of keys, separated by commas, with which our master is measured alone")
	growthClients := f.String("growth-clients", "", "numbers of clients, separated by commas, with which our master is measured alone")
	f.Uint64Var(&p.fullValue, "full-value", 4096, "size of the objects that fill a store; 0 = do not measure a full store")
	f.DurationVar(&p.duration, "seconds", 3*time.Second, "length of each run")
	f.IntVar(&p.reps, "reps", 3, "repetitions")
	f.Float64Var(&p.maxForeign, "max-foreign", 0, "repeat a run, up to 5 times, while other programs use more processors than this; 0 = never (0.15 for figures to publish)")
	f.StringVar(&p.out, "o", "", "file for the tables (default: stdout)")
	flags := f.String("master-flags", "", "more flags for our master, separated by spaces")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if p.reps < 1 || p.duration < time.Second {
		return nil, errors.New("-reps needs at least 1 and -seconds at least 1s")
	}
	p.masterFlags = strings.Fields(*flags)
	for op := range strings.SplitSeq(*ops, ",") {
		op = strings.TrimSpace(op)
		for c := range strings.SplitSeq(*connections, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(c))
			if err != nil || n < 1 {
				return nil, fmt.Errorf("-connections: %q is not a number of connections", c)
			}
			if strings.HasPrefix(op, "batch") && n > 8 {
				continue
			}
			p.points = append(p.points, point{op, n})
		}
	}
	var err error
	if p.growthKeys, err = numbers(*growthKeys); err != nil {
		return nil, fmt.Errorf("-growth-keys: %w", err)
	}
	if p.growthClients, err = numbers(*growthClients); err != nil {
		return nil, fmt.Errorf("-growth-clients: %w", err)
	}
	if p.upstream != "" {
		return p, nil
	}
	p.upstream, err = sidebyside.FindWheel("wheel-0.3.13.*", "lib", "python3*", "site-packages", "mooncake", "mooncake_master")
	return p, err
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	p, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if p.loadgen != "" {
		remove, err := p.buildLoadgen(ctx)
		if err != nil {
			return err
		}
		defer remove()
	}
	t := newTable(p)
	if err := p.operations(ctx, t, stderr); err != nil {
		return err
	}
	if p.fullValue > 0 {
		if err := p.fullStore(ctx, t, stderr); err != nil {
			return err
		}
	}
	if p.memoryKeys > 0 {
		if err := p.memory(ctx, t, stderr); err != nil {
			return err
		}
	}
	if err := p.growth(ctx, t, stderr); err != nil {
		return err
	}
	if p.out != "" {
		return os.WriteFile(p.out, []byte(t.markdown()), 0o644)
	}
	_, err = io.WriteString(stdout, t.markdown())
	return err
}

// Sides of a comparison.
const (
	ours   = sidebyside.Ours
	theirs = sidebyside.Theirs
	sides  = sidebyside.Sides
)

var sideNames = [sides]string{"ours", "upstream"}

// both starts both masters; stop ends them.
func (p *plan) both(ctx context.Context) (ms [sides]*master, stop func(), err error) {
	stop = func() {
		for _, m := range ms {
			if m != nil {
				m.Stop()
			}
		}
	}
	for side := range ms {
		if ms[side], err = p.startMaster(ctx, side); err != nil {
			stop()
			return ms, nil, fmt.Errorf("%s: %w", sideNames[side], err)
		}
	}
	return ms, stop, nil
}

func (p *plan) operations(ctx context.Context, t *table, stderr io.Writer) error {
	ms, stop, err := p.both(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if p.loadgenBin != "" {
		for _, m := range ms {
			release, err := p.hold(ctx, m)
			if err != nil {
				return err
			}
			defer release()
		}
	}
	total, done := p.reps*len(p.points), 0
	for rep := range p.reps {
		for i, pt := range p.points {
			done++
			fmt.Fprintf(stderr, "%d/%d  %s, %d connections\n", done, total, pt.op, pt.connections)
			var first, second [sides]sample
			for _, side := range sidebyside.Order(rep + i) {
				m := ms[side]
				if first[side], err = p.quiet(func() (sample, error) { return p.bench(ctx, m, pt, p.keys, 0, 64) }); err != nil {
					return fmt.Errorf("%s, %d connections, %s: %w", pt.op, pt.connections, sideNames[side], err)
				}
				if p.loadgenBin == "" || loadgenOps[pt.op] == "" {
					continue
				}
				if second[side], err = p.quiet(func() (sample, error) { return p.secondBench(ctx, m, pt) }); err != nil {
					return fmt.Errorf("%s, %d connections, %s, second generator: %w", pt.op, pt.connections, sideNames[side], err)
				}
			}
			t.add(i, first, second)
		}
	}
	return nil
}

// fullStore compares puts into a store with room and into a full one, where every put needs an eviction.
func (p *plan) fullStore(ctx context.Context, t *table, stderr io.Writer) error {
	for rep := range p.reps {
		for _, side := range sidebyside.Order(rep) {
			m, err := p.startMaster(ctx, side)
			if err != nil {
				return err
			}
			var got [2]sample
			for i, segment := range []uint64{0, p.keys * p.fullValue} {
				fmt.Fprintf(stderr, "full store %d/%d, %s, %s\n", rep+1, p.reps, sideNames[side], []string{"with room", "full"}[i])
				pt := point{"putstart-end", 8}
				if got[i], err = p.quiet(func() (sample, error) { return p.bench(ctx, m, pt, p.keys, segment, p.fullValue) }); err != nil {
					m.Stop()
					return fmt.Errorf("full store, %s: %w", sideNames[side], err)
				}
			}
			m.Stop()
			t.full[side] = append(t.full[side], got)
		}
	}
	return nil
}

// memory fills fresh masters and looks at their size.
func (p *plan) memory(ctx context.Context, t *table, stderr io.Writer) error {
	for _, side := range sidebyside.Order(0) {
		fmt.Fprintf(stderr, "memory, %s\n", sideNames[side])
		m, err := p.startMaster(ctx, side)
		if err != nil {
			return err
		}
		t.memory[side], err = p.fill(ctx, m, p.memoryKeys)
		m.Stop()
		if err != nil {
			return fmt.Errorf("memory, %s: %w", sideNames[side], err)
		}
	}
	return nil
}

// quiet repeats a run while other programs disturb it, and returns the least disturbed one.
func (p *plan) quiet(run func() (sample, error)) (sample, error) {
	return sidebyside.Quiet(p.maxForeign, func(s sample) float64 { return s.foreign }, run)
}
