package doctor

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Level is the outcome of a check.
type Level string

const (
	// Pass: nothing to do.
	Pass Level = "pass"
	// Warn: the node will run, but slower or less safely than it could.
	Warn Level = "warn"
	// Fail: the node, or something the configuration asks of it, will not work.
	Fail Level = "fail"
)

func (l Level) rank() int {
	switch l {
	case Fail:
		return 2
	case Warn:
		return 1
	}
	return 0
}

// Result is what a check found. The zero Result means that the check does not apply here and is left out of the report.
type Result struct {
	Level Level
	// Seen is what was found, for people. Advice is what to do about it, "" when nothing is to be done.
	Seen, Advice string
}

// Check is one point of the list.
type Check struct {
	Name string
	// About is what the check looks at, in one short line.
	About string
	// Timeout overrides the one of Run for checks that measure; 0 = that one.
	Timeout time.Duration
	// Alone: nothing else may run beside it, because it measures.
	Alone bool
	// Run must end soon after ctx does and must not panic, whatever the host shows.
	Run func(ctx context.Context, h *Host) Result
}

// Line is the outcome of one check in a report, in the form of "--json".
type Line struct {
	Name   string `json:"name"`
	Result Level  `json:"result"`
	Seen   string `json:"seen"`
	Advice string `json:"advice"`
}

// Report is the outcome of all checks, in their order.
type Report struct {
	Checks []Line `json:"checks"`
}

// Worst is the worst outcome, Pass for an empty report.
func (r *Report) Worst() Level {
	worst := Pass
	for _, l := range r.Checks {
		if l.Result.rank() > worst.rank() {
			worst = l.Result
		}
	}
	return worst
}

// Count is how many checks ended with l.
func (r *Report) Count(l Level) int {
	n := 0
	for _, c := range r.Checks {
		if c.Result == l {
			n++
		}
	}
	return n
}

// Run runs the checks, each bounded by timeout, those that measure one after the other at the end, and returns when all
// have ended. Checks that do not apply are left out.
func Run(ctx context.Context, h *Host, checks []Check, timeout time.Duration) *Report {
	results := make([]Result, len(checks))
	one := func(i int) {
		t := timeout
		if checks[i].Timeout > 0 {
			t = checks[i].Timeout
		}
		ctx, cancel := context.WithTimeout(ctx, t)
		defer cancel()
		results[i] = checks[i].Run(ctx, h)
	}
	var wg sync.WaitGroup
	for i := range checks {
		if !checks[i].Alone {
			wg.Go(func() { one(i) })
		}
	}
	wg.Wait()
	for i := range checks {
		if checks[i].Alone {
			one(i)
		}
	}
	report := &Report{Checks: []Line{}}
	for i, r := range results {
		if r.Level != "" {
			report.Checks = append(report.Checks, Line{Name: checks[i].Name, Result: r.Level, Seen: printable(r.Seen), Advice: printable(r.Advice)})
		}
	}
	return report
}

// printable keeps bytes of odd kernels and peers from the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if r < ' ' || r == 0x7f || r == '�' || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// findings collects what one check sees; the worst decides.
type findings struct {
	level        Level
	seen, advice []string
}

func (f *findings) note(l Level, seen, advice string) {
	if f.level == "" || l.rank() > f.level.rank() {
		f.level = l
	}
	if seen != "" {
		f.seen = append(f.seen, seen)
	}
	if advice != "" {
		f.advice = append(f.advice, advice)
	}
}

// pass notes something in order.
func (f *findings) pass(format string, args ...any) { f.note(Pass, fmt.Sprintf(format, args...), "") }

// warn and fail note what was seen and what to do.
func (f *findings) warn(seen, advice string) { f.note(Warn, seen, advice) }
func (f *findings) fail(seen, advice string) { f.note(Fail, seen, advice) }

func (f *findings) result() Result {
	return Result{Level: f.level, Seen: strings.Join(f.seen, "; "), Advice: joinOnce(f.advice)}
}

// joinOnce joins sentences, each once.
func joinOnce(s []string) string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, x := range s {
		if seen[x] {
			continue
		}
		seen[x] = true
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(x)
	}
	return b.String()
}
