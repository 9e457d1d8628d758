package sidebyside

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReplaceSection(t *testing.T) {
	f := filepath.Join(t.TempDir(), "doc.md")
	write := func(name, text, want string) {
		t.Helper()
		if err := ReplaceSection(f, name, text); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(f); err != nil || string(b) != want {
			t.Errorf("%q, %v\nwant %q", b, err, want)
		}
	}
	a1, b1 := "<!-- make bench: a -->\none\n<!-- end -->\n", "<!-- make bench: b -->\ntwo\n<!-- end -->\n"
	write("a", "one\n", a1)
	write("b", "two\n", a1+"\n"+b1)
	if err := os.WriteFile(f, []byte("# Title\n"+a1+"between\n"+b1+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	write("a", "new\n", "# Title\n<!-- make bench: a -->\nnew\n<!-- end -->\nbetween\n"+b1+"after\n")
	if err := os.WriteFile(f, []byte("<!-- make bench: a -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceSection(f, "a", "x"); err == nil {
		t.Error("a section without an end was replaced")
	}
}
