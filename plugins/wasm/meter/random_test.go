package meter

import (
	"context"
	"slices"
	"testing"

	"github.com/tetratelabs/wazero/api"
	"pgregory.net/rapid"
)

// program writes a random valid module twice: as it is, and with a call before each instruction that counts
// it. Nothing of the package under test takes part in that. All values are i32; every function takes two and returns one.
//
// Each loop and each function first takes one off the global "hang" and returns when it is used up, so that
// the program ends.
type program struct {
	*rapid.T
	plain, counted []byte
	left           int   // nodes that may still be written
	labels         []int // number of values that a branch to it carries, outermost first
}

const (
	randomFunctions = 3
	functionType    = 0 // (i32, i32) -> i32
	countType       = 1 // () -> ()
	firstBlockType  = 2 // (i32 x n) -> (i32 x n), n = 1, 2
	randomLocals    = 4 // of which two are parameters
	hangGlobal      = 0
	countGlobal     = 1
)

func (p *program) pick(n int) int { return rapid.IntRange(0, n-1).Draw(p.T, "") }

// op writes one instruction, mark what is none.
func (p *program) op(b ...byte) {
	p.counted = append(append(p.counted, 0x10, randomFunctions), b...)
	p.plain = append(p.plain, b...)
}

func (p *program) mark(b ...byte) {
	p.plain, p.counted = append(p.plain, b...), append(p.counted, b...)
}

func (p *program) constant() {
	p.op(appendSigned([]byte{opI32Const}, int64(int32(rapid.Int32().Draw(p.T, ""))))...)
}

func (p *program) hangCheck() {
	p.op(opGlobalGet, hangGlobal)
	p.op(0x45)
	p.op(opIf, blockEmpty)
	p.op(opI32Const, 7)
	p.op(0x0f)
	p.mark(opEnd)
	p.op(opGlobalGet, hangGlobal)
	p.op(opI32Const, 1)
	p.op(0x6b)
	p.op(opGlobalSet, hangGlobal)
}

// small leaves a number of 0..63. As a length it must not hide what instructions cost.
func (p *program) small() {
	p.expression()
	p.op(opI32Const, 0x3f)
	p.op(0x71)
}

// block writes a block of the kind, which takes and leaves n values.
func (p *program) block(op byte, n int, content func()) {
	typ := byte(blockEmpty)
	if n > 0 {
		typ = firstBlockType + byte(n) - 1
	}
	p.op(op, typ)
	p.labels = append(p.labels, n)
	content()
	p.labels = p.labels[:len(p.labels)-1]
	p.mark(opEnd)
}

func (p *program) values(n int) {
	for range n {
		p.expression()
	}
}

func (p *program) drop(n int) {
	for range n {
		p.op(0x1a)
	}
}

// keep works on n values that are on the stack: they pass through locals.
func (p *program) keep(n int) {
	for i := range n {
		p.op(0x21, byte(i))
	}
	p.statements()
	for i := range n {
		p.op(opLocalGet, byte(i))
	}
}

// structure leaves n values: a block, loop or if that takes and leaves them, with branches.
func (p *program) structure(n int) {
	p.values(n)
	switch p.pick(4) {
	case 0:
		p.block(opBlock, n, func() { p.keep(n); p.branchIf() })
	case 1:
		p.block(opLoop, n, func() {
			p.hangCheck()
			p.keep(n)
			p.expression()
			p.op(0x0d, 0)
			p.branchIf()
		})
	case 2: // code that cannot be reached goes back, too
		p.block(opLoop, n, func() {
			p.hangCheck()
			p.keep(n)
			p.block(opBlock, 0, func() {
				p.op(opBr, 0)
				p.dead()
				p.op(opBr, 1)
				p.dead()
			})
		})
	default:
		p.expression()
		p.block(opIf, n, func() {
			p.keep(n)
			if n > 0 || p.pick(2) == 0 {
				p.mark(opElse)
				p.keep(n)
			}
		})
	}
}

func (p *program) branchIf() {
	l := p.pick(len(p.labels))
	n := p.labels[len(p.labels)-1-l]
	p.values(n)
	p.expression()
	p.op(0x0d, byte(l))
	p.drop(n)
}

