package guard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestCopy(t *testing.T) {
	for _, n := range []int{0, 1, 7, 4096, 1<<20 + 3} {
		src := bytes.Repeat([]byte{0x5a}, n)
		dst := make([]byte, n)
		if err := Copy(dst, src); err != nil || !bytes.Equal(dst, src) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if err := Copy(make([]byte, 3), make([]byte, 4)); err == nil || !strings.Contains(err.Error(), "copy of 4 bytes into 3") {
		t.Errorf("different lengths: %v", err)
	}
}

func TestCopyFault(t *testing.T) {
	page := os.Getpagesize()
	// truncated maps a file of two pages and cuts the second off: SIGBUS.
	truncated := func(t *testing.T) []byte {
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(int64(2 * page)); err != nil {
			t.Fatal(err)
		}
		b, err := unix.Mmap(int(f.Fd()), 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) })
		if err := f.Truncate(int64(page)); err != nil {
			t.Fatal(err)
		}
		return b
	}
	// protected is memory whose second page may not be touched: SIGSEGV, as after munmap, but no other
	// thread can be given the address meanwhile.
	protected := func(t *testing.T) []byte {
		b, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) })
		if err := unix.Mprotect(b[page:], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		name string
		mem  func(*testing.T) []byte
	}{{"truncated file", truncated}, {"page without access", protected}} {
		t.Run(c.name, func(t *testing.T) {
			bad := c.mem(t)
			good := make([]byte, 2*page)
			for _, dir := range []struct {
				name     string
				dst, src []byte
			}{{"read", good, bad}, {"write", bad, good}} {
				err := Copy(dir.dst, dir.src)
				if !errors.Is(err, ErrFault) {
					t.Fatalf("%s = %v, want ErrFault", dir.name, err)
				}
				var at uint64
				if _, e := fmt.Sscanf(err.Error(), "memory: address 0x%x cannot be accessed", &at); e != nil {
					t.Fatalf("%s: the address is missing in %q", dir.name, err)
				}
				if lo := base(bad) + uint64(page); at < lo || at >= lo+uint64(page) {
					t.Errorf("%s: fault at %#x is outside the bad page at %#x", dir.name, at, lo)
				}
			}
			if err := Copy(good[:page], bad[:page]); err != nil {
				t.Errorf("the good page: %v", err)
			}
		})
	}
}

func TestRunLetsOtherPanicsPass(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func()
	}{
		{"own panic", func() { panic("mine") }},
		{"index out of range", func() { var b []byte; _ = b[len(os.Args)] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = Run(c.f)
		})
	}
}

func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{64, 4096, 1 << 20} {
		src, dst := make([]byte, n), make([]byte, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if err := Copy(dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func base(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
