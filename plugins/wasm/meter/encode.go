package meter

// encoder writes a module with the fuel global and the charges.
type encoder struct {
	out     []byte
	scratch []byte // content of the present section
	fuel    uint32 // index of the fuel global; the reserve is behind it
	refill  uint32 // index of the function that is called when there is no fuel
}

// section writes a section around what content appends to e.scratch.
func (e *encoder) section(id byte, content func()) {
	e.scratch = e.scratch[:0]
	content()
	e.out = append(e.out, id)
	e.out = appendU32(e.out, uint32(len(e.scratch)))
	e.out = append(e.out, e.scratch...)
}

func (e *encoder) byte(b byte)    { e.scratch = append(e.scratch, b) }
func (e *encoder) bytes(b []byte) { e.scratch = append(e.scratch, b...) }
func (e *encoder) u32(v uint32)   { e.scratch = appendU32(e.scratch, v) }

// vector writes a section of entries, if there are any.
func vector[T any](e *encoder, id byte, entries []T, entry func(T)) {
	if len(entries) == 0 {
		return
	}
	e.section(id, func() {
		e.u32(uint32(len(entries)))
		for _, x := range entries {
			entry(x)
		}
	})
}

func (e *encoder) counted(b []byte) {
	e.u32(uint32(len(b)))
	e.bytes(b)
}

func (e *encoder) text(s string) {
	e.u32(uint32(len(s)))
	e.scratch = append(e.scratch, s...)
}

// beforeCode writes the header and all sections up to the code section.
func (e *encoder) beforeCode(m *module, budget int64) {
	e.fuel, e.refill = uint32(m.globalCount()), uint32(m.functionCount())
	e.out = append(e.out, header...)
	types := append(m.types[:len(m.types):len(m.types)], funcType{})
	vector(e, secType, types, func(t funcType) {
		e.byte(0x60)
		e.counted(t.params)
		e.counted(t.results)
	})
	vector(e, secImport, m.imports, e.importEntry)
	vector(e, secFunction, append(m.functions[:len(m.functions):len(m.functions)], uint32(len(m.types))), e.u32)
	vector(e, secTable, m.tables, e.tableType)
	vector(e, secMemory, m.memories, e.limitsType)
	fuel := globalEntry{globalType{typeI64, 1}, append(appendSigned(constant{opI64Const}, budget), opEnd)}
	reserve := globalEntry{globalType{typeI64, 1}, constant{opI64Const, 0, opEnd}}
	vector(e, secGlobal, append(m.globals[:len(m.globals):len(m.globals)], fuel, reserve), func(g globalEntry) {
		e.byte(g.typ)
		e.byte(g.mutable)
		e.bytes(g.init)
	})
	exports := append(m.exports[:len(m.exports):len(m.exports)], exportEntry{FuelExport, Global, e.fuel}, exportEntry{ReserveExport, Global, e.fuel + 1})
	if m.start >= 0 {
		exports = append(exports, exportEntry{StartExport, Function, uint32(m.start)})
	}
	vector(e, secExport, exports, func(x exportEntry) {
		e.text(x.name)
		e.byte(byte(x.kind))
		e.u32(x.index)
	})
	vector(e, secElement, m.elements, e.element)
	if m.dataCount >= 0 {
		e.section(secDataCount, func() { e.u32(uint32(m.dataCount)) })
	}
}

// afterCode writes the data and name sections.
func (e *encoder) afterCode(m *module) {
	vector(e, secData, m.data, func(d dataSegment) {
		e.u32(d.flags)
		e.bytes(d.offset)
		e.counted(d.bytes)
	})
	if m.names != nil {
		e.section(secCustom, func() {
			e.text("name")
			e.bytes(m.names)
		})
	}
}

func (e *encoder) importEntry(i importEntry) {
	e.text(i.module)
	e.text(i.name)
	e.byte(byte(i.kind))
	switch i.kind {
	case Function:
		e.u32(i.function)
	case Table:
		e.tableType(i.table)
	case Memory:
		e.limitsType(i.memory)
	case Global:
		e.byte(i.global.typ)
		e.byte(i.global.mutable)
	}
}

func (e *encoder) tableType(t tableType) {
	e.byte(t.element)
	e.limitsType(t.limits)
}

