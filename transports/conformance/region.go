package conformance

import (
	"bytes"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports"
)

// nextAddr gives every region of the process its own published addresses. They are not those of the
// mapping: a transport that confuses the two fails.
var nextAddr atomic.Uint64

func init() { nextAddr.Store(0x7e0000000000) }

// Region is memory for tests: a shared mapping of a memfd, outside the Go heap, sealed as the node's own
// memory is.
type Region struct {
	addr   uint64
	mapped []byte
	mem    []byte
	fd     int
	access transports.Access
}

var _ transports.Region = (*Region)(nil)

// NewRegion maps n bytes (at least 1), filled with zeros, until the test ends.
func NewRegion(t T, n int, access transports.Access) *Region {
	t.Helper()
	r := newRegion(t, n, access)
	t.Cleanup(r.unmap)
	return r
}

func newRegion(t T, n int, access transports.Access) *Region {
	t.Helper()
	fd, err := unix.MemfdCreate("transporttest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatalf("memfd: %v", err)
	}
	size := (n + 4095) &^ 4095
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		t.Fatalf("memfd of %d bytes: %v", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		t.Fatalf("seal a memfd: %v", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		t.Fatalf("map %d bytes: %v", size, err)
	}
	end := nextAddr.Add(uint64(size) + 1<<20) // a gap between regions
	return &Region{addr: end - uint64(size), mapped: mem, mem: mem[:n:n], fd: fd, access: access}
}

func (r *Region) unmap() {
	unix.Munmap(r.mapped)
	unix.Close(r.fd)
}

// Revoke makes every access to the memory fault from now on, as after a careless owner's munmap, but
// without giving the address range to others.
func (r *Region) Revoke(t T) {
	t.Helper()
	if err := unix.Mprotect(r.mapped, unix.PROT_NONE); err != nil {
		t.Fatalf("mprotect: %v", err)
	}
}

// Addr implements transports.Region.
func (r *Region) Addr() uint64 { return r.addr }

// Len implements transports.Region.
func (r *Region) Len() uint64 { return uint64(len(r.mem)) }

// Location implements transports.Region.
func (r *Region) Location() string { return "cpu:0" }

// Access implements transports.Region.
func (r *Region) Access() transports.Access { return r.access }

// Bytes implements transports.Region.
func (r *Region) Bytes() []byte { return r.mem }

// FD implements transports.Region.
func (r *Region) FD() (int, int64, bool) { return r.fd, 0, true }

// Fill writes the pattern of upstream's probes: byte i is (i*131 + (i>>8)*17 + seed) & 0xff.
func Fill(b []byte, seed int) {
	n := min(len(b), period)
	for i := range n {
		b[i] = byte(i*131 + (i>>8)*17 + seed)
	}
	repeat(b, n)
}

// period is after how many bytes the pattern repeats.
const period = 1 << 16

// repeat continues b's first n bytes over the rest.
func repeat(b []byte, n int) {
	for n > 0 && n < len(b) {
		n += copy(b[n:], b[:n])
	}
}

// CheckFill fails the test at the first byte that differs from Fill's.
func CheckFill(t T, what string, b []byte, seed int) {
	t.Helper()
	want := make([]byte, min(len(b), period))
	Fill(want, seed)
	check(t, what, b, want)
}

// CheckAll fails the test at the first byte that is not v.
func CheckAll(t T, what string, b []byte, v byte) {
	t.Helper()
	want := make([]byte, min(len(b), period))
	Set(want, v)
	check(t, what, b, want)
}

// check compares b with want, repeated.
func check(t T, what string, b, want []byte) {
	t.Helper()
	for off := 0; off < len(b); off += len(want) {
		got := b[off:min(off+len(want), len(b))]
		if bytes.Equal(got, want[:len(got)]) {
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, off+i, len(b), got[i], want[i])
			}
		}
	}
}

// Set sets every byte to v.
func Set(b []byte, v byte) {
	if len(b) > 0 {
		b[0] = v
		repeat(b, 1)
	}
}
