package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const benchmarkOutput = `goos: linux
BenchmarkMove/1024KiB/write/1_in_flight-2         	      12	  46082434 ns/op	1292.00 MB/s	         0.7284 ratio
BenchmarkCall-2                                   	    1815	    348175 ns/op	       275.6 p50-us	      1671 p99-us
PASS
`

func TestParseBenchmarks(t *testing.T) {
	want := map[string]map[string]float64{
		"Move/1024KiB/write/1_in_flight": {"ns/op": 46082434, "MB/s": 1292, "ratio": 0.7284},
		"Call":                           {"ns/op": 348175, "p50-us": 275.6, "p99-us": 1671},
	}
	if d := cmp.Diff(want, parseBenchmarks(benchmarkOutput)); d != "" {
		t.Fatal(d)
	}
}

func TestPluginTable(t *testing.T) {
	got := map[string]map[string][]float64{}
	if _, err := pluginTable(got); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("without figures: %v", err)
	}
	for _, size := range []string{"1024KiB", "64KiB"} {
		for _, op := range []string{"write", "read"} {
			for _, deep := range []string{"1", "8"} {
				got["Move/"+size+"/"+op+"/"+deep+"_in_flight"] = map[string][]float64{"MB/s": {1000, 3000}, "ratio": {0.7, 0.9}}
			}
		}
	}
	for _, name := range []string{"Call", "Operation/plugin", "Operation/in_process"} {
		got[name] = map[string][]float64{"p50-us": {50, 70}, "p99-us": {90}}
	}
	table, err := pluginTable(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"| 1 MiB | write | 1 | 2000 | 0.80 [0.70, 0.90] |", "| 64 bytes in process | 60 [50, 70] | 90 |"} {
		if !strings.Contains(table, row) {
			t.Errorf("no row %s in\n%s", row, table)
		}
	}
}
