package structpack

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vector is a message that the C++ library wrote.
type vector struct {
	Name, Type string
	Code       uint32   `json:"type_code"`
	Literal    hexBytes `json:"type_literal_hex"`
	Bare       hexBytes `json:"body_bare_hex"`
	Full       hexBytes `json:"body_literal_hex"`
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(b []byte) (err error) {
	*h, err = hex.DecodeString(string(b))
	return err
}

func vectors(t testing.TB) map[string]vector {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []vector
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	m := map[string]vector{}
	for _, v := range list {
		m[v.Name] = v
	}
	return m
}

// check compares both forms of value with the vector, in both directions.
func check[T any](typ Type[T], value T) func(*testing.T, vector) {
	return func(t *testing.T, v vector) {
		m := NewMessage(typ)
		if m.Code() != v.Code || m.Literal() != string(v.Literal) {
			t.Errorf("code %08x literal %x, want %08x %x", m.Code(), m.Literal(), v.Code, v.Literal)
		}
		for _, form := range []struct {
			literal bool
			want    []byte
		}{{false, v.Bare}, {true, v.Full}} {
			got, err := m.Append([]byte("before"), &value, form.literal)
			if err != nil || string(got) != "before"+string(form.want) {
				t.Fatalf("wrote %x, %v, want %x", got, err, form.want)
			}
			for _, alias := range []bool{false, true} {
				var back T
				if err := m.Decode(form.want, &back, alias); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(value, back); diff != "" {
					t.Errorf("read (-want +got):\n%s", diff)
				}
			}
			if h, err := ParseHeader(form.want); err != nil || h.HasLiteral != form.literal || HasLiteral(form.want) != form.literal {
				t.Errorf("header %+v, %v", h, err)
			}
		}
	}
}

type uuid [2]uint64

var uuidType = Trivial(8, 8, F(Uint64[uint64](), func(u *uuid) *uint64 { return &u[0] }), F(Uint64[uint64](), func(u *uuid) *uint64 { return &u[1] }))

func TestVectors(t *testing.T) {
	all := vectors(t)
	strs := Vector(String[string]())
	many := make([]string, 300)
	for i := range many {
		many[i] = "x"
	}
	sevens := make([]uint64, 300)
	for i := range sevens {
		sevens[i] = 7
	}
	trues := make([]Expected[bool, int32], 300)
	for i := range trues {
		trues[i].Value = true
	}
	void := Expect[int32](Monostate())
	for name, f := range map[string]func(*testing.T, vector){
		"string_empty":          check(String[string](), ""),
		"string_3":              check(String[string](), "abc"),
		"string_255":            check(String[string](), strings.Repeat("a", 255)),
		"string_256":            check(String[string](), strings.Repeat("b", 256)),
		"vec_string_300":        check(strs, many),
		"vec_string_big_elem":   check(strs, []string{strings.Repeat("c", 70000), "d"}),
		"vec_u64_300":           check(Vector(Uint64[uint64]()), sevens),
		"bool_true":             check(Bool[bool](), true),
		"int64_long":            check(Int64[int64](), 5),
		"uuid":                  check(uuidType, uuid{0x1122334455667788, 0x99aabbccddeeff00}),
		"expected_void_ok":      check(void, Expected[Void, int32]{}),
		"expected_void_err":     check(void, Expected[Void, int32]{Code: -704}),
		"monostate":             check(Monostate(), Void{}),
		"vec_expected_bool_300": check(Vector(Expect[int32](Bool[bool]())), trues),
	} {
		t.Run(name, func(t *testing.T) {
			v, ok := all[name]
			if !ok {
				t.Fatal("no such vector")
			}
			f(t, v)
		})
	}
	for name, v := range all { // also those whose types are declared elsewhere
		for _, body := range [][]byte{v.Bare, v.Full} {
			if _, err := DecodeAny(body, string(v.Literal)); err != nil {
				t.Errorf("%s as any value: %v", name, err)
			}
		}
	}
}

// Types that no vector covers are compared with bytes written by hand from the format.
func TestForms(t *testing.T) {
	type triple struct {
		a int8
		b uint16
		c float64
	}
	tripleType := Struct(F(Int8[int8](), func(v *triple) *int8 { return &v.a }), F(Uint16[uint16](), func(v *triple) *uint16 { return &v.b }),
		F(Float64[float64](), func(v *triple) *float64 { return &v.c }))
	type place struct {
		kind string
		n    uint32
		s    string
	}
	placeType := Variant(func(p *place) *string { return &p.kind },
		Alternative[place, string]{"number", Inline(F(Uint32[uint32](), func(p *place) *uint32 { return &p.n }))},
		Alternative[place, string]{"text", Inline(F(String[string](), func(p *place) *string { return &p.s }))})
	type entry struct {
		key  string
		size int64
		note string
	}
	entries := MapOf(Fill(func(_ *Decoder, e *entry) { e.note = "filled" }), F(String[string](), func(e *entry) *string { return &e.key }),
		F(Int64[int64](), func(e *entry) *int64 { return &e.size }))
	even := FilteredVector(Uint8[uint8](), func(v *uint8) bool { return *v%2 == 0 })

	for _, c := range []struct {
		name, payload, literal, text string
		write                        func() ([]byte, error)
		read                         func([]byte) (any, error)
		want                         any
	}{
		form("struct", tripleType, triple{-2, 0x1234, 1.5}, "fe3412000000000000f83f", "fd050812ff", "(i8, u16, double)"),
		form("small integers", Vector(Int16[int16]()), []int16{-1, 2}, "02ffff0200", "8407", "vector<i16>"),
		form("u8 and char text", Vector(Uint8[uint8]()), []uint8{1, 2}, "020102", "8406", "vector<u8>"),
		form("none", Optional(String[string]()), Opt[string]{}, "00", "85800c", "optional<string>"),
		form("some", Optional(String[string]()), Some("hi"), "01026869", "85800c", "optional<string>"),
		form("map", Map(String[string](), Int32[int32]()), []Pair[string, int32]{{"a", 1}, {"b", -1}}, "02016101000000"+"0162ffffffff", "82800c01", "map<string, i32>"),
		form("set", Set(Uint32[uint32]()), []uint32{5}, "0105000000", "8302", "set<u32>"),
		form("variant first", placeType, place{kind: "number", n: 9}, "0009000000", "8602800cff", "variant<u32, string>"),
		form("variant second", placeType, place{kind: "text", s: "x"}, "010178", "8602800cff", "variant<u32, string>"),
		form("map of structs", entries, []entry{{"k", 3, "filled"}}, "01016b0300000000000000", "82800c03", "map<string, i64>"),
		form("expected value", Expect[int32](String[string]()), Expected[string, int32]{Value: "v"}, "010176", "87800c01", "expected<string, i32>"),
		form("expected error", Expect[int32](String[string]()), Expected[string, int32]{Code: -1}, "00ffffffff", "87800c01", "expected<string, i32>"),
		form("filtered", even, []uint8{2, 4}, "020204", "8406", "vector<u8>"),
		form("trivial", uuidType, uuid{1, 2}, "01000000000000000200000000000000", "fd04048989ff", "(u64, u64)"),
	} {
		t.Run(c.name, func(t *testing.T) {
			literal, _ := hex.DecodeString(c.literal)
			if got := Describe(string(literal)); got != c.text {
				t.Errorf("described as %q, want %q", got, c.text)
			}
			body, err := c.write()
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("%s04%s00%s", hex.EncodeToString(le32(Code(string(literal))|1)), c.literal, c.payload)
			if got := hex.EncodeToString(body); got != want {
				t.Fatalf("wrote %s, want %s", got, want)
			}
			if got, err := c.read(body); err != nil || !cmp.Equal(got, c.want, cmp.AllowUnexported(triple{}, place{}, entry{})) {
				t.Errorf("read %+v, %v, want %+v", got, err, c.want)
			}
			if _, err := DecodeAny(body, ""); err != nil {
				t.Errorf("as any value: %v", err)
			}
			// Every shorter message is malformed, and no reader panics on it.
			for n := range len(body) {
				if _, err := c.read(body[:n]); !errors.Is(err, ErrMalformed) {
					t.Errorf("%d of %d bytes: %v", n, len(body), err)
				}
			}
		})
	}
	t.Run("filter", func(t *testing.T) {
		got, err := NewMessage(even).Append(nil, &[]uint8{1, 2, 3, 4, 5}, false)
		if want := "020204"; err != nil || hex.EncodeToString(got[4:]) != want {
			t.Errorf("wrote %x, %v, want %s", got[4:], err, want)
		}
	})
	t.Run("unknown alternative", func(t *testing.T) {
		got, err := NewMessage(placeType).Append([]byte("ab"), &place{kind: "moon"}, true)
		if !errors.Is(err, ErrUnrepresentable) || string(got) != "ab" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

type formCase = struct {
	name, payload, literal, text string
	write                        func() ([]byte, error)
	read                         func([]byte) (any, error)
	want                         any
}

func form[T any](name string, typ Type[T], value T, payload, literal, text string) formCase {
	m := NewMessage(typ)
	return formCase{name: name, payload: payload, literal: literal, text: text, want: value,
		write: func() ([]byte, error) { return m.Append(nil, &value, true) },
		read: func(b []byte) (any, error) {
			var v T
			err := m.Decode(b, &v, false)
			return v, err
		}}
}

func le32(v uint32) []byte { return []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)} }

func TestWidths(t *testing.T) {
	m := NewMessage(Vector(String[string]()))
	for _, c := range []struct {
		name   string
		value  []string
		header string // of the bare form, without the code
	}{
		{"short", []string{"a"}, ""},
		{"255 elements", make([]string, 255), ""},
		{"256 elements", make([]string, 256), "08"},
		{"65536 bytes in an element", []string{strings.Repeat("x", 1<<16)}, "10"},
		{"wide element after a wide list", append(make([]string, 300), strings.Repeat("x", 1<<16)), "10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := m.Append(nil, &c.value, false)
			if err != nil {
				t.Fatal(err)
			}
			if meta := hex.EncodeToString(b[4:5]); b[0]&1 == 1 != (c.header != "") || c.header != "" && meta != c.header {
				t.Errorf("header %x", b[:5])
			}
			var back []string
			if err := m.Decode(b, &back, true); err != nil || !cmp.Equal(c.value, back) {
				t.Errorf("read back %d strings, %v", len(back), err)
			}
		})
	}
	t.Run("wider than needed is read", func(t *testing.T) {
		for width, payload := range []string{"010161", "0100010061", "010000000100000061", "0100000000000000010000000000000061"} {
			b, err := hex.DecodeString(payload)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			if err := m.Decode(append(append(le32(m.Code()|1), byte(width<<3)), b...), &got, false); err != nil || !cmp.Equal(got, []string{"a"}) {
				t.Errorf("width %d: %q, %v", width, got, err)
			}
		}
	})
}

func TestMalformed(t *testing.T) {
	strs := NewMessage(Vector(String[string]()))
	code := le32(strs.Code())
	flagged := le32(strs.Code() | 1)
	for _, c := range []struct {
		name string
		body []byte
		why  string
	}{
		{"empty", nil, "too short"},
		{"three bytes", code[:3], "too short"},
		{"other type", le32(strs.Code() + 2), "another type"},
		{"no metainfo", flagged, "no metainfo"},
		{"literal without end", append(flagged[:4:4], 4, 0x84, 0x80, 0x0c), "without end"},
		{"other literal", append(flagged[:4:4], 4, 0x84, 0x80, 0x0d, 0, 0), "another type"},
		{"compatible length cut", append(flagged[:4:4], 2, 1), "truncated"},
		{"length beyond the end", append(code[:4:4], 200), "beyond the end"},
		{"huge length", append(flagged[:4:4], 3<<3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "beyond the end"},
		{"negative length", append(flagged[:4:4], 3<<3, 0, 0, 0, 0, 0, 0, 0, 0x80), "beyond the end"},
		{"string beyond the end", append(code[:4:4], 1, 5, 'a'), "beyond the end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v []string
			err := strs.Decode(c.body, &v, false)
			if !errors.Is(err, ErrMalformed) || !strings.Contains(fmt.Sprint(err), c.why) {
				t.Errorf("%v, want %q", err, c.why)
			}
		})
	}
	t.Run("compatible length is skipped", func(t *testing.T) {
		var v []string
		if err := strs.Decode(append(flagged[:4:4], 1, 9, 9, 1, 1, 'a'), &v, false); err != nil || !cmp.Equal(v, []string{"a"}) {
			t.Errorf("%q, %v", v, err)
		}
	})
	t.Run("memory claim", func(t *testing.T) {
		// 24 bytes of Go memory for each 4 bytes of a message: 64 MiB of it ask for more than is allowed.
		wide := NewMessage(Vector(Vector(Vector(Vector(Uint8[uint8]())))))
		body := append(le32(wide.Code()|1), 2<<3)
		body = append(body, le32(1)...)
		body = append(body, le32(1)...)
		const n = 4 << 20
		body = append(body, le32(n)...)
		body = append(body, make([]byte, 4*n)...)
		var v [][][][]uint8
		if err := wide.Decode(body, &v, false); err != nil {
			t.Fatalf("an honest message of %d empty lists: %v", n, err)
		}
		narrow := NewMessage(Vector(Optional(String[string]())))
		body = append(le32(narrow.Code()|1), 2<<3)
		body = append(body, le32(n)...)
		body = append(body, make([]byte, n)...)
		var o []Opt[string]
		if err := narrow.Decode(body, &o, false); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d optionals of one byte each: %v", n, err)
		}
	})
	t.Run("expected error 0", func(t *testing.T) {
		m := NewMessage(Expect[int32](Monostate()))
		var v Expected[Void, int32]
		if err := m.Decode(append(le32(m.Code()), 0, 0, 0, 0, 0), &v, false); !errors.Is(err, ErrMalformed) {
			t.Error(err)
		}
	})
}

