package sdk

import (
	"io/fs"
	"strings"
	"testing"
)

func TestEachLanguageBuildsByMake(t *testing.T) {
	dirs, err := fs.ReadDir(Files, ".")
	if err != nil || len(dirs) != 4 {
		t.Fatalf("%d languages, error %v", len(dirs), err)
	}
	for _, d := range dirs {
		text, err := fs.ReadFile(Files, d.Name()+"/Makefile")
		if err != nil || !strings.Contains(string(text), "$(NAME).wasm:") {
			t.Errorf("%s: its Makefile builds no $(NAME).wasm, error %v", d.Name(), err)
		}
	}
}
