package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxFileSize is the largest configuration file that is read.
const MaxFileSize = 4 << 20

const (
	// maxDepth bounds nesting in a file; the deepest key of the node is at level 5.
	maxDepth = 64
	// maxKeys bounds keys and list elements of a file, so that no file takes long to check.
	maxKeys = 50_000
	// maxProblems bounds how many problems are reported, and how many near names are looked for.
	maxProblems = 100
)

// readFile returns the content of a configuration file. It never blocks on a pipe or device and never
// reads more than MaxFileSize.
func readFile(path string) ([]byte, *Problem) {
	fail := func(format string, args ...any) ([]byte, *Problem) {
		return nil, &Problem{File: path, Msg: fmt.Sprintf(format, args...)}
	}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail("no such file")
	case err != nil:
		return fail("cannot be read: %v", plain(err))
	case st.IsDir():
		return fail("is a directory; name the file in it")
	case !st.Mode().IsRegular():
		return fail("is not a regular file")
	case st.Size() > MaxFileSize:
		return fail("has %d bytes; a configuration has at most %d", st.Size(), MaxFileSize)
	}
	f, err := os.Open(path)
	if err != nil {
		return fail("cannot be read: %v", plain(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return fail("cannot be read: %v", plain(err))
	}
	if len(data) > MaxFileSize {
		return fail("has more than %d bytes; a configuration has at most that", MaxFileSize)
	}
	return data, nil
}

// plain drops the operation and the path, which the message already has.
func plain(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// document is a parsed file: nested values (string, bool, json.Number, nil, []any, map[string]any) and
// the position of every key and list element.
type document struct {
	file     string
	data     []byte
	values   map[string]any
	at       map[string]source
	problems []Problem
	fatal    bool
	full     bool // tooMany has reported

	// The place asked for last: walks go forward, and counting from the start of a long line each
	// time would be quadratic.
	lastOff, lastLine, lastCol int
}

// parse reads JSON or YAML, told apart by the extension of the name, else by the first character.
// After a fatal problem the values are incomplete.
func parse(file string, data []byte) *document {
	d := &document{file: file, data: data, at: map[string]source{}, values: map[string]any{}}
	text := bytes.TrimLeftFunc(data, unicode.IsSpace)
	d.fatal = true
	switch {
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		d.fail("starts with a byte order mark; save it as UTF-8 without one")
	case bytes.HasPrefix(data, []byte("\xff\xfe")), bytes.HasPrefix(data, []byte("\xfe\xff")):
		d.fail("is UTF-16; save it as UTF-8")
	case len(text) == 0:
		d.fail("is empty; write {} to get the defaults")
	case !utf8.Valid(data):
		off := 0
		for {
			r, n := utf8.DecodeRune(data[off:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			off += n
		}
		d.problemAt(off, "", "is not UTF-8 text")
	case isJSON(file, text):
		d.parseJSON()
	default:
		d.fatal = false
		d.parseYAML()
	}
	return d
}

func isJSON(file string, text []byte) bool {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".json":
		return true
	case ".yaml", ".yml":
		return false
	}
	return text[0] == '{' || text[0] == '['
}

// fail records a problem of the file as a whole.
func (d *document) fail(msg string) {
	d.problems = append(d.problems, Problem{File: d.file, Msg: msg})
}

func (d *document) problemAt(off int, path, format string, args ...any) {
	s := d.pos(off)
	d.problems = append(d.problems, s.problem(path, fmt.Sprintf(format, args...)))
}

// pos turns a byte offset into line and column; a column is one character.
func (d *document) pos(off int) source {
	if d.lastLine == 0 || off < d.lastOff {
		d.lastOff, d.lastLine, d.lastCol = 0, 1, 1
	}
	between := d.data[d.lastOff:off]
	if n := bytes.Count(between, []byte("\n")); n > 0 {
		d.lastLine += n
		d.lastCol = 1
		between = between[bytes.LastIndexByte(between, '\n')+1:]
	}
	d.lastCol += utf8.RuneCount(between)
	d.lastOff = off
	return source{layer: fromFile, name: d.file, line: d.lastLine, col: d.lastCol}
}

// tooMany reports, once, that the file has more keys than anybody needs.
func (d *document) tooMany(s source) bool {
	if len(d.at) <= maxKeys {
		return false
	}
	if !d.full {
		d.full, d.fatal = true, true
		d.problems = append(d.problems, s.problem("", fmt.Sprintf("more than %d keys and list elements", maxKeys)))
	}
	return true
}

// badKey says why a key cannot be used, or "".
func badKey(key string) string {
	if key == "" {
		return "a key is empty"
	}
	if strings.ContainsFunc(key, unicode.IsControl) {
		return fmt.Sprintf("the key %q contains a control character", key)
	}
	return ""
}
