package testenv

import (
	"bytes"
	"encoding/hex"
	"io/fs"
	"maps"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// Tree reads recorded file trees, such as parts of /sys, each from one file; later ones win. The format is that of
// txtar: a line "-- path --" begins a file, what stands before the first is a comment. A path that ends in ".hex"
// holds bytes in hexadecimal and lies in the tree without that ending.
func Tree(t testing.TB, files ...string) fstest.MapFS {
	t.Helper()
	out := fstest.MapFS{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tree, err := parseTree(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		maps.Copy(out, tree)
	}
	return out
}

func parseTree(text []byte) (fstest.MapFS, error) {
	out := fstest.MapFS{}
	var path string
	var body bytes.Buffer
	end := func() error {
		if path == "" {
			return nil
		}
		data := bytes.Clone(body.Bytes())
		if plain, isHex := strings.CutSuffix(path, ".hex"); isHex {
			raw, err := hex.DecodeString(strings.Join(strings.Fields(string(data)), ""))
			if err != nil {
				return &fs.PathError{Op: "decode", Path: path, Err: err}
			}
			path, data = plain, raw
		}
		out[path] = &fstest.MapFile{Data: data, Mode: 0o444}
		return nil
	}
	for line := range strings.Lines(string(text)) {
		rest, isMark := strings.CutPrefix(strings.TrimRight(line, "\n"), "-- ")
		name, closed := strings.CutSuffix(rest, " --")
		if !isMark || !closed {
			body.WriteString(line)
			continue
		}
		if err := end(); err != nil {
			return nil, err
		}
		path = strings.TrimSpace(name)
		body.Reset()
	}
	return out, end()
}
