package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// config check looks at the files of parts that are programs of their own, names the key of what is wrong, and does not
// run them: the program below would leave a trace.
func TestConfigCheckLooksAtPlugins(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "ran")
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\ntouch %s\n", trace), 0o755); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	type m = map[string]any
	sums := func(sum string) m { return m{program: strings.Repeat(sum, 64)} }
	for name, c := range map[string]struct {
		section m
		want    string // after the path of the section; "" if nothing is wrong
	}{
		"good":           {m{"command": []string{program}}, ""},
		"missing":        {m{"command": []string{filepath.Join(dir, "none")}}, "command: " + filepath.Join(dir, "none") + ": no such file or directory"},
		"not executable": {m{"command": []string{text}}, "command: " + text + ": it is not executable (chmod +x)"},
		"wrong digest":   {m{"command": []string{program}, "sha256": sums("0")}, "sha256: " + program + ": its SHA-256 is "},
		"run directory":  {m{"command": []string{program}, "run_dir": text}, "run_dir: " + text + " must be a folder"},
		"environment":    {m{"command": []string{program}, "env": []string{"PLUGIN_X=1"}}, "env: PLUGIN_X is set by the node itself"},
	} {
		t.Run(name, func(t *testing.T) {
			c.section["type"] = "external"
			for path, file := range map[string]m{
				"metadata":         {"metadata": c.section},
				"transports.mover": {"transports": m{"mover": c.section}},
				"eviction.*":       {"eviction": m{"*": c.section}},
			} {
				raw, err := json.Marshal(file)
				if err != nil {
					t.Fatal(err)
				}
				at := filepath.Join(dir, "mooncake.json")
				if err := os.WriteFile(at, raw, 0o644); err != nil {
					t.Fatal(err)
				}
				out, err := runRoot("config", "check", at)
				var exit *exitError
				switch {
				case c.want == "" && err != nil:
					t.Errorf("%s: %v\n%s", path, err, out)
				case c.want != "" && (!errors.As(err, &exit) || !strings.Contains(out, path+"."+c.want) || !strings.Contains(out, "1 error(s)")):
					t.Errorf("%s: error %v, no %q in\n%s", path, err, c.want, out)
				}
			}
		})
	}
	if _, err := os.Stat(trace); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program was run: %v", err)
	}
}
