package meter

// Names that Rewrite adds to a module's exports. A module that uses one of them itself is refused.
const (
	// FuelExport is the mutable i64 global that is counted down.
	FuelExport = "mooncake_fuel"
	// ReserveExport is a mutable i64 global with the fuel that is not in FuelExport yet. When that falls below zero, up
	// to a [Slice] comes from here, and the engine leaves compiled code for a moment, so that everything else in the
	// process waits for a slice and not for a call.
	ReserveExport = "mooncake_reserve"
	// StartExport is the function of the module's start section, which is taken out.
	StartExport = "mooncake_start"
)

// Costs in units and the budgets that go with them.
const (
	// PageCost is the charge of memory.grow for each page of 64 KiB.
	PageCost = 8192
	// HostCallCost is what a host function charges for being called, besides the bytes it touches.
	HostCallCost = 1000

	// EventBudget and CallBudget are the default budget of a call: EventBudget for each event in it, and
	// CallBudget.
	EventBudget = 1000
	CallBudget  = 10_000
	// InitBudget is the budget for everything before an instance is in service: start function,
	// _initialize, init, load, save and the RESTORE batches. An instance for many objects gets HandleBudget for
	// each of them if that is more: it has arrays to fill.
	InitBudget   = 50_000_000
	HandleBudget = 64
	// Slice is what the fuel is filled up to from the reserve: instructions that run without an interruption.
	Slice = 20_000
	// MaxBudget is the greatest budget. With it no charge can wrap around.
	MaxBudget = 1 << 62
)

// Limits bound what a module may hold. A zero field takes its value from [DefaultLimits].
type Limits struct {
	Module      int // bytes of the module
	Types       int // entries of the type section
	Params      int // parameters of a function or block; a call copies them for one unit
	Results     int // results of a function or block
	Imports     int
	Functions   int // imported and own
	Tables      int
	TableSize   int // least and, if given, greatest number of elements of a table
	Globals     int // imported and own
	Exports     int
	Elements    int // element segments
	Data        int // data segments
	NameLength  int // bytes of an import's or export's name
	Body        int // bytes of a function's code
	MeteredBody int // bytes of a function's code with the charges
	Locals      int // parameters and declared locals of a function
	Nesting     int // blocks within blocks
}

// DefaultLimits fit what C, Rust, AssemblyScript and Go compilers write, with room.
var DefaultLimits = Limits{
	Module: 8 << 20, Types: 10_000, Params: 64, Results: 16, Imports: 1000, Functions: 50_000, Tables: 16, TableSize: 65_536,
	Globals: 10_000, Exports: 10_000, Elements: 10_000, Data: 100_000, NameLength: 1024, Body: 256 << 10,
	MeteredBody: 768 << 10, Locals: 5000, Nesting: 16_384,
}

// Options say how a module is checked and what it starts with.
type Options struct {
	// Validate checks the module as it came with the engine that will run it, by core WebAssembly 2.0
	// and no other feature, and must not run it. It is called after Rewrite's own limits, so that it sees
	// nothing outsized, but custom sections are still there: an engine that reads debug information should
	// be told not to (wazero: WithDebugInfoEnabled(false)). It is required: what a charge says is right for
	// valid modules only.
	Validate func(module []byte) error
	// Budget is the fuel global's initial value, 0..MaxBudget: what is left for a start function when
	// the host forgets to set the global.
	Budget int64
	// Limits; zero fields take the default.
	Limits Limits
}

// Module is a metered module.
type Module struct {
	// Code is the rewritten module. It shares no memory with the original.
	Code  []byte
	Facts Facts
}

// Kind is what an import or export is.
type Kind byte

// The kinds, as the binary format numbers them.
const (
	Function Kind = iota
	Table
	Memory
	Global
)

var kindNames = [...]string{"function", "table", "memory", "global"}

func (k Kind) String() string { return kindNames[k] }

// Import is an entry of the import section. Module and Name are any UTF-8.
type Import struct {
	Module, Name string
	Kind         Kind
	// Type of a function, such as "(i32, i32) -> i32"; empty for the other kinds.
	Type string
}

// Export is an entry of the export section. Those that Rewrite adds are not in it.
type Export struct {
	Name string
	Kind Kind
	// Type of a function; empty for the other kinds.
	Type string
}

// Facts are what the original module holds.
type Facts struct {
	Imports []Import
	Exports []Export
	// Functions with code; imported ones are in Imports.
	Functions int
	// Instructions in all functions, else and end not counted.
	Instructions int
	// Start tells that the module had a start function, now exported as StartExport.
	Start bool
	// HasMemory tells that there is a memory; its size in pages of 64 KiB. MemoryMax is 0 when the module
	// sets none (see MemoryBounded).
	HasMemory     bool
	MemoryMin     uint32
	MemoryMax     uint32
	MemoryBounded bool
	// DataBytes are the bytes in data segments, LargestBody those of the largest function's code.
	DataBytes, LargestBody int
	// Dropped are the names of the custom sections that were left out.
	Dropped []string
}

// Charge is the fuel left when a host function that touches n bytes has been paid for. Below zero the caller
// has to panic, after it stored the result.
func Charge(left int64, n uint32) int64 { return left - HostCallCost - int64(n) }
