package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/internal/conform"
	"github.com/mooncake-agent/mooncake/plugins/external"
)

func newPluginCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Write and try a plugin of your own: a transport, metadata backend or policy in another process",
	}
	cmd.AddCommand(newPluginNewCommand(), newPluginCheckCommand())
	return cmd
}

func newPluginCheckCommand() *cobra.Command {
	o := pluginCheck{config: external.DefaultConfig()}
	var settings, memory, only string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [flags] PROGRAM [ARGUMENT...]",
		Short: "Try a plugin before a node gets it: does it start, does it keep the contract, does it end",
		Long: `Start a plugin as a node does, with its environment cleared and its limits set, and try it:

  program   its files with their digests, how long it takes to start, what it says it is
  config    whether it takes the settings of --config
  contract  the conformance suite of its kind, which the built-in parts pass too
  restart   whether it comes back after SIGKILL, and goes on
  speed     what one call costs
  end       whether it ends by itself when it is asked to

Nothing runs but on this machine. A metadata backend is tried with several processes on the same settings, as several
nodes would have it: they must see each other's keys; it may be left with keys that begin with mooncake/suite/.
The exit code is 0 if a node may have it, with remarks or without, and 1 if not. Flags come before the program.`,
		Example: `  mooncake plugin check ./mymover
  mooncake plugin check --config '{"path": "/tmp/meta.db"}' .venv/bin/python sqlite_metadata.py`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config.Command = args
			if err := json.Unmarshal([]byte(settings), &o.config.Config); err != nil {
				return fmt.Errorf("--config: want a JSON object: %w", err)
			}
			if err := o.config.MemoryLimit.UnmarshalText([]byte(memory)); err != nil {
				return fmt.Errorf("--memory-limit: %w", err)
			}
			var err error
			if o.only, err = regexp.Compile(only); err != nil {
				return fmt.Errorf("--run: %w", err)
			}
			o.progress = cmd.ErrOrStderr()
			r, err := o.run(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), r)
			} else {
				err = r.print(cmd.OutOrStdout())
			}
			if err == nil && r.Verdict == verdictNo {
				err = &exitError{1}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&settings, "config", "{}", "settings for the plugin, a JSON object: the section's key config")
	f.StringArrayVar(&o.config.Env, "env", nil, "NAME=value, or NAME to pass on this one's; may be repeated: the section's key env")
	f.DurationVar(&o.config.StartTimeout, "start-timeout", o.config.StartTimeout, "how long a process may take to be ready")
	f.StringVar(&memory, "memory-limit", o.config.MemoryLimit.String(), "private memory of a process; 0 is no limit")
	f.StringVar(&only, "run", "", "only the checks of the contract whose name this regular expression matches")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// pluginReport is what a check found out. Figures of a step that was not reached are 0.
type pluginReport struct {
	Command  []string          `json:"command"`
	Kind     string            `json:"kind"`
	Name     string            `json:"name"`
	Version  string            `json:"version"`
	Features []string          `json:"features"`
	Verdict  string            `json:"verdict"` // good, usable or not usable
	Why      string            `json:"why"`
	Findings []policyFinding   `json:"findings"`
	SHA256   map[string]string `json:"sha256"`
	Contract []conform.Outcome `json:"contract"`

	partly bool     // not all checks were run
	env    []string // of the section
	config map[string]any

	StartMillis   float64 `json:"start_ms"`
	CallMicros    float64 `json:"call_us"` // of the plainest call, in the middle
	RestartMillis float64 `json:"restart_ms"`
	EndMillis     float64 `json:"end_ms"`
	GBPerSecond   float64 `json:"gb_per_s,omitempty"`     // transports: 1 MiB at a time
	NanosPerEvent float64 `json:"ns_per_event,omitempty"` // policies
}

func (r *pluginReport) add(level, about, format string, args ...any) {
	r.Findings = append(r.Findings, policyFinding{level, about, fmt.Sprintf(format, args...)})
}

// outcomes counts the contract's checks; those that are only worth a remark are in notes, by name.
func (r *pluginReport) outcomes(notes map[string]string) {
	failed, skipped := 0, 0
	for _, c := range r.Contract {
		switch {
		case c.Skipped != "":
			skipped++
		case len(c.Failures) == 0:
		case notes[c.Name] != "":
			r.add(levelNote, "contract", "%s: %s", c.Name, notes[c.Name])
		default:
			failed++
			r.add(levelFail, "contract", "%s:\n%s", c.Name, strings.Join(c.Failures, "\n"))
		}
	}
	switch n := len(r.Contract); {
	case r.partly:
		r.add(levelNote, "contract", "only %d checks were run", n)
	case failed > 0:
		r.add(levelNote, "contract", "%d of %d checks failed", failed, n)
	case skipped > 0:
		r.add(levelOK, "contract", "all %d checks of %s, but %d that do not apply", n-skipped, kindInWords[r.Kind], skipped)
	default:
		r.add(levelOK, "contract", "all %d checks of %s", n, kindInWords[r.Kind])
	}
}

var kindInWords = map[string]string{"transport": "a transport", "metadata": "a metadata backend", "eviction": "an eviction policy"}

// conclude sums the findings up.
func (r *pluginReport) conclude() {
	var fails, notes []string
	for _, f := range r.Findings {
		into := &notes
		switch f.Level {
		case levelOK:
			continue
		case levelFail:
			into = &fails
		}
		if n := len(*into); n == 0 || (*into)[n-1] != f.About {
			*into = append(*into, f.About)
		}
	}
	switch {
	case len(fails) > 0:
		r.Verdict, r.Why = verdictNo, "see "+strings.Join(fails, ", ")+" above"
	case len(notes) > 0:
		r.Verdict, r.Why = verdictRemarks, "a node may have it; read what is said about "+strings.Join(notes, ", ")
	default:
		r.Verdict, r.Why = verdictGood, "it keeps the contract and ends when it is asked to"
	}
}

func (r *pluginReport) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", strings.Join(r.Command, " "))
	writeFindings(&b, r.Findings)
	fmt.Fprintf(&b, "%s: %s.\n", r.Verdict, r.Why)
	if r.Verdict != verdictNo {
		section, err := r.section()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "In the node's configuration:\n%s\n", section)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeFindings lists findings, further lines of one under its first.
func writeFindings(b *strings.Builder, all []policyFinding) {
	for _, f := range all {
		for i, line := range strings.Split(f.Text, "\n") {
			if i == 0 {
				fmt.Fprintf(b, "  %-5s %-9s %s\n", f.Level, f.About, line)
			} else {
				fmt.Fprintf(b, "  %-5s %-9s   %s\n", "", "", line)
			}
		}
	}
}

// errStopped ends a check whose caller has gone.
var errStopped = errors.New("the check was stopped")

// say tells somebody who waits what is being done.
func (o *pluginCheck) say(format string, args ...any) {
	fmt.Fprintf(o.progress, "plugin check: "+format+"\n", args...)
}

// checkLimit bounds one check of a suite, some of which start dozens of processes.
const checkLimit = 10 * time.Minute

// contract runs checks one after the other, those that are wanted, until ctx ends.
func (o *pluginCheck) contract(ctx context.Context, r *pluginReport, names []string, run func(i int) conform.Outcome) error {
	for i, name := range names {
		if ctx.Err() != nil {
			return errStopped
		}
		if !o.only.MatchString(name) {
			r.partly = true
			continue
		}
		o.say("contract %d of %d: %s", i+1, len(names), name)
		r.Contract = append(r.Contract, run(i))
	}
	return nil
}
