package config

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func seeds(f *testing.F) {
	f.Helper()
	for _, pattern := range []string{"../../configs/*.json", "../../configs/examples/*", "testdata/refused/*.json", "testdata/refused/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("%s: %v", pattern, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text))
		}
	}
	for _, s := range []string{"", "{", "[1,]", `{"a":{"a":{}}}`, `{"a":"\ud800"}`, "a: *b", "a: &b [*b]", "? ", "- - -", "{\"a\": 1e999}", "\xff", "a:\n  <<: {}"} {
		f.Add(s)
	}
}

// The walk accepts exactly what encoding/json accepts, gives the same values, and every position lies
// inside the text.
func FuzzJSON(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text string) {
		d := parse("f.json", []byte(text))
		checkPositions(t, d, text)
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		var want map[string]any
		if len(d.problems) == 0 {
			if err := dec.Decode(&want); err != nil {
				t.Fatalf("accepted, but encoding/json says %v", err)
			}
			if diff := cmp.Diff(want, d.values); diff != "" {
				t.Fatalf("(-encoding/json +walk):\n%s", diff)
			}
			return
		}
		if json.Valid([]byte(text)) {
			for _, p := range d.problems { // valid JSON that we refuse all the same
				if !containsAny(p.Msg, "given twice", "top level", "key is empty", "control character", "nested deeper", "not UTF-8") {
					t.Fatalf("refused valid JSON: %s", p)
				}
			}
		}
	})
}

func FuzzYAML(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text string) {
		d := parse("f.yaml", []byte(text))
		checkPositions(t, d, text)
		if d.fatal != (d.fatal && len(d.problems) > 0) {
			t.Fatal("fatal without a problem")
		}
	})
}

func FuzzLoad(f *testing.F) {
	seeds(f)
	schema := schemaWithVerbs()
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range []string{"f.json", "f.yaml"} {
			l := &loading{Loaded: &Loaded{path: name, schema: schema, at: map[string]source{}, instances: map[string][]Instance{}}, env: newEnvironment(nil)}
			got, err := l.load(parse(name, []byte(text)), nil)
			if (got == nil) != (err != nil) {
				t.Fatalf("%v and %v", got, err)
			}
			var es *Errors
			if err != nil && (!errors.As(err, &es) || len(es.Problems) == 0) {
				t.Fatalf("%T: %v", err, err)
			}
			if es != nil {
				for _, p := range es.Problems {
					if p.Msg == "" || strings.ContainsAny(p.Msg, "\n\x00") {
						t.Fatalf("message %q", p.Msg)
					}
				}
			}
			if got != nil {
				if live, restart := Diff(got, got); len(live)+len(restart) > 0 {
					t.Fatal("differs from itself")
				}
			}
		}
	})
}

func FuzzAddresses(f *testing.F) {
	for _, s := range []string{"", "h", "h:1", "[::1]:1", "fe80::1%eth0", "a,b;c:2", "u:p@h/3?x=y", "https://h:1/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if host, port, err := splitHost(s); err == nil && (host == "" || port < 0 || port > 65535) {
			t.Fatalf("%q: host %q, port %d", s, host, port)
		}
		for _, scheme := range []string{"etcd", "redis", "http"} {
			u, err := parseStore(scheme, s)
			if err != nil {
				continue
			}
			again, err := parseStore(scheme, strings.TrimPrefix(u.String(), scheme+"://"))
			if err != nil || again.String() != u.String() {
				t.Fatalf("%s://%s: %s, then %s, %v", scheme, s, u, again, err)
			}
		}
		_, _ = ParseMaster(s)
		if r := Redact(s); Redact(r) != r {
			t.Fatalf("Redact is not stable: %q, %q", r, Redact(r))
		}
	})
}

func checkPositions(t *testing.T, d *document, text string) {
	t.Helper()
	lines := strings.Count(text, "\n") + 1
	for path, s := range d.at {
		if s.line < 1 || s.col < 1 || s.line > lines+strings.Count(text, "\r")+strings.Count(text, "\u0085")+strings.Count(text, "\u2028")+strings.Count(text, "\u2029") {
			t.Fatalf("%s at %d:%d of %d lines", dotted(path), s.line, s.col, lines)
		}
	}
	if d.fatal && len(d.problems) == 0 {
		t.Fatal("refused without a reason")
	}
}

func containsAny(s string, words ...string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}
