package meter

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func anything([]byte) error { return nil }

// Features beyond WebAssembly 2.0 are refused by name, whatever the engine thinks of them.
func TestRefusedByName(t *testing.T) {
	code := func(b ...byte) []byte { return oneFunction(noParams, noLocals, b) }
	typ := func(b ...byte) []byte { return wasm(section(secType, b)) }
	global := func(b ...byte) []byte { return wasm(section(secGlobal, b)) }
	imported := func(b ...byte) []byte { return wasm(section(secImport, join(str("m"), str("n"), b))) }
	for _, c := range []struct {
		name string
		code []byte
		rule Rule
		text string
	}{
		{"return_call", code(0x12, 0), RuleTailCall, "return_call is"},
		{"return_call_indirect", code(opI32Const, 0, 0x13, 0, 0), RuleTailCall, "return_call_indirect"},
		{"return_call_ref", code(0x15, 0), RuleTailCall, "return_call_ref"},
		{"atomic", code(0xfe, 0x03, 0), RuleAtomics, "atomic"},
		{"shared memory", wasm(section(secMemory, []byte{3, 1, 2})), RuleAtomics, "sharing"},
		{"shared imported memory", imported(byte(Memory), 3, 1, 2), RuleAtomics, "sharing"},
		{"try", code(0x06, 0x40), RuleExceptions, "try"},
		{"catch", code(0x07, 0), RuleExceptions, "catch"},
		{"throw", code(0x08, 0), RuleExceptions, "throw"},
		{"rethrow", code(0x09, 0), RuleExceptions, "rethrow"},
		{"throw_ref", code(0x0a), RuleExceptions, "throw_ref"},
		{"delegate", code(0x18, 0), RuleExceptions, "delegate"},
		{"catch_all", code(0x19), RuleExceptions, "catch_all"},
		{"try_table", code(0x1f, 0x40, 0), RuleExceptions, "try_table"},
		{"tag section", wasm(section(secTag, []byte{0, 0})), RuleExceptions, "tag"},
		{"imported tag", imported(4, 0, 0), RuleExceptions, "tag"},
		{"exported tag", wasm(section(secExport, append(str("t"), 4, 0))), RuleExceptions, "tag"},
		{"exnref", typ(0x60, 1, 0x69, 0), RuleExceptions, "exception reference"},
		{"call_ref", code(0x14, 0), RuleFunctionRefs, "call_ref"},
		{"ref.as_non_null", code(0xd4), RuleFunctionRefs, "ref.as_non_null"},
		{"br_on_null", code(0xd5, 0), RuleFunctionRefs, "br_on_null"},
		{"br_on_non_null", code(0xd6, 0), RuleFunctionRefs, "br_on_non_null"},
		{"typed reference", typ(0x60, 1, 0x64, 0, 0), RuleFunctionRefs, "typed reference"},
		{"block of a typed reference", code(opBlock, 0x63, 0x70, opEnd), RuleFunctionRefs, "typed reference"},
		{"table with a value", wasm(section(secTable, []byte{0x40, 0, typeFunc, 0, 1, opRefNull, typeFunc, opEnd})), RuleFunctionRefs, "initial value"},
		{"ref.eq", code(0xd3), RuleGC, "ref.eq"},
		{"struct.new", code(0xfb, 0, 0), RuleGC, "garbage"},
		{"struct type", typ(0x5f, 1, typeI32, 0), RuleGC, "not a function's"},
		{"recursive types", typ(0x4e, 1, 0x60, 0, 0), RuleGC, "not a function's"},
		{"anyref", typ(0x60, 1, 0x6e, 0), RuleGC, "garbage"},
		{"relaxed SIMD", code(0xfd, 0x80, 0x02), RuleRelaxedSIMD, "relaxed"},
		{"relaxed SIMD, last", code(0xfd, 0xff, 0x03), RuleRelaxedSIMD, "relaxed"},
		{"two memories", wasm(section(secMemory, []byte{0, 1}, []byte{0, 1})), RuleMultiMemory, "more than one"},
		{"imported and own memory", wasm(section(secImport, join(str("m"), str("n"), []byte{byte(Memory), 0, 1})), section(secMemory, []byte{0, 1})),
			RuleMultiMemory, "more than one"},
		{"two imported memories", wasm(section(secImport, join(str("m"), str("n"), []byte{byte(Memory), 0, 1}), join(str("m"), str("n"), []byte{byte(Memory), 0, 1}))),
			RuleMultiMemory, "more than one"},
		{"load from another memory", code(opI32Const, 0, 0x28, 0x42, 1, 0), RuleMultiMemory, "other than the first"},
		{"size of another memory", code(0x3f, 1), RuleMultiMemory, "other than the first"},
		{"growth of another memory", code(opMemoryGrow, 1), RuleMultiMemory, "other than the first"},
		{"fill of another memory", code(prefixMisc, miscMemoryFill, 1), RuleMultiMemory, "other than the first"},
		{"copy to another memory", code(prefixMisc, miscMemoryCopy, 1, 0), RuleMultiMemory, "other than the first"},
		{"copy from another memory", code(prefixMisc, miscMemoryCopy, 0, 1), RuleMultiMemory, "other than the first"},
		{"data for another memory", wasm(section(secData, []byte{2, 1, opI32Const, 0, opEnd, 0})), RuleMultiMemory, "other than the first"},
		{"memory64", wasm(section(secMemory, []byte{4, 1})), RuleMemory64, "64-bit"},
		{"table64", wasm(section(secTable, []byte{typeFunc, 5, 1, 1})), RuleMemory64, "64-bit"},
		{"page size", wasm(section(secMemory, []byte{8, 1, 0})), RuleLimitsFlags, "flags 0x08"},
		{"extended constant", global(typeI32, 0, opI32Const, 1, opI32Const, 2, 0x6a, opEnd), RuleExtendedConst, "more than one"},
		{"extended constant in data", wasm(section(secMemory, []byte{0, 1}), section(secData, []byte{0, opI32Const, 1, opI32Const, 2, 0x6a, opEnd, 0})),
			RuleExtendedConst, "more than one"},
		{"wide arithmetic", code(prefixMisc, 19), RuleUnknownOperation, "0xfc 19"},
		{"hole in the opcodes", code(0x27), RuleUnknownOperation, "0x27"},
		{"hole in the vector opcodes", code(prefixSIMD, 0x9a, 0x01), RuleUnknownOperation, "0xfd 154"},
		{"vector opcode far out", code(prefixSIMD, 0x80, 0x80, 0x04), RuleUnknownOperation, "0xfd 65536"},
		{"stack switching", code(0xe0, 0), RuleUnknownOperation, "0xe0"},
	} {
		_, err := Rewrite(c.code, Options{Validate: anything})
		wantError(t, c.name, err, c.rule, ErrRefused)
		if err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %q does not say %q", c.name, err, c.text)
		}
	}
}

