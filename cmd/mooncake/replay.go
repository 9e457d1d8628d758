package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/eviction/replay"
)

// replayFlags are those of mooncake replay itself; see traceFlags for those of its subcommands too.
type replayFlags struct {
	trace      traceFlags
	policies   []string
	sizes      string
	blockBytes units.Size
	json, csv  bool
	svg        string
	asserts    []string
	compare    string
	maxLoss    float64
	warmUp     string
	order      string
	upstream   bool
	threads    int
	o          replay.Options
}

func newReplayCommand() *cobra.Command {
	f := replayFlags{order: "tail"}
	cmd := &cobra.Command{
		Use:   "replay --trace FILE",
		Short: "Replay recorded traffic through eviction policies and compare what they hit",
		Long: `Replays a trace through each policy at each size, by the same interface and events as the Store, and prints
what they would have hit; MIN (Belady's optimum, which knows the future) and an infinite cache are always shown.

Prefix hit is the share of requested blocks that lead their request without a gap: prefill that is saved.

Traces: Mooncake JSONL, Bailian JSONL, libCacheSim's oracleGeneral, CSV (--columns), recordings of
"mooncake master --record", the compact form; each may be compressed with gzip or zstd. --trace again and again
names the parts of one recording.

Policies: NAME, or NAME:key=value,key=value with the policy's settings ("mooncake plugins ls" has the names), or
FILE.wasm. Every policy takes order=tail (as the Store: the deepest block of a request is the oldest) or order=head.
adaptive:known=4,lru are two policies.

Sizes: blocks (5000), bytes (64GB, 4096B), a share of the trace's footprint (0.05 or 5%), or auto, a ladder of shares.

Assertions: METRIC(POLICY,SIZE) >= NUMBER, or another METRIC(POLICY,SIZE) with a number added; also <=, >, <, and
== NUMBER +- NUMBER. Metrics: prefix, block, token, byte, gap, evictions, regret, refused, no_space, traps, strikes,
helped, alarms, ns, bytes. @FILE has one a line. What they need is run even if --policy and --size do not name it, and
nothing else without these. The exit code is 1 if one fails; the results go to stdout, what failed to stderr.`,
		Example: `  mooncake replay --trace traffic.rec.zst
  mooncake replay --trace conversation_trace.jsonl --policy lru,arc,adaptive --size 1000,5000 --json
  mooncake replay --trace t.jsonl --policy lru --size auto --svg curve.svg
  mooncake replay --trace t.jsonl --assert 'prefix(lru,5000) >= 0.111'
  mooncake replay --trace t.csv --columns time=ts,key=id,size=bytes,unit=s --size 10GB
  mooncake replay --compare before.json after.json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.compare != "" {
				return f.runCompare(cmd, args)
			}
			f.trace.files = append(f.trace.files, args...)
			return f.run(cmd)
		},
	}
	f.trace.add(cmd)
	fl := cmd.Flags()
	fl.StringSliceVar(&f.policies, "policy", nil, "policies, see above (default: lru,adaptive, or those of the assertions)")
	fl.StringVar(&f.sizes, "size", "", "sizes, see above (default: auto, or those of the assertions)")
	fl.TextVar(&f.blockBytes, "block-bytes", f.blockBytes, "bytes of one block, for sizes in bytes when the trace has none")
	fl.BoolVar(&f.json, "json", false, "print a JSON list of results")
	fl.BoolVar(&f.csv, "csv", false, "print the results as CSV")
	fl.StringVar(&f.svg, "svg", "", "also draw the prefix hit over the size into this file")
	fl.StringArrayVar(&f.asserts, "assert", nil, "claim that must hold, or @FILE with one a line; see above")
	fl.StringVar(&f.compare, "compare", "", "compare two result files: --compare A.json B.json")
	fl.Float64Var(&f.maxLoss, "max-loss", -1, "with --compare: exit code 1 if a prefix hit falls by more points than this; negative: never")
	fl.StringVar(&f.warmUp, "warm-up", "0", "requests at the start that are not counted: a number or a share (10%)")
	fl.Uint64Var(&f.o.Seed, "seed", 1, "what policies that throw dice begin with")
	fl.IntVar(&f.threads, "threads", 0, "runs at a time; results do not depend on it (default: one a processor)")
	fl.StringVar(&f.order, "order", f.order, "order within a request for policies that do not say: tail or head first")
	fl.BoolVar(&f.o.GetPut, "get-put", false, "tell a request as two calls, get and put, as clients of a Store make them")
	fl.BoolVar(&f.o.Admission, "admission", false, "let policies refuse blocks")
	fl.BoolVar(&f.o.Guard, "guard", false, "replace a policy by LRU when it is worse for ten minutes, as the Store does")
	fl.DurationVar(&f.o.Regret, "regret", replay.DefaultRegret, "how soon an evicted block must be asked for again to count as regretted")
	fl.DurationVar(&f.o.Lease, "lease", 0, "protect a block that was read for so long")
	fl.DurationVar(&f.o.PrefillBase, "prefill-base", 0, "time until the absent blocks of a request are stored")
	fl.DurationVar(&f.o.PrefillToken, "prefill-token", 0, "the same for each token that was not found, on top")
	fl.Float64Var(&f.o.Watermark, "watermark", 0, "evict only when more than this share is in use (0: exactly when needed)")
	fl.Float64Var(&f.o.EvictRatio, "evict-ratio", 0.05, "with --watermark: share of the objects that go at once")
	fl.BoolVar(&f.upstream, "upstream", false, "imitate upstream's master: --watermark 0.9 --evict-ratio 0.05 --lease 5s")
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(policyNames(), cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(newAnalyzeCommand(), newConvertCommand())
	return cmd
}

// traceFlags say what is replayed.
type traceFlags struct {
	files       []string
	format      string
	columns     string
	blockTokens uint32
	sort        bool
	tenant      string
}

func (f *traceFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringArrayVar(&f.files, "trace", nil, "the trace; again and again for the parts of one recording")
	fl.StringVar(&f.format, "format", "", "form of the trace, if it cannot be told: mooncake, bailian, oracleGeneral, csv, compact, recording")
	fl.StringVar(&f.columns, "columns", "", "columns of a CSV file by name or number: time=1,key=2 and size, request, parent, tenant, op, input, output; settings unit=ns|us|ms|s, sep=CHARACTER, header")
	fl.Uint32Var(&f.blockTokens, "block-tokens", 0, "tokens in a full block (default: that of the format)")
	fl.BoolVar(&f.sort, "sort", false, "put requests in order of time first")
	fl.StringVar(&f.tenant, "tenant", "", "only the requests of this tenant, by its number in the trace (default: all tenants share the cache)")
}

func (f *traceFlags) open(cmd *cobra.Command) (*replay.Trace, error) {
	if len(f.files) == 0 {
		return nil, fmt.Errorf("%s: name a trace: --trace FILE", cmd.CommandPath())
	}
	o := replay.ReadOptions{BlockTokens: f.blockTokens, Sort: f.sort}
	var err error
	if f.format != "" {
		if o.Format, err = replay.ParseFormat(f.format); err != nil {
			return nil, err
		}
	}
	if f.columns != "" {
		if o.CSV, err = replay.ParseCSVSpec(f.columns); err != nil {
			return nil, err
		}
		if o.Format == "" {
			o.Format = replay.CSV
		}
	}
	t, err := replay.OpenFiles(f.files, o)
	if err != nil {
		return nil, err
	}
	if f.tenant != "" {
		n, err := strconv.ParseUint(f.tenant, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("replay: --tenant %q: want a tenant's number in the trace (replay analyze lists them)", f.tenant)
		}
		if t, err = t.Tenant(uint32(n)); err != nil {
			return nil, err
		}
	}
	for _, w := range t.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "mooncake: warning:", w)
	}
	return t, nil
}

func (f *replayFlags) run(cmd *cobra.Command) error {
	if f.json && f.csv {
		return errors.New("replay: --json or --csv, not both")
	}
	claims, err := f.assertions()
	if err != nil {
		return err
	}
	candidates, err := f.candidates(cmd.Context(), claims)
	if err != nil {
		return err
	}
	if err := f.model(cmd); err != nil {
		return err
	}
	t, err := f.trace.open(cmd)
	if err != nil {
		return err
	}
	s := replay.Sweep{Trace: t, Policies: candidates, Options: f.o, Threads: f.threads}
	if s.Options.WarmUp, err = warmUp(f.warmUp, len(t.Requests)); err != nil {
		return err
	}
	if s.Sizes, err = replay.ParseCapacities(f.sizeList(claims), t, uint64(f.blockBytes)); err != nil {
		return err
	}
	if len(f.policies) == 0 && f.sizes == "" && len(claims) > 0 {
		s.Only = func(policy string, size replay.Capacity) bool { return isClaimed(claims, policy, size.Arg) }
	}
	var finish func()
	s.Done, finish = progress(cmd.ErrOrStderr(), s.Runs())
	rows, err := s.Run(cmd.Context())
	finish()
	if err != nil {
		return err
	}
	f.describe(cmd, rows)
	if err := f.write(cmd, t, rows); err != nil {
		return err
	}
	return judgeClaims(cmd.ErrOrStderr(), claims, rows)
}

// model completes the options of the simulation.
func (f *replayFlags) model(cmd *cobra.Command) error {
	switch f.order {
	case "tail", "head":
		f.o.HeadFirst = f.order == "head"
	default:
		return fmt.Errorf("replay: --order %q: want tail or head", f.order)
	}
	if f.upstream {
		for name, set := range map[string]func(){
			"watermark":   func() { f.o.Watermark = 0.9 },
			"evict-ratio": func() { f.o.EvictRatio = 0.05 },
			"lease":       func() { f.o.Lease = 5 * time.Second },
		} {
			if !cmd.Flags().Changed(name) {
				set()
			}
		}
	}
	for name, v := range map[string]float64{"watermark": f.o.Watermark, "evict-ratio": f.o.EvictRatio} {
		if !(v >= 0 && v <= 1) {
			return fmt.Errorf("replay: --%s %v: want a share between 0 and 1", name, v)
		}
	}
	return nil
}

func warmUp(text string, requests int) (int, error) {
	n, err := strconv.Atoi(text)
	if p, percent := strings.CutSuffix(text, "%"); percent {
		var share float64
		share, err = strconv.ParseFloat(p, 64)
		n = int(share / 100 * float64(requests))
	}
	if err != nil || n < 0 || n >= requests {
		return 0, fmt.Errorf("replay: --warm-up %q: want a number of requests below %d, or a share such as 10%%", text, requests)
	}
	return n, nil
}

// progress shows the runs that are done, on a terminal only.
func progress(w io.Writer, runs int) (done func(int, int), finish func()) {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions(runs,
		progressbar.OptionSetWriter(file), progressbar.OptionSetWidth(24), progressbar.OptionShowCount(),
		progressbar.OptionSetDescription("replay"), progressbar.OptionClearOnFinish(), progressbar.OptionSetRenderBlankState(true))
	return func(n, _ int) { _ = bar.Set(n) }, func() { _ = bar.Clear() }
}

// describe notes in each row what it came from, and tells of policies that failed.
func (f *replayFlags) describe(cmd *cobra.Command, rows []replay.Row) {
	parameters := map[string]string{"warm_up": f.warmUp, "seed": strconv.FormatUint(f.o.Seed, 10), "order": f.order, "regret": f.o.Regret.String()}
	for name, on := range map[string]bool{"get_put": f.o.GetPut, "admission": f.o.Admission, "guard": f.o.Guard} {
		if on {
			parameters[name] = "true"
		}
	}
	for name, d := range map[string]time.Duration{"lease": f.o.Lease, "prefill_base": f.o.PrefillBase, "prefill_token": f.o.PrefillToken} {
		if d > 0 {
			parameters[name] = d.String()
		}
	}
	if f.trace.tenant != "" {
		parameters["tenant"] = f.trace.tenant
	}
	if f.o.Watermark > 0 {
		parameters["watermark"] = strconv.FormatFloat(f.o.Watermark, 'g', -1, 64)
		parameters["evict_ratio"] = strconv.FormatFloat(f.o.EvictRatio, 'g', -1, 64)
	}
	version := telemetry.BuildVersion().String()
	for i := range rows {
		r := &rows[i]
		r.Version, r.Parameters = version, parameters
		if r.Fault != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "mooncake: warning: %s at %s failed %d times, the first %s\n", r.Policy, r.SizeArg, r.Faults, r.Fault)
		}
		if r.Alarms > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "mooncake: warning: %s at %s was worse than lru and was replaced by it\n", r.Policy, r.SizeArg)
		}
	}
}

// assertions reads --assert.
func (f *replayFlags) assertions() ([]replay.Assertion, error) {
	var out []replay.Assertion
	for _, text := range f.asserts {
		path, isFile := strings.CutPrefix(text, "@")
		if !isFile {
			a, err := replay.ParseAssertion(text)
			if err != nil {
				return nil, err
			}
			out = append(out, a)
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for i, line := range strings.Split(string(b), "\n") {
			line, _, _ = strings.Cut(line, "#")
			if strings.TrimSpace(line) == "" {
				continue
			}
			a, err := replay.ParseAssertion(line)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
			}
			out = append(out, a)
		}
	}
	return out, nil
}

// sizeList is --size and what the assertions need.
func (f *replayFlags) sizeList(claims []replay.Assertion) string {
	var list []string
	if f.sizes != "" {
		list = strings.Split(f.sizes, ",")
	}
	for i := range claims {
		_, sizes := claims[i].Runs()
		for _, s := range sizes {
			if !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
	}
	if len(list) == 0 {
		return "auto"
	}
	return strings.Join(list, ",")
}

func isClaimed(claims []replay.Assertion, policy, size string) bool {
	for i := range claims {
		policies, sizes := claims[i].Runs()
		for k := range policies {
			if policies[k] == policy && sizes[k] == size {
				return true
			}
		}
	}
	return false
}

// judgeClaims tells which claims do not hold.
func judgeClaims(w io.Writer, claims []replay.Assertion, rows []replay.Row) error {
	failed := 0
	for i := range claims {
		ok, seen, err := claims[i].Check(rows)
		if err != nil {
			return err
		}
		if !ok {
			failed++
			fmt.Fprintln(w, "mooncake: assertion failed:", seen)
		}
	}
	switch {
	case failed > 0:
		fmt.Fprintf(w, "mooncake: %d of %d assertions failed\n", failed, len(claims))
		return &exitError{1}
	case len(claims) > 0:
		fmt.Fprintf(w, "%d assertions hold\n", len(claims))
	}
	return nil
}

func (f *replayFlags) write(cmd *cobra.Command, t *replay.Trace, rows []replay.Row) error {
	if f.svg != "" {
		if err := writeFile(f.svg, func(w io.Writer) error { return replay.WriteSVG(w, rows) }); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	switch {
	case f.json:
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(rows)
	case f.csv:
		return writeRowsCSV(out, rows)
	}
	writeRows(out, t, rows)
	return nil
}

// writeFile makes a file, which is removed if it cannot be completed.
func writeFile(path string, write func(io.Writer) error) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	err = errors.Join(write(out), out.Close())
	if err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// candidates builds the policies of --policy and those that only the assertions name.
func (f *replayFlags) candidates(ctx context.Context, claims []replay.Assertion) ([]replay.Candidate, error) {
	names := joinSettings(f.policies)
	for i := range claims {
		policies, _ := claims[i].Runs()
		names = append(names, policies...)
	}
	if len(names) == 0 {
		names = []string{"lru", "adaptive"}
	}
	var out []replay.Candidate
	for _, name := range names {
		known := name == replay.MinName || name == replay.InfiniteName
		if known || slices.ContainsFunc(out, func(c replay.Candidate) bool { return c.Name == name }) {
			continue
		}
		c, err := candidate(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("--policy %s: %w", name, err)
		}
		out = append(out, c)
	}
	return out, nil
}
