package meter

// body is a function's code, decoded: the instructions in their shortest encoding, and the places where a
// charge goes. It is used again for each function.
type body struct {
	locals []localRun
	code   []byte
	marks  []mark
	stack  []frame
	// scratch says that a charge needs the appended local.
	scratch bool
	// total are the parameters and declared locals, instructions what is charged without locals.
	total, instructions int
}

// localRun is a number of locals of one type.
type localRun struct {
	n   uint32
	typ byte
}

// mark is a charge that goes before the byte at pos of body.code.
type mark struct {
	pos  int
	kind markKind
	cost uint32 // of markCost
}

type markKind byte

const (
	markCost  markKind = iota // a number of units
	markUnits                 // as many units as the i32 on the stack says
	markPages                 // PageCost for each page that the i32 on the stack says
)

// frame is an open block. What runs inside is charged at the mark of the innermost loop or, outside of
// loops, of the function.
type frame struct {
	op    byte
	outer int // the mark to go back to at the end
}

// function decodes the body of a function with that many parameters, up to r.end, and counts what each
// mark has to charge. The sum is right only if the function is valid; it is safe to call for any bytes.
func (b *body) function(r *reader, m *module, params int, l *Limits) {
	b.code, b.marks, b.stack, b.scratch, b.instructions = b.code[:0], b.marks[:0], b.stack[:0], false, 0
	b.declarations(r, params, l)
	b.marks = append(b.marks, mark{cost: uint32(b.total - params)})
	charge := 0 // the mark that pays for the next instruction
	for r.err == nil {
		at := r.pos
		op := r.byte()
		if r.err != nil {
			return
		}
		switch imm := immediates[op]; {
		case imm == immEnd:
			b.code = append(b.code, op)
			if len(b.stack) == 0 {
				if r.pos != r.end {
					r.malformed(r.pos, "%d bytes after the function's end", r.left())
				}
				return
			}
			charge = b.stack[len(b.stack)-1].outer
			b.stack = b.stack[:len(b.stack)-1]
			continue
		case imm == immElse:
			top := len(b.stack) - 1
			if top < 0 || b.stack[top].op != opIf {
				r.malformed(at, "else without an if")
				return
			}
			b.stack[top].op = opElse
			b.code = append(b.code, op)
			continue
		case imm == immBlock:
			if len(b.stack) >= l.Nesting {
				r.failAt(at, RuleLimit, ErrLimit, "blocks nested more than %d deep", l.Nesting)
				return
			}
			b.code = append(b.code, op)
			b.blockType(r, m)
			b.stack = append(b.stack, frame{op, charge})
			b.charge(charge)
			if op == opLoop {
				charge = len(b.marks)
				b.marks = append(b.marks, mark{pos: len(b.code)})
			}
		case op == prefixMisc:
			b.charge(charge)
			b.misc(r, at, m)
		case op == prefixSIMD:
			b.charge(charge)
			b.simd(r, at)
		case imm == immUnknown:
			if no, known := refusedOpcodes[op]; known {
				r.failAt(at, no.rule, ErrRefused, "%s is not allowed", no.name)
			} else {
				r.failAt(at, RuleUnknownOperation, ErrRefused, "no instruction of core WebAssembly 2.0: opcode %#02x", op)
			}
		default:
			b.charge(charge)
			if op == opMemoryGrow {
				b.dynamic(markPages)
			}
			b.code = append(b.code, op)
			b.immediate(r, imm, m)
		}
		b.memoryOfMarks(r, l)
	}
}

// memoryOfMarks ends the work on a function whose charges alone are over the limit.
func (b *body) memoryOfMarks(r *reader, l *Limits) {
	if len(b.marks) > l.MeteredBody/shortestCharge {
		r.fail(RuleLimit, ErrLimit, "the function takes more than %d bytes with its charges", l.MeteredBody)
	}
}

// charge adds an instruction to a mark.
func (b *body) charge(mark int) {
	b.marks[mark].cost++
	b.instructions++
}

// declarations reads the declared locals and notes how many locals there are with the parameters.
func (b *body) declarations(r *reader, params int, l *Limits) {
	b.locals = b.locals[:0]
	total := uint64(params)
	n := r.count("groups of locals", noLimit, 2)
	for i := 0; i < n && r.err == nil; i++ {
		at := r.pos
		run := localRun{r.u32(), r.valueType()}
		if total += uint64(run.n); total > uint64(l.Locals) {
			r.failAt(at, RuleLimit, ErrLimit, "%d locals, at most %d are allowed", total, l.Locals)
		}
		if run.n > 0 {
			b.locals = append(b.locals, run)
		}
	}
	b.total = int(total)
}

// dynamic marks a charge by the number on top of the stack before the next instruction.
func (b *body) dynamic(kind markKind) {
	b.scratch = true
	b.marks = append(b.marks, mark{pos: len(b.code), kind: kind})
}

// opcode reads what follows a prefix. Longer forms of it than the shortest are legal but nobody writes them,
// and engines read them in ways of their own.
func (r *reader) opcode() uint32 {
	at := r.pos
	sub := r.u32()
	if r.err == nil && r.pos-at > 1 && sub < 1<<(7*(r.pos-at-1)) {
		r.malformed(at, "opcode %d is not in its shortest form", sub)
	}
	return sub
}

