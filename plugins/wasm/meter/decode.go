package meter

// decoder reads the sections of a module, within limits.
type decoder struct {
	reader
	m      module
	limits *Limits
	facts  Facts
}

const header = "\x00asm\x01\x00\x00\x00"

// decode reads everything but the code of functions, whose places it notes.
func (d *decoder) decode() {
	d.m.start, d.m.dataCount = -1, -1
	if len(d.b) > d.limits.Module {
		d.fail(RuleLimit, ErrLimit, "%d bytes, at most %d are allowed", len(d.b), d.limits.Module)
		return
	}
	if len(d.b) < len(header) || string(d.b[:len(header)]) != header {
		d.malformed(0, "this is not a WebAssembly module of version 1")
		return
	}
	d.pos = len(header)
	last := 0
	for d.err == nil && d.pos < len(d.b) {
		d.section, d.end = "module", len(d.b)
		at := d.pos
		id := d.byte()
		size := d.u32()
		switch {
		case d.err != nil:
			return
		case id == secTag:
			d.failAt(at, RuleExceptions, ErrRefused, "a tag section is not allowed")
			return
		case int(id) >= len(sectionNames):
			d.malformed(at, "section of unknown id %d", id)
			return
		}
		d.section = sectionNames[id]
		if int64(size) > int64(d.left()) {
			d.malformed(at, "section of %d bytes, %d are left", size, d.left())
			return
		}
		d.end = d.pos + int(size)
		if id != secCustom {
			if sectionOrder[id] <= last {
				d.malformed(at, "section out of order, or twice")
				return
			}
			last = sectionOrder[id]
		}
		d.content(id)
		if d.err == nil && d.pos != d.end {
			d.malformed(d.pos, "%d bytes after the section's end", d.left())
		}
	}
	d.section, d.end = "module", len(d.b)
	d.consistent()
}

func (d *decoder) content(id byte) {
	switch id {
	case secCustom:
		d.custom()
	case secType:
		d.m.types = entries(d, "types", d.limits.Types, 3, d.typeEntry)
	case secImport:
		d.m.imports = entries(d, "imports", d.limits.Imports, 4, d.importEntry)
	case secFunction:
		d.m.functions = entries(d, "functions", d.limits.Functions-len(d.m.importedFunctions), 1, d.typeIndex)
	case secTable:
		d.m.tables = entries(d, "tables", d.limits.Tables-d.m.importedTables, 3, d.tableType)
	case secMemory:
		at := d.pos
		d.m.memories = entries(d, "memories", noLimit, 2, d.memoryType)
		if len(d.m.memories)+d.m.importedMemories > 1 {
			d.failAt(at, RuleMultiMemory, ErrRefused, "more than one memory")
		}
	case secGlobal:
		d.m.globals = entries(d, "globals", d.limits.Globals-d.m.importedGlobals, 4, func() globalEntry {
			return globalEntry{d.globalType(), d.constant()}
		})
	case secExport:
		d.m.exports = entries(d, "exports", d.limits.Exports, 3, d.exportEntry)
	case secStart:
		d.m.start = int(d.u32())
	case secElement:
		d.m.elements = entries(d, "element segments", d.limits.Elements, 3, d.element)
	case secDataCount:
		d.m.dataCount = int(d.u32())
	case secCode:
		d.code()
	case secData:
		d.m.data = entries(d, "data segments", d.limits.Data, 2, d.data)
	}
}

// entries reads a vector. The error of an entry leaves those before it.
func entries[T any](d *decoder, what string, limit, least int, entry func() T) []T {
	n := d.count(what, limit, least)
	all := make([]T, 0, n)
	for len(all) < n && d.err == nil {
		all = append(all, entry())
	}
	return all
}

// consistent checks what the format says about sections together.
func (d *decoder) consistent() {
	if len(d.m.functions) != len(d.m.bodies) {
		d.malformed(d.pos, "%d functions, code for %d", len(d.m.functions), len(d.m.bodies))
	}
	if d.m.dataCount >= 0 && d.m.dataCount != len(d.m.data) {
		d.malformed(d.pos, "%d data segments announced, there are %d", d.m.dataCount, len(d.m.data))
	}
	if d.m.start >= d.m.functionCount() {
		d.malformed(d.pos, "start function %d, there are %d", d.m.start, d.m.functionCount())
	}
	for _, e := range d.m.exports {
		if e.kind == Global && int64(e.index) >= int64(d.m.globalCount()) {
			d.failAt(d.pos, RuleGlobalIndex, ErrMalformed, "global %d is exported, the module has %d", e.index, d.m.globalCount())
		}
	}
}