func TestTuple(t *testing.T) {
	m := NewMessage(String[string]())
	for _, c := range []struct {
		name string
		body []byte
		ok   bool
	}{
		{"bare", append(le32(Code("\xfd\x80\x0c\xff")), 1, 'a'), true},
		{"literal", append(le32(Code("\xfd\x80\x0c\xff")|1), 4, 0xfd, 0x80, 0x0c, 0xff, 0, 1, 'a'), true},
		{"other literal", append(le32(Code("\xfd\x80\x0c\xff")|1), 4, 0xfd, 0x80, 0x0b, 0xff, 0, 1, 'a'), false},
		{"no tuple", append(le32(m.Code()), 1, 'a'), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := ParseHeader(c.body)
			if err != nil {
				t.Fatal(err)
			}
			var s string
			if err := m.DecodeTuple(h, &s, false); (err == nil) != c.ok || c.ok && s != "a" {
				t.Errorf("%q, %v", s, err)
			}
		})
	}
}

func TestAliasSharesMemory(t *testing.T) {
	m := NewMessage(String[string]())
	body := append(le32(m.Code()), 1, 'a')
	var own, shared string
	if err := errors.Join(m.Decode(body, &own, false), m.Decode(body, &shared, true)); err != nil {
		t.Fatal(err)
	}
	body[5] = 'b'
	if own != "a" || shared != "b" {
		t.Errorf("own %q, shared %q", own, shared)
	}
}

