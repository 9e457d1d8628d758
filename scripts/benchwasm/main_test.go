package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

const printed = `goos: linux
BenchmarkGuests/lru-2         	  1000	  10 ns/op	 2.00 put-p99-us	 1.00 get-p99-us	 500 ops/s	 0 faults
BenchmarkGuests/bad=spin-16   	  1000	  10 ns/op	 3.00 put-p99-us	 1.50 get-p99-us	 450 ops/s	 7 faults
BenchmarkGuests/lru-2         	  1000	  10 ns/op	 4.00 put-p99-us	 1.00 get-p99-us	 700 ops/s	 0 faults
BenchmarkLoad
PASS
`

func TestParse(t *testing.T) {
	r := results{}
	if n, err := r.parse(printed); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	for _, c := range []struct {
		name, unit string
		want       float64
	}{{"Guests/lru", "ops/s", 600}, {"Guests/lru", "put-p99-us", 3}, {"Guests/bad=spin", "faults", 7}} {
		if got, err := r.of(c.name, c.unit); got != c.want || err != nil {
			t.Errorf("%s %s: %v, %v, want %v", c.name, c.unit, got, err, c.want)
		}
	}
	if _, err := r.of("Guests/lru", "fuel"); err == nil {
		t.Error("a figure that nobody printed")
	}
	if _, err := r.parse("BenchmarkX 1 a ns/op\n"); err == nil {
		t.Error("text as a figure")
	}
}

func TestTablesNeedAllFigures(t *testing.T) {
	for _, tb := range tables {
		if err := tb.write(io.Discard, results{}); err == nil {
			t.Errorf("%s was written without figures", tb.name)
		}
	}
	r := results{}
	for _, name := range []string{"idle", "spin", "slow", "slow-stats", "recurse", "grab_memory", "init_spin", "start_spin", "load-compile"} {
		r["TickerSlip/"+name] = map[string][]float64{"worst-slip-ms": {9, 12, 10}}
	}
	var out bytes.Buffer
	if err := writeSlip(&out, r); err != nil || !strings.Contains(out.String(), "| endless recursion | 10 ms | 20 ms |") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args, want string
	}{{"-only wasm-spede", "there is no table"}, {"-reps 0", "at least 1"}} {
		if err := run(t.Context(), strings.Fields(c.args), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}
