package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

func TestParse(t *testing.T) {
	root := t.TempDir()
	master := filepath.Join(root, "lib", "python3.11", "site-packages", "mooncake", "mooncake_master")
	if err := os.MkdirAll(filepath.Dir(master), 0o755); err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(root, "bin", "python")
	if _, err := parse([]string{"-wheel-python", python}, io.Discard); err == nil || !strings.Contains(err.Error(), "mooncake_master") {
		t.Errorf("without a wheel: %v", err)
	}
	if err := os.WriteFile(master, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := parse([]string{"-wheel-python", python, "-only", "x 100", "-reps", "5"}, io.Discard)
	if err != nil || p.upstream != master || p.reps != 5 || len(p.points) != 4 || p.points[0].batch != 100 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range [][]string{{"-reps", "0"}, {"-seconds", "1ms"}, {"-only", "nothing like that"}, {"-nope"}} {
		if _, err := parse(append(bad, "-wheel-python", python), io.Discard); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

func TestResult(t *testing.T) {
	s, err := parseResult(`{"op":"get","bytes_per_second":1500000000,"latency_us":{"p50":12.5,"p99":40,"p999":50}}`)
	if err != nil || s != (sample{gbps: 1.5, p50: 12.5, p99: 40}) {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []string{"", "{}", `{"bytes_per_second":0}`} {
		if s, err := parseResult(bad); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

func TestMarkdown(t *testing.T) {
	p := &plan{points: []point{{op: "get", size: mib, batch: 1, goal: goal{speed: 2}}, {op: "get-into", size: 64 * kib, batch: 100, own: true}}, reps: 2}
	tab := newTable(p)
	for i, speed := range []float64{1, 2} { // the machine gets faster; the ratios stay
		tab.add(0, sidebyside.Ours, sample{gbps: 3 * speed, p50: 100, p99: 200, foreign: 0.25 * float64(i)})
		tab.add(0, sidebyside.Theirs, sample{gbps: speed, p50: 400, p99: 800})
		tab.add(1, sidebyside.Ours, sample{gbps: 8 * speed, copied: 10 * speed})
		tab.add(1, sidebyside.Theirs, sample{gbps: 4 * speed, copied: 8 * speed})
	}
	got := tab.markdown()
	for _, want := range []string{
		"| get, 1 MiB | 4.50 [3.00, 6.00] | 1.50 [1.00, 2.00] | 3.00 | ≥ 2.0 | 100 / 400 | 0.25 |  | 200 / 800 |\n",
		"| get-into, 64 KiB x 100, own memory | 12.00 | 15.00 | 0.80 | 0.50 |\n",
		"Other programs used 0.00 cores in the median, 0.25 at most",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	p.points = p.points[:1]
	if got := newTable(p).markdown(); strings.Contains(got, "plain copy") {
		t.Errorf("a table of copies without copies:\n%s", got)
	}
}