func TestResetKeepsCapacity(t *testing.T) {
	type rec struct {
		list []string
		n    uint64
	}
	typ := Expect[int32](Struct(F(Vector(String[string]()), func(r *rec) *[]string { return &r.list }), F(Uint64[uint64](), func(r *rec) *uint64 { return &r.n })))
	v := Expected[rec, int32]{Value: rec{make([]string, 3, 8), 7}, Code: -5}
	typ.Reset(&v)
	if v.Code != 0 || v.Value.n != 0 || len(v.Value.list) != 0 || cap(v.Value.list) != 8 {
		t.Errorf("%+v, capacity %d", v, cap(v.Value.list))
	}
}

func TestVectorOfNothingPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a vector of empty elements was accepted")
		}
	}()
	Vector(Monostate())
}

func TestDescribeUnknown(t *testing.T) {
	for _, literal := range []string{"", "\x84", "\x99", "\xfd\x01", "\x01\x01", strings.Repeat("\x84", 100), "\x80\x0d"} {
		if got := Describe(literal); !strings.HasPrefix(got, "literal ") {
			t.Errorf("%x described as %q", literal, got)
		}
		if _, err := DecodeAny(append(le32(0), 0), literal); !errors.Is(err, ErrLiteral) {
			t.Errorf("%x: %v", literal, err)
		}
	}
}

