package testenv

import (
	"testing"
	"testing/fstest"
)

func TestTree(t *testing.T) {
	tree, err := parseTree([]byte("a comment\n-- sys/a --\none\ntwo\n-- sys/config.hex --\n00 ff\n7f\n-- sys/empty --\n"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"sys/a": "one\ntwo\n", "sys/config": "\x00\xff\x7f", "sys/empty": ""} {
		if got, err := tree.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if len(tree) != 3 {
		t.Errorf("%d files", len(tree))
	}
	if err := fstest.TestFS(tree, "sys/a", "sys/config"); err != nil {
		t.Error(err)
	}
	if _, err := parseTree([]byte("-- a.hex --\nzz\n")); err == nil {
		t.Error("bad hexadecimal passes")
	}
}