// branch leaves: what follows cannot be reached.
func (p *program) branch() {
	l := p.pick(len(p.labels))
	n := p.labels[len(p.labels)-1-l]
	p.values(n)
	if p.pick(3) > 0 {
		p.op(opBr, byte(l))
		return
	}
	table := []byte{0x0e, 0}
	for i := range p.labels {
		if p.labels[len(p.labels)-1-i] == n && p.pick(2) == 0 {
			table = append(table, byte(i))
			table[1]++
		}
	}
	p.expression()
	p.op(append(table, byte(l))...)
}

// dead is code that cannot be reached and takes what is not there from the stack.
func (p *program) dead() {
	for range p.pick(4) {
		switch p.pick(9) {
		case 0:
			p.op(prefixMisc, miscMemoryFill, 0)
		case 1:
			p.op(prefixMisc, miscMemoryCopy, 0, 0)
		case 2:
			p.op(opMemoryGrow, 0)
			p.drop(1)
		case 3:
			p.op(0x6a)
			p.drop(1)
		case 4:
			p.op(0x10, byte(p.pick(randomFunctions)))
			p.drop(1)
		case 5:
			p.op(opLoop, blockEmpty)
			p.op(opBr, 0)
			p.mark(opEnd)
		case 6:
			p.op(opLoop, firstBlockType)
			p.mark(opEnd)
			p.drop(1)
		case 7:
			p.op(0x1b)
			p.drop(1)
		default:
			p.op(opIf, blockEmpty)
			p.mark(opElse)
			p.op(opUnreachable)
			p.mark(opEnd)
		}
	}
}

// expression leaves a value.
func (p *program) expression() {
	p.left--
	kind := p.pick(10)
	if p.left < 0 {
		kind = p.pick(2)
	}
	switch kind {
	case 0:
		p.constant()
	case 1:
		p.op(opLocalGet, byte(p.pick(randomLocals)))
	case 2, 3, 4:
		p.values(2)
		p.op([]byte{0x6a, 0x6b, 0x6c, 0x71, 0x72, 0x73, 0x74, 0x76, 0x48, 0x4d, 0x46, 0x6e}[p.pick(12)]) // i32.div_u may trap
	case 5:
		p.small()
		p.op(0x28, 2, 0)
	case 6:
		p.structure(1)
	case 7:
		p.structure(2)
		p.op(0x6a)
	case 8:
		p.values(2)
		p.op(0x10, byte(p.pick(randomFunctions)))
	default:
		p.op(0x3f, 0)
	}
}

func (p *program) statements() {
	for n := p.pick(3); n >= 0 && p.left > 0; n-- {
		p.left--
		switch p.pick(9) {
		case 0, 1:
			p.expression()
			p.op(0x21, byte(p.pick(randomLocals)))
		case 2:
			p.small()
			p.expression()
			p.op(0x36, 2, 0)
		case 3, 4:
			p.structure(0)
		case 5:
			p.small()
			p.expression()
			p.small()
			p.op(prefixMisc, miscMemoryFill, 0)
		case 6:
			p.small()
			p.small()
			p.small()
			p.op(prefixMisc, miscMemoryCopy, 0, 0)
		case 7:
			p.branchIf()
		default:
			p.expression()
			p.op(opIf, blockEmpty)
			p.labels = append(p.labels, 0)
			p.branch()
			p.dead()
			p.labels = p.labels[:len(p.labels)-1]
			p.mark(opEnd)
		}
	}
}

