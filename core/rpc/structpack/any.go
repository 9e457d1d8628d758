package structpack

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// ErrLiteral is wrapped when a type literal is not understood.
var ErrLiteral = errors.New("structpack: unknown type literal")

const (
	maxAnyDepth = 32      // nesting of types in a literal
	maxAnyNodes = 1 << 20 // values that DecodeAny builds
)

// AnyExpected is an expected value read by [DecodeAny]; Value is the result or the error code.
type AnyExpected struct {
	OK    bool
	Value any
}

// AnyVariant is a variant read by [DecodeAny].
type AnyVariant struct {
	Index int
	Value any
}

// DecodeAny reads a message without knowing its type, by the literal that the message carries or,
// when that is absent, by the literal given. It serves diagnostics: a frame of an unknown protocol
// version can be shown as values. Integers become int64 or uint64, structs, maps and lists []any
// (a map entry is a []any of two), none and void nil.
func DecodeAny(body []byte, literal string) (any, error) {
	h, err := ParseHeader(body)
	if err != nil {
		return nil, err
	}
	if h.HasLiteral {
		literal = string(h.Literal)
	}
	t, err := parseLiteral(literal)
	if err != nil {
		return nil, err
	}
	a := anyReader{d: Decoder{buf: h.Payload, width: h.Width, budget: math.MaxInt}, left: maxAnyNodes}
	v := a.value(t)
	return v, a.d.err
}

// Describe spells a type literal for people: "(string, vector<u64>)".
func Describe(literal string) string {
	t, err := parseLiteral(literal)
	if err != nil {
		return fmt.Sprintf("literal %x", literal)
	}
	return t.String()
}

// anyType is a parsed literal.
type anyType struct {
	id  byte
	sub []anyType
}

const (
	idString   = 0x80
	idMap      = 0x82
	idSet      = 0x83
	idVector   = 0x84
	idOptional = 0x85
	idVariant  = 0x86
	idExpected = 0x87
	idVoid     = 0xfa
	idStruct   = 0xfd
	idEnd      = 0xff
)

var scalarNames = map[byte]string{1: "i32", 2: "u32", 3: "i64", 4: "u64", 5: "i8", 6: "u8", 7: "i16", 8: "u16", 0x0b: "bool",
	0x0c: "char", 0x12: "double", idString: "string", idVoid: "void"}

func (t anyType) String() string {
	if n, ok := scalarNames[t.id]; ok {
		return n
	}
	parts := make([]string, len(t.sub))
	for i, s := range t.sub {
		parts[i] = s.String()
	}
	list := strings.Join(parts, ", ")
	switch t.id {
	case idStruct:
		return "(" + list + ")"
	case idMap:
		return "map<" + list + ">"
	case idSet:
		return "set<" + list + ">"
	case idVector:
		return "vector<" + list + ">"
	case idOptional:
		return "optional<" + list + ">"
	case idVariant:
		return "variant<" + list + ">"
	}
	return "expected<" + list + ">"
}

func parseLiteral(literal string) (anyType, error) {
	p := literalParser{rest: literal}
	t, err := p.next(0)
	if err == nil && p.rest != "" {
		err = fmt.Errorf("%w: %d bytes left in %x", ErrLiteral, len(p.rest), literal)
	}
	return t, err
}

type literalParser struct{ rest string }

func (p *literalParser) next(depth int) (anyType, error) {
	if depth > maxAnyDepth {
		return anyType{}, fmt.Errorf("%w: nested deeper than %d", ErrLiteral, maxAnyDepth)
	}
	if p.rest == "" {
		return anyType{}, fmt.Errorf("%w: it ends early", ErrLiteral)
	}
	t := anyType{id: p.rest[0]}
	p.rest = p.rest[1:]
	operands := 0
	switch t.id {
	case idString:
		if !strings.HasPrefix(p.rest, "\x0c") {
			return t, fmt.Errorf("%w: string of other characters", ErrLiteral)
		}
		p.rest = p.rest[1:]
		return t, nil
	case idVector, idSet, idOptional:
		operands = 1
	case idMap, idExpected:
		operands = 2
	case idStruct, idVariant:
		for {
			if t.id == idStruct && trivialEnd(p.rest) {
				p.rest = p.rest[2:]
			}
			if strings.HasPrefix(p.rest, "\xff") {
				p.rest = p.rest[1:]
				return t, nil
			}
			s, err := p.next(depth + 1)
			if err != nil {
				return t, err
			}
			t.sub = append(t.sub, s)
		}
	default:
		if _, ok := scalarNames[t.id]; !ok {
			return t, fmt.Errorf("%w: type id %02x", ErrLiteral, t.id)
		}
	}
	for range operands {
		s, err := p.next(depth + 1)
		if err != nil {
			return t, err
		}
		t.sub = append(t.sub, s)
	}
	return t, nil
}

// trivialEnd reports whether the two alignment bytes of a block-copied struct come next. No type
// that needs operands can stand directly before the end of a struct, so this is not ambiguous.
func trivialEnd(s string) bool {
	return len(s) >= 3 && s[2] == idEnd && s[0] > idString+1 && s[1] > idString+1 && s[0] < idVoid && s[1] < idVoid
}

type anyReader struct {
	d    Decoder
	left int
}

func (a *anyReader) list(n int, t anyType) []any {
	var vs []any
	for range n {
		if a.d.Failed() {
			break
		}
		vs = append(vs, a.value(t))
	}
	return vs
}

func (a *anyReader) value(t anyType) any {
	if a.left--; a.left < 0 {
		a.d.Fail("too many values")
	}
	if a.d.Failed() {
		return nil
	}
	switch t.id {
	case 1:
		return int64(int32(a.d.U32()))
	case 2:
		return uint64(a.d.U32())
	case 3:
		return int64(a.d.U64())
	case 4:
		return a.d.U64()
	case 5:
		return int64(int8(a.d.U8()))
	case 6, 0x0c:
		return uint64(a.d.U8())
	case 7:
		return int64(int16(a.d.U16()))
	case 8:
		return uint64(a.d.U16())
	case 0x0b:
		return a.d.Bool()
	case 0x12:
		return math.Float64frombits(a.d.U64())
	case idString:
		return a.d.String()
	case idStruct:
		vs := make([]any, len(t.sub))
		for i, s := range t.sub {
			vs[i] = a.value(s)
		}
		return vs
	case idMap:
		return a.list(a.d.Len(1), anyType{id: idStruct, sub: t.sub})
	case idVector, idSet:
		return a.list(a.d.Len(1), t.sub[0])
	case idOptional:
		if a.d.Bool() {
			return a.value(t.sub[0])
		}
		return nil
	case idExpected:
		if a.d.Bool() {
			return AnyExpected{OK: true, Value: a.value(t.sub[0])}
		}
		return AnyExpected{Value: a.value(t.sub[1])}
	case idVariant:
		i := int(a.d.U8())
		if i >= len(t.sub) {
			a.d.Fail("unknown variant index")
			return nil
		}
		return AnyVariant{Index: i, Value: a.value(t.sub[i])}
	}
	return nil // void
}
