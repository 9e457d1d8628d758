package segment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/guard"
	"github.com/mooncake-agent/mooncake/core/units"
)

var (
	// ErrNoMemory is wrapped when the machine, the cgroup, the process limits or the huge page pool do
	// not have what was asked for. Nothing was taken.
	ErrNoMemory = errors.New("not enough memory")
	// ErrNoNode is wrapped when the NUMA node does not exist here, or memory cannot be bound to it.
	ErrNoNode = errors.New("NUMA node not usable")
	// ErrClosed is wrapped by calls on a closed arena.
	ErrClosed = errors.New("arena closed")
)

// Arena is one block of memory that the node owns: a memfd, sealed against changes of its size, mapped
// shared. All its pages are taken when New returns, so no later access can fail for lack of memory. All
// methods may be called concurrently.
type Arena struct {
	name string
	fd   int
	data []byte
	page uint64
	node int
	refs refs // regions and other users of the mapping
	old  retired

	closeOnce sync.Once
	closeErr  error
}

// New takes size bytes, rounded up to the page size, and maps them. name appears in /proc/PID/maps and
// in errors. ctx can end the reservation early (1 GiB takes a good part of a second). Errors wrap [ErrNoMemory]
// or [ErrNoNode] and say what was asked, what is there and what to do; nothing is left behind.
func New(ctx context.Context, name string, size uint64, o Options) (*Arena, error) {
	return machine.newArena(ctx, name, size, o)
}

func (h host) newArena(ctx context.Context, name string, size uint64, o Options) (_ *Arena, err error) {
	fail := func(format string, args ...any) (*Arena, error) {
		return nil, fmt.Errorf("segment %s: "+format, append([]any{name}, args...)...)
	}
	if err := o.Validate(); err != nil {
		return fail("%w", err)
	}
	page, _ := o.pageSize()
	full, ok := roundUp(size, page)
	if size == 0 || !ok || full > math.MaxInt {
		return fail("a size of %d bytes is not possible: %w", size, ErrBadRegion)
	}
	if err := h.check(full, page, o.NUMANode); err != nil {
		return fail("%w", err)
	}
	fd, err := unix.MemfdCreate("mooncake-"+name, memfdFlags(page))
	if err != nil {
		return fail("create memfd: %w", err)
	}
	a := &Arena{name: name, fd: fd, page: page, node: o.NUMANode}
	defer func() {
		if err != nil {
			a.free()
		}
	}()
	if err := unix.Ftruncate(fd, int64(full)); err != nil {
		return fail("size the memfd to %s: %w", units.Size(full), noMemory(err))
	}
	if a.data, err = unix.Mmap(fd, 0, int(full), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fail("map %s: %w", units.Size(full), noMemory(err))
	}
	if o.NUMANode >= 0 {
		if err := bind(a.data, o.NUMANode); err != nil {
			return fail("%w", err)
		}
	}
	if err := a.reserve(ctx, o.Prefault); err != nil {
		return fail("reserve %s: %w", units.Size(full), noMemory(err))
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fail("seal the memfd: %w", err)
	}
	return a, nil
}

func memfdFlags(page uint64) int {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	switch page {
	case page2MB:
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	case page1GB:
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_1GB
	}
	return flags
}

// noMemory gives the kernel's "no" to a reservation the sentinel and a hint.
func noMemory(err error) error {
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EFAULT) {
		return fmt.Errorf("the kernel refused (%w); lower the size or free memory: %w", err, ErrNoMemory)
	}
	return err
}

// reserveStep is how much one system call reserves. A signal makes the kernel undo the running call,
// so it must be short; and ctx is looked at in between.
const reserveStep = 8 << 20

// reserve takes all pages now: by fallocate, which leaves the page tables empty, or (prefault) by
// faults on the mapping from several threads.
func (a *Arena) reserve(ctx context.Context, prefault bool) error {
	if prefault {
		err := a.eachStep(ctx, min(runtime.GOMAXPROCS(0), 8), func(off, n uint64) error {
			return unix.Madvise(a.data[off:off+n], unix.MADV_POPULATE_WRITE)
		})
		if !errors.Is(err, unix.EINVAL) { // before Linux 5.14
			return err
		}
	}
	err := a.eachStep(ctx, 1, func(off, n uint64) error {
		return unix.Fallocate(a.fd, 0, int64(off), int64(n))
	})
	if err == nil && prefault {
		err = guard.Run(func() {
			for off := uint64(0); off < a.Len() && ctx.Err() == nil; off += basePage {
				a.data[off] = 0
			}
		})
	}
	return err
}

// eachStep runs f on all of the arena from the given number of goroutines and waits for them.
func (a *Arena) eachStep(ctx context.Context, workers int, f func(off, n uint64) error) error {
	step := max(reserveStep, a.page)
	g, gctx := errgroup.WithContext(ctx)
	var next atomic.Uint64
	for range workers {
		g.Go(func() error {
			for {
				off := next.Add(step) - step
				if off >= a.Len() {
					return nil
				}
				err := f(off, min(step, a.Len()-off))
				for err == unix.EINTR && gctx.Err() == nil {
					err = f(off, min(step, a.Len()-off))
				}
				if err != nil {
					return err
				}
				if gctx.Err() != nil {
					return context.Cause(gctx)
				}
			}
		})
	}
	return g.Wait()
}

// Name is the name given to New.
func (a *Arena) Name() string { return a.name }

// Addr is the address of the first byte. It is a multiple of the page size and never changes.
func (a *Arena) Addr() uint64 { return addressOf(a.data) }

// Len is the size in bytes: the asked size rounded up to the page size.
func (a *Arena) Len() uint64 { return uint64(len(a.data)) }

// Bytes is the memory. It must not be used after Close.
func (a *Arena) Bytes() []byte { return a.data }

// FD is the memfd, valid until Close. Who passes it on to another process passes the right to write.
func (a *Arena) FD() int { return a.fd }

// Location is "cpu:N" for an arena bound to NUMA node N, else "*".
func (a *Arena) Location() string {
	if a.node < 0 {
		return "*"
	}
	return "cpu:" + strconv.Itoa(a.node)
}

func (a *Arena) hold() error {
	if !a.refs.acquire() {
		return fmt.Errorf("segment %s: %w", a.name, ErrClosed)
	}
	return nil
}

// Close gives the memory back as soon as all regions of the arena are closed. New regions are refused
// at once. When ctx ends first the arena stays mapped, the error tells how many regions are open, and
// Close may be called again.
func (a *Arena) Close(ctx context.Context) error {
	a.refs.shut()
	if err := a.refs.wait(ctx); err != nil {
		return fmt.Errorf("segment %s: close: %w", a.name, err)
	}
	a.closeOnce.Do(func() { a.closeErr = a.free() })
	return a.closeErr
}

func (a *Arena) free() error {
	a.old.free(0)
	var err error
	if a.data != nil {
		err = unix.Munmap(a.data)
	}
	return errors.Join(err, unix.Close(a.fd))
}
