package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/conform"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// examplePlugin builds one of the examples in Go.
func examplePlugin(t *testing.T, name string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", bin, "./plugins/examples/"+name)
	cmd.Dir = testenv.RepoRoot(t)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return bin
}

func TestPluginCheckSaysWhatIsWrong(t *testing.T) {
	policy := examplePlugin(t, "external-eviction")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want []string // in what it prints
		err  string   // of the check itself
	}{
		"no plugin":         {args: []string{"/bin/echo", "hello"}, want: []string{"FAIL  program", "not usable: see program above"}},
		"ends at once":      {args: []string{"/bin/false"}, want: []string{"FAIL  program", "exit status 1"}},
		"no handshake":      {args: []string{"--start-timeout", "1s", "/bin/sleep", "60"}, want: []string{"FAIL  program", "not ready within 1s"}},
		"no program":        {args: []string{text}, want: []string{"FAIL  program", "exec format error"}},
		"settings":          {args: []string{"--config", `{"log_every": -1}`, policy}, want: []string{"ok    program", "FAIL  config", "log_every: must not be negative"}},
		"unknown setting":   {args: []string{"--config", `{"color": "red"}`, policy}, want: []string{"FAIL  config", `unknown field "color"`}},
		"not there":         {args: []string{"/nowhere/plugin"}, err: "no such file"},
		"settings no JSON":  {args: []string{"--config", `[1]`, policy}, err: "want a JSON object"},
		"too little memory": {args: []string{"--memory-limit", "1MB", policy}, err: "too few to start"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := runRoot(append([]string{"plugin", "check"}, c.args...)...)
			var exit *exitError
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				return
			}
			if !errors.As(err, &exit) || exit.code != 1 {
				t.Errorf("error %v, want exit code 1", err)
			}
			for _, w := range c.want {
				if !strings.Contains(out, w) {
					t.Errorf("no %q in\n%s", w, out)
				}
			}
		})
	}
}

func TestPluginReport(t *testing.T) {
	for name, c := range map[string]struct {
		contract []conform.Outcome
		notes    map[string]string
		verdict  string
		says     string
	}{
		"good":    {[]conform.Outcome{{Name: "a"}, {Name: "b"}}, nil, verdictGood, "all 2 checks of a transport"},
		"skipped": {[]conform.Outcome{{Name: "a"}, {Name: "b", Skipped: "x"}}, nil, verdictGood, "all 1 checks of a transport, but 1 that do not apply"},
		"note":    {[]conform.Outcome{{Name: "a", Failures: []string{"x"}}}, map[string]string{"a": "look out"}, verdictRemarks, "a: look out"},
		"bad":     {[]conform.Outcome{{Name: "a", Failures: []string{"x", "y"}}, {Name: "b"}}, nil, verdictNo, "1 of 2 checks failed"},
	} {
		r := &pluginReport{Command: []string{"/opt/p"}, Kind: "transport", Name: "mine", Contract: c.contract, SHA256: map[string]string{"/opt/p": "00"}}
		r.outcomes(c.notes)
		r.conclude()
		var b strings.Builder
		if err := r.print(&b); err != nil {
			t.Fatal(err)
		}
		if r.Verdict != c.verdict || !strings.Contains(b.String(), c.says) {
			t.Errorf("%s: verdict %q\n%s", name, r.Verdict, b.String())
		}
		_, section, ok := strings.Cut(b.String(), "In the node's configuration:\n")
		if ok != (c.verdict != verdictNo) || ok && !json.Valid([]byte(section)) {
			t.Errorf("%s: the section %q", name, section)
		}
	}
}

// A whole check of a good plugin; make test-plugins runs one of each kind and language.
func TestPluginCheckOfAGoodOne(t *testing.T) {
	begin := time.Now()
	out, err := runRoot("plugin", "check", "--json", examplePlugin(t, "external-eviction"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var r pluginReport
	from := strings.Index(out, "\n{")
	if err := json.Unmarshal([]byte(out[from+1:]), &r); err != nil {
		t.Fatal(err)
	}
	if r.Verdict != verdictGood || r.Kind != "eviction" || len(r.Contract) < 10 || r.CallMicros <= 0 || r.RestartMillis < 500 || r.EndMillis <= 0 || len(r.SHA256) != 1 {
		t.Errorf("%+v", r)
	}
	t.Logf("%d checks in %v", len(r.Contract), time.Since(begin).Round(time.Second))
}
