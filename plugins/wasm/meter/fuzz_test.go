package meter

import (
	"context"
	"errors"
	"testing"

	"github.com/tetratelabs/wazero"
)

// Rewrite of any bytes: no panic, an error with a place, a result in proportion. What the engine finds valid
// before it finds valid after, and no call goes on below zero.
func FuzzRewrite(f *testing.F) {
	for _, name := range corpus(f) {
		f.Add(load(f, name))
	}
	f.Fuzz(func(t *testing.T, code []byte) { checkAny(t, code) })
}

// The same for the code of one function: any bytes are closer to something valid where the rest is, and closer
// still behind an unreachable, where instructions find on the stack what they want.
func FuzzBody(f *testing.F) {
	for _, code := range [][]byte{
		{opLoop, blockEmpty, opBr, 0, opEnd},
		{opUnreachable, prefixMisc, miscMemoryFill, 0, opLoop, blockEmpty, opEnd},
		{opI32Const, 0, 0x0e, 1, 0, 0},
		{opI32Const, 0xff, 0xff, 0xff, 0xff, 0x7f, opMemoryGrow, 0, 0x1a},
		{opBlock, blockEmpty, opI32Const, 1, opIf, blockEmpty, opBr, 1, opElse, opBr, 2, opEnd, opEnd},
		{opRefNull, typeFunc, 0x1a, prefixSIMD, simdConst, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x1a},
	} {
		f.Add(code)
	}
	locals := []byte{5, 2, typeI32, 1, typeI64, 1, typeF32, 1, typeF64, 1, typeV128}
	f.Fuzz(func(t *testing.T, code []byte) {
		checkAny(t, oneFunction(noParams, locals, code))
		checkAny(t, oneFunction(noParams, locals, join([]byte{opUnreachable}, code)))
	})
}

// checkAny checks what holds for any bytes.
func checkAny(t *testing.T, code []byte) {
	m, err := Rewrite(code, Options{Validate: anything, Budget: 1000})
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || e.Offset < 0 || e.Offset > len(code) {
			t.Fatalf("error without a place: %v", err)
		}
		return
	}
	// The shortest function that can be charged has 4 bytes, the charge 17 and more for large indices.
	if len(m.Code) > 10*len(code)+1024 {
		t.Fatalf("%d bytes became %d", len(code), len(m.Code))
	}
	if validate(code) != nil {
		return
	}
	if err := validate(m.Code); err != nil {
		t.Fatalf("valid before, not after: %v", err)
	}
	if m.Facts.MemoryMin > maxPages || len(m.Facts.Imports) > 0 {
		return
	}
	ctx := context.Background()
	runtime := wazero.NewRuntimeWithConfig(ctx, config(wazero.NewRuntimeConfigInterpreter()))
	defer runtime.Close(ctx)
	mod, err := runtime.InstantiateWithConfig(ctx, m.Code, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return // data or elements out of bounds
	}
	g := &guest{t: t, runtime: runtime, mod: mod}
	for i, x := range m.Facts.Exports {
		if x.Kind != Function || i > 20 {
			continue
		}
		params, _ := parseType(t, x.Type)
		_, left, err := g.callWith(2000, x.Name, arguments(params, i)...)
		if left > 2000 || err == nil && left < 0 {
			t.Fatalf("%s: left %d of 2000, %v", x.Name, left, err)
		}
	}
}
