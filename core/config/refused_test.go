package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the expected messages in testdata")

// Each file in testdata/refused has its complete list of messages next to it.
func TestRefusedFiles(t *testing.T) {
	var files []string
	for _, ext := range []string{"*.json", "*.yaml"} {
		found, err := filepath.Glob(filepath.Join("testdata", "refused", ext))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 14 {
		t.Fatalf("only %d files", len(files))
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			_, err := Load(Options{Schema: testSchema(), Path: f})
			if err == nil {
				t.Fatal("was accepted")
			}
			got := strings.ReplaceAll(err.Error(), filepath.Dir(f)+string(filepath.Separator), "") + "\n"
			golden := f + ".want"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if strings.Contains(got, "hunter2") || strings.Contains(got, "31337") {
				t.Error("a secret is shown")
			}
		})
	}
}
