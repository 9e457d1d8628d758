package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	p, err := parse([]string{"-upstream", "/x/mooncake_master", "-ops", "exist, batchget", "-connections", "1,64", "-seconds", "2s", "-reps", "5",
		"-master-flags", "--a=1 --b", "-growth-keys", "5, 500"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := []point{{"exist", 1}, {"exist", 64}, {"batchget", 1}} // batches of 64 connections are not measured
	if len(p.points) != len(want) || p.duration != 2*time.Second || p.reps != 5 || len(p.masterFlags) != 2 {
		t.Fatalf("%+v", p)
	}
	if !slices.Equal(p.growthKeys, []uint64{5, 500}) || len(p.growthClients) != 0 {
		t.Errorf("growth: %v keys, %v clients", p.growthKeys, p.growthClients)
	}
	for i := range want {
		if p.points[i] != want[i] {
			t.Errorf("point %d: %v, want %v", i, p.points[i], want[i])
		}
	}
	for _, bad := range [][]string{{"-reps", "0"}, {"-seconds", "10ms"}, {"-connections", "1,x"}, {"-connections", "0"}, {"-nope"}, {"-growth-keys", "x"}, {"-growth-clients", "0"}} {
		if _, err := parse(append(bad, "-upstream", "x"), io.Discard); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

func TestResults(t *testing.T) {
	s, err := parseResult(`{"op":"get","connections":8,"keys":5,"seconds":1,"ops_per_second":1000.5,"latency_us":{"p50":1.5,"p99":20,"p999":30},"errors":2,"master_cpu_us_per_op":4.25,"master_rss_bytes":5}`)
	if want := (sample{ops: 1000.5, p50: 1.5, p99: 20, cpu: 4.25, errors: 2}); err != nil || s != want {
		t.Errorf("%+v, %v, want %+v", s, err, want)
	}
	s, err = parseLoadgen(`{"op":"put","ops_per_s":2000,"errors":0,"p50_us":1,"p99_us":2,"pair_p50_us":3,"pair_p99_us":4,"master_cpu_pct":50}`)
	if want := (sample{ops: 2000, p50: 3, p99: 4, cpu: 250}); err != nil || s != want {
		t.Errorf("%+v, %v, want %+v", s, err, want)
	}
	for _, bad := range []string{"", "{}", "x", `{"ops_per_s":1,"errors":1}`} {
		if s, err := parseLoadgen(bad); err == nil {
			t.Errorf("second generator: %q: %+v", bad, s)
		}
		if s, err := parseResult(bad); err == nil {
			t.Errorf("ours: %q: %+v", bad, s)
		}
	}
	if got := parsePause("# HELP go_gc_duration_seconds x\ngo_gc_duration_seconds{quantile=\"0.5\"} 0.1\ngo_gc_duration_seconds{quantile=\"1\"} 0.00125\n"); got != "1.25 ms" {
		t.Errorf("pause %q", got)
	}
	if got := parsePause("nothing"); got != "" {
		t.Errorf("pause %q", got)
	}
}

func TestMarkdown(t *testing.T) {
	p := &plan{points: []point{{"exist", 8}, {"get", 8}}, reps: 3, keys: 10, memoryKeys: 1000, fullValue: 4096}
	tab := newTable(p)
	for i := range 3 {
		speed := float64(i + 1) // the machine gets faster; the ratios stay
		o, u := sample{ops: 3000 * speed, p50: 1, p99: 10, cpu: 2}, sample{ops: 2000 * speed, p50: 2, p99: 20, cpu: 8}
		tab.add(0, [sides]sample{o, u}, [sides]sample{u, o})
		tab.add(1, [sides]sample{o, u}, [sides]sample{})
	}
	tab.full[ours] = [][2]sample{{{ops: 1000, p99: 5}, {ops: 900, p99: 10}}}
	tab.full[theirs] = [][2]sample{{{ops: 1000, p99: 5}, {ops: 500, p99: 50, errors: 7}}}
	tab.memory = [sides]footprint{{empty: 1e6, filled: 2e6, peak: 3e6, keysPerSecond: 5, pause: "1.00 ms"}, {empty: 1e6, filled: 4e6, peak: 4e6}}
	o := []sample{{ops: 1000, cpu: 2}, {ops: 2000, cpu: 3}, {ops: 3000, cpu: 4}}
	tab.keyGrowth = []keyGrowth{{keys: 1000, samples: o, empty: 1e6, rss: 2e6, fill: 7, pause: "2.00 ms"}}
	tab.clientGrowth = []clientGrowth{{clients: 9, join: 20 * time.Millisecond, joinCPU: 30 * time.Microsecond, pingCPU: 4 * time.Microsecond, samples: o}}
	got := tab.markdown()
	for _, want := range []string{
		"| exist | 8 | 6.0 [3.0, 6.0, 9.0] | 4.0 [2.0, 4.0, 6.0] | 1.50 | 1 / 2 | 10 / 20 | 0.50 | 2.0 / 8.0 | 0.25 |\n",
		"| exist | 8 | 4.0 | 6.0 | 0.67 | 2.00 | 4.00 |\n",
		"| ours | 1.0 | 0.9 | 0.90 | 5 | 10 | 2.00 | 0 |\n",
		"| upstream | 1.0 | 0.5 | 0.50 | 5 | 50 | 10.00 | 7 |\n",
		"| ours | 1.0 | 2.0 | 3.0 | 1000 | 5 | 1.00 ms |\n",
		"| upstream | 1.0 | 4.0 | 4.0 | 3000 | 0 | – |\n",
		"| 1000 | 7 | 1.0 | 2.0 | 2.0 | 3.0 | 3.0 | 4.0 | 1000 | 2.00 ms |\n",
		"| 9 | 20 ms | 30 | 4.0 | 1.0 | 2.0 | 2.0 | 3.0 | 3.0 | 4.0 |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
	if strings.Count(got, "| get | 8 |") != 1 {
		t.Error("a point that the second generator did not measure is in its table")
	}
	if empty := newTable(&plan{points: p.points}).markdown(); strings.Contains(empty, "second") || strings.Contains(empty, "Memory") {
		t.Errorf("tables of nothing:\n%s", empty)
	}
}
