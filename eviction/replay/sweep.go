package replay

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Candidate is a policy to be compared: a factory and how it is asked.
type Candidate struct {
	Name      string // as it appears in results
	Factory   eviction.Factory
	HeadFirst bool
	Admission bool
}

// Row is the result of one policy at one size, the form of `mooncake replay --json`. Ratios are between 0 and 1.
type Row struct {
	Trace     string  `json:"trace"`
	Policy    string  `json:"policy"`
	Size      uint64  `json:"size"`     // blocks, or bytes in traces with sizes
	SizeArg   string  `json:"size_arg"` // as it was asked for
	BlockHit  float64 `json:"block_hit"`
	PrefixHit float64 `json:"prefix_hit"`
	TokenHit  float64 `json:"token_hit"`
	ByteHit   float64 `json:"byte_hit"`
	// Gap is how much of the prefix hits of MIN at this size the policy misses.
	Gap          float64 `json:"gap_to_min"`
	Evictions    uint64  `json:"evictions"`
	Regret       uint64  `json:"regret"`
	Refused      uint64  `json:"refused"`
	NoSpace      uint64  `json:"no_space"`
	RefusedAsked uint64  `json:"refused_then_asked"`
	Leased       uint64  `json:"leased_victims"`
	Strikes      uint64  `json:"strikes"`
	Helped       uint64  `json:"helped"`
	Faults       uint64  `json:"traps"`
	Alarms       uint64  `json:"guard_alarms"`
	Fault        string  `json:"fault,omitempty"`
	Requests     uint64  `json:"requests"`
	Accesses     uint64  `json:"accesses"`
	NsPerAccess  float64 `json:"ns_per_access"`
	BytesPerKey  float64 `json:"policy_bytes_per_key"`
	// What the row came from.
	Version    string            `json:"version,omitempty"`
	SHA256     string            `json:"trace_sha256,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
}

// The names of the two yardsticks in results.
const (
	MinName      = "min"
	InfiniteName = "infinite"
)

func makeRow(t *Trace, name string, c Capacity, r *Result, best float64) Row {
	return Row{
		Trace: t.Name, SHA256: t.SHA256, Policy: name, Size: c.Units, SizeArg: c.Arg,
		BlockHit: r.BlockHit(), PrefixHit: r.PrefixHit(), TokenHit: r.TokenHit(), ByteHit: r.ByteHit(), Gap: best - r.PrefixHit(),
		Evictions: r.Evictions, Regret: r.Regret, Refused: r.Refused, NoSpace: r.NoSpace, RefusedAsked: r.RefusedAsked,
		Leased: r.Leased, Strikes: r.Strikes, Helped: r.Helped, Faults: r.Faults, Alarms: r.Alarms, Fault: r.Fault,
		Requests: r.Requests, Accesses: r.Accesses, NsPerAccess: r.NanosPerAccess(), BytesPerKey: r.BytesPerKey(),
	}
}

// Sweep is a grid of runs.
type Sweep struct {
	Trace    *Trace
	Policies []Candidate
	Sizes    []Capacity
	Options  Options
	// Only leaves out the runs for which it is false; nil runs all.
	Only func(policy string, size Capacity) bool
	// Threads at a time, 0 is one a processor. Results do not depend on it, but for ns_per_access.
	Threads int
	// Done is told of each finished run, from any thread but never from two at a time; nil is allowed.
	Done func(finished, all int)
}

// run is one cell of the grid: a policy, or MIN behind the last one; or the infinite cache, without a size.
type run struct{ size, policy int }

func (s *Sweep) grid() []run {
	runs := []run{{-1, 0}}
	for size, c := range s.Sizes {
		for p := range s.Policies {
			if s.Only == nil || s.Only(s.Policies[p].Name, c) {
				runs = append(runs, run{size, p})
			}
		}
		runs = append(runs, run{size, len(s.Policies)})
	}
	return runs
}

// Runs is the number of runs: the policies and MIN at each size, and one infinite cache.
func (s *Sweep) Runs() int { return len(s.grid()) }

// Run runs the grid. The rows are in order of size, then of the policies, then MIN and the infinite cache. After ctx has ended no
// run is started.
func (s *Sweep) Run(ctx context.Context) ([]Row, error) {
	runs := s.grid()
	results, errs := make([]Result, len(runs)), make([]error, len(runs))
	work := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	finished := 0
	threads := s.Threads
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	for range min(threads, len(runs)) {
		wg.Go(func() {
			for i := range work {
				results[i], errs[i] = s.one(runs[i])
				mu.Lock()
				if finished++; s.Done != nil {
					s.Done(finished, len(runs))
				}
				mu.Unlock()
			}
		})
	}
	for i := 0; i < len(runs) && ctx.Err() == nil; i++ {
		select {
		case work <- i:
		case <-ctx.Done():
		}
	}
	close(work)
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return s.rows(runs, results), nil
}

func (s *Sweep) one(r run) (Result, error) {
	if r.size < 0 {
		return Infinite(s.Trace, s.Options), nil
	}
	c := s.Sizes[r.size]
	if r.policy == len(s.Policies) {
		return Min(s.Trace, c.Units, s.Options), nil
	}
	p, o := &s.Policies[r.policy], s.Options
	o.HeadFirst, o.Admission = o.HeadFirst || p.HeadFirst, o.Admission || p.Admission
	res, err := Run(s.Trace, p.Factory, c.Units, o)
	if err != nil {
		err = fmt.Errorf("%s at %s: %w", p.Name, c.Arg, err)
	}
	return res, err
}

func (s *Sweep) rows(runs []run, results []Result) []Row {
	best := make([]float64, len(s.Sizes))
	for i, r := range runs {
		if r.size >= 0 && r.policy == len(s.Policies) {
			best[r.size] = results[i].PrefixHit()
		}
	}
	var rows []Row
	for i, r := range runs {
		if r.size < 0 {
			continue
		}
		c := s.Sizes[r.size]
		if r.policy < len(s.Policies) {
			rows = append(rows, makeRow(s.Trace, s.Policies[r.policy].Name, c, &results[i], best[r.size]))
			continue
		}
		rows = append(rows,
			makeRow(s.Trace, MinName, c, &results[i], best[r.size]),
			makeRow(s.Trace, InfiniteName, c, &results[0], best[r.size]))
	}
	return rows
}

// Find returns the row of a policy at a size, which may be given as it was asked for or in the trace's units.
func Find(rows []Row, policy, size string) (*Row, error) {
	var policies, sizes []string
	add := func(list []string, s string) []string {
		for _, have := range list {
			if have == s {
				return list
			}
		}
		return append(list, s)
	}
	for i := range rows {
		r := &rows[i]
		if r.Policy == policy && (r.SizeArg == size || fmt.Sprint(r.Size) == size) {
			return r, nil
		}
		policies, sizes = add(policies, r.Policy), add(sizes, r.SizeArg)
	}
	return nil, fmt.Errorf("no result of policy %q at size %q; there are: %s; sizes %s", policy, size, strings.Join(policies, ", "), strings.Join(sizes, ", "))
}