func (d *decoder) typeEntry() (t funcType) {
	at := d.pos
	switch form := d.byte(); form {
	case 0x60:
		t = funcType{d.valueTypes("parameters", d.limits.Params), d.valueTypes("results", d.limits.Results)}
	case 0x4e, 0x4f, 0x50, 0x5e, 0x5f:
		d.failAt(at, RuleGC, ErrRefused, "a type that is not a function's is not allowed")
	default:
		d.malformed(at, "type of unknown form %#02x", form)
	}
	return t
}

func (d *decoder) valueTypes(what string, limit int) []byte {
	types := make([]byte, d.count(what, limit, 1))
	for i := range types {
		types[i] = d.valueType()
	}
	return types
}

func (r *reader) valueType() byte {
	at := r.pos
	t := r.byte()
	if r.err == nil && !isValueType(t) {
		r.refuseType(at)
		r.malformed(at, "unknown value type %#02x", t)
	}
	return t
}

func (r *reader) refType() byte {
	at := r.pos
	t := r.byte()
	if r.err == nil && !isRefType(t) {
		r.refuseType(at)
		r.malformed(at, "unknown reference type %#02x", t)
	}
	return t
}

// refuseType fails if the type that begins at that place is one of a proposal.
func (r *reader) refuseType(at int) {
	if r.err != nil {
		return
	}
	switch r.b[at] {
	case 0x63, 0x64:
		r.failAt(at, RuleFunctionRefs, ErrRefused, "a typed reference is not allowed")
	case 0x69, 0x74:
		r.failAt(at, RuleExceptions, ErrRefused, "an exception reference is not allowed")
	case 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x71, 0x72, 0x73:
		r.failAt(at, RuleGC, ErrRefused, "a reference of the garbage collection proposal is not allowed")
	}
}

func (d *decoder) typeIndex() uint32 {
	at := d.pos
	i := d.u32()
	if int64(i) >= int64(len(d.m.types)) {
		d.malformed(at, "type %d, there are %d", i, len(d.m.types))
		return 0
	}
	return i
}

func (d *decoder) importEntry() importEntry {
	e := importEntry{module: d.name(d.limits.NameLength), name: d.name(d.limits.NameLength)}
	at := d.pos
	typ := ""
	switch kind := d.byte(); kind {
	case byte(Function):
		e.function = d.typeIndex()
		if d.err == nil {
			d.m.importedFunctions = append(d.m.importedFunctions, e.function)
			typ = d.m.types[e.function].String()
		}
	case byte(Table):
		e.kind, e.table = Table, d.tableType()
		d.m.importedTables++
	case byte(Memory):
		e.kind, e.memory = Memory, d.memoryType()
		if d.m.importedMemories++; d.m.importedMemories > 1 {
			d.failAt(at, RuleMultiMemory, ErrRefused, "more than one memory")
		}
	case byte(Global):
		e.kind, e.global = Global, d.globalType()
		d.m.importedGlobals++
	case 4:
		d.failAt(at, RuleExceptions, ErrRefused, "a tag is not allowed")
	default:
		d.malformed(at, "import of unknown kind %d", kind)
	}
	if d.err != nil {
		return e
	}
	if d.m.importedTables > d.limits.Tables || d.m.importedGlobals > d.limits.Globals || len(d.m.importedFunctions) > d.limits.Functions {
		d.failAt(at, RuleLimit, ErrLimit, "too many imported %ss", e.kind)
	}
	d.facts.Imports = append(d.facts.Imports, Import{e.module, e.name, e.kind, typ})
	return e
}