// misc decodes an instruction behind prefixMisc.
func (b *body) misc(r *reader, at int, m *module) {
	sub := r.opcode()
	switch {
	case r.err != nil:
		return
	case sub >= uint32(len(miscImmediates)):
		r.failAt(at, RuleUnknownOperation, ErrRefused, "no instruction of core WebAssembly 2.0: opcode 0xfc %d", sub)
		return
	case sub == miscTableGrow:
		r.failAt(at, RuleTableGrow, ErrRefused, "table.grow is not allowed")
		return
	}
	switch sub {
	case miscMemoryInit, miscMemoryCopy, miscMemoryFill, miscTableInit, miscTableCopy, miscTableFill:
		b.dynamic(markUnits)
	}
	b.code = append(b.code, prefixMisc)
	b.code = appendU32(b.code, sub)
	b.immediate(r, miscImmediates[sub], m)
}

// simd decodes an instruction behind prefixSIMD.
func (b *body) simd(r *reader, at int) {
	sub := r.opcode()
	switch {
	case r.err != nil:
		return
	case sub >= simdRelaxed && sub < 2*simdRelaxed:
		r.failAt(at, RuleRelaxedSIMD, ErrRefused, "relaxed SIMD is not allowed")
		return
	case sub >= simdRelaxed || simdImmediates[sub] == immUnknown:
		r.failAt(at, RuleUnknownOperation, ErrRefused, "no instruction of core WebAssembly 2.0: opcode 0xfd %d", sub)
		return
	}
	b.code = append(b.code, prefixSIMD)
	b.code = appendU32(b.code, sub)
	b.immediate(r, simdImmediates[sub], nil)
}

// blockType copies a block's type.
func (b *body) blockType(r *reader, m *module) {
	at := r.pos
	if c := r.byte(); c == blockEmpty || isValueType(c) {
		b.code = append(b.code, c)
		return
	}
	r.refuseType(at)
	if r.err != nil {
		return
	}
	r.pos = at
	i := r.signed(33)
	if i < 0 || i >= int64(len(m.types)) {
		r.malformed(at, "block of type %d, there are %d", i, len(m.types))
	}
	b.code = appendSigned(b.code, i)
}

// immediate copies what follows an opcode.
func (b *body) immediate(r *reader, imm immediate, m *module) {
	at := r.pos
	switch imm {
	case immLabel:
		b.label(r)
	case immLabels:
		n := r.count("labels", noLimit, 1)
		b.code = appendU32(b.code, uint32(n))
		for i := 0; i <= n && r.err == nil; i++ {
			b.label(r)
		}
	case immIndex, immTable:
		b.index(r)
	case immIndirect, immTables, immElemTable:
		b.index(r)
		b.index(r)
	case immLocal:
		if i := b.index(r); int64(i) >= int64(b.total) {
			r.malformed(at, "local %d, the function has %d", i, b.total)
		}
	case immGlobal:
		if i := b.index(r); int64(i) >= int64(m.globalCount()) {
			r.failAt(at, RuleGlobalIndex, ErrMalformed, "global %d, the module has %d", i, m.globalCount())
		}
	case immTypes:
		n := r.count("types", noLimit, 1)
		b.code = appendU32(b.code, uint32(n))
		for i := 0; i < n && r.err == nil; i++ {
			b.code = append(b.code, r.valueType())
		}
	case immMemarg:
		b.memarg(r)
	case immMemory:
		b.memory(r)
	case immI32:
		b.code = appendSigned(b.code, r.signed(32))
	case immI64:
		b.code = appendSigned(b.code, r.signed(64))
	case immF32:
		b.code = append(b.code, r.bytes(4)...)
	case immF64:
		b.code = append(b.code, r.bytes(8)...)
	case immHeapType:
		b.code = append(b.code, r.refType())
	case immDataMem:
		b.index(r)
		b.memory(r)
	case immMemMem:
		b.memory(r)
		b.memory(r)
	case immV128:
		b.code = append(b.code, r.bytes(16)...)
	case immLane:
		b.code = append(b.code, r.byte())
	case immMemLane:
		b.memarg(r)
		b.code = append(b.code, r.byte())
	}
}

func (b *body) index(r *reader) uint32 {
	i := r.u32()
	b.code = appendU32(b.code, i)
	return i
}

func (b *body) label(r *reader) {
	at := r.pos
	if l := b.index(r); int64(l) > int64(len(b.stack)) {
		r.malformed(at, "label %d, %d blocks are open", l, len(b.stack)+1)
	}
}

func (b *body) memory(r *reader) {
	at := r.pos
	if r.byte() != 0 {
		r.failAt(at, RuleMultiMemory, ErrRefused, "a memory other than the first")
	}
	b.code = append(b.code, 0)
}

func (b *body) memarg(r *reader) {
	at := r.pos
	align := r.u32()
	switch {
	case align&0x40 != 0:
		r.failAt(at, RuleMultiMemory, ErrRefused, "a memory other than the first")
	case align > 4:
		r.malformed(at, "alignment of 2^%d", align)
	}
	b.code = appendU32(b.code, align)
	b.index(r)
}
