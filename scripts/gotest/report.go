package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// event is one line of "go test -json" (see "go doc test2json").
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build failure
	Test       string
	Elapsed    float64
	Output     string
}

type test struct {
	name    string // package and test
	seconds float64
	reason  string
}

// report collects events of one or more runs.
type report struct {
	w       io.Writer
	started time.Time
	output  map[string][]string // of running tests, by package and test
	passed  int
	failed  []string
	skipped []test
	slow    []test
}

func newReport(w io.Writer) *report {
	return &report{w: w, started: time.Now(), output: map[string][]string{}}
}

func (r *report) failures() int { return len(r.failed) }

func (r *report) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(r.w, "%s\n", line) // not from test2json: pass it on
		return
	}
	id := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		// Package lines ("ok ...", "FAIL ...", "panic: ...") at once; a test's output when it fails.
		if e.Test != "" {
			r.output[id] = append(r.output[id], e.Output)
		} else if e.Output != "PASS\n" {
			fmt.Fprint(r.w, e.Output)
		}
	case "build-output":
		fmt.Fprint(r.w, e.Output)
	case "build-fail":
		r.failed = append(r.failed, e.ImportPath+" (build)")
	case "pass", "fail", "skip":
		r.end(id, e)
	}
}

func (r *report) end(id string, e event) {
	out := r.output[id]
	delete(r.output, id)
	if e.Test == "" {
		if e.Action == "fail" && !slices.ContainsFunc(r.failed, func(f string) bool { return strings.HasPrefix(f, e.Package) }) {
			r.failed = append(r.failed, e.Package)
		}
		r.unfinished(e)
		return
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed = append(r.failed, id)
		fmt.Fprint(r.w, strings.Join(out, ""))
	case "skip":
		r.skipped = append(r.skipped, test{name: id, reason: reason(out)})
	}
	if !strings.Contains(e.Test, "/") {
		r.slow = append(r.slow, test{name: id, seconds: e.Elapsed})
	}
}

// unfinished shows tests that were running when their package died (a panic, a timeout).
func (r *report) unfinished(e event) {
	for id, out := range r.output {
		if strings.HasPrefix(id, e.Package+" ") {
			if e.Action == "fail" {
				r.failed = append(r.failed, id+" (did not finish)")
				fmt.Fprint(r.w, strings.Join(out, ""))
			}
			delete(r.output, id)
		}
	}
}

// reason is what the test printed besides go test's own lines.
func reason(out []string) string {
	var parts []string
	for _, l := range out {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "=== ") || strings.HasPrefix(l, "--- ") {
			continue
		}
		parts = append(parts, l)
	}
	return strings.Join(parts, " ")
}

const slowest = 10

func (r *report) summary() {
	slices.SortStableFunc(r.slow, func(a, b test) int {
		switch {
		case a.seconds > b.seconds:
			return -1
		case a.seconds < b.seconds:
			return 1
		}
		return 0
	})
	if n := min(slowest, len(r.slow)); n > 0 {
		fmt.Fprintln(r.w, "\nslowest:")
		for _, s := range r.slow[:n] {
			fmt.Fprintf(r.w, "  %7.2fs  %s\n", s.seconds, s.name)
		}
	}
	if len(r.skipped) > 0 {
		fmt.Fprintln(r.w, "\nskipped:")
		for _, s := range r.skipped {
			fmt.Fprintf(r.w, "  %s: %s\n", s.name, s.reason)
		}
	}
	if len(r.failed) > 0 {
		fmt.Fprintln(r.w, "\nfailed:")
		for _, f := range r.failed {
			fmt.Fprintf(r.w, "  %s\n", f)
		}
	}
	fmt.Fprintf(r.w, "\n%d passed, %d failed, %d skipped in %.0fs\n",
		r.passed, len(r.failed), len(r.skipped), time.Since(r.started).Seconds())
}
