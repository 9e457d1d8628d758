package main

import (
	"reflect"
	"strings"
	"testing"
)

const stream = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":2.5}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"    a_test.go:3: got 1\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad","Elapsed":0.1}
{"Action":"output","Package":"m/a","Test":"TestGone","Output":"    a_test.go:9: skipped: no etcd\n"}
{"Action":"output","Package":"m/a","Test":"TestGone","Output":"--- SKIP: TestGone (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestGone","Elapsed":0}
{"Action":"output","Package":"m/a","Test":"TestHang","Output":"waiting\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t3.0s\n"}
{"Action":"fail","Package":"m/a","Elapsed":3}
{"ImportPath":"m/b","Action":"build-output","Output":"b.go:1: oops\n"}
{"ImportPath":"m/b","Action":"build-fail"}
{"Action":"output","Package":"m/c","Output":"PASS\n"}
{"Action":"output","Package":"m/c","Output":"ok  \tm/c\t0.1s\n"}
{"Action":"pass","Package":"m/c","Elapsed":0.1}
go: something else
`

func TestReport(t *testing.T) {
	var b strings.Builder
	r := newReport(&b)
	if err := readLines(strings.NewReader(stream), r.line); err != nil {
		t.Fatal(err)
	}
	r.summary()
	got := b.String()
	for _, want := range []string{
		"    a_test.go:3: got 1\n", "FAIL\tm/a\t3.0s\n", "ok  \tm/c\t0.1s\n", "b.go:1: oops\n", "go: something else\n", "waiting\n",
		"     2.50s  m/a TestGood\n",
		"  m/a TestGone: a_test.go:9: skipped: no etcd\n",
		"failed:\n  m/a TestBad\n  m/a TestHang (did not finish)\n  m/b (build)\n",
		"1 passed, 3 failed, 1 skipped in ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q", want)
		}
	}
	for _, not := range []string{"chatter", "PASS"} {
		if strings.Contains(got, not) {
			t.Errorf("has %q", not)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
	if r.failures() != 3 {
		t.Errorf("%d failures", r.failures())
	}
}

func TestGroups(t *testing.T) {
	got := groups([]string{"-race", "./a", "--", "./b"})
	if want := [][]string{{"-race", "./a"}, {"./b"}}; !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v", got)
	}
}
