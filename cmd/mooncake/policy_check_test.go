package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/plugins/wasm"
)

const (
	goodGuests = "../../plugins/examples/testdata/"
	badGuests  = "../../plugins/wasm/testdata/"
)

func checked(t *testing.T, module string) *policyReport {
	t.Helper()
	o := policyCheck{config: wasm.DefaultConfig(), accesses: 5000}
	o.config.Module, o.config.CacheDir = module, filepath.Join(t.TempDir(), "cache")
	r, err := o.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// about is the text of the findings at a level.
func (r *policyReport) about(level string) string {
	var b strings.Builder
	for _, f := range r.Findings {
		if f.Level == level {
			b.WriteString(f.About + ": " + f.Text + "\n")
		}
	}
	return b.String()
}

func TestPolicyCheckPassesGoodOnes(t *testing.T) {
	for _, name := range []string{"lru-c", "score-wat"} {
		t.Run(name, func(t *testing.T) {
			r := checked(t, goodGuests+name+".wasm")
			if r.Verdict == verdictNo || r.about(levelFail) != "" {
				t.Fatalf("%s: %s\n%s", r.Verdict, r.Why, r.about(levelFail))
			}
			if r.Module.SHA256 == "" || r.Contract < 10 || r.Broken != 0 || r.BytesPerObject == 0 || r.PrefixHitLRU == 0 || r.AccessesPerSec == 0 {
				t.Errorf("figures are missing: %+v", r)
			}
			if !r.Module.Score && (r.FuelPerEvent < 20 || r.NanosPerEvent == 0 || r.FuelPerQuestion == 0) {
				t.Errorf("figures are missing: %+v", r)
			}
			if strings.HasPrefix(name, "lru") && r.PrefixHit != r.PrefixHitLRU {
				t.Errorf("prefix hit %v, lru has %v", r.PrefixHit, r.PrefixHitLRU)
			}
		})
	}
}

func TestPolicyCheckFindsBadOnes(t *testing.T) {
	for name, want := range map[string]string{
		"trap":            "guest: it failed: trap",
		"unknown":         "victims that were not resident",
		"moody":           "two questions in a row",
		"import_function": "env.open_file",
		"no_marker":       "mooncake_eviction_v1",
	} {
		t.Run(name, func(t *testing.T) {
			r := checked(t, badGuests+name+".wasm")
			if r.Verdict != verdictNo || !strings.Contains(r.about(levelFail), want) {
				t.Errorf("%s, failures %q, want %q among them", r.Verdict, r.about(levelFail), want)
			}
		})
	}
}

func TestPolicyCheckCommand(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	run := func(args ...string) (string, int, error) {
		out, err := runRoot(append([]string{"policy", "check"}, args...)...)
		if quiet, ok := err.(*exitError); ok {
			return out, quiet.code, nil
		}
		return out, 0, err
	}
	out, code, err := run(badGuests+"no_marker.wasm", "--json")
	var r policyReport
	if err != nil || code != 1 || json.Unmarshal([]byte(out), &r) != nil || r.Verdict != verdictNo {
		t.Errorf("a bad module: exit %d, error %v\n%s", code, err, out)
	}
	out, code, err = run(badGuests + "no_marker.wasm")
	if err != nil || code != 1 || !strings.Contains(out, "\nnot usable: see module") {
		t.Errorf("a bad module: exit %d, error %v\n%s", code, err, out)
	}
	for _, args := range [][]string{{filepath.Join(t.TempDir(), "none.wasm")}, {goodGuests + "lru-c.wasm", "--trace", "/no/such"}, {}} {
		if _, _, err := run(args...); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

func TestPolicyReport(t *testing.T) {
	r := &policyReport{File: "x.wasm"}
	r.add(levelOK, "module", "one\ntwo")
	r.conclude()
	good := r.Verdict
	r.add(levelNote, "speed", "slow")
	r.conclude()
	usable := r.Verdict
	r.add(levelFail, "guest", "bad")
	r.conclude()
	if got := []string{good, usable, r.Verdict}; !slices.Equal(got, []string{verdictGood, verdictRemarks, verdictNo}) {
		t.Errorf("verdicts %q", got)
	}
	var b bytes.Buffer
	if err := r.print(&b); err != nil || !strings.Contains(b.String(), "  ok    module    one\n                    two\n") {
		t.Errorf("error %v, printed:\n%s", err, &b)
	}
	if paramValue("0.5") != 0.5 || paramValue("true") != true || paramValue("x") != "x" {
		t.Error("parameters have the wrong type")
	}
	if _, err := os.Stat(goodGuests); err != nil {
		t.Fatal(err)
	}
}
