package wasm

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

var sharedCache string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mooncake-wasm-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sharedCache = dir
	code := m.Run()
	os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