// modules draws a program and returns it plain and counted.
func modules(t *rapid.T) (plain, counted []byte) {
	p := &program{T: t}
	var plainCode, countedCode [][]byte
	for range randomFunctions {
		p.plain, p.counted = []byte{1, randomLocals - 2, typeI32}, []byte{1, randomLocals - 2, typeI32}
		p.left, p.labels = 30, []int{1}
		p.hangCheck()
		p.statements()
		p.expression()
		p.mark(opEnd)
		plainCode, countedCode = append(plainCode, sized(p.plain...)), append(countedCode, sized(p.counted...))
	}
	countedCode = append(countedCode, sized(0, opGlobalGet, countGlobal, opI64Const, 1, 0x7c, opGlobalSet, countGlobal, opEnd))
	exports := [][]byte{append(str("memory"), byte(Memory), 0), append(str("hang"), byte(Global), hangGlobal)}
	for i := range randomFunctions {
		exports = append(exports, append(str(string(rune('a'+i))), byte(Function), byte(i)))
	}
	types := section(secType, []byte{0x60, 2, typeI32, typeI32, 1, typeI32}, noParams, []byte{0x60, 1, typeI32, 1, typeI32},
		[]byte{0x60, 2, typeI32, typeI32, 2, typeI32, typeI32})
	hang := []byte{typeI32, 1, opI32Const, 0, opEnd}
	plain = wasm(types, section(secFunction, slices.Repeat([][]byte{{functionType}}, randomFunctions)...), section(secMemory, []byte{1, 1, 4}),
		section(secGlobal, hang), section(secExport, exports...), section(secCode, plainCode...))
	counted = wasm(types, section(secFunction, append(slices.Repeat([][]byte{{functionType}}, randomFunctions), []byte{countType})...),
		section(secMemory, []byte{1, 1, 4}), section(secGlobal, hang, []byte{typeI64, 1, opI64Const, 0, opEnd}),
		section(secExport, append(exports, append(str("counted"), byte(Global), countGlobal))...), section(secCode, countedCode...))
	return plain, counted
}

// The properties of the corpus, for programs that nobody wrote.
func TestRandomPrograms(t *testing.T) {
	trapped, reached, charged, ran := 0, 0, int64(0), int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		plainCode, countedCode := modules(rt)
		if err := validate(plainCode); err != nil {
			rt.Fatalf("the generator is wrong: %v\n%x", err, plainCode)
		}
		m, err := Rewrite(plainCode, Options{Validate: validate, Budget: InitBudget})
		if err != nil {
			rt.Fatal(err)
		}
		var guests []*guest
		engine := engines[rapid.SampledFrom([]string{"interpreter", "interpreter", "interpreter", "compiler"}).Draw(rt, "engine")]
		for _, code := range [][]byte{plainCode, m.Code, countedCode, m.Code} {
			g := newGuest(t, engine(), code, nil)
			defer g.runtime.Close(context.Background())
			guests = append(guests, g)
		}
		plain, metered, counted, exact := guests[0], guests[1], guests[2], guests[3]
		before := uint64(0)
		for i := range randomFunctions {
			name := string(rune('a' + i))
			args := []uint64{uint64(rapid.Uint32().Draw(rt, "")), uint64(rapid.Uint32().Draw(rt, ""))}
			for _, g := range guests {
				g.mod.ExportedGlobal("hang").(api.MutableGlobal).Set(30)
			}
			want, err := plain.call(name, args...)
			if err != nil {
				trapped++
			}
			got, left, _ := metered.callWith(plenty, name, args...)
			if got != want {
				rt.Fatalf("%s%v:\n got %s\nwant %s", name, args, got, want)
			}
			if was, is := plain.mod.ExportedGlobal("hang").Get(), metered.mod.ExportedGlobal("hang").Get(); was != is {
				rt.Fatalf("%s%v: the global is %d, in the plain module %d", name, args, is, was)
			} else if was == 0 {
				reached++
			}
			charge := plenty - left
			counted.call(name, args...)
			now := counted.mod.ExportedGlobal("counted").Get()
			if uint64(charge) < now-before {
				rt.Fatalf("%s%v: charged %d, ran %d instructions", name, args, charge, now-before)
			}
			charged, ran, before = charged+charge, ran+int64(now-before), now
			if got, left, _ := exact.callWith(charge, name, args...); got != want || left != 0 {
				rt.Fatalf("%s%v with its charge of %d: %s, left %d; want %s", name, args, charge, got, left, want)
			}
		}
		// Whatever the budget: below zero is a trap.
		for _, budget := range []int64{0, 1, 5, 20, 100, 1000} {
			exact.mod.ExportedGlobal("hang").(api.MutableGlobal).Set(30)
			if got, left, err := exact.callWith(budget, "a", 1, 2); left < 0 && err == nil || left > budget {
				rt.Fatalf("a with %d: %s, left %d, %v", budget, got, left, err)
			}
		}
	})
	t.Logf("%d traps, %d times the end of the loops' counter, charged %d for %d instructions", trapped, reached, charged, ran)
	if reached == 0 || ran == 0 {
		t.Error("the programs do nothing")
	}
}
