package meter

import (
	"bytes"
	"context"
	"testing"
)

// How fast modules are rewritten, in bytes of the original.
func BenchmarkRewrite(b *testing.B) {
	// A module of a megabyte: the corpus's largest function over and over.
	code := bytes.Repeat([]byte{opLoop, blockEmpty, opLocalGet, 0, opI32Const, 1, 0x6a, opLocalTee, 0, 0x0d, 0, opEnd, 0x01, 0x01, 0x01, 0x01}, 4000)
	body := sized(join([]byte{1, 1, typeI32}, code, []byte{opEnd})...)
	large := wasm(section(secType, noParams), section(secFunction, bytes.Split(make([]byte, 15), nil)...), append([]byte{secCode}, sized(join([]byte{15}, bytes.Repeat(body, 15))...)...))
	for name, code := range map[string][]byte{"large": large, "control": load(b, "control")} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(code)))
			for b.Loop() {
				if _, err := Rewrite(code, Options{Validate: anything}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What the charges cost: a loop of eight instructions and a function that only calls, the worst there are.
func BenchmarkCharge(b *testing.B) {
	for _, c := range []struct {
		module, function string
		arg              uint64
	}{{"control", "nested", 31}, {"calls", "fib", 15}} {
		m := mustRewrite(b, load(b, c.module))
		for name, code := range map[string][]byte{"plain": load(b, c.module), "metered": m.Code} {
			b.Run(c.function+"/"+name, func(b *testing.B) {
				g := newGuest(b, engines["compiler"](), code, m.Facts.Imports)
				if name == "metered" {
					g.fuel().Set(1 << 62)
				}
				f := g.mod.ExportedFunction(c.function)
				stack := make([]uint64, 4)
				for b.Loop() {
					stack[0] = c.arg
					if err := f.CallWithStack(context.Background(), stack); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