func FuzzDecodeAny(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add([]byte(v.Full), "")
		f.Add([]byte(v.Bare), string(v.Literal))
	}
	f.Fuzz(func(t *testing.T, body []byte, literal string) {
		_, _ = DecodeAny(body, literal)
		_ = Describe(literal)
	})
}

// FuzzRoundTrip reads arbitrary bytes as one rich type; what was read must survive writing.
func FuzzRoundTrip(f *testing.F) {
	type rich struct {
		list []Opt[string]
		dict []Pair[string, []uint64]
		res  Expected[string, int32]
	}
	m := NewMessage(Struct(
		F(Vector(Optional(String[string]())), func(r *rich) *[]Opt[string] { return &r.list }),
		F(Map(String[string](), Vector(Uint64[uint64]())), func(r *rich) *[]Pair[string, []uint64] { return &r.dict }),
		F(Expect[int32](String[string]()), func(r *rich) *Expected[string, int32] { return &r.res })))
	seed, err := m.Append(nil, &rich{list: []Opt[string]{Some("a"), {}}, dict: []Pair[string, []uint64]{{"k", []uint64{1}}}, res: Expected[string, int32]{Code: -3}}, true)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(append(le32(m.Code()), 0, 0, 1, 0))
	f.Fuzz(func(t *testing.T, body []byte) {
		var v, back rich
		if err := m.Decode(body, &v, true); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		again, err := m.Append(nil, &v, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Decode(again, &back, false); err != nil {
			t.Fatalf("%x does not read back: %v", again, err)
		}
		if diff := cmp.Diff(v, back, cmp.AllowUnexported(rich{})); diff != "" {
			t.Fatal(diff)
		}
	})
}
