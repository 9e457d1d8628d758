package segment

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
)

// View is all of the arena as a region at an address of its own: a second mapping of the same memory. Closing a view
// takes its address back from everybody who was told of it, although the memory goes on to be used under the
// address of another one. The address is not used again for a long time.
func (a *Arena) View(access transports.Access) (*Region, error) {
	if err := a.hold(); err != nil {
		return nil, err
	}
	n := uintptr(len(a.data))
	p, err := unix.MmapPtr(a.fd, 0, nil, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		a.refs.release()
		return nil, fmt.Errorf("segment %s: map %s again: %w", a.name, units.Size(n), noMemory(err))
	}
	return &Region{data: unsafe.Slice((*byte)(p), n), location: a.Location(), access: access, arena: a, view: &view{a, p, n}}, nil
}

// view is a mapping beside the arena's own.
type view struct {
	arena *Arena
	p     unsafe.Pointer
	n     uintptr
}

// retire unmaps the view but keeps the kernel from giving its address to the next mapping.
func (v *view) retire() {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED | unix.MAP_NORESERVE
	if _, err := unix.MmapPtr(-1, 0, v.p, v.n, unix.PROT_NONE, flags); err != nil {
		_ = unix.MunmapPtr(v.p, v.n) // without the precaution then
		return
	}
	v.arena.old.add(v)
}

// keepRetired is how many addresses of closed views stay reserved. They cost address space only.
const keepRetired = 16

// retired are the closed views whose address is reserved, the oldest first.
type retired struct {
	mu   sync.Mutex
	list []*view
}

func (r *retired) add(v *view) {
	r.mu.Lock()
	r.list = append(r.list, v)
	r.mu.Unlock()
	r.free(keepRetired)
}

// free gives up the oldest reservations until keep are left.
func (r *retired) free(keep int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.list) > keep {
		_ = unix.MunmapPtr(r.list[0].p, r.list[0].n)
		r.list = r.list[1:]
	}
}
