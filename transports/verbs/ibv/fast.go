//go:build !noverbs

package ibv

import (
	"unsafe"

	"github.com/ebitengine/purego"
)

// fast calls a function of a device's table. Its arguments are in memory that is used again, so that a call allocates
// nothing; what they point to must be on the heap and reachable.
type fast struct{ args [4]uintptr }

func (f *fast) postSend(fn, qp uintptr, wr *cSendWR, bad *uintptr) int32 {
	f.args = [4]uintptr{qp, uintptr(unsafe.Pointer(wr)), uintptr(unsafe.Pointer(bad))}
	r, _, _ := purego.SyscallN(fn, f.args[:]...)
	return int32(r)
}

func (f *fast) pollCQ(fn, cq uintptr, n int, wc *cWC) int {
	f.args = [4]uintptr{cq, uintptr(n), uintptr(unsafe.Pointer(wc))}
	r, _, _ := purego.SyscallN(fn, f.args[:]...)
	return int(int32(r))
}
