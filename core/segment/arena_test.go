package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
)

func newArena(t *testing.T, size uint64, o Options) *Arena {
	t.Helper()
	a, err := New(t.Context(), "test", size, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return a
}

func TestArenaIsReservedMappedAndSealed(t *testing.T) {
	for _, c := range []struct {
		name     string
		size     uint64
		want     uint64
		prefault bool
	}{
		{"one byte", 1, 4096, false},
		{"odd size over several steps", 3*reserveStep + 5, 3*reserveStep + 4096, false},
		{"prefault", 3*reserveStep + 5, 3*reserveStep + 4096, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := DefaultOptions()
			o.Prefault = c.prefault
			a := newArena(t, c.size, o)
			if a.Len() != c.want || a.Addr() == 0 || a.Addr()%4096 != 0 || a.Location() != "*" {
				t.Errorf("got %d bytes at %#x, location %s; want %d", a.Len(), a.Addr(), a.Location(), c.want)
			}
			var st unix.Stat_t
			if err := unix.Fstat(a.FD(), &st); err != nil {
				t.Fatal(err)
			}
			if got := uint64(st.Blocks) * 512; got < c.want {
				t.Errorf("%d bytes are reserved, want %d", got, c.want)
			}
			for _, n := range []int64{0, 4096, int64(c.want) + 4096} {
				if n == int64(c.want) {
					continue
				}
				if err := unix.Ftruncate(a.FD(), n); !errors.Is(err, unix.EPERM) {
					t.Errorf("the sealed memfd could be resized to %d: %v", n, err)
				}
			}
			if _, err := unix.FcntlInt(uintptr(a.FD()), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
				t.Errorf("a further seal could be added: %v", err)
			}
			if flags, err := unix.FcntlInt(uintptr(a.FD()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("the memfd survives exec: %v", err)
			}
			if c.prefault {
				resident := make([]byte, c.want/4096)
				if err := mincore(a.Bytes(), resident); err != nil {
					t.Fatal(err)
				}
				if n := bytes.Count(resident, []byte{1}); uint64(n) != c.want/4096 {
					t.Errorf("%d of %d pages are resident", n, c.want/4096)
				}
			}
			a.Bytes()[a.Len()-1] = 7
			var b [1]byte
			if _, err := unix.Pread(a.FD(), b[:], int64(a.Len()-1)); err != nil || b[0] != 7 {
				t.Errorf("the file does not show what was written to the mapping: %d, %v", b[0], err)
			}
		})
	}
}

func TestArenaRegions(t *testing.T) {
	a := newArena(t, 3*4096, DefaultOptions())
	r, err := a.Region(4096, 100, transports.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	fd, off, ok := r.FD()
	if r.Addr() != a.Addr()+4096 || r.Len() != 100 || cap(r.Bytes()) != 100 || fd != a.FD() || off != 4096 || !ok || r.Access() != transports.RemoteRead {
		t.Errorf("region: %#x+%d cap %d, fd %d+%d %v", r.Addr(), r.Len(), cap(r.Bytes()), fd, off, ok)
	}
	for _, c := range []struct{ off, n uint64 }{{0, 0}, {0, 3*4096 + 1}, {3 * 4096, 1}, {4096, ^uint64(0)}, {^uint64(0), 2}} {
		if _, err := a.Region(c.off, c.n, transports.ReadWrite); !errors.Is(err, ErrBadRegion) || !strings.Contains(err.Error(), "12288 bytes") {
			t.Errorf("Region(%d, %d) = %v", c.off, c.n, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := a.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 users left") {
		t.Errorf("Close with an open region = %v", err)
	}
	r.Bytes()[0] = 1 // still mapped
	if _, err := a.Region(0, 1, transports.ReadWrite); !errors.Is(err, ErrClosed) {
		t.Errorf("a region of a closed arena: %v", err)
	}
	closed := make(chan error)
	go func() { closed <- a.Close(t.Context()) }()
	r.Close()
	r.Close()
	if err := <-closed; err != nil {
		t.Errorf("Close after the last region: %v", err)
	}
}

func TestArenaRefusals(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		p := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sys/devices/system/node/online", "0-1\n")
	write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  9000000 kB\nNode 1 MemFree:  1024 kB\nNode 1 Inactive(file): 1024 kB\n")
	write("sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "2\n")
	write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "10\n")
	write("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "7\n")
	base := host{
		root:      root,
		available: func() (uint64, error) { return 5<<30 + 1<<29, nil },
		rlimit:    func(int) (uint64, error) { return unix.RLIM_INFINITY, nil },
	}
	limited := base
	limited.rlimit = func(which int) (uint64, error) {
		if which == unix.RLIMIT_FSIZE {
			return 1 << 20, nil
		}
		return unix.RLIM_INFINITY, nil
	}
	small := base
	small.rlimit = func(which int) (uint64, error) {
		if which == unix.RLIMIT_AS {
			return 1 << 21, nil
		}
		return unix.RLIM_INFINITY, nil
	}
	for _, c := range []struct {
		name string
		host host
		size uint64
		o    Options
		is   error
		text string
	}{
		{"more than the machine has", base, 6 << 30, Options{NUMANode: -1}, ErrNoMemory,
			"segment s: asked for 6GB, but only 5.5GB of memory are available (machine and cgroup limit); lower global_segment_size, raise the limit or free memory"},
		{"a little more", base, 5<<30 + 1<<29 + 1, Options{NUMANode: -1}, ErrNoMemory, "asked for 5905584128 bytes, but only 5905580032 bytes of"},
		{"more than any machine has", base, 1 << 62, Options{NUMANode: -1}, ErrNoMemory, "asked for 4194304TB, but only 5.5GB"},
		{"nothing", base, 0, Options{NUMANode: -1}, ErrBadRegion, "size of 0 bytes"},
		{"beyond an int64", base, 1<<63 - 5, Options{NUMANode: -1}, ErrBadRegion, "9223372036854775803 bytes is not possible"},
		{"node that is not there", base, 4096, Options{NUMANode: 7}, ErrNoNode, "numa_node 7 does not exist; this machine has: 0-1; use one of them or -1 for any"},
		{"more than the node has", base, 3 << 20, Options{NUMANode: 1}, ErrNoMemory, "asked for 3MB on NUMA node 1, but only 2MB are available there"},
		{"huge pages taken", base, 7 << 20, Options{HugePages: "2MB", NUMANode: -1}, ErrNoMemory, "asked for 8MB = 4 huge pages of 2MB, but 3 are free; write the number needed to " + root},
		{"huge pages of a node", base, 6 << 20, Options{HugePages: "2MB", NUMANode: 0}, ErrNoMemory, "3 huge pages of 2MB, but 2 are free; write the number needed to " + root + "/sys/devices/system/node/node0/"},
		{"page size not offered", base, 1, Options{HugePages: "1GB", NUMANode: -1}, ErrNoMemory, "no huge pages of 1GB"},
		{"unknown page size", base, 1, Options{HugePages: "4MB", NUMANode: -1}, nil, `huge_pages: "4MB" is unknown; use off, 2MB or 1GB`},
		{"bad node number", base, 1, Options{NUMANode: -2}, nil, "numa_node: -2 is not a node number"},
		{"file size limit", limited, 2 << 20, Options{NUMANode: -1}, ErrNoMemory, "asked for 2MB, but the process limit on file sizes (ulimit -f) is 1MB"},
		{"address space limit", small, 4 << 20, Options{NUMANode: -1}, ErrNoMemory, "asked for 4MB, but the process limit on address space (ulimit -v) is 2MB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := leaks(t)
			a, err := c.host.newArena(t.Context(), "s", c.size, c.o)
			if a != nil || err == nil || !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("New = %v, %v; want %v with %q", a, err, c.is, c.text)
			}
			if after := leaks(t); after != before {
				t.Errorf("left behind: %s, before: %s", after, before)
			}
		})
	}
}

// The real machine refuses too, with its own numbers.
func TestArenaLargerThanThisMachine(t *testing.T) {
	have, err := units.AvailableMemory()
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(t.Context(), "big", have*2, DefaultOptions())
	if !errors.Is(err, ErrNoMemory) || !strings.Contains(err.Error(), "asked for "+human(have*2/4096*4096)) {
		t.Errorf("New of twice the memory = %v", err)
	}
}

func TestArenaReservationEndsWithContext(t *testing.T) {
	before := leaks(t)
	for _, prefault := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		o := DefaultOptions()
		o.Prefault = prefault
		if _, err := New(ctx, "late", 64<<20, o); !errors.Is(err, context.Canceled) {
			t.Errorf("prefault %v: %v", prefault, err)
		}
	}
	if after := leaks(t); after != before {
		t.Errorf("left behind: %s, before: %s", after, before)
	}
}

func TestArenaHugePages(t *testing.T) {
	free, err := readUint("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	if err != nil || free < 2 {
		t.Skipf("no two free huge pages of 2 MB on this machine (%d free, %v): the refusals are tested above", free, err)
	}
	for _, prefault := range []bool{false, true} {
		a := newArena(t, 3<<20, Options{HugePages: "2MB", NUMANode: -1, Prefault: prefault})
		if a.Len() != 4<<20 || a.Addr()%(2<<20) != 0 {
			t.Errorf("%d bytes at %#x", a.Len(), a.Addr())
		}
		left, err := readUint("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
		if err != nil || left != free-2 {
			t.Errorf("%d huge pages left of %d, want 2 fewer (%v)", left, free, err)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestArenaOnNode(t *testing.T) {
	if _, err := os.Stat("/sys/devices/system/node/node0"); err != nil {
		t.Skipf("this kernel shows no NUMA nodes: %v", err)
	}
	o := DefaultOptions()
	o.NUMANode = 0
	a, err := New(t.Context(), "node", 1<<20, o)
	if errors.Is(err, ErrNoNode) && errors.Is(err, unix.EPERM) {
		t.Skipf("mbind is forbidden here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if a.Location() != "cpu:0" {
		t.Errorf("location %q", a.Location())
	}
	maps, err := os.ReadFile("/proc/self/numa_maps")
	if err != nil {
		t.Skipf("placement cannot be seen: %v", err)
	}
	a.Bytes()[0] = 1
	if !strings.Contains(string(maps), fmt.Sprintf("%x bind:0", a.Addr())) {
		t.Error("the mapping is not bound to node 0 in /proc/self/numa_maps")
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestArenaLeavesNothingBehind(t *testing.T) {
	before := leaks(t)
	for range 20 {
		a, err := New(t.Context(), "leak", 1<<20, DefaultOptions())
		if err != nil {
			t.Fatal(err)
		}
		r, err := a.Region(0, 4096, transports.ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("second Close: %v", err)
		}
	}
	if after := leaks(t); after != before {
		t.Errorf("left behind: %s, before: %s", after, before)
	}
}

// leaks tells how many descriptors and mappings of arenas this process has.
func leaks(t *testing.T) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, f := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.Contains(to, "memfd:mooncake-") {
			open++
		}
	}
	return fmt.Sprintf("%d mappings, %d descriptors", bytes.Count(maps, []byte("memfd:mooncake-")), open)
}
