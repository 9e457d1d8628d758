package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/eviction/replay"
	"github.com/mooncake-agent/mooncake/eviction/trace"
)

func newAnalyzeCommand() *cobra.Command {
	var f traceFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "analyze FILE",
		Short: "Describe a trace: footprint, working sets, gaps between uses, what LRU needs",
		Long: `Describes a trace without any policy: how large it is, how often and how soon blocks come back, how much is in use
within windows of several lengths, and how large an LRU must be for which part of the hits that an infinite cache has.`,
		Example: `  mooncake replay analyze traffic.rec.zst
  mooncake replay analyze conversation_trace.jsonl --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.files = append(f.files, args...)
			t, err := f.open(cmd)
			if err != nil {
				return err
			}
			a := replay.Analyze(t)
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(a)
			}
			writeAnalysis(cmd.OutOrStdout(), &a)
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

func writeAnalysis(w io.Writer, a *replay.Analysis) {
	amount := func(n float64) string {
		if a.Sized {
			return shortBytes(n)
		}
		return fmt.Sprintf("%.0f blocks", n)
	}
	span := func(seconds float64) string {
		return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
	}
	tw := newTable(w)
	row := func(name string, value any) { tw.AppendRow(table.Row{name, value}) }
	row("Trace", a.Trace)
	row("Requests", fmt.Sprintf("%d in %s", a.Requests, span(a.Duration)))
	row("Block accesses", fmt.Sprintf("%d (%.1f a request)", a.Accesses, a.Chain.Mean))
	row("Different blocks", fmt.Sprintf("%d, %.1f %% of them used once", a.Unique, 100*a.OnceOnly))
	row("Footprint", amount(float64(a.Footprint)))
	if a.InputTokens > 0 {
		row("Input tokens", fmt.Sprintf("%d (%d a block)", a.InputTokens, a.BlockTokens))
	}
	for _, t := range a.PerTenant {
		row(fmt.Sprintf("Tenant %d", t.Tenant), fmt.Sprintf("%d requests, %.1f %% of the accesses", t.Requests, 100*float64(t.Accesses)/float64(a.Accesses)))
	}
	if a.Stored+a.Removed > 0 {
		row("Puts without a get, removals", fmt.Sprintf("%d, %d", a.Stored, a.Removed))
	}
	row("Infinite cache", fmt.Sprintf("%.2f %% prefix hit", 100*a.Infinite))
	tw.Render()

	fmt.Fprintln(w)
	tw = newTable(w)
	tw.AppendHeader(table.Row{"", "Mean", "10 %", "Median", "90 %", "99 %", "Largest"})
	quantiles := func(name string, q replay.Quantiles, show func(float64) string) {
		tw.AppendRow(table.Row{name, show(q.Mean), show(q.P10), show(q.P50), show(q.P90), show(q.P99), show(q.Max)})
	}
	number := func(x float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", x), ".0") }
	quantiles("Blocks of a request", a.Chain, number)
	quantiles("Uses of a block", a.Reuse, number)
	quantiles("Between two uses of a block", a.Gap, span)
	tw.Render()

	if len(a.WorkingSets) > 0 {
		fmt.Fprintln(w)
		tw = newTable(w)
		tw.AppendHeader(table.Row{"Working set within", "Mean", "Largest"})
		for _, s := range a.WorkingSets {
			tw.AppendRow(table.Row{span(s.Window), amount(s.Mean), amount(float64(s.Max))})
		}
		tw.Render()
	}
	if len(a.Needs) > 0 {
		fmt.Fprintln(w)
		tw = newTable(w)
		tw.AppendHeader(table.Row{"LRU of", "has of the infinite cache's hits"})
		for _, n := range a.Needs {
			tw.AppendRow(table.Row{amount(float64(n.Size)), fmt.Sprintf("%.0f %%", 100*n.Share)})
		}
		tw.Render()
	}
}

func newConvertCommand() *cobra.Command {
	var f traceFlags
	var to string
	cmd := &cobra.Command{
		Use:   "convert IN OUT",
		Short: "Convert a trace to another form",
		Long: `Converts a trace. The form of OUT is told by --to, or by the end of its name: .jsonl (Mooncake), .csv,
.oracleGeneral, .trace (compact), .rec (recording), each with .gz or .zst behind it if it is to be compressed. What the
form cannot hold is left out, and said on stderr. An existing file is not overwritten.`,
		Example: `  mooncake replay convert traffic.rec.zst traffic.jsonl
  mooncake replay convert conversation_trace.jsonl conversation.oracleGeneral.zst
  mooncake replay convert t.csv t.trace --columns time=1,key=2,request=3`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			form := replay.FormatOf(args[1])
			if to != "" {
				var err error
				if form, err = replay.ParseFormat(to); err != nil {
					return err
				}
			}
			if form == "" {
				return fmt.Errorf("replay convert: %s: the name does not tell the form: use --to", args[1])
			}
			f.files = append(f.files, args[0])
			t, err := f.open(cmd)
			if err != nil {
				return err
			}
			for _, lost := range replay.Loses(t, form) {
				fmt.Fprintf(cmd.ErrOrStderr(), "mooncake: note: %s cannot hold %s\n", form, lost)
			}
			return trace.WriteNew(args[1], func(w io.Writer) error { return replay.Write(w, t, form) })
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&to, "to", "", "form of OUT: mooncake, bailian, oracleGeneral, csv, compact, recording")
	return cmd
}