// The place in an error is that of the instruction.
func TestErrorsSayWhere(t *testing.T) {
	code := wasm(
		section(secType, noParams),
		section(secImport, join(str("env"), str("log"), []byte{0, 0})),
		section(secFunction, []byte{0}, []byte{0}),
		section(secCode, []byte{2, 0, opEnd}, sized(0, 0x01, 0x12, 0, opEnd)),
	)
	_, err := Rewrite(code, Options{Validate: anything})
	var e *Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	if want := bytes.LastIndexByte(code, 0x12); e.Section != "code" || e.Function != 2 || e.Offset != want {
		t.Errorf("%v: section %q, function %d, offset %d; want code, 2, %d", err, e.Section, e.Function, e.Offset, want)
	}
	_, err = Rewrite(load(t, "control"), Options{Validate: func([]byte) error { return errors.New("the engine says no") }})
	wantError(t, "engine", err, RuleValid, ErrMalformed)
	if !strings.Contains(err.Error(), "the engine says no") {
		t.Error(err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	code := load(t, "control")
	for name, o := range map[string]Options{
		"no engine": {}, "negative budget": {Validate: anything, Budget: -1}, "budget too large": {Validate: anything, Budget: MaxBudget + 1},
	} {
		if _, err := Rewrite(code, o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	m, err := Rewrite(code, Options{Validate: validate, Budget: MaxBudget})
	if err != nil {
		t.Fatal(err)
	}
	if got := int64(newGuest(t, engines["compiler"](), m.Code, nil).fuel().Get()); got != MaxBudget {
		t.Errorf("the fuel starts as %d, want %d", got, int64(MaxBudget))
	}
}

// Each limit takes what reaches it and refuses one more.
func TestLimits(t *testing.T) {
	repeat := func(n int, b ...byte) [][]byte { return slices.Repeat([][]byte{b}, n) }
	types, functions := section(secType, noParams), func(n int) []byte { return section(secFunction, repeat(n, 0)...) }
	codes := func(n int) []byte { return section(secCode, repeat(n, 2, 0, opEnd)...) }
	nops := func(n int) []byte { return oneFunction(noParams, noLocals, bytes.Repeat([]byte{0x01}, n)) }
	// A loop has 2 bytes, an end and a branch have 3: with the charge of 17, 5 become 22. No locals, the function's charge and its
	// end take 19.
	loops := func(n int) []byte {
		return oneFunction(noParams, noLocals, bytes.Repeat([]byte{opLoop, blockEmpty, opBr, 0, opEnd}, n))
	}
	for name, c := range map[string]struct {
		make  func(n int) []byte // a module that uses n of it
		limit int                // the limit to set
	}{
		"Module": {func(n int) []byte {
			return wasm(append([]byte{secCustom}, sized(join(str("x"), make([]byte, n-8-4))...)...))
		}, 100},
		"Types": {func(n int) []byte { return wasm(section(secType, repeat(n, noParams...)...)) }, 5},
		"Params": {func(n int) []byte {
			return wasm(section(secType, join([]byte{0x60}, sized(bytes.Repeat([]byte{typeI32}, n)...), []byte{0})))
		}, 5},
		"Results": {func(n int) []byte {
			return wasm(section(secType, join([]byte{0x60, 0}, sized(bytes.Repeat([]byte{typeI32}, n)...))))
		}, 5},
		"Imports": {func(n int) []byte { return wasm(types, section(secImport, repeat(n, 1, 'a', 1, 'b', 0, 0)...)) }, 5},
		"Functions": {func(n int) []byte {
			return wasm(types, section(secImport, []byte{1, 'a', 1, 'b', 0, 0}), functions(n-1), codes(n-1))
		}, 5},
		"Tables": {func(n int) []byte {
			return wasm(section(secImport, []byte{1, 'a', 1, 'b', 1, typeFunc, 0, 1}), section(secTable, repeat(n-1, typeFunc, 0, 1)...))
		}, 5},
		"TableSize": {func(n int) []byte { return wasm(section(secTable, []byte{typeFunc, 1, 0, byte(n)})) }, 5},
		"Globals": {func(n int) []byte {
			return wasm(section(secImport, []byte{1, 'a', 1, 'b', 3, typeI32, 0}), section(secGlobal, repeat(n-1, typeI32, 0, opI32Const, 1, opEnd)...))
		}, 5},
		"Exports": {func(n int) []byte {
			return wasm(section(secMemory, []byte{0, 1}), section(secExport, repeat(n, 1, 'a', byte(Memory), 0)...))
		}, 5},
		"Elements": {func(n int) []byte { return wasm(section(secElement, repeat(n, 1, 0, 0)...)) }, 5},
		"Data":     {func(n int) []byte { return wasm(section(secData, repeat(n, 1, 0)...)) }, 5},
		"NameLength": {func(n int) []byte {
			return wasm(section(secMemory, []byte{0, 1}), section(secExport, join(sized(bytes.Repeat([]byte{'a'}, n)...), []byte{byte(Memory), 0})))
		}, 5},
		"Body":        {func(n int) []byte { return nops(n - 2) }, 200},
		"MeteredBody": {func(n int) []byte { return loops((n - 19) / 22) }, 19 + 22*30},
		"Locals": {func(n int) []byte {
			return oneFunction(noParams, join([]byte{1}, uleb(uint64(n)), []byte{typeI32}), nil)
		}, 5},
		"Nesting": {func(n int) []byte {
			return oneFunction(noParams, noLocals, join(bytes.Repeat([]byte{opBlock, blockEmpty}, n), bytes.Repeat([]byte{opEnd}, n)))
		}, 5},
	} {
		var limits Limits
		reflect.ValueOf(&limits).Elem().FieldByName(name).SetInt(int64(c.limit))
		o := Options{Validate: anything, Limits: limits}
		if _, err := Rewrite(c.make(c.limit), o); err != nil {
			t.Errorf("%s: %d of %[2]d: %v", name, c.limit, err)
		}
		over := c.limit + 1
		if name == "MeteredBody" {
			over = c.limit + 22
		}
		_, err := Rewrite(c.make(over), o)
		wantError(t, name, err, RuleLimit, ErrLimit)
	}
	// Every field has a default and is tried above.
	standard := reflect.ValueOf(DefaultLimits)
	for i := range standard.NumField() {
		if standard.Field(i).Int() <= 0 {
			t.Errorf("DefaultLimits.%s is %d", standard.Type().Field(i).Name, standard.Field(i).Int())
		}
	}
	if got := (Limits{}).orDefault(); got != DefaultLimits {
		t.Errorf("limits of zeros become %+v, want %+v", got, DefaultLimits)
	}
}
