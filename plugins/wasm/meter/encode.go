package meter

// encoder writes a module with the fuel global and the charges.
type encoder struct {
	out     []byte
	scratch []byte // content of the present section
	fuel    uint32 // index of the fuel global
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
	e.fuel = uint32(m.globalCount())
	e.out = append(e.out, header...)
	vector(e, secType, m.types, func(t funcType) {
		e.byte(0x60)
		e.counted(t.params)
		e.counted(t.results)
	})
	vector(e, secImport, m.imports, e.importEntry)
	vector(e, secFunction, m.functions, e.u32)
	vector(e, secTable, m.tables, e.tableType)
	vector(e, secMemory, m.memories, e.limitsType)
	fuel := globalEntry{globalType{typeI64, 1}, append(appendSigned(constant{opI64Const}, budget), opEnd)}
	vector(e, secGlobal, append(m.globals[:len(m.globals):len(m.globals)], fuel), func(g globalEntry) {
		e.byte(g.typ)
		e.byte(g.mutable)
		e.bytes(g.init)
	})
	exports := append(m.exports[:len(m.exports):len(m.exports)], exportEntry{FuelExport, Global, e.fuel})
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
const shortestCharge = 16

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
	return append(dst, opI64Const, 0, opI64LtS, opIf, blockEmpty, opUnreachable, opEnd)
}

// pageShift is the binary logarithm of PageCost.
const pageShift = 13

var _ [0]struct{} = [PageCost - 1<<pageShift]struct{}{}
