//go:build !noverbs

package ibv

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waiter waits for a descriptor of the library to become readable, in the runtime's poller. The library owns its
// descriptor; the waiter has a duplicate.
type waiter struct {
	f   *os.File
	raw syscall.RawConn
}

// newWaiter makes fd non-blocking, for the library's own reads too.
func newWaiter(fd int, name string) (*waiter, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dup), name)
	if err := f.SetReadDeadline(time.Time{}); err != nil { // os.ErrNoDeadline: the kernel cannot poll this descriptor
		f.Close()
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &waiter{f: f, raw: raw}, nil
}

// until calls try, at once and whenever the descriptor may be readable, until it is true. It ends with ctx's error, or
// os.ErrClosed. One goroutine at a time.
func (w *waiter) until(ctx context.Context, try func() bool) error {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		w.f.SetReadDeadline(time.Unix(1, 0))
		close(fired)
	})
	err := w.raw.Read(func(uintptr) bool { return try() })
	if !stop() {
		<-fired
		w.f.SetReadDeadline(time.Time{})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return ctx.Err()
		}
	}
	if err != nil { // of the poller, whose error for a closed file is not exported
		return os.ErrClosed
	}
	return nil
}

// Close ends a wait. After it try is not called any more.
func (w *waiter) Close() error { return w.f.Close() }
