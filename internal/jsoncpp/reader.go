package jsoncpp

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// MaxDepth is jsoncpp's stackLimit: a value nested deeper than this makes the reader fail. The root
// is at depth 1.
const MaxDepth = 1000

var (
	// ErrSyntax is wrapped by errors for text that is not JSON, even by jsoncpp's wide rules.
	ErrSyntax = errors.New("malformed JSON")
	// ErrDepth is wrapped by the error for a value nested deeper than MaxDepth.
	ErrDepth = errors.New("JSON nested too deep")
	// ErrType is wrapped by errors for a value that has the wrong JSON type.
	ErrType = errors.New("wrong JSON type")
)

// Kind is the type of a JSON value.
type Kind uint8

// The kinds of JSON values.
const (
	Null Kind = iota + 1
	Bool
	Number
	String
	Array
	Object
)

func (k Kind) String() string {
	return [...]string{"nothing", "null", "bool", "number", "string", "array", "object"}[min(int(k), 6)]
}

// Reader reads one JSON text from front to back without building a tree. It stands before a value;
// each method that reads one moves it behind that value. After an error the Reader is not usable.
type Reader struct {
	b     []byte
	i     int
	depth int
	buf   []byte // decoded text of a string with escapes
}

// NewReader returns a Reader for b, which must not change while the Reader is in use.
func NewReader(b []byte) *Reader {
	r := &Reader{b: b}
	if len(b) >= 3 && b[0] == 0xef && b[1] == 0xbb && b[2] == 0xbf {
		r.i = 3
	}
	return r
}

// Valid returns nil when jsoncpp would parse b, and otherwise the reason.
func Valid(b []byte) error { return NewReader(b).Skip() }

func (r *Reader) syntax(what string) error {
	return fmt.Errorf("%w at byte %d: %s", ErrSyntax, r.i, what)
}

func (r *Reader) typeError(got Kind, want string) error {
	return fmt.Errorf("%w at byte %d: %s is not convertible to %s", ErrType, r.i, got, want)
}

// space skips white space and comments and returns the next byte.
func (r *Reader) space() (byte, error) {
	for r.i < len(r.b) {
		switch c := r.b[r.i]; c {
		case ' ', '\t', '\n', '\r':
			r.i++
		case '/':
			if err := r.comment(); err != nil {
				return 0, err
			}
		default:
			return c, nil
		}
	}
	return 0, r.syntax("unexpected end of text")
}

func (r *Reader) comment() error {
	if r.i+1 >= len(r.b) {
		return r.syntax("unexpected '/'")
	}
	switch r.b[r.i+1] {
	case '/':
		for r.i += 2; r.i < len(r.b) && r.b[r.i] != '\n'; r.i++ {
		}
		return nil
	case '*':
		for j := r.i + 2; j+1 < len(r.b); j++ {
			if r.b[j] == '*' && r.b[j+1] == '/' {
				r.i = j + 2
				return nil
			}
		}
		return r.syntax("comment without end")
	}
	return r.syntax("unexpected '/'")
}

// Kind tells what the next value is without reading it.
func (r *Reader) Kind() (Kind, error) {
	c, err := r.space()
	if err != nil {
		return 0, err
	}
	if r.depth >= MaxDepth {
		return 0, fmt.Errorf("%w: more than %d levels", ErrDepth, MaxDepth)
	}
	switch {
	case c == '{':
		return Object, nil
	case c == '[':
		return Array, nil
	case c == '"':
		return String, nil
	case c == 't' || c == 'f':
		return Bool, nil
	case c == 'n':
		return Null, nil
	case c == '-' || c >= '0' && c <= '9':
		return Number, nil
	}
	return 0, r.syntax(fmt.Sprintf("unexpected %q", c))
}

// Object reads an object. For each member it calls f, standing before the member's value, which f
// must read exactly once. key is valid until f reads. Repeated keys are reported each time.
func (r *Reader) Object(f func(key []byte) error) error {
	if err := r.expect(Object); err != nil {
		return err
	}
	return r.items('}', func() error {
		if r.b[r.i] != '"' {
			return r.syntax("an object key must be a string")
		}
		key, err := r.text()
		if err != nil {
			return err
		}
		c, err := r.space()
		if err != nil {
			return err
		}
		if c != ':' {
			return r.syntax("missing ':' after an object key")
		}
		r.i++
		return f(key)
	})
}