func (d *decoder) limitsType() limitsType {
	at := d.pos
	switch flags := d.byte(); {
	case flags > 1 && flags&4 != 0:
		d.failAt(at, RuleMemory64, ErrRefused, "64-bit limits are not allowed")
	case flags == 2 || flags == 3:
		d.failAt(at, RuleAtomics, ErrRefused, "sharing between threads is not allowed")
	case flags > 1:
		d.failAt(at, RuleLimitsFlags, ErrRefused, "limits with flags %#02x are not allowed", flags)
	case flags == 1:
		return limitsType{d.u32(), d.u32(), true}
	}
	return limitsType{min: d.u32()}
}

func (d *decoder) memoryType() limitsType {
	l := d.limitsType()
	if d.err == nil {
		d.facts.HasMemory, d.facts.MemoryMin, d.facts.MemoryMax, d.facts.MemoryBounded = true, l.min, l.max, l.bounded
	}
	return l
}

func (d *decoder) tableType() tableType {
	at := d.pos
	if d.left() > 0 && d.b[d.pos] == 0x40 {
		d.fail(RuleFunctionRefs, ErrRefused, "a table with an initial value is not allowed")
		return tableType{}
	}
	t := tableType{d.refType(), d.limitsType()}
	if size := max(t.limits.min, t.limits.max); int64(size) > int64(d.limits.TableSize) {
		d.failAt(at, RuleLimit, ErrLimit, "table of %d elements, at most %d are allowed", size, d.limits.TableSize)
	}
	return t
}

func (d *decoder) globalType() globalType {
	t := globalType{typ: d.valueType()}
	at := d.pos
	if t.mutable = d.byte(); t.mutable > 1 {
		d.malformed(at, "global of mutability %#02x", t.mutable)
	}
	return t
}

// constant reads a constant expression: one instruction and an end.
func (d *decoder) constant() constant {
	at := d.pos
	op := d.byte()
	c := constant{op}
	switch op {
	case opI32Const:
		c = appendSigned(c, d.signed(32))
	case opI64Const:
		c = appendSigned(c, d.signed(64))
	case opF32Const:
		c = append(c, d.bytes(4)...)
	case opF64Const:
		c = append(c, d.bytes(8)...)
	case prefixSIMD:
		if d.u32() != simdConst {
			d.malformed(at, "a constant expression with another instruction than a constant")
		}
		c = append(append(c, simdConst), d.bytes(16)...)
	case opGlobalGet:
		i := d.u32()
		// By the standard only imported globals; whatever the engine thinks, never ours.
		if int64(i) >= int64(d.m.globalCount()) {
			d.failAt(at, RuleGlobalIndex, ErrMalformed, "global %d, there are %d so far", i, d.m.globalCount())
		}
		c = appendU32(c, i)
	case opRefNull:
		c = append(c, d.refType())
	case opRefFunc:
		c = appendU32(c, d.u32())
	default:
		d.malformed(at, "a constant expression with another instruction than a constant: opcode %#02x", op)
	}
	at = d.pos
	if end := d.byte(); d.err == nil && end != opEnd {
		d.failAt(at, RuleExtendedConst, ErrRefused, "a constant expression of more than one instruction is not allowed")
	}
	return append(c, opEnd)
}

func (d *decoder) exportEntry() exportEntry {
	at := d.pos
	e := exportEntry{name: d.name(d.limits.NameLength)}
	if e.name == FuelExport || e.name == ReserveExport || e.name == StartExport {
		d.failAt(at, RuleReserved, ErrRefused, "the name %q is the host's and must not be exported", e.name)
	}
	at = d.pos
	kind := d.byte()
	e.kind, e.index = Kind(kind), d.u32()
	switch {
	case kind == 4:
		d.failAt(at, RuleExceptions, ErrRefused, "a tag is not allowed")
	case kind > byte(Global):
		d.malformed(at, "export of unknown kind %d", kind)
	}
	if d.err != nil {
		return e
	}
	typ := ""
	if e.kind == Function {
		t, ok := d.m.typeOf(e.index)
		if !ok {
			d.malformed(at, "function %d is exported, there are %d", e.index, d.m.functionCount())
		}
		typ = t.String()
	}
	d.facts.Exports = append(d.facts.Exports, Export{e.name, e.kind, typ})
	return e
}

