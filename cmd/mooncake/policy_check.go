package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/plugins/wasm"
)

func newPolicyCheckCommand() *cobra.Command {
	o := policyCheck{config: wasm.DefaultConfig(), accesses: 300_000}
	var params map[string]string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check FILE.wasm",
		Short: "Try a policy before a master gets it: is it allowed, does it keep the contract, how fast is it",
		Long: `Load an eviction policy as a master does, metered and sandboxed, and try it:

  module    its exports and imports, its size, its SHA-256, how long it takes to compile
  start     whether it starts for 100,000 objects, and for 1,000,000
  contract  the conformance suite that the built-in policies pass too
  guest     faults, victims that do not exist or must not go, how often the host had to help
  fuel      instructions an event and a question, against the budget
  speed     nanoseconds an event in batches of 256, block accesses a second in a replay
  memory    bytes an object
  hits      hit rate beside lru, on generated traffic or on a trace of your own

Nothing runs but on this machine, and no master is asked. The exit code is 0 if a master may have it, with remarks or
without, and 1 if not.`,
		Example: `  mooncake policy check mypolicy.wasm
  mooncake policy check mypolicy.wasm --param small=0.2 --trace conversation_trace.jsonl --blocks 5000 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config.Module = args[0]
			o.config.Params = map[string]any{}
			for k, v := range params {
				o.config.Params[k] = paramValue(v)
			}
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
	f.StringToStringVar(&params, "param", nil, "a parameter for the policy, NAME=VALUE; may be repeated")
	f.Uint64Var(&o.config.FuelPerEvent, "fuel-per-event", o.config.FuelPerEvent, "instructions an event that a call may execute, as fuel_per_event")
	f.StringVar(&o.trace, "trace", "", "a trace to replay, in any form that mooncake replay reads; default: generated traffic")
	f.Uint64Var(&o.blocks, "blocks", 0, "blocks that fit while the trace is replayed; default: a quarter of those in it")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// paramValue is a number or a boolean if it looks like one.
func paramValue(s string) any {
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		return v
	}
	if v, err := strconv.ParseBool(s); err == nil {
		return v
	}
	return s
}

// Verdicts.
const (
	verdictGood    = "good"
	verdictRemarks = "usable"
	verdictNo      = "not usable"
)

// Levels of a finding.
const (
	levelOK   = "ok"
	levelNote = "note"
	levelFail = "FAIL"
)

type policyFinding struct {
	Level string `json:"level"` // ok, note or FAIL
	About string `json:"about"`
	Text  string `json:"text"`
}

// policyReport is what a check found out. Figures of a step that was not reached are 0.
type policyReport struct {
	File     string          `json:"file"`
	Verdict  string          `json:"verdict"` // good, usable or not usable
	Why      string          `json:"why"`
	Findings []policyFinding `json:"findings"`
	Module   *wasm.Info      `json:"module,omitempty"`
	Contract int             `json:"contract_checks"`
	Broken   int             `json:"contract_checks_failed"`

	FuelPerEvent    float64 `json:"fuel_per_event"`
	FuelPerQuestion float64 `json:"fuel_per_question"` // of 64 victims
	NanosPerEvent   float64 `json:"ns_per_event"`      // in batches of 256
	AccessesPerSec  float64 `json:"replay_accesses_per_second"`
	BytesPerObject  float64 `json:"bytes_per_object"`
	PrefixHit       float64 `json:"prefix_hit"`
	PrefixHitLRU    float64 `json:"prefix_hit_lru"`
}

func (r *policyReport) add(level, about, format string, args ...any) {
	r.Findings = append(r.Findings, policyFinding{level, about, fmt.Sprintf(format, args...)})
}

// conclude sums the findings up.
func (r *policyReport) conclude() {
	var fails, notes []string
	for _, f := range r.Findings {
		switch f.Level {
		case levelFail:
			fails = append(fails, f.About)
		case levelNote:
			notes = append(notes, f.About)
		}
	}
	switch {
	case len(fails) > 0:
		r.Verdict, r.Why = verdictNo, "see "+strings.Join(fails, ", ")+" above: a master would refuse it, or serve from its own LRU most of the time"
	case len(notes) > 0:
		r.Verdict, r.Why = verdictRemarks, "it may go to a master; read what is said about "+strings.Join(notes, ", ")
	default:
		r.Verdict, r.Why = verdictGood, "it keeps the contract and its budgets"
	}
}

func (r *policyReport) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.File)
	writeFindings(&b, r.Findings)
	fmt.Fprintf(&b, "%s: %s.\n", r.Verdict, r.Why)
	_, err := io.WriteString(w, b.String())
	return err
}

// run checks the module. An error is about the check itself, not about the module.
func (o *policyCheck) run(ctx context.Context) (*policyReport, error) {
	r := &policyReport{File: o.config.Module}
	defer r.conclude()
	if o.config.Validate() != nil {
		return nil, o.config.Validate()
	}
	t, err := o.openTrace()
	if err != nil {
		return nil, err
	}
	f, err := wasm.Open(ctx, o.config, slog.New(slog.DiscardHandler))
	if err != nil {
		if notAModule(err) {
			r.add(levelFail, "module", "%s", strings.TrimPrefix(err.Error(), "wasm: "+o.config.Module+": "))
			return r, nil
		}
		return nil, err
	}
	defer f.Close()
	o.module(r, f.Info())
	if !o.start(r, f) {
		return r, nil
	}
	g := newGuestAudit(f)
	o.contract(r, g)
	o.measure(r, g)
	err = o.replay(r, g, t)
	o.guest(r, g.sum())
	return r, err
}

func (o *policyCheck) module(r *policyReport, i wasm.Info) {
	r.Module = &i
	mode := "events and victims"
	if i.Score {
		mode = "score mode"
	}
	imports, wasi := []string{}, 0
	for _, name := range i.Imports {
		if strings.HasPrefix(name, "wasi_") {
			wasi++
		} else {
			imports = append(imports, name)
		}
	}
	if wasi > 0 {
		imports = append(imports, fmt.Sprintf("%d functions of WASI, which do nothing here", wasi))
	}
	if len(imports) == 0 {
		imports = append(imports, "nothing")
	}
	var can []string
	for name, has := range map[string]bool{"admission": i.Admit, "saved state": i.State, "stats": i.Stats} {
		if has {
			can = append(can, name)
		}
	}
	if len(can) > 0 {
		mode += " with " + strings.Join(sortedStrings(can), ", ")
	}
	how := "from the cache"
	if i.Compiled {
		how = "compiled"
	}
	r.add(levelOK, "module", "%s: %d bytes, SHA-256 %s\n%s; exports %s; imports %s\n%s of memory at the start; loaded in %d ms (%s)", filepath.Base(r.File), i.Bytes, i.SHA256,
		mode, strings.Join(i.Exports, ", "), strings.Join(imports, ", "), units.Size(uint64(i.MemoryMin)<<16), i.Load.Milliseconds(), how)
}
