package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mooncake-agent/mooncake/core/doctor"
)

func newDoctorCommand() *cobra.Command {
	var flags configFlags
	var asJSON bool
	o := doctorOptions{timeout: 10 * time.Second, duration: 2 * time.Second}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, and what the configuration needs, before a node runs here",
		Long: `Look at this machine and at everything the configuration asks for, and say of each point whether it is
fine, what was seen and what to do. Nothing is changed and no node is started; it works without RDMA devices.

Results are pass, warn (a node runs, but slower or less safely) and fail (something that is configured will not work).
Exit code: 0 when no check fails, warnings included; 1 when a check fails, or the doctor cannot run.

Run it as the user and within the limits (service, container) of the node: ulimits, cgroups and what /sys shows differ.
As root it also sees the PCI settings of adapters. With a running node on this machine its ports are of course taken.

--baseline PEER reads memory of a running engine over each configured transport, and compares bandwidth and latency
with what the link should give. It loads peer and network for some seconds; nothing of the peer's memory is changed.`,
		Example: `  mooncake doctor --config /etc/mooncake.json
  mooncake doctor --config /etc/mooncake.json --json | jq '.checks[] | select(.result != "pass")'
  mooncake doctor --peer 10.0.0.12:15428 --only peers
  mooncake doctor --config /etc/mooncake.json --baseline 10.0.0.12:15428 --expect tcp=1GB`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			h := doctor.Machine()
			var err error
			if h.Setup, err = doctorSetup(&flags, &o); err != nil {
				return err
			}
			checks, err := doctor.Only(doctor.Checks(&h.Setup), o.only)
			if err != nil {
				return fmt.Errorf("--only: %w", err)
			}
			report := doctor.Run(cmd.Context(), h, checks, o.timeout)
			if err := cmd.Context().Err(); err != nil {
				return fmt.Errorf("stopped: %w", err)
			}
			if err := writeReport(cmd.OutOrStdout(), report, asJSON); err != nil {
				return err
			}
			if report.Worst() == doctor.Fail {
				return &exitError{1}
			}
			return nil
		},
	}
	flags.add(cmd)
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, `print JSON: {"checks":[{"name","result","seen","advice"}]}`)
	f.StringSliceVar(&o.only, "only", nil, "run these checks alone: gid,mtu; baseline stands for all of its kind")
	f.DurationVar(&o.timeout, "timeout", o.timeout, "longest time of one check; measurements have their own")
	f.StringSliceVar(&o.peers, "peer", nil, "also ask this engine, host or host:port of its handshake daemon (may be repeated)")
	f.StringVar(&o.baseline, "baseline", "", "measure against this running engine: its segment name")
	f.DurationVar(&o.duration, "duration", o.duration, "with --baseline: time of one measurement; there are two for each transport")
	f.StringSliceVar(&o.transports, "transport", nil, "with --baseline: measure these transports (default: those of the configuration)")
	f.StringSliceVar(&o.expect, "expect", nil, "with --baseline: bytes per second that a transport should give, as tcp=1GB (default: by the speed of the link)")
	return cmd
}

// doctorOptions are the flags of the command besides those of the configuration.
type doctorOptions struct {
	only, peers, transports, expect []string
	baseline                        string
	timeout, duration               time.Duration
}

// check names the flag of each bad value.
func (o *doctorOptions) check() error {
	switch {
	case o.timeout <= 0:
		return fmt.Errorf("--timeout %v is not a time to wait for", o.timeout)
	case o.duration <= 0:
		return fmt.Errorf("--duration %v is not a time to measure for", o.duration)
	case o.baseline == "" && (len(o.transports) > 0 || len(o.expect) > 0):
		return fmt.Errorf("--transport and --expect need --baseline PEER")
	}
	return nil
}

// writeReport writes a report as JSON, or as a table with a summary.
func writeReport(w io.Writer, r *doctor.Report, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	t := newTable(w)
	t.AppendHeader(table.Row{"Check", "Result", "Seen", "What to do"})
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			wrapReport(t, width)
		}
	}
	for _, c := range r.Checks {
		t.AppendRow(table.Row{c.Name, strings.ToUpper(string(c.Result)), c.Seen, c.Advice})
	}
	t.Render()
	_, err := fmt.Fprintf(w, "\n%d checks: %d pass, %d warn, %d fail\n", len(r.Checks), r.Count(doctor.Pass), r.Count(doctor.Warn), r.Count(doctor.Fail))
	return err
}

// wrapReport fits the two long columns into a terminal.
func wrapReport(t table.Writer, width int) {
	const names, least = 30, 30 // the first two columns, and what a text needs
	each := max((width-names)/2, least)
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 3, WidthMax: each, WidthMaxEnforcer: text.WrapSoft},
		{Number: 4, WidthMax: each, WidthMaxEnforcer: text.WrapSoft},
	})
}
