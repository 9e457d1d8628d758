package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/eviction/replay"
)

// rowColumn is one column of the table; those of trouble are shown only if a row has some.
type rowColumn struct {
	name    string
	value   func(*replay.Row) string
	trouble func(*replay.Row) uint64
}

func countColumn(name string, n func(*replay.Row) uint64) rowColumn {
	return rowColumn{name, func(r *replay.Row) string { return strconv.FormatUint(n(r), 10) }, n}
}

func points(x float64) string { return strconv.FormatFloat(100*x, 'f', 2, 64) }

// writeRows writes the table for people.
func writeRows(w io.Writer, t *replay.Trace, rows []replay.Row) {
	fmt.Fprintf(w, "%s: %d requests, %d block accesses, %d different blocks", filepath.Base(t.Name), len(t.Requests), t.Accesses(), t.Unique())
	if t.Sized() {
		fmt.Fprintf(w, " of together %s", shortBytes(float64(t.Footprint())))
	}
	fmt.Fprint(w, "\n\n")
	columns := []rowColumn{
		{name: "Size", value: func(r *replay.Row) string { return sizeText(t, r) }},
		{name: "Policy", value: func(r *replay.Row) string { return r.Policy }},
		{name: "Prefix %", value: func(r *replay.Row) string { return points(r.PrefixHit) }},
		{name: "Block %", value: func(r *replay.Row) string { return points(r.BlockHit) }},
		{name: "Token %", value: func(r *replay.Row) string { return points(r.TokenHit) }, trouble: func(r *replay.Row) uint64 { return uint64(1e6 * r.TokenHit) }},
		{name: "Gap to MIN", value: func(r *replay.Row) string { return points(r.Gap) }},
		countColumn("Evictions", func(r *replay.Row) uint64 { return r.Evictions }),
		countColumn("Regret", func(r *replay.Row) uint64 { return r.Regret }),
		countColumn("Refused", func(r *replay.Row) uint64 { return r.Refused }),
		countColumn("Refused, asked", func(r *replay.Row) uint64 { return r.RefusedAsked }),
		countColumn("No space", func(r *replay.Row) uint64 { return r.NoSpace }),
		countColumn("Leased", func(r *replay.Row) uint64 { return r.Leased }),
		countColumn("Strikes", func(r *replay.Row) uint64 { return r.Strikes }),
		countColumn("Helped", func(r *replay.Row) uint64 { return r.Helped }),
		countColumn("Traps", func(r *replay.Row) uint64 { return r.Faults }),
		countColumn("Alarms", func(r *replay.Row) uint64 { return r.Alarms }),
		{name: "ns/access", value: func(r *replay.Row) string { return fmt.Sprintf("%.0f", r.NsPerAccess) }},
		{name: "Bytes/key", value: func(r *replay.Row) string { return fmt.Sprintf("%.0f", r.BytesPerKey) }, trouble: func(r *replay.Row) uint64 { return uint64(r.BytesPerKey) }},
	}
	if t.Sized() {
		columns = slices.Insert(columns, 5, rowColumn{name: "Byte %", value: func(r *replay.Row) string { return points(r.ByteHit) }})
	}
	columns = slices.DeleteFunc(columns, func(c rowColumn) bool {
		return c.trouble != nil && !slices.ContainsFunc(rows, func(r replay.Row) bool { return c.trouble(&r) > 0 })
	})
	tw := newTable(w)
	head := table.Row{}
	var right []table.ColumnConfig
	for i, c := range columns {
		head = append(head, c.name)
		if c.name != "Policy" {
			right = append(right, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	tw.AppendHeader(head)
	tw.SetColumnConfigs(right)
	for i := range rows {
		row := table.Row{}
		for _, c := range columns {
			row = append(row, c.value(&rows[i]))
		}
		tw.AppendRow(row)
	}
	tw.Render()
}

func sizeText(t *replay.Trace, r *replay.Row) string {
	n := strconv.FormatUint(r.Size, 10)
	if n == r.SizeArg {
		return n
	}
	if t.Sized() {
		n = shortBytes(float64(r.Size))
	}
	return fmt.Sprintf("%s = %s", r.SizeArg, n)
}

// shortBytes writes bytes with three or four digits, in the units of the configuration (powers of 1024).
func shortBytes(n float64) string {
	unit := 0
	for n >= 1024 && unit < 4 {
		n /= 1024
		unit++
	}
	digits := 1
	if unit == 0 || n >= 100 {
		digits = 0
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + []string{" B", " KB", " MB", " GB", " TB"}[unit]
}

// writeRowsCSV writes the fields of the JSON form as columns.
func writeRowsCSV(w io.Writer, rows []replay.Row) error {
	fields := []string{"trace", "policy", "size", "size_arg", "block_hit", "prefix_hit", "token_hit", "byte_hit", "gap_to_min", "evictions", "regret", "refused", "no_space", "refused_then_asked", "leased_victims", "strikes", "helped", "traps", "guard_alarms", "requests", "accesses", "ns_per_access", "policy_bytes_per_key", "version", "trace_sha256", "parameters"}
	out := csv.NewWriter(w)
	if err := out.Write(fields); err != nil {
		return err
	}
	for i := range rows {
		b, err := json.Marshal(&rows[i])
		if err != nil {
			return err
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal(b, &m); err != nil {
			return err
		}
		var record []string
		for _, f := range fields {
			value := string(m[f])
			var s string
			if json.Unmarshal(m[f], &s) == nil {
				value = s
			}
			if f == "parameters" {
				var p []string
				for _, k := range slices.Sorted(maps.Keys(rows[i].Parameters)) {
					p = append(p, k+"="+rows[i].Parameters[k])
				}
				value = strings.Join(p, " ")
			}
			record = append(record, value)
		}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// runCompare is mooncake replay --compare A B.
func (f *replayFlags) runCompare(cmd *cobra.Command, args []string) error {
	files := append(strings.Split(f.compare, ","), args...)
	if len(files) != 2 {
		return fmt.Errorf("replay: --compare needs two result files, got %s", strings.Join(files, " "))
	}
	a, err := replay.ReadRows(files[0])
	if err != nil {
		return err
	}
	b, err := replay.ReadRows(files[1])
	if err != nil {
		return err
	}
	if len(a) > 0 && len(b) > 0 {
		if a[0].SHA256 != b[0].SHA256 {
			fmt.Fprintln(cmd.ErrOrStderr(), "mooncake: warning: the results come from different traces:", a[0].Trace, "and", b[0].Trace)
		}
		if !maps.Equal(a[0].Parameters, b[0].Parameters) {
			fmt.Fprintln(cmd.ErrOrStderr(), "mooncake: warning: the parameters differ:", a[0].Parameters, "and", b[0].Parameters)
		}
	}
	diffs := replay.Compare(a, b)
	if f.json {
		type difference struct {
			Policy string   `json:"policy"`
			Size   string   `json:"size"`
			A      *float64 `json:"prefix_hit_a"`
			B      *float64 `json:"prefix_hit_b"`
			Prefix float64  `json:"prefix_difference"`
		}
		out := []difference{}
		for i := range diffs {
			d := &diffs[i]
			x := difference{Policy: d.Policy, Size: d.Size, Prefix: d.Prefix()}
			if d.A != nil {
				x.A = &d.A.PrefixHit
			}
			if d.B != nil {
				x.B = &d.B.PrefixHit
			}
			out = append(out, x)
		}
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		if err := enc.Encode(out); err != nil {
			return err
		}
	} else {
		writeDifferences(cmd.OutOrStdout(), diffs)
	}
	return f.judgeLoss(cmd, diffs)
}

func writeDifferences(w io.Writer, diffs []replay.Difference) {
	tw := newTable(w)
	tw.AppendHeader(table.Row{"Size", "Policy", "Prefix % A", "B", "Difference", "Block % A", "B", "Evictions A", "B"})
	for i := range diffs {
		d := &diffs[i]
		show := func(r *replay.Row, value func(*replay.Row) string) string {
			if r == nil {
				return "-"
			}
			return value(r)
		}
		prefix := func(r *replay.Row) string { return points(r.PrefixHit) }
		block := func(r *replay.Row) string { return points(r.BlockHit) }
		evictions := func(r *replay.Row) string { return strconv.FormatUint(r.Evictions, 10) }
		diff := "-"
		if d.A != nil && d.B != nil {
			diff = fmt.Sprintf("%+.2f", 100*d.Prefix())
		}
		tw.AppendRow(table.Row{
			d.Size, d.Policy, show(d.A, prefix), show(d.B, prefix), diff, show(d.A, block), show(d.B, block), show(d.A, evictions), show(d.B, evictions),
		})
	}
	var right []table.ColumnConfig
	for i := range 9 {
		if i != 1 {
			right = append(right, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	tw.SetColumnConfigs(right)
	tw.Render()
}

func (f *replayFlags) judgeLoss(cmd *cobra.Command, diffs []replay.Difference) error {
	if f.maxLoss < 0 {
		return nil
	}
	lost := false
	for i := range diffs {
		if d := &diffs[i]; -100*d.Prefix() > f.maxLoss {
			lost = true
			fmt.Fprintf(cmd.ErrOrStderr(), "mooncake: %s at %s lost %.2f points of prefix hit\n", d.Policy, d.Size, -100*d.Prefix())
		}
	}
	if lost {
		return &exitError{1}
	}
	return nil
}
