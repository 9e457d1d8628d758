package sdk

import (
	"bytes"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// The library for Python has a copy of the compiled protocol beside it, not a link, which not every checkout keeps.
func TestPythonHasTheProtocol(t *testing.T) {
	want, err := os.ReadFile("../proto/v1/descriptor.binpb")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("python/mooncake_plugin/protocol.binpb")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("python/mooncake_plugin/protocol.binpb is not the compiled protocol (go generate ./plugins/sdk): %v", err)
	}
}

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
