package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Document is a JSON or YAML file that was read with the position of every key, for programs whose keys are
// not the node's (the Store master reads upstream's flat file). Values are string, bool, json.Number, nil, []any
// and map[string]any.
type Document struct{ d *document }

// ReadDocument reads a file, told apart by the extension of its name, else by its first character. The error
// is an *Errors with everything that is wrong with the text itself, duplicate keys included.
func ReadDocument(path string) (*Document, error) {
	data, p := readFile(path)
	if p != nil {
		return nil, &Errors{Problems: []Problem{*p}}
	}
	return ParseDocument(path, data)
}

// ParseDocument is ReadDocument for a text; path only names it.
func ParseDocument(path string, data []byte) (*Document, error) {
	d := parse(path, data)
	if len(d.problems) > 0 {
		return nil, &Errors{Problems: sortProblems(d.problems)}
	}
	return &Document{d}, nil
}

// Path is the file's name.
func (d *Document) Path() string { return d.d.file }

// Keys lists the keys at the top level in the order of the file.
func (d *Document) Keys() []string {
	return slices.SortedFunc(maps.Keys(d.d.values), func(a, b string) int {
		x, y := d.d.at[a], d.d.at[b]
		return cmp.Or(cmp.Compare(x.line, y.line), cmp.Compare(x.col, y.col))
	})
}

// Value returns the value of a key at the top level.
func (d *Document) Value(key string) any { return d.d.values[key] }

// Place says where a key stands: "file:line:col".
func (d *Document) Place(key string) string {
	s := d.d.at[key]
	return fmt.Sprintf("%s:%d:%d", s.name, s.line, s.col)
}

// Problem is a finding about a key at the top level.
func (d *Document) Problem(key, format string, args ...any) Problem {
	return d.d.at[key].problem(key, fmt.Sprintf(format, args...))
}

// UnknownKey is the finding that nobody knows a key, with the nearest of those that are known.
func (d *Document) UnknownKey(key string, known []string) Problem {
	return d.d.at[key].problem(key, unknownKey(key, known))
}
