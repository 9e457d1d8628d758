package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Problem is one finding about the configuration. File is the path of the file, or "environment" or
// "flags"; Line and Col count from 1 and are 0 where there is no position. Key is the dotted path of
// the key, or the name of the variable or flag with the key it sets in parentheses.
type Problem struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	Col  int    `json:"col,omitempty"`
	Key  string `json:"key,omitempty"`
	Msg  string `json:"msg"`
}

// String returns "file:line:col: key: msg" without the parts that are unknown.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", p.Line, p.Col)
		}
		b.WriteString(": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	return b.String() + p.Msg
}

// Errors is every problem that makes a configuration unusable, in the order of the file, and what else
// was noticed.
type Errors struct {
	Problems []Problem
	Warnings []Problem
}

// Error returns one problem a line.
func (e *Errors) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

func sortProblems(ps []Problem) []Problem {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return slices.Compact(ps)
}

// sep joins the elements of a key path inside this package. It cannot occur in a key (the file readers
// refuse control characters), whereas "." is common in instance and tenant names.
const sep = "\x1f"

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(parts), func(s string) bool { return s == "" }), sep)
}

// dotted is how a key path is shown: "transports.tcp.port_range", "prefer[1]".
func dotted(path string) string {
	return strings.ReplaceAll(strings.ReplaceAll(path, sep+"[", "["), sep, ".")
}

// layer says which of the four layers a value came from.
type layer uint8

const (
	fromDefault layer = iota
	fromFile
	fromEnv
	fromFlag
	fromRule // computed from other keys
)

// source is the origin of one value.
type source struct {
	layer     layer
	name      string // path of the file, variable, flag without dashes, or the rule in words
	line, col int
}

func (s source) String() string {
	switch s.layer {
	case fromFile:
		return fmt.Sprintf("file %s:%d:%d", s.name, s.line, s.col)
	case fromEnv:
		return "env " + s.name
	case fromFlag:
		return "flag --" + s.name
	case fromRule:
		return s.name
	default:
		return "default"
	}
}

// problem places msg at the origin of the value of path.
func (s source) problem(path, msg string) Problem {
	key := dotted(path)
	if len(key) > 200 {
		key = strings.ToValidUTF8(key[:200], "") + "…"
	}
	switch s.layer {
	case fromFile:
		return Problem{File: s.name, Line: s.line, Col: s.col, Key: key, Msg: msg}
	case fromEnv:
		return Problem{File: "environment", Key: fmt.Sprintf("%s (%s)", s.name, key), Msg: msg}
	case fromFlag:
		return Problem{File: "flags", Key: fmt.Sprintf("--%s (%s)", s.name, key), Msg: msg}
	default:
		return Problem{File: s.name, Key: key, Msg: msg}
	}
}

var (
	// Up to the last "@": an unescaped "@" or "/" in a password must not leave its tail visible.
	urlUser  = regexp.MustCompile(`(?s)^([A-Za-z][A-Za-z0-9+.-]*://)?([^:@/]*):.*@`)
	urlQuery = regexp.MustCompile(`(?i)([?&][^=&]*(?:password|passwd|pwd|token|secret|auth)[^=&]*=)[^&]*`)
)

const masked = "***"

// Redact hides passwords in a connection string: user:password@ and ?password=.
func Redact(s string) string {
	if !strings.ContainsAny(s, "@?&") {
		return s
	}
	s = urlUser.ReplaceAllString(s, "${1}${2}:"+masked+"@")
	return urlQuery.ReplaceAllString(s, "${1}"+masked)
}

// show renders a value from the configuration for a message: without passwords, on one line, short.
func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		v = Redact(v)
		if utf8.RuneCountInString(v) > 80 {
			v = string([]rune(v)[:80]) + "…"
		}
		return strconv.Quote(v)
	case json.Number:
		if len(v) > 40 {
			return string(v[:40]) + "…"
		}
		return string(v)
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	default:
		return fmt.Sprint(v)
	}
}

// kindOf names the sort of a value without showing it, for keys that are secret.
func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "text"
	case bool:
		return "true or false"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	default:
		return "a number"
	}
}
