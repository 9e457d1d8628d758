package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/eviction/replay"
)

const syntheticTrace = "../../eviction/replay/testdata/synthetic.trace"

// replayed runs mooncake replay and returns stdout and stderr apart.
func replayed(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	root := newRootCommand()
	var out, errOut bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errOut)
	root.SetArgs(append([]string{"replay"}, args...))
	err = root.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

// shortTrace is the beginning of the synthetic trace: enough to tell policies apart, quick under the race detector.
func shortTrace(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "t.jsonl")
	if out, _, err := replayed(t, "convert", syntheticTrace, path); err != nil {
		t.Fatal(err, out)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	if err := os.WriteFile(path, bytes.Join(lines[:1200], nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReplayJSON(t *testing.T) {
	path := shortTrace(t)
	out, errOut, err := replayed(t, "--trace", path, "--policy", "lru-k:k=3,order=head,lru,arc", "--size", "300,5%", "--json", "--seed", "7", "--warm-up", "10%", "--threads", "2")
	if err != nil || errOut != "" {
		t.Fatal(err, errOut)
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	var got []string
	for _, r := range rows {
		got = append(got, r["policy"].(string)+"@"+r["size_arg"].(string))
		for _, key := range []string{"trace", "size", "block_hit", "prefix_hit", "token_hit", "byte_hit", "gap_to_min", "evictions", "regret", "refused", "ns_per_access", "policy_bytes_per_key", "traps"} {
			if _, ok := r[key]; !ok {
				t.Errorf("%s has no %s", got[len(got)-1], key)
			}
		}
		if v, _ := r["version"].(string); !strings.HasPrefix(v, "mooncake ") || len(r["trace_sha256"].(string)) != 64 {
			t.Errorf("version %v, SHA-256 %v", r["version"], r["trace_sha256"])
		}
		p := r["parameters"].(map[string]any)
		if p["seed"] != "7" || p["warm_up"] != "10%" {
			t.Errorf("parameters %v", p)
		}
	}
	want := strings.Fields("lru-k:k=3,order=head@300 lru@300 arc@300 min@300 infinite@300 lru-k:k=3,order=head@5% lru@5% arc@5% min@5% infinite@5%")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("rows: %s", d)
	}
}

func TestReplayOutputs(t *testing.T) {
	path, dir := shortTrace(t), t.TempDir()
	args := []string{path, "--policy", "lru,fifo", "--size", "1%,10%"}
	out, _, err := replayed(t, append(args, "--svg", filepath.Join(dir, "c.svg"))...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"t.jsonl: 1200 requests", "PREFIX %", "fifo", "min", "infinite", "1% = "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	for _, trouble := range []string{"STRIKES", "TRAPS", "REFUSED"} {
		if strings.Contains(out, trouble) {
			t.Errorf("%s is shown though there are none:\n%s", trouble, out)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "c.svg")); err != nil || !bytes.HasPrefix(b, []byte("<svg")) {
		t.Errorf("curve: %v, %.40s", err, b)
	}
	if out, _, err = replayed(t, append(args, "--csv")...); err != nil {
		t.Fatal(err)
	}
	table, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(table) != 9 || table[1][1] != "lru" || table[1][3] != "1%" || !strings.Contains(table[1][len(table[1])-1], "seed=1") {
		t.Errorf("CSV: %v\n%s", err, out)
	}
}

func TestReplayAssert(t *testing.T) {
	path := shortTrace(t)
	file := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(file, []byte("# claims\nprefix(lru,2000) >= 1% # easy\n\nblock(min,2000) >= block(arc,2000)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errOut, err := replayed(t, "--trace", path, "--assert", "@"+file)
	if err != nil || errOut != "2 assertions hold\n" || !strings.Contains(out, "arc") || strings.Contains(out, "adaptive") {
		t.Errorf("%v, %s\n%s", err, errOut, out)
	}
	out, errOut, err = replayed(t, "--trace", path, "--policy", "lru", "--size", "2000", "--assert", "prefix(lru,2000) >= 0.99", "--assert", "prefix(lru,2000) >= 1%", "--json")
	var code *exitError
	if !errors.As(err, &code) || code.code != 1 {
		t.Errorf("error %v, want exit code 1", err)
	}
	if !strings.Contains(errOut, "assertion failed: prefix(lru,2000) >= 0.99: left side 0.") || !strings.Contains(errOut, "1 of 2 assertions failed") || !json.Valid([]byte(out)) {
		t.Errorf("%s\n%s", errOut, out)
	}
}

func TestReplayCompare(t *testing.T) {
	path, dir := shortTrace(t), t.TempDir()
	a, b := filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json")
	for file, watermark := range map[string]string{a: "0", b: "0.5"} {
		out, _, err := replayed(t, "--trace", path, "--policy", "lru", "--size", "2000", "--json", "--watermark", watermark)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := replay.ReadRows(a)
	if err != nil {
		t.Fatal(err)
	}
	more := rows[0].PrefixHit
	if rows, err = replay.ReadRows(b); err != nil {
		t.Fatal(err)
	}
	less := rows[0].PrefixHit
	out, errOut, err := replayed(t, "--compare", a, b)
	if err != nil || !strings.Contains(out, points(more)) || !strings.Contains(out, points(less)) || !strings.Contains(errOut, "the parameters differ") {
		t.Errorf("%v %s\n%s", err, errOut, out)
	}
	if out, _, err = replayed(t, "--compare", a+","+b, "--json"); err != nil {
		t.Fatal(err)
	}
	var diffs []struct {
		Policy     string
		Difference float64 `json:"prefix_difference"`
	}
	if err := json.Unmarshal([]byte(out), &diffs); err != nil || len(diffs) != 3 || math.Abs(diffs[0].Difference-(less-more)) > 1e-9 {
		t.Errorf("%v\n%s", err, out)
	}
	var code *exitError
	if _, _, err = replayed(t, "--compare", a, b, "--max-loss", "0"); !errors.As(err, &code) || code.code != 1 {
		t.Errorf("a loss: %v, want exit code 1", err)
	}
	if _, _, err = replayed(t, "--compare", b, a, "--max-loss", "0"); err != nil {
		t.Errorf("a gain: %v", err)
	}
}

func TestReplayAnalyzeAndConvert(t *testing.T) {
	path, dir := shortTrace(t), t.TempDir()
	out, _, err := replayed(t, "analyze", path)
	if err != nil || !strings.Contains(out, "WORKING SET WITHIN") || !strings.Contains(out, "LRU OF") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = replayed(t, "analyze", path, "--json"); err != nil || !json.Valid([]byte(out)) {
		t.Errorf("%v\n%s", err, out)
	}
	want, _, err := replayed(t, "analyze", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"t.trace", "t.csv.gz", "t.jsonl.zst"} {
		to := filepath.Join(dir, name)
		if _, errOut, err := replayed(t, "convert", path, to); err != nil {
			t.Errorf("%s: %v %s", name, err, errOut)
			continue
		}
		got, _, err := replayed(t, "analyze", to, "--block-tokens", "512")
		if d := cmp.Diff(strings.Replace(want, path, to, 1), got); err != nil || strings.Join(strings.Fields(strings.ReplaceAll(want, path, "")), " ") != strings.Join(strings.Fields(strings.ReplaceAll(got, to, "")), " ") {
			t.Errorf("%s: %v\n%s", name, err, d)
		}
		if _, _, err := replayed(t, "convert", path, to); !errors.Is(err, os.ErrExist) {
			t.Errorf("%s: overwritten: %v", name, err)
		}
	}
	_, errOut, err := replayed(t, "convert", path, filepath.Join(dir, "t.bin"), "--to", "oracleGeneral")
	if err != nil || !strings.Contains(errOut, "note: oracleGeneral cannot hold chains: each block is a request of its own") {
		t.Errorf("%v %s", err, errOut)
	}
}

// TestReplayTenant replays one of two tenants of a CSV file.
func TestReplayTenant(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.csv")
	if err := os.WriteFile(path, []byte("time,key,tenant\n1,a,0\n2,b,7\n3,a,0\n4,b,7\n5,c,7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err := replayed(t, "--trace", path, "--columns", "time=time,key=key,tenant=tenant", "--tenant", "7", "--policy", "lru", "--size", "9", "--json")
	var rows []struct {
		Policy     string            `json:"policy"`
		Accesses   int               `json:"accesses"`
		BlockHit   float64           `json:"block_hit"`
		Parameters map[string]string `json:"parameters"`
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &rows)); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Accesses != 3 || math.Abs(r.BlockHit-1.0/3) > 1e-9 || r.Parameters["tenant"] != "7" {
			t.Errorf("tenant 7: %+v", r)
		}
	}
	out, _, err = replayed(t, "analyze", path, "--columns", "time=time,key=key,tenant=tenant")
	if err != nil || !strings.Contains(out, "3 requests, 60.0 % of the accesses") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestReplayMistakes(t *testing.T) {
	path := shortTrace(t)
	for want, args := range map[string][]string{
		"name a trace: --trace FILE": {},
		"no such file":               {"--trace", "none"},
		`no trace format "x"; there are: mooncake, bailian`:             {"--trace", path, "--format", "x"},
		`--policy lruu: no eviction policy of type "lruu"; this binary`: {"--trace", path, "--policy", "lruu"},
		"--policy lru-k:k=x: lru-k: k: ":                                {"--trace", path, "--policy", "lru-k:k=x"},
		"unknown key":                                                   {"--trace", path, "--policy", "lru:k=3"},
		"--policy lru:order=up: order: \"up\": want tail or head":       {"--trace", path, "--policy", "lru:order=up"},
		"none.wasm: no such file":                                       {"--trace", path, "--policy", "none.wasm"},
		`size "0": want at least one block`:                             {"--trace", path, "--size", "0"},
		`size "1GB": the trace has no block sizes`:                      {"--trace", path, "--size", "1GB"},
		`--warm-up "1200": want a number of requests below 1200`:        {"--trace", path, "--warm-up", "1200"},
		"--watermark 2: want a share between 0 and 1":                   {"--trace", path, "--watermark", "2"},
		`--order "x": want tail or head`:                                {"--trace", path, "--order", "x"},
		`--tenant "x": want a tenant's number`:                          {"--trace", path, "--tenant", "x"},
		"no request of tenant 4; there are the tenants [0]":             {"--trace", path, "--tenant", "4"},
		"--json or --csv, not both":                                     {"--trace", path, "--json", "--csv"},
		`assertion "prefix(lru) > 1"`:                                   {"--trace", path, "--assert", "prefix(lru) > 1"},
		`no column "kay"; there are: time, key`:                         {"--trace", path, "--columns", "time=1,kay=2"},
		"--compare needs two result files":                              {"--compare", "a.json"},
		"want a list of results, as mooncake replay --json prints":      {"--compare", path, path},
		"t.xyz: the name does not tell the form: use --to":              {"convert", path, "t.xyz"},
		"t.jsonl:1:2: csv: bare \" in non-quoted-field":                 {"analyze", path, "--columns", "time=1,key=2"},
	} {
		if _, _, err := replayed(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %s", args, err, want)
		}
	}
}

func TestJoinSettings(t *testing.T) {
	got := joinSettings(strings.Split("lru, a:x=1,y=2,b.wasm:params.z=3,module=q:w,arc:order=head,,k", ","))
	if d := cmp.Diff([]string{"lru", "a:x=1,y=2", "b.wasm:params.z=3,module=q:w", "arc:order=head", "k"}, got); d != "" {
		t.Error(d)
	}
}
