package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocument(t *testing.T) {
	for _, c := range []struct{ name, text, first, last string }{
		{"m.json", "{\n  \"b\": 1,\n  \"a\": {\"x\": [1]}\n}", "m.json:2:3: b: bad", "m.json:3:3: a: unknown key a"},
		{"m.yaml", "b: 1\na:\n  x: [1]\n", "m.yaml:1:1: b: bad", "m.yaml:2:1: a: unknown key a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := ParseDocument(c.name, []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"b", "a"}, d.Keys()); diff != "" {
				t.Error(diff)
			}
			if got := d.Problem("b", "ba%c", 'd').String(); got != c.first {
				t.Errorf("%q, want %q", got, c.first)
			}
			if got := d.UnknownKey("a", []string{"zzzzzz"}).String(); got != c.last {
				t.Errorf("%q, want %q", got, c.last)
			}
			if got := d.Place("b") + ": b: bad"; got != c.first || d.Path() != c.name {
				t.Errorf("%q, %q", got, d.Path())
			}
			if _, nested := d.Value("a").(map[string]any); !nested {
				t.Errorf("%#v", d.Value("a"))
			}
		})
	}
}

func TestReadDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.yml")
	if err := os.WriteFile(path, []byte("a: 1\na: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all *Errors
	if _, err := ReadDocument(path); !errors.As(err, &all) || all.Error() != path+":2:1: a: given twice, first in line 1" {
		t.Error(err)
	}
	if _, err := ReadDocument(path + "x"); err == nil || err.Error() != path+"x: no such file" {
		t.Error(err)
	}
}
