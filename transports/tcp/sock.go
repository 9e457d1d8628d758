package tcp

import (
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sock is a stream socket with vectored I/O that neither allocates nor copies: the kernel moves bytes
// between the socket and the region. Reads and writes run in the closures given to rc, which retries
// them when the poller reports the socket ready.
type sock struct {
	net.Conn
	rc     syscall.RawConn
	kicked atomic.Bool
}

// halfCloser is what a conn must have besides net.Conn: TCP and Unix stream sockets do.
type halfCloser interface {
	syscall.Conn
	CloseWrite() error
}

// sameHostSendBuffer bounds what is under way to a peer on this host. There, the kernel's adaptive buffer
// of several MiB only moves the payload out of the processor's cache between the two copies: 256 KiB
// halves the processor time of large transfers.
const sameHostSendBuffer = 256 << 10

func newSock(c net.Conn, cfg *Config) (*sock, error) {
	h, ok := c.(halfCloser)
	if !ok {
		return nil, fmt.Errorf("%T is not a stream socket", c)
	}
	if t, ok := c.(*net.TCPConn); ok {
		t.SetNoDelay(true)
		if cfg.SendBuffer == 0 && sameHost(c) {
			t.SetWriteBuffer(sameHostSendBuffer)
		}
	}
	rc, err := h.SyscallConn()
	return &sock{Conn: c, rc: rc}, err
}

func sameHost(c net.Conn) bool {
	l, _ := c.LocalAddr().(*net.TCPAddr)
	r, _ := c.RemoteAddr().(*net.TCPAddr)
	return l != nil && r != nil && (l.IP.Equal(r.IP) || r.IP.IsLoopback())
}

func (s *sock) closeWrite() { s.Conn.(halfCloser).CloseWrite() }

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// kick ends every read and write, now and later, without waiting for the goroutines that are in one (as
// Close does). The socket's owner then closes it.
func (s *sock) kick() {
	s.kicked.Store(true)
	s.SetDeadline(longAgo)
}

// abort makes Close discard what the kernel has not sent yet and reset the connection.
func (s *sock) abort() {
	if t, ok := s.Conn.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
}

// setBuffers sets the sizes of the kernel's buffers. It has to run before the connection is made (an
// accepted one inherits from its listener), because the window's scale is agreed on then.
func setBuffers(rc syscall.RawConn, c *Config) error {
	var err error
	set := func(fd uintptr, opt int, n uint64) {
		if n > 0 && err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, int(n))
		}
	}
	if e := rc.Control(func(fd uintptr) {
		set(fd, unix.SO_SNDBUF, uint64(c.SendBuffer))
		set(fd, unix.SO_RCVBUF, uint64(c.ReceiveBuffer))
	}); e != nil {
		return e
	}
	return err
}

// iovec describes b, which must not be empty.
func iovec(b []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	return v
}

// readv and writev do one system call on a non-blocking socket: n > 0, or 0 with an errno (0 and
// errno 0 = end of file).
func readv(fd uintptr, iov []unix.Iovec) (int, unix.Errno) { return vector(unix.SYS_READV, fd, iov) }

func writev(fd uintptr, iov []unix.Iovec) (int, unix.Errno) { return vector(unix.SYS_WRITEV, fd, iov) }

func vector(trap, fd uintptr, iov []unix.Iovec) (int, unix.Errno) {
	for {
		n, _, e := unix.Syscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
		switch e {
		case 0:
			return int(n), 0
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

// advance drops the first n bytes from iov and returns the rest.
func advance(iov []unix.Iovec, n int) []unix.Iovec {
	for n > 0 {
		l := int(iov[0].Len)
		if n < l {
			iov[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(iov[0].Base), n))
			iov[0].SetLen(l - n)
			return iov
		}
		n -= l
		iov = iov[1:]
	}
	return iov
}

// guardedCopy copies src to dst, of which one is region memory. It is false when that memory is not
// mapped. The calling goroutine must have set debug.SetPanicOnFault.
func guardedCopy(dst, src []byte) (ok bool) {
	defer noFault(&ok)
	copy(dst, src)
	return true
}

// probe tells whether the first and the last byte of region memory can be read: enough to find a
// region whose owner has unmapped it before anything was promised to a peer.
func probe(b []byte) (ok bool) {
	defer noFault(&ok)
	touch(b)
	return true
}

// touch loads two bytes. Not inlined, so that the loads are not dropped as useless.
//
//go:noinline
func touch(b []byte) byte { return b[0] ^ b[len(b)-1] }

func noFault(ok *bool) {
	if p := recover(); p != nil {
		if _, fault := p.(interface{ Addr() uintptr }); !fault {
			panic(p)
		}
		*ok = false
	}
}
