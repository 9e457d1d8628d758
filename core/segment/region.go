package segment

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/mooncake-agent/mooncake/transports"
)

// ErrBadRegion is wrapped by the errors about a region that cannot be registered at all: empty,
// outside its arena, or with an address range that wraps around.
var ErrBadRegion = errors.New("bad region")

// Region is a piece of memory that can be registered. It is immutable. A region of an arena keeps the
// arena mapped until Close.
type Region struct {
	data     []byte
	location string
	access   transports.Access
	arena    *Arena // nil for wrapped memory
	offset   uint64 // in the arena
	view     *view  // mapping of its own, nil if it uses the arena's
	closed   atomic.Bool
}

var _ transports.Region = (*Region)(nil)

// Wrap makes a region of the caller's own memory. location is upstream's memory location ("cpu:0");
// "" means unknown. The region has no file descriptor, so transports that share memory answer
// ErrNotShareable for it. The memory must stay mapped until the region was unregistered. Memory from
// outside the Go heap (mmap) is recommended; a slice of the Go heap works too, the region keeps it
// reachable.
func Wrap(b []byte, location string, access transports.Access) (*Region, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("segment: cannot register 0 bytes: %w", ErrBadRegion)
	}
	if location == "" {
		location = "*"
	}
	return &Region{data: b[:len(b):len(b)], location: location, access: access}, nil
}

// Region returns the piece [offset, offset+n) of the arena. Pieces may overlap; the index refuses to
// register two that do. The caller closes the region after it was unregistered.
func (a *Arena) Region(offset, n uint64, access transports.Access) (*Region, error) {
	if n == 0 || offset > a.Len() || n > a.Len()-offset {
		return nil, fmt.Errorf("segment %s: %d bytes at offset %d are not inside its %d bytes: %w", a.name, n, offset, a.Len(), ErrBadRegion)
	}
	if err := a.hold(); err != nil {
		return nil, err
	}
	return &Region{data: a.data[offset : offset+n : offset+n], location: a.Location(), access: access, arena: a, offset: offset}, nil
}

// Addr is the published address: the real address of the first byte.
func (r *Region) Addr() uint64 { return addressOf(r.data) }

// Len is the size in bytes.
func (r *Region) Len() uint64 { return uint64(len(r.data)) }

// Location is upstream's memory location: "cpu:0", or "*" for unknown.
func (r *Region) Location() string { return r.location }

// Access is what peers may do with the region.
func (r *Region) Access() transports.Access { return r.access }

// Bytes is the memory itself.
func (r *Region) Bytes() []byte { return r.data }

// FD returns the arena's memfd and the region's offset in it; ok is false for wrapped memory.
func (r *Region) FD() (fd int, offset int64, ok bool) {
	if r.arena == nil {
		return -1, 0, false
	}
	return r.arena.FD(), int64(r.offset), true
}

// Close gives the region back to its arena; the memory of a view must not be used after it. It is idempotent and
// does nothing for wrapped memory.
func (r *Region) Close() {
	if r.arena != nil && r.closed.CompareAndSwap(false, true) {
		if r.view != nil {
			r.view.retire()
		}
		r.arena.refs.release()
	}
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
