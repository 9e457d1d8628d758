// Package guard runs code that touches memory which may not be there any more: unmapped by a careless
// owner, or mapped from a file that another process has truncated. The fault becomes an error instead
// of the end of the process.
package guard

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrFault is wrapped by the error for memory that cannot be accessed.
var ErrFault = errors.New("memory fault")

// Copy copies src to dst, which must have the same length. Memory that is not mapped, or whose file
// was truncated, gives an error that wraps [ErrFault] and names the address; a part may have been
// copied then. A nil error means that every byte was copied.
func Copy(dst, src []byte) error {
	if len(dst) != len(src) {
		return fmt.Errorf("memory: copy of %d bytes into %d", len(src), len(dst))
	}
	return Run(func() { copy(dst, src) })
}

// Run runs f and turns a fault on an address that f accesses (SIGSEGV, SIGBUS) into an error that
// wraps [ErrFault]. Other panics, nil dereferences included, pass through. f must not start goroutines
// that access the memory: only the calling goroutine is guarded.
func Run(f func()) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		switch p := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}:
			err = fmt.Errorf("memory: address %#x cannot be accessed (unmapped, or its file was truncated): %w", p.Addr(), ErrFault)
		default:
			panic(p)
		}
	}()
	f()
	return nil
}