func (e *encoder) limitsType(l limitsType) {
	if l.bounded {
		e.byte(1)
		e.u32(l.min)
		e.u32(l.max)
		return
	}
	e.byte(0)
	e.u32(l.min)
}

func (e *encoder) element(s element) {
	e.u32(s.flags)
	passive, explicit := s.flags&1 != 0, s.flags&2 != 0
	if !passive {
		if explicit {
			e.u32(s.table)
		}
		e.bytes(s.offset)
	}
	if passive || explicit {
		e.byte(s.typ)
	}
	e.u32(uint32(s.n))
	e.bytes(s.items)
}

// shortestCharge is the number of bytes that a charge takes at least.
const shortestCharge = 17

// appendFunction appends a function with its charges: size, locals, code. The last two stay in e.scratch.
func (e *encoder) appendFunction(dst []byte, b *body) []byte {
	content := e.scratch[:0]
	runs := len(b.locals)
	if b.scratch {
		runs++
	}
	content = appendU32(content, uint32(runs))
	for _, l := range b.locals {
		content = append(appendU32(content, l.n), l.typ)
	}
	if b.scratch {
		content = append(content, 1, typeI32)
	}
	from := 0
	for _, m := range b.marks {
		content = append(content, b.code[from:m.pos]...)
		from = m.pos
		content = e.appendCharge(content, m, uint32(b.total))
	}
	content = append(content, b.code[from:]...)
	e.scratch = content
	dst = appendU32(dst, uint32(len(content)))
	return append(dst, content...)
}

// appendCharge appends the code of a charge. It leaves the stack as it was, and it is valid on any stack that
// the instruction behind it is valid on, also where code cannot be reached.
func (e *encoder) appendCharge(dst []byte, m mark, scratch uint32) []byte {
	if m.kind == markCost && m.cost == 0 {
		return dst
	}
	if m.kind != markCost {
		dst = appendU32(append(dst, opLocalTee), scratch)
	}
	dst = appendU32(append(dst, opGlobalGet), e.fuel)
	switch m.kind {
	case markCost:
		dst = appendSigned(append(dst, opI64Const), int64(m.cost))
	case markUnits:
		dst = append(appendU32(append(dst, opLocalGet), scratch), opI64ExtendU)
	case markPages: // PageCost is a power of two
		dst = append(appendU32(append(dst, opLocalGet), scratch), opI64ExtendU, opI64Const, pageShift, opI64Shl)
	}
	dst = append(dst, opI64Sub)
	dst = appendU32(append(dst, opGlobalSet), e.fuel)
	dst = appendU32(append(dst, opGlobalGet), e.fuel)
	dst = append(dst, opI64Const, 0, opI64LtS, opIf, blockEmpty)
	return append(appendU32(append(dst, opCall), e.refill), opEnd)
}

// appendRefill appends the function that fills the fuel up to a slice from the reserve and traps when there is too little.
// Growing memory by nothing takes the engine out of compiled code: there the rest of the program gets the processor when it wants
// it.
func (e *encoder) appendRefill(dst []byte, memory bool) []byte {
	const moved = 0 // a local
	var f []byte
	global := func(op byte, index uint32) { f = appendU32(append(f, op), index) }
	reserve := e.fuel + 1
	f = append(f, 1, 1, typeI64)
	global(opGlobalGet, reserve)
	f = appendSigned(append(f, opI64Const), Slice)
	global(opGlobalGet, e.fuel)
	f = append(f, opI64Sub, opLocalTee, moved)
	global(opGlobalGet, reserve)
	f = append(f, opLocalGet, moved, opI64LtS, opSelect, opLocalTee, moved) // the smaller one
	global(opGlobalGet, e.fuel)
	f = append(f, opI64Add)
	global(opGlobalSet, e.fuel)
	global(opGlobalGet, reserve)
	f = append(f, opLocalGet, moved, opI64Sub)
	global(opGlobalSet, reserve)
	if memory {
		f = append(f, opI32Const, 0, opMemoryGrow, 0, opDrop)
	}
	global(opGlobalGet, e.fuel)
	f = append(f, opI64Const, 0, opI64LtS, opIf, blockEmpty, opUnreachable, opEnd, opEnd)
	return append(appendU32(dst, uint32(len(f))), f...)
}

// pageShift is the binary logarithm of PageCost.
const pageShift = 13

var _ [0]struct{} = [PageCost - 1<<pageShift]struct{}{}
