package meter

// Sections of the binary format, by id.
const (
	secCustom = iota
	secType
	secImport
	secFunction
	secTable
	secMemory
	secGlobal
	secExport
	secStart
	secElement
	secCode
	secData
	secDataCount
	secTag // exceptions
)

var sectionNames = [...]string{
	"custom", "type", "import", "function", "table", "memory", "global", "export", "start", "element", "code", "data", "data count", "tag",
}

// sectionOrder is each section's place in a module; custom sections go anywhere.
var sectionOrder = [...]int{
	secType: 1, secImport: 2, secFunction: 3, secTable: 4, secMemory: 5, secGlobal: 6, secExport: 7, secStart: 8, secElement: 9,
	secDataCount: 10, secCode: 11, secData: 12,
}

// Value types.
const (
	typeI32    = 0x7f
	typeI64    = 0x7e
	typeF32    = 0x7d
	typeF64    = 0x7c
	typeV128   = 0x7b
	typeFunc   = 0x70
	typeExtern = 0x6f
)

var typeNames = map[byte]string{
	typeI32: "i32", typeI64: "i64", typeF32: "f32", typeF64: "f64", typeV128: "v128", typeFunc: "funcref", typeExtern: "externref",
}

func isValueType(t byte) bool { return t >= typeV128 && t <= typeI32 || isRefType(t) }
func isRefType(t byte) bool   { return t == typeFunc || t == typeExtern }

// module is a decoded module but for the code, which is decoded and encoded function by function. Slices of
// bytes alias the original.
type module struct {
	types     []funcType
	imports   []importEntry
	functions []uint32 // types of the functions with code
	tables    []tableType
	memories  []limitsType
	globals   []globalEntry
	exports   []exportEntry
	start     int // function, or -1
	elements  []element
	dataCount int // or -1
	bodies    []span
	data      []dataSegment
	names     []byte // content of the name section, nil for none

	importedFunctions []uint32 // their types
	importedTables    int
	importedMemories  int
	importedGlobals   int
}

func (m *module) globalCount() int   { return m.importedGlobals + len(m.globals) }
func (m *module) functionCount() int { return len(m.importedFunctions) + len(m.functions) }

// typeOf is the type of a function by its index, imported ones first.
func (m *module) typeOf(function uint32) (funcType, bool) {
	i, t := int64(function), uint32(0)
	switch n := int64(len(m.importedFunctions)); {
	case i < n:
		t = m.importedFunctions[i]
	case i-n < int64(len(m.functions)):
		t = m.functions[i-n]
	default:
		return funcType{}, false
	}
	return m.types[t], true
}

type funcType struct{ params, results []byte }

func (t funcType) String() string {
	text := "("
	for i, p := range t.params {
		if i > 0 {
			text += ", "
		}
		text += typeNames[p]
	}
	text += ")"
	for i, r := range t.results {
		if i == 0 {
			text += " -> "
		} else {
			text += ", "
		}
		text += typeNames[r]
	}
	return text
}

type limitsType struct {
	min, max uint32
	bounded  bool
}

type tableType struct {
	element byte
	limits  limitsType
}

type globalType struct {
	typ     byte
	mutable byte
}

type globalEntry struct {
	globalType
	init constant
}

// constant is a constant expression in its shortest encoding, with its end.
type constant []byte

type importEntry struct {
	module, name string
	kind         Kind
	function     uint32 // type
	table        tableType
	memory       limitsType
	global       globalType
}

type exportEntry struct {
	name  string
	kind  Kind
	index uint32
}

// element is an element segment; flags are those of the binary format.
type element struct {
	flags  uint32
	table  uint32
	offset constant
	typ    byte   // element kind 0, or reference type
	n      int    // elements
	items  []byte // function indices or constant expressions, in their shortest encoding
}

type dataSegment struct {
	flags  uint32
	offset constant
	bytes  []byte
}

// span is a range of the original.
type span struct{ from, to int }
