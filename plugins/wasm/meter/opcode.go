package meter

// Instructions that the accounting has to know.
const (
	opUnreachable = 0x00
	opBlock       = 0x02
	opLoop        = 0x03
	opIf          = 0x04
	opElse        = 0x05
	opEnd         = 0x0b
	opBr          = 0x0c
	opCall        = 0x10
	opDrop        = 0x1a
	opSelect      = 0x1b
	opLocalGet    = 0x20
	opLocalTee    = 0x22
	opGlobalGet   = 0x23
	opGlobalSet   = 0x24
	opMemoryGrow  = 0x40
	opI32Const    = 0x41
	opI64Const    = 0x42
	opF32Const    = 0x43
	opF64Const    = 0x44
	opI64LtS      = 0x53
	opI64Add      = 0x7c
	opI64Sub      = 0x7d
	opI64Shl      = 0x86
	opI64ExtendU  = 0xad
	opRefNull     = 0xd0
	opRefFunc     = 0xd2
	prefixMisc    = 0xfc
	prefixSIMD    = 0xfd

	blockEmpty = 0x40

	miscMemoryInit = 8
	miscDataDrop   = 9
	miscMemoryCopy = 10
	miscMemoryFill = 11
	miscTableInit  = 12
	miscElemDrop   = 13
	miscTableCopy  = 14
	miscTableGrow  = 15
	miscTableSize  = 16
	miscTableFill  = 17

	simdConst   = 12
	simdShuffle = 13
	simdRelaxed = 0x100 // the first one
)

// immediate is what follows an opcode.
type immediate byte

const (
	immUnknown immediate = iota // no instruction of core WebAssembly 2.0
	immNone
	immBlock     // block type: opens a block
	immElse      // none, but has its place
	immEnd       // none, closes a block
	immLabel     // label
	immLabels    // vector of labels, label
	immIndex     // index of a function, data or element segment
	immIndirect  // type, table
	immLocal     // local
	immGlobal    // global
	immTable     // table
	immTables    // two tables
	immTypes     // vector of value types
	immMemarg    // alignment, offset
	immMemory    // memory 0
	immI32       //
	immI64       //
	immF32       //
	immF64       //
	immHeapType  // func or extern
	immDataMem   // data segment, memory 0
	immElemTable // element segment, table
	immMemMem    // memory 0, memory 0
	immV128      // 16 bytes, a constant or lanes
	immLane      // a byte
	immMemLane   // alignment, offset, lane
)

// immediates of the one-byte opcodes.
var immediates = func() (t [256]immediate) {
	set := func(from, to int, i immediate) {
		for op := from; op <= to; op++ {
			t[op] = i
		}
	}
	set(0x00, 0x01, immNone) // unreachable, nop
	set(0x02, 0x04, immBlock)
	set(0x05, 0x05, immElse)
	set(0x0b, 0x0b, immEnd)
	set(0x0c, 0x0d, immLabel) // br, br_if
	set(0x0e, 0x0e, immLabels)
	set(0x0f, 0x0f, immNone)  // return
	set(0x10, 0x10, immIndex) // call
	set(0x11, 0x11, immIndirect)
	set(0x1a, 0x1b, immNone) // drop, select
	set(0x1c, 0x1c, immTypes)
	set(0x20, 0x22, immLocal)
	set(0x23, 0x24, immGlobal)
	set(0x25, 0x26, immTable) // table.get, table.set
	set(0x28, 0x3e, immMemarg)
	set(0x3f, 0x40, immMemory) // memory.size, memory.grow
	set(0x41, 0x41, immI32)
	set(0x42, 0x42, immI64)
	set(0x43, 0x43, immF32)
	set(0x44, 0x44, immF64)
	set(0x45, 0xc4, immNone) // comparison, arithmetic, conversion
	set(0xd0, 0xd0, immHeapType)
	set(0xd1, 0xd1, immNone)  // ref.is_null
	set(0xd2, 0xd2, immIndex) // ref.func
	return t
}()

// miscImmediates of the opcodes behind prefixMisc.
var miscImmediates = [...]immediate{
	0: immNone, 1: immNone, 2: immNone, 3: immNone, 4: immNone, 5: immNone, 6: immNone, 7: immNone, // saturating truncation
	miscMemoryInit: immDataMem, miscDataDrop: immIndex, miscMemoryCopy: immMemMem, miscMemoryFill: immMemory,
	miscTableInit: immElemTable, miscElemDrop: immIndex, miscTableCopy: immTables, miscTableGrow: immTable,
	miscTableSize: immTable, miscTableFill: immTable,
}

// simdImmediates of the opcodes behind prefixSIMD.
var simdImmediates = func() (t [simdRelaxed]immediate) {
	for op := range t {
		t[op] = immNone
	}
	set := func(from, to int, i immediate) {
		for op := from; op <= to; op++ {
			t[op] = i
		}
	}
	set(0, 11, immMemarg)
	set(simdConst, simdShuffle, immV128)
	set(21, 34, immLane)    // extract_lane, replace_lane
	set(84, 91, immMemLane) // load and store of a lane
	set(92, 93, immMemarg)  // load32_zero, load64_zero
	for _, op := range []int{
		0x9a, 0xa2, 0xa5, 0xa6, 0xaf, 0xb0, 0xb2, 0xb3, 0xb4, 0xbb, 0xc2, 0xc5, 0xc6, 0xcf, 0xd0, 0xd2, 0xd3, 0xd4, 0xe2, 0xee,
	} {
		t[op] = immUnknown
	}
	return t
}()

// refusedOpcodes are instructions of proposals, by one-byte opcode or prefix.
var refusedOpcodes = map[byte]struct {
	rule Rule
	name string
}{
	0x06: {RuleExceptions, "try"}, 0x07: {RuleExceptions, "catch"}, 0x08: {RuleExceptions, "throw"}, 0x09: {RuleExceptions, "rethrow"},
	0x0a: {RuleExceptions, "throw_ref"}, 0x18: {RuleExceptions, "delegate"}, 0x19: {RuleExceptions, "catch_all"},
	0x1f: {RuleExceptions, "try_table"},
	0x12: {RuleTailCall, "return_call"}, 0x13: {RuleTailCall, "return_call_indirect"}, 0x15: {RuleTailCall, "return_call_ref"},
	0x14: {RuleFunctionRefs, "call_ref"}, 0xd4: {RuleFunctionRefs, "ref.as_non_null"}, 0xd5: {RuleFunctionRefs, "br_on_null"},
	0xd6: {RuleFunctionRefs, "br_on_non_null"},
	0xd3: {RuleGC, "ref.eq"}, 0xfb: {RuleGC, "an instruction of the garbage collection proposal"},
	0xfe: {RuleAtomics, "an atomic instruction"},
}
