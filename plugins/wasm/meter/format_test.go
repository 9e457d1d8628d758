package meter

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestIntegers(t *testing.T) {
	read := func(b []byte) *reader { return &reader{b: b, end: len(b), function: -1} }
	for _, v := range []uint32{0, 1, 127, 128, 16383, 16384, math.MaxInt32, math.MaxUint32} {
		if r := read(appendU32(nil, v)); r.u32() != v || r.err != nil || r.left() != 0 {
			t.Errorf("u32 %d: %v", v, r.err)
		}
	}
	for _, v := range []int64{0, 1, -1, 63, 64, -64, -65, math.MaxInt32, math.MinInt32, math.MaxInt32 + 1, 1<<32 - 1, -1 << 32, math.MaxInt64, math.MinInt64} {
		for _, bits := range []int{32, 33, 64} {
			fits := v >= -1<<(bits-1) && v <= 1<<(bits-1)-1
			r := read(appendSigned(nil, v))
			if got := r.signed(bits); (r.err == nil) != fits || fits && (got != v || r.left() != 0) {
				t.Errorf("s%d %d: %d, %v", bits, v, got, r.err)
			}
		}
	}
	for name, c := range map[string]struct {
		b    []byte
		read func(*reader) int64
		want int64
		ok   bool
	}{
		"u32 in five bytes":        {[]byte{0x81, 0x80, 0x80, 0x80, 0x00}, func(r *reader) int64 { return int64(r.u32()) }, 1, true},
		"u32 in six bytes":         {[]byte{0x81, 0x80, 0x80, 0x80, 0x80, 0x00}, func(r *reader) int64 { return int64(r.u32()) }, 0, false},
		"u32 of 33 bits":           {[]byte{0xff, 0xff, 0xff, 0xff, 0x1f}, func(r *reader) int64 { return int64(r.u32()) }, 0, false},
		"u32 without end":          {[]byte{0x80}, func(r *reader) int64 { return int64(r.u32()) }, 0, false},
		"s32 in five bytes":        {[]byte{0xff, 0xff, 0xff, 0xff, 0x7f}, func(r *reader) int64 { return r.signed(32) }, -1, true},
		"s32 of 33 bits":           {[]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, func(r *reader) int64 { return r.signed(32) }, 0, false},
		"s32 with a wrong sign":    {[]byte{0x80, 0x80, 0x80, 0x80, 0x70}, func(r *reader) int64 { return r.signed(32) }, 0, false},
		"s64 in eleven bytes":      {append(bytes.Repeat([]byte{0x80}, 10), 0), func(r *reader) int64 { return r.signed(64) }, 0, false},
		"s64 past the last bit":    {append(bytes.Repeat([]byte{0x80}, 9), 2), func(r *reader) int64 { return r.signed(64) }, 0, false},
		"s64 least":                {append(bytes.Repeat([]byte{0x80}, 9), 0x7f), func(r *reader) int64 { return r.signed(64) }, math.MinInt64, true},
		"count beyond the section": {[]byte{3, 0, 0}, func(r *reader) int64 { return int64(r.count("x", 9, 1)) }, 0, false},
	} {
		r := read(c.b)
		if got := c.read(r); got != c.want || (r.err == nil) != c.ok {
			t.Errorf("%s: %d, %v", name, got, r.err)
		}
	}
}

// Integers of any length are read, the shortest is written: an engine that reads longer ones in another way
// sees what we saw.
func TestShortestEncoding(t *testing.T) {
	long := oneFunction([]byte{0x60, 0x80, 0, 0x80, 0x80, 0}, []byte{0x81, 0, 0x81, 0x80, 0, typeI32},
		join([]byte{opI32Const, 0xff, 0xff, 0x7f, 0x21, 0x80, 0}, []byte{opBlock, blockEmpty, opBr, 0x80, 0x80, 0, opEnd}, []byte{prefixSIMD, 0x0c},
			make([]byte, 16), []byte{0x1a, opI32Const, 0, 0x28, 0x82, 0, 0xe4, 0x80, 0, 0x1a}))
	short := oneFunction([]byte{0x60, 0, 0}, []byte{1, 1, typeI32},
		join([]byte{opI32Const, 0x7f, 0x21, 0}, []byte{opBlock, blockEmpty, opBr, 0, opEnd}, []byte{prefixSIMD, 0x0c},
			make([]byte, 16), []byte{0x1a, opI32Const, 0, 0x28, 2, 0xe4, 0, 0x1a}))
	if got, want := mustRewrite(t, long).Code, mustRewrite(t, short).Code; !bytes.Equal(got, want) {
		t.Errorf("the long form becomes\n%x, the short one\n%x", got, want)
	}
}

