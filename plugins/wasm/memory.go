package wasm

import (
	"context"
	"fmt"

	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"
)

const pageSize = 1 << 16

// arena is the linear memory of one instance: address space for the whole limit is reserved at once outside of
// Go's heap, so that growing never copies and costs nothing until the pages are used, and Free gives
// everything back at once.
type arena struct {
	limit uint64
	all   []byte
	err   error
}

// Allocate implements experimental.MemoryAllocator. wazero calls it once, for the module's only memory.
func (a *arena) Allocate(_, most uint64) experimental.LinearMemory {
	size := min(most, a.limit)
	if size == 0 {
		return a
	}
	a.all, a.err = unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if a.err != nil {
		a.all, a.err = nil, fmt.Errorf("wasm: reserve %d bytes for the guest's memory: %w", size, a.err)
	}
	return a
}

// Reallocate implements experimental.LinearMemory: nil when the guest asks for more than it may have.
func (a *arena) Reallocate(size uint64) []byte {
	if size > uint64(len(a.all)) {
		return nil
	}
	return a.all[:size:size]
}

// Free implements experimental.LinearMemory.
func (a *arena) Free() {
	if a.all != nil {
		_ = unix.Munmap(a.all) // it is a mapping of ours
		a.all = nil
	}
}

func withAllocator(ctx context.Context, a *arena) context.Context {
	return experimental.WithMemoryAllocator(ctx, a)
}
