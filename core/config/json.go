package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// jsonWalk is one pass over a JSON text by tokens. encoding/json alone would lose positions, exact
// integers and duplicate keys, and would take a top-level null for an empty object.
type jsonWalk struct {
	*document
	dec     *json.Decoder
	lastKey string // the key read last in the object being read, for "trailing comma after"
}

// errStop ends the walk; the reason is already among the problems.
var errStop = errors.New("stop")

func (d *document) parseJSON() {
	w := &jsonWalk{document: d, dec: json.NewDecoder(bytes.NewReader(d.data))}
	w.dec.UseNumber()
	d.fatal = w.walk() != nil
}

func (w *jsonWalk) walk() error {
	start := w.next()
	tok, err := w.token()
	if err != nil {
		return err
	}
	if tok != json.Delim('{') {
		w.problemAt(start, "", "the top level must be an object { ... }, got %s", describe(tok))
		return errStop
	}
	if w.values, err = w.object("", 1); err != nil {
		return err
	}
	if off := w.next(); off < len(w.data) {
		w.problemAt(off, "", "unexpected %q after the end of the object", firstRune(w.data[off:]))
		return errStop
	}
	return nil
}

func describe(tok json.Token) string {
	switch tok := tok.(type) {
	case json.Delim:
		return "a list"
	case nil:
		return "null"
	default:
		return kindOf(tok)
	}
}

// next returns the offset at which the next token starts.
func (w *jsonWalk) next() int {
	off := int(w.dec.InputOffset())
	for off < len(w.data) && strings.IndexByte(" \t\r\n,:", w.data[off]) >= 0 {
		off++
	}
	return off
}

func (w *jsonWalk) token() (json.Token, error) {
	tok, err := w.dec.Token()
	if err != nil {
		w.syntax(err)
		return nil, errStop
	}
	return tok, nil
}

// object reads the members after "{" up to and including "}".
func (w *jsonWalk) object(path string, depth int) (map[string]any, error) {
	out := map[string]any{}
	w.lastKey = ""
	for w.dec.More() {
		off := w.next()
		tok, err := w.token()
		if err != nil {
			return nil, err
		}
		key, _ := tok.(string)
		if why := badKey(key); why != "" {
			w.problemAt(off, path, "%s", why)
			return nil, errStop
		}
		at := join(path, key)
		if first, dup := w.at[at]; dup {
			w.problemAt(off, at, "given twice, first in line %d", first.line)
		} else {
			w.at[at] = w.pos(off)
		}
		if w.tooMany(w.at[at]) {
			return nil, errStop
		}
		v, err := w.value(at, depth)
		if err != nil {
			return nil, err
		}
		out[key] = v
		w.lastKey = key
	}
	_, err := w.token() // the closing brace
	return out, err
}

func (w *jsonWalk) value(path string, depth int) (any, error) {
	off := w.next()
	tok, err := w.token()
	if err != nil {
		return nil, err
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return tok, nil
	}
	if depth >= maxDepth {
		w.problemAt(off, path, "nested deeper than %d levels", maxDepth)
		return nil, errStop
	}
	if delim == '{' {
		return w.object(path, depth+1)
	}
	list := []any{}
	for w.dec.More() {
		elem := join(path, fmt.Sprintf("[%d]", len(list)))
		w.at[elem] = w.pos(w.next())
		if w.tooMany(w.at[elem]) {
			return nil, errStop
		}
		v, err := w.value(elem, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	w.lastKey = ""
	_, err = w.token() // the closing bracket
	return list, err
}

// syntax turns the decoder's error into one that tells people what to change. The decoder's own offset
// counts only scanned values, so the place is found from its input offset.
func (w *jsonWalk) syntax(err error) {
	off := w.next()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || off >= len(w.data) {
		w.problemAt(len(w.data), "", "the text ends too early; a closing }, ] or \" is missing")
		return
	}
	before := bytes.TrimRight(w.data[:off], " \t\r\n")
	prev := byte(0)
	if len(before) > 0 {
		prev = before[len(before)-1]
	}
	rest := string(w.data[off:min(off+16, len(w.data))])
	word := strings.TrimLeft(rest, "-+")
	switch c := w.data[off]; {
	case (c == '}' || c == ']') && prev == ',' && w.lastKey != "" && c == '}':
		w.problemAt(off, "", "trailing comma after %q", w.lastKey)
	case (c == '}' || c == ']') && prev == ',':
		w.problemAt(off, "", "trailing comma before %q", c)
	case c == '#', strings.HasPrefix(rest, "//"), strings.HasPrefix(rest, "/*"):
		w.problemAt(off, "", "JSON has no comments; remove it, or use a .yaml file")
	case c == '\'':
		w.problemAt(off, "", "unexpected '; JSON strings are written in double quotes")
	case strings.HasPrefix(strings.ToLower(word), "nan"), strings.HasPrefix(strings.ToLower(word), "inf"):
		w.problemAt(off, "", "NaN and Infinity are not numbers that JSON knows")
	case prev == ',' && bytes.HasSuffix(bytes.TrimRight(before[:len(before)-1], " \t\r\n"), []byte(",")):
		w.problemAt(off, "", "two commas in a row")
	case c == '"' && prev != ',' && prev != '{' && prev != '[' && prev != ':':
		w.problemAt(off, "", "unexpected '\"'; is a comma missing before it?")
	case c == '"':
		w.problemAt(off, "", "the string that starts here is not valid: no line breaks or control characters, only known \\ escapes")
	default:
		w.problemAt(off, "", "unexpected %q", firstRune(w.data[off:]))
	}
}

func firstRune(b []byte) rune {
	for _, r := range string(b[:min(len(b), 4)]) {
		return r
	}
	return 0
}