func TestMalformed(t *testing.T) {
	fn := func(code ...byte) []byte { return oneFunction(noParams, noLocals, code) }
	good := fn()
	for name, code := range map[string][]byte{
		"empty":                      {},
		"header":                     []byte("\x00asm\x02\x00\x00\x00"),
		"cut off":                    good[:len(good)-1],
		"a byte too many":            append(slices.Clone(good), 0),
		"section twice":              append(slices.Clone(good), section(secCode)...),
		"sections out of order":      wasm(section(secMemory), section(secType)),
		"data count after code":      wasm(section(secCode), section(secDataCount)),
		"unknown section":            wasm([]byte{14, 0}),
		"section longer than file":   wasm([]byte{secType, 5, 0}),
		"section longer than needed": wasm([]byte{secType, 2, 0, 0}),
		"code without function":      wasm(section(secCode, []byte{2, 0, opEnd})),
		"function without code":      wasm(section(secType, noParams), section(secFunction, []byte{0})),
		"data count is wrong":        wasm([]byte{secDataCount, 1, 1}),
		"start function missing":     wasm([]byte{secStart, 1, 0}),
		"type missing":               wasm(section(secFunction, []byte{0})),
		"export of nothing":          wasm(section(secExport, append(str("f"), 0, 0))),
		"export of unknown kind":     wasm(section(secExport, append(str("f"), 9, 0))),
		"import of unknown kind":     wasm(section(secImport, join(str("a"), str("b"), []byte{9, 0}))),
		"name that is no text":       wasm(section(secExport, append([]byte{1, 0xff}, 0, 0))),
		"value type":                 wasm(section(secType, []byte{0x60, 1, 0x40, 0})),
		"mutability":                 wasm(section(secGlobal, []byte{typeI32, 2, opI32Const, 0, opEnd})),
		"constant":                   wasm(section(secGlobal, []byte{typeI32, 0, 0x45, 0, opEnd})),
		"vector that is no constant": wasm(section(secGlobal, join([]byte{typeV128, 0, prefixSIMD, 13}, make([]byte, 16), []byte{opEnd}))),
		"element flags":              wasm(section(secElement, []byte{8, 0, 0})),
		"element kind":               wasm(section(secElement, []byte{1, 1, 0})),
		"data flags":                 wasm(section(secData, []byte{3, 0})),
		"second name section":        wasm(append([]byte{secCustom}, sized(str("name")...)...), append([]byte{secCustom}, sized(str("name")...)...)),
		"name subsection too long":   wasm(append([]byte{secCustom}, sized(join(str("name"), []byte{1, 9, 0})...)...)),
		"else without if":            fn(opBlock, blockEmpty, opElse, opEnd),
		"else twice":                 fn(opI32Const, 0, opIf, blockEmpty, opElse, opElse, opEnd),
		"else of the function":       fn(opElse),
		"code after the end":         fn(opEnd),
		"block left open":            fn(opBlock, blockEmpty),
		"label too far out":          fn(opBr, 1),
		"label of a table":           fn(opI32Const, 0, 0x0e, 1, 0, 1),
		"vector opcode not shortest": fn(join([]byte{prefixSIMD, 0x8c, 0}, make([]byte, 16), []byte{0x1a})...),
		"prefixed opcode too long":   fn(opI32Const, 0, opI32Const, 0, opI32Const, 0, prefixMisc, 0x8b, 0, 0),
		"labels without end":         fn(opI32Const, 0, 0x0e, 0x7f),
		"block type missing":         fn(opBlock, 1, opEnd),
		"block type negative":        fn(opBlock, 0xc0, 0x7f, opEnd),
		"local missing":              fn(opLocalGet, 0),
		"alignment":                  fn(opI32Const, 0, 0x28, 5, 0, 0x1a),
		"heap type":                  fn(opRefNull, 0x7f, 0x1a),
	} {
		_, err := Rewrite(code, Options{Validate: anything})
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Rewrite(good, Options{Validate: anything}); err != nil {
		t.Error(err)
	}
}

func decoded(t *testing.T, code []byte) decoder {
	t.Helper()
	limits := DefaultLimits
	d := decoder{reader: reader{b: code, end: len(code), section: "module", function: -1}, limits: &limits}
	d.decode()
	return d
}

// All but the code, the fuel, its refill and the start function's place is as before, in the same order.
func TestTheRestIsKept(t *testing.T) {
	for _, name := range corpus(t) {
		code := load(t, name)
		original := slices.Clone(code)
		m := mustRewrite(t, code)
		if !bytes.Equal(code, original) {
			t.Errorf("%s: Rewrite changed its input", name)
		}
		if again := mustRewrite(t, code); !bytes.Equal(again.Code, m.Code) || !cmp.Equal(again.Facts, m.Facts) {
			t.Errorf("%s: a second time gives another module", name)
		}
		was, is := decoded(t, code), decoder{}
		// The names that we add are refused when they are read, so they are changed for that.
		renamed := bytes.ReplaceAll(m.Code, []byte(FuelExport), []byte("mooncake_xxxx"))
		renamed = bytes.ReplaceAll(renamed, []byte(ReserveExport), []byte("mooncake_xxxxxxx"))
		is = decoded(t, bytes.ReplaceAll(renamed, []byte(StartExport), []byte("mooncake_xxxxx")))
		if is.err != nil {
			t.Fatalf("%s: %v", name, is.err)
		}
		own := globalType{typeI64, 1}
		if n := len(was.m.globals); len(is.m.globals) != n+2 || is.m.globals[n].globalType != own || is.m.globals[n+1].globalType != own {
			t.Errorf("%s: %d globals, then %d", name, n, len(is.m.globals))
		}
		if n := len(was.m.functions); len(is.m.functions) != n+1 || len(is.m.bodies) != n+1 || int(is.m.functions[n]) != len(was.m.types) {
			t.Errorf("%s: %d functions, then %d with %d bodies", name, n, len(is.m.functions), len(is.m.bodies))
		}
		if n := len(was.m.types); len(is.m.types) != n+1 || is.m.types[n].String() != "()" {
			t.Errorf("%s: %d types, then %d", name, n, len(is.m.types))
		}
		added := 2
		if was.m.start >= 0 {
			added = 3
			if x := is.m.exports[len(is.m.exports)-1]; x.kind != Function || int(x.index) != was.m.start {
				t.Errorf("%s: function %d is exported, the start function is %d", name, x.index, was.m.start)
			}
		}
		if m.Facts.Start != (added == 3) || is.m.start >= 0 {
			t.Errorf("%s: start %v, section %d", name, m.Facts.Start, is.m.start)
		}
		is.m.globals, is.m.exports = is.m.globals[:len(was.m.globals)], is.m.exports[:len(is.m.exports)-added]
		is.m.types, is.m.functions = is.m.types[:len(was.m.types)], is.m.functions[:len(was.m.functions)]
		is.m.start, is.m.bodies = was.m.start, was.m.bodies
		is.m.exports = slices.Clip(is.m.exports)
		if d := cmp.Diff(was.m, is.m, cmp.AllowUnexported(module{}, funcType{}, importEntry{}, tableType{}, limitsType{}, globalType{}, globalEntry{},
			exportEntry{}, element{}, dataSegment{}, span{}), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestFacts(t *testing.T) {
	custom := func(name string) []byte {
		return append([]byte{secCustom}, sized(join(str(name), []byte("content"))...)...)
	}
	code := append(load(t, "memory"), join(custom("producers"), custom(".debug_info"))...)
	m := mustRewrite(t, code)
	f := m.Facts
	if !f.HasMemory || f.MemoryMin != 1 || f.MemoryMax != 4 || !f.MemoryBounded || f.DataBytes != 20 || f.Functions != 19 || f.Start {
		t.Errorf("%+v", f)
	}
	if d := cmp.Diff([]string{"producers", ".debug_info"}, f.Dropped); d != "" {
		t.Errorf("dropped: %s", d)
	}
	if bytes.Contains(m.Code, []byte("producers")) || bytes.Contains(m.Code, []byte("content")) {
		t.Error("a custom section is still there")
	}
	if want := (Export{"tcall", Function, "(i32) -> i32"}); !slices.Contains(f.Exports, want) {
		t.Errorf("no %v in %v", want, f.Exports)
	}
	if want := (Import{"env", "note", Function, "(i32, i64) -> i32"}); !slices.Contains(mustRewrite(t, load(t, "calls")).Facts.Imports, want) {
		t.Errorf("no import %v", want)
	}
	if m := mustRewrite(t, load(t, "start")); !m.Facts.Start || !bytes.Contains(m.Code, []byte("begin")) {
		t.Error("the start function or the name section is gone")
	}
}

// What is set aside is in proportion to the module's bytes, whatever they say.
func TestMemoryIsBounded(t *testing.T) {
	repeat := func(n int, b ...byte) []byte { return bytes.Repeat(b, n) }
	entries := func(id byte, n int, entry ...byte) []byte {
		return append([]byte{id}, sized(join(uleb(uint64(n)), repeat(n, entry...))...)...)
	}
	types := section(secType, noParams)
	const body = 250 << 10
	var functions, bodies []byte
	for range 32 {
		bodies = append(bodies, sized(join(noLocals, repeat(body/4, opLoop, blockEmpty, 0x01, opEnd), []byte{opEnd})...)...)
	}
	functions = entries(secFunction, 32, 0)
	for name, code := range map[string][]byte{
		"functions":     wasm(types, entries(secFunction, 50_000, 0), entries(secCode, 50_000, 2, 0, opEnd)),
		"types":         wasm(entries(secType, 10_000, 0x60, 0, 0)),
		"data":          wasm(entries(secData, 100_000, 1, 0)),
		"elements":      wasm(section(secElement, join([]byte{5, typeFunc}, uleb(65_000), repeat(65_000, opRefNull, typeFunc, opEnd)))),
		"exports":       wasm(section(secMemory, []byte{0, 1}), entries(secExport, 10_000, 1, 'a', byte(Memory), 0)),
		"custom":        wasm(repeat(1_000_000, secCustom, 2, 1, 'x')),
		"names":         wasm(append([]byte{secCustom}, sized(join(str("name"), []byte{1}, sized(join(uleb(500_000), repeat(500_000, 0, 0))...))...)...)),
		"loops":         wasm(types, functions, append([]byte{secCode}, sized(join([]byte{32}, bodies)...)...)),
		"deep":          oneFunction(noParams, noLocals, join(repeat(16_000, opLoop, blockEmpty), repeat(16_000, opEnd))),
		"too deep":      oneFunction(noParams, noLocals, join(repeat(80_000, opBlock, blockEmpty), repeat(80_000, opEnd))),
		"labels":        oneFunction(noParams, noLocals, join([]byte{opI32Const, 0, 0x0e}, uleb(250_000), repeat(250_001, 0))),
		"dead and long": oneFunction(noParams, noLocals, join([]byte{opUnreachable}, repeat(80_000, prefixMisc, miscMemoryFill, 0))),
		"open":          oneFunction(noParams, noLocals, repeat(250_000, opLoop)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := Rewrite(code, Options{Validate: anything})
		runtime.ReadMemStats(&after)
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(40*len(code)+4<<20); got > most {
			t.Errorf("%s: %d bytes set aside for a module of %d, want at most %d", name, got, len(code), most)
		}
		if err == nil && len(m.Code) > 10*len(code)+1024 {
			t.Errorf("%s: %d bytes became %d", name, len(code), len(m.Code))
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
