// Package rawsock has the system calls of event loops on sockets, without telling Go's scheduler of them. They
// never block, and for a small message the scheduler's bookkeeping costs as much as everything else that a loop
// does in user space. recv and send are also shorter inside the kernel than read and write.
//
// Functions are safe for concurrent use as the system calls are. Errors are of type [syscall.Errno].
package rawsock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Recv takes what a socket has, up to len(p) bytes; 0 is the end of the stream. With nothing there it returns
// EAGAIN, whether or not the socket blocks.
func Recv(fd int, p []byte) (int, error) {
	n, _, e := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
	return result(n, e)
}

// Send gives a socket as much of p as it takes now; EAGAIN is nothing. A peer that has gone is EPIPE, without a
// signal.
func Send(fd int, p []byte) (int, error) {
	n, _, e := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return result(n, e)
}

func result(n uintptr, e syscall.Errno) (int, error) {
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// Poll is epoll_wait that does not wait: it fills events with what is ready and returns how many.
func Poll(epoll int, events []unix.EpollEvent) (int, error) {
	n, _, e := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	return result(n, e)
}

// Yield offers the processor to other threads.
func Yield() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