// Array reads an array and calls f before each element, which f must read exactly once.
func (r *Reader) Array(f func() error) error {
	if err := r.expect(Array); err != nil {
		return err
	}
	return r.items(']', f)
}

func (r *Reader) expect(want Kind) error {
	k, err := r.Kind()
	if err != nil {
		return err
	}
	if k != want {
		return r.typeError(k, want.String())
	}
	return nil
}

// items reads the comma separated inside of a container, from its opening bracket to past end.
func (r *Reader) items(end byte, f func() error) error {
	r.i++
	r.depth++
	for {
		c, err := r.space()
		if err != nil {
			return err
		}
		if c == end { // also after a comma: jsoncpp allows it
			break
		}
		if err := f(); err != nil {
			return err
		}
		if c, err = r.space(); err != nil {
			return err
		}
		if c == ',' {
			r.i++
		} else if c != end {
			return r.syntax(fmt.Sprintf("expected ',' or '%c', found %q", end, c))
		}
	}
	r.i++
	r.depth--
	return nil
}

// Skip reads a value of any kind and checks its syntax.
func (r *Reader) Skip() error {
	k, err := r.Kind()
	if err != nil {
		return err
	}
	switch k {
	case Object:
		return r.Object(func([]byte) error { return r.Skip() })
	case Array:
		return r.Array(r.Skip)
	case String:
		_, err = r.text()
	case Number:
		_, err = r.number()
	default:
		_, err = r.literal(k)
	}
	return err
}

// Raw reads a value of any kind and returns its text, a part of the Reader's input.
func (r *Reader) Raw() ([]byte, error) {
	if _, err := r.space(); err != nil {
		return nil, err
	}
	start := r.i
	if err := r.Skip(); err != nil {
		return nil, err
	}
	return r.b[start:r.i], nil
}

func (r *Reader) literal(k Kind) (bool, error) {
	for _, l := range [...]string{"null", "true", "false"} {
		if len(r.b)-r.i >= len(l) && string(r.b[r.i:r.i+len(l)]) == l {
			r.i += len(l)
			return l == "true", nil
		}
	}
	return false, r.syntax("unknown word where " + k.String() + " was expected")
}

// text reads a string. The result is a part of the input, or of r.buf when it had escapes.
func (r *Reader) text() ([]byte, error) {
	start := r.i + 1
	for j := start; j < len(r.b); j++ {
		switch r.b[j] {
		case '"':
			r.i = j + 1
			return r.b[start:j], nil
		case '\\':
			return r.escaped(start, j)
		}
	}
	return nil, r.syntax("string without end")
}

func (r *Reader) escaped(start, j int) ([]byte, error) {
	out := append(r.buf[:0], r.b[start:j]...)
	for j < len(r.b) {
		c := r.b[j]
		j++
		if c == '"' {
			r.i, r.buf = j, out
			return out, nil
		}
		if c != '\\' {
			out = append(out, c)
			continue
		}
		if j == len(r.b) {
			break
		}
		c = r.b[j]
		j++
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			u, ok := unit(r.b, j)
			if !ok {
				r.i = j
				return nil, r.syntax("bad \\u escape")
			}
			j += 4
			if u >= 0xd800 && u < 0xdc00 {
				lo, ok := rune(0), false
				if j+1 < len(r.b) && r.b[j] == '\\' && r.b[j+1] == 'u' {
					lo, ok = unit(r.b, j+2)
				}
				if !ok {
					r.i = j
					return nil, r.syntax("half of a surrogate pair")
				}
				j += 6
				u = 0x10000 + (u&0x3ff)<<10 + lo&0x3ff
			}
			out = utf8.AppendRune(out, u)
		default:
			r.i = j
			return nil, r.syntax("bad escape in a string")
		}
	}
	return nil, r.syntax("string without end")
}

func unit(b []byte, i int) (rune, bool) {
	if i+4 > len(b) {
		return 0, false
	}
	var u rune
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		u = u<<4 | rune(c)
	}
	return u, true
}
