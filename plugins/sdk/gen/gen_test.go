package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatIsGeneratedIsCurrent(t *testing.T) {
	files, err := generate("../../abi/policy.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("plugins/sdk/%s is not what policy.h gives: run go generate ./plugins/sdk", name)
		}
	}
}

func TestNothingIsLeftOut(t *testing.T) {
	text, err := os.ReadFile("../../abi/policy.h")
	if err != nil {
		t.Fatal(err)
	}
	h, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, g := range h.groups {
		n += len(g.values)
	}
	if want := strings.Count(string(text), "\tMC_"); n < want+5 {
		t.Errorf("%d constants found, %d in enums and at least 5 defines", n, want)
	}
	for _, s := range h.structs {
		if len(s.fields) < 13 {
			t.Errorf("struct %s has %d fields", s.name, len(s.fields))
		}
	}
	if _, err := parse(strings.Replace(string(text), "\tMC_ACCESS = 2,", "\tMC_ACCESS = 1 << 1,", 1)); err == nil {
		t.Error("a line that cannot be read is passed over")
	}
}