func (d *decoder) element() element {
	at := d.pos
	e := element{flags: d.u32()}
	if e.flags > 7 {
		d.malformed(at, "element segment with flags %#x", e.flags)
		return e
	}
	passive, explicit, expressions := e.flags&1 != 0, e.flags&2 != 0, e.flags&4 != 0
	if !passive {
		if explicit {
			e.table = d.u32()
		}
		e.offset = d.constant()
	}
	switch {
	case !passive && !explicit: // functions, without saying so
	case expressions:
		e.typ = d.refType()
	default:
		at = d.pos
		if e.typ = d.byte(); e.typ != 0 {
			d.malformed(at, "elements of unknown kind %#02x", e.typ)
		}
	}
	least := 1
	if expressions {
		least = 2
	}
	e.n = d.count("elements", noLimit, least)
	for i := 0; i < e.n && d.err == nil; i++ {
		if expressions {
			e.items = append(e.items, d.constant()...)
		} else {
			e.items = appendU32(e.items, d.u32())
		}
	}
	return e
}

// code reads the size of each function and notes its place; the code itself comes later.
func (d *decoder) code() {
	n := d.count("functions", d.limits.Functions, 3)
	d.m.bodies = make([]span, 0, n)
	for len(d.m.bodies) < n && d.err == nil {
		d.m.bodies = append(d.m.bodies, d.body())
	}
}

func (d *decoder) body() span {
	d.function = d.m.functionCount() - len(d.m.functions) + len(d.m.bodies)
	defer func() { d.function = -1 }()
	at := d.pos
	size := d.u32()
	if int64(size) > int64(d.limits.Body) {
		d.failAt(at, RuleLimit, ErrLimit, "code of %d bytes, at most %d are allowed", size, d.limits.Body)
		return span{}
	}
	from := d.pos
	d.bytes(int(size))
	d.facts.LargestBody = max(d.facts.LargestBody, int(size))
	return span{from, d.pos}
}

func (d *decoder) data() dataSegment {
	at := d.pos
	s := dataSegment{flags: d.u32()}
	switch s.flags {
	case 2:
		at = d.pos
		if d.u32() != 0 {
			d.failAt(at, RuleMultiMemory, ErrRefused, "a memory other than the first")
		}
		s.flags = 0
		s.offset = d.constant()
	case 0:
		s.offset = d.constant()
	case 1:
	default:
		d.malformed(at, "data segment with flags %#x", s.flags)
	}
	s.bytes = d.bytes(d.count("bytes of data", noLimit, 1))
	d.facts.DataBytes += len(s.bytes)
	return s
}

// custom keeps the name section, which serves messages about traps, and drops all others.
func (d *decoder) custom() {
	at := d.pos
	name := d.name(d.limits.NameLength)
	from := d.pos
	content := d.bytes(d.left())
	switch {
	case d.err != nil:
	case name != "name":
		if len(d.facts.Dropped) < d.limits.Imports {
			d.facts.Dropped = append(d.facts.Dropped, name)
		}
	case d.m.names != nil:
		d.malformed(at, "a second name section")
	default:
		d.m.names = content
		names := reader{b: d.b, pos: from, end: d.end, section: "name", function: -1}
		names.checkNames(d.limits)
		if names.err != nil {
			d.err = names.err
		}
	}
}

// checkNames looks whether the counts in a name section are honest: engines set memory aside for them.
func (r *reader) checkNames(l *Limits) {
	end := r.end
	for r.pos < end && r.err == nil {
		id := r.byte()
		size := r.u32()
		if int64(size) > int64(end-r.pos) {
			r.malformed(r.pos, "subsection %d of %d bytes, %d are left", id, size, end-r.pos)
			return
		}
		r.end = r.pos + int(size)
		switch id {
		case 0: // the module's
			r.name(noLimit)
		case 1: // functions'
			r.nameMap()
		case 2: // locals'
			n := r.count("functions", noLimit, 2)
			for i := 0; i < n && r.err == nil; i++ {
				r.u32()
				r.nameMap()
			}
		default:
			r.pos = r.end
		}
		if r.err == nil && r.pos != r.end {
			r.malformed(r.pos, "%d bytes after the subsection's end", r.left())
		}
		r.end = end
	}
}

func (r *reader) nameMap() {
	n := r.count("names", noLimit, 2)
	for i := 0; i < n && r.err == nil; i++ {
		r.u32()
		r.name(noLimit)
	}
}
