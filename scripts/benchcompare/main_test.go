package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func TestParsePlan(t *testing.T) {
	t.Setenv("MOONCAKE_WHEEL_PYTHON", "/opt/wheel/python")
	p, err := parse([]string{"-points", "4KiB, 16MiBx32,100x1x4", "-only", "shm,tcp"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.points) != 6 || p.points[0] != (point{4096, "write", 1, 1}) || p.points[3] != (point{16 << 20, "read", 32, 1}) || p.points[5] != (point{100, "read", 1, 4}) {
		t.Errorf("points: %+v", p.points)
	}
	if p.points[3].need() != 512<<20 || maxNeed(p.points) != 512<<20 {
		t.Errorf("memory: %d", maxNeed(p.points))
	}
	if p.wheelPython != "/opt/wheel/python" || p.seconds != time.Second || p.reps != 3 || len(p.sections) != 2 || p.sections[0].name != "shm" {
		t.Errorf("plan: %+v", p)
	}
	for _, args := range [][]string{{"-points", "4XB"}, {"-points", "0"}, {"-points", "1MiBxmany"}, {"-points", "1x1x1x1"}, {"-points", "1x0"}, {"-only", "udp"}, {"-reps", "0"}, {"-seconds", "1500ms"}} {
		if _, err := parse(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
	t.Setenv("MOONCAKE_WHEEL_PYTHON", "")
	t.Setenv("MOONCAKE_CACHE", t.TempDir())
	if _, err := parse(nil, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "run make setup") {
		t.Errorf("without a wheel: %v", err)
	}
}

func TestParseOutputs(t *testing.T) {
	s, err := parseOurs(`{"transport":"tcp","bytes_per_second":1500000000,"latency_us":{"p50":12.5,"p99":40,"p999":50},"cpu_seconds_per_gb":0.7,"errors":0}`)
	if err != nil || s != (sample{gbps: 1.5, p50: 12.5, p99: 40, cpuPerGB: 0.7}) {
		t.Errorf("ours: %+v, %v", s, err)
	}
	for _, bad := range []string{``, `{"bytes_per_second":1,"errors":3}`, `{"bytes_per_second":0}`} {
		if _, err := parseOurs(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if g, err := parseIperf(`{"end":{"sum_received":{"bits_per_second":16e9}}}`); err != nil || g != 2 {
		t.Errorf("iperf3: %v, %v", g, err)
	}
	if _, err := parseIperf(`{"error":"unable to connect"}`); err == nil {
		t.Error("an iperf3 error was accepted")
	}
	if m := listening.FindStringSubmatch("I1129 transfer_engine: listening on 127.0.0.1:15748"); m == nil || m[1] != "127.0.0.1:15748" {
		t.Errorf("target's name: %v", m)
	}
	if m := throughput.FindStringSubmatch("Test completed: duration 2.00, batch count 5162, throughput 0.681234 GB/s"); m == nil || m[1] != "0.681234" {
		t.Errorf("wheel's result: %v", m)
	}
}

func TestRepeatChangesTheOrder(t *testing.T) {
	p := &plan{reps: 2, progress: func(string, ...any) {}}
	var order []string
	side := func(name string, v float64) func(point) (sample, error) {
		return func(point) (sample, error) { order = append(order, name); return sample{gbps: v, foreign: v / 10}, nil }
	}
	points := []point{{1, "read", 1, 1}, {2, "read", 1, 1}}
	got, foreign, err := p.repeat(points, func(rep int) error { order = append(order, "|"); return nil }, side("a", 1), side("b", 2))
	if err != nil || strings.Join(order, "") != "|abba|baab" {
		t.Errorf("%v, %v", order, err)
	}
	if len(foreign) != 8 || len(got) != 2 || got[1][1][1].gbps != 2 || got[0][0][0].gbps != 1 {
		t.Errorf("%+v, %v", got, foreign)
	}
}

func TestTables(t *testing.T) {
	one, many := []sample{{gbps: 2}, {gbps: 1}, {gbps: 9}}, []sample{{gbps: 4}, {gbps: 0.5}, {gbps: 27}}
	got := threadsTable([]point{{65536, "write", 32, 1}, {65536, "write", 32, 4}}, [][][]sample{{one, many}, {many, one}})
	// The ratios of the repetitions are 2, 0.5 and 3: their median is not the ratio of the medians.
	if !strings.Contains(got, "| 64 KiB | write | 32 | 4 | 2.00 | 0.50 | 2.00 |") {
		t.Error(got)
	}
	if threadsTable([]point{{65536, "write", 32, 1}}, [][][]sample{{one, many}}) != "" {
		t.Error("a table without rows")
	}
	if s := speed(one); s != "2.000 [1.00, 2.00, 9.00]" {
		t.Error(s)
	}
}

func TestParsePerftest(t *testing.T) {
	const out = ` #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             46.70              44.25  		   0.000708
---------------------------------------------------------------------------------------
`
	if v, err := parsePerftest(out); err != nil || v != 44.25 {
		t.Errorf("%v, %v", v, err)
	}
	for _, bad := range []string{"", "Couldn't connect to 192.0.2.1:18515", strings.Replace(out, "44.25", "0.00", 1)} {
		if v, err := parsePerftest(bad); err == nil {
			t.Errorf("%q: %v", bad, v)
		}
	}
}

func TestGIDIndex(t *testing.T) {
	gids := fstest.MapFS{
		"0": {Data: []byte("fe80:0000:0000:0000:0002:c9ff:fe00:0001\n")},
		"1": {Data: []byte("0000:0000:0000:0000:0000:ffff:c000:0201\n")},
	}
	if i, err := gidIndex(gids); err != nil || i != "1" {
		t.Errorf("%q, %v", i, err)
	}
	delete(gids, "1")
	if i, err := gidIndex(gids); err == nil {
		t.Errorf("%q without an IPv4 address", i)
	}
}
