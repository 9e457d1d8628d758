package meter

import (
	"errors"
	"fmt"
	"strings"
)

// What is wrong with a module, for errors.Is.
var (
	// ErrMalformed: the bytes are not a valid module.
	ErrMalformed = errors.New("malformed module")
	// ErrRefused: the module uses a feature or a name that is not allowed.
	ErrRefused = errors.New("refused module")
	// ErrLimit: the module is larger than Options.Limits.
	ErrLimit = errors.New("module over the limit")
)

// Rule names what a module was refused for. The values are fit for a metric's label.
type Rule string

// The rules.
const (
	RuleFormat      Rule = "format"      // the binary format
	RuleValid       Rule = "valid"       // Options.Validate
	RuleLimit       Rule = "limit"       // a field of Limits
	RuleReserved    Rule = "reserved"    // exports a name that Rewrite adds
	RuleGlobalIndex Rule = "globalIndex" // names a global that the module does not have
	RuleTableGrow   Rule = "tableGrow"

	RuleTailCall         Rule = "tailCall"
	RuleAtomics          Rule = "atomics" // shared memory, too
	RuleExceptions       Rule = "exceptions"
	RuleFunctionRefs     Rule = "functionReferences"
	RuleGC               Rule = "gc"
	RuleRelaxedSIMD      Rule = "relaxedSIMD"
	RuleMultiMemory      Rule = "multiMemory"
	RuleMemory64         Rule = "memory64"
	RuleExtendedConst    Rule = "extendedConst"
	RuleLimitsFlags      Rule = "limitsFlags"
	RuleUnknownOperation Rule = "unknownInstruction"
)

// Error says what is wrong and where. Fields that do not apply are -1 or empty.
type Error struct {
	Rule     Rule
	Section  string // such as "code"; "module" for the header
	Function int    // index with imports counted, as in the text format
	Offset   int    // in the module, in bytes
	Err      error  // wraps ErrMalformed, ErrRefused or ErrLimit
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("meter: ")
	if e.Section != "" {
		fmt.Fprintf(&b, "%s section: ", e.Section)
	}
	if e.Function >= 0 {
		fmt.Fprintf(&b, "function %d: ", e.Function)
	}
	if e.Offset >= 0 {
		fmt.Fprintf(&b, "offset %#x: ", e.Offset)
	}
	fmt.Fprintf(&b, "%v (%s)", e.Err, e.Rule)
	return b.String()
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }
