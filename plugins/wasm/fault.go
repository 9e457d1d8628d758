package wasm

import (
	"fmt"
	"strings"
)

// FaultKind says in which way a guest failed.
type FaultKind string

// The kinds of fault.
const (
	// FaultFuel: a call used up its fuel.
	FaultFuel FaultKind = "out_of_fuel"
	// FaultStack: the guest's stack overflowed.
	FaultStack FaultKind = "stack_overflow"
	// FaultTrap: any other trap, such as unreachable or an access outside of memory.
	FaultTrap FaultKind = "trap"
	// FaultExit: the guest called proc_exit.
	FaultExit FaultKind = "exit"
	// FaultReturn: a call returned a number that the ABI does not allow.
	FaultReturn FaultKind = "bad_return"
	// FaultBuffer: a buffer or a text is outside of the guest's memory, misaligned or missing.
	FaultBuffer FaultKind = "bad_buffer"
	// FaultRefused: policy_init refused to start, with a code.
	FaultRefused FaultKind = "init_refused"
	// FaultStart: the instance could not be made.
	FaultStart FaultKind = "start"
	// FaultStrikes: too many victims that were not resident or were named twice.
	FaultStrikes FaultKind = "strikes"
)

// FaultKinds are all kinds, in the order of documentation.
var FaultKinds = []FaultKind{FaultFuel, FaultStack, FaultTrap, FaultExit, FaultReturn, FaultBuffer, FaultRefused, FaultStart, FaultStrikes}

// Fault is a misbehaviour that costs the guest its instance.
type Fault struct {
	Kind FaultKind
	Call string // the export that was called
	Why  string // one line
}

func (f *Fault) Error() string { return fmt.Sprintf("wasm: %s: %s: %s", f.Call, f.Kind, f.Why) }

func faultf(kind FaultKind, call, format string, args ...any) *Fault {
	return &Fault{kind, call, fmt.Sprintf(format, args...)}
}

// clean makes one printable line of a text that a guest has a say in.
func clean(s string, most int) string {
	cut := len(s) > most
	if cut {
		s = s[:most]
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if cut {
		s += "..."
	}
	return strings.TrimSpace(s)
}
