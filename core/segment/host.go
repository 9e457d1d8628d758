package segment

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/units"
)

// host is where the limits are read from; tests give their own.
type host struct {
	root      string // of /proc and /sys
	available func() (uint64, error)
	rlimit    func(resource int) (uint64, error)
}

var machine = host{
	root:      "/",
	available: units.AvailableMemory,
	rlimit: func(resource int) (uint64, error) {
		var l unix.Rlimit
		err := unix.Getrlimit(resource, &l)
		return l.Cur, err
	},
}

// check refuses size bytes in pages of page bytes on node (-1 = any) when they cannot be there. It
// looks first because the kernel answers some of these cases with a signal or by killing a process.
func (h host) check(size, page uint64, node int) error {
	if node >= 0 {
		if err := h.hasNode(node); err != nil {
			return err
		}
	}
	if err := h.limits(size); err != nil {
		return err
	}
	if page != basePage {
		return h.hugePages(size, page, node)
	}
	have, err := h.available()
	if err != nil {
		return err
	}
	if size > have {
		return fmt.Errorf("%s of memory are available (machine and cgroup limit); lower global_segment_size, raise the limit or free memory: %w",
			asked(size, "", have), ErrNoMemory)
	}
	if node < 0 {
		return nil
	}
	have, err = h.nodeFree(node)
	if err != nil {
		return err
	}
	if size > have {
		return fmt.Errorf("%s are available there; lower global_segment_size or choose another segment.numa_node: %w",
			asked(size, fmt.Sprintf(" on NUMA node %d", node), have), ErrNoMemory)
	}
	return nil
}

func (h host) limits(size uint64) error {
	if l, err := h.rlimit(unix.RLIMIT_FSIZE); err == nil && size > l {
		return fmt.Errorf("asked for %s, but the process limit on file sizes (ulimit -f) is %s; raise it: %w", human(size), human(l), ErrNoMemory)
	}
	if l, err := h.rlimit(unix.RLIMIT_AS); err == nil && size > l {
		return fmt.Errorf("asked for %s, but the process limit on address space (ulimit -v) is %s; raise it: %w", human(size), human(l), ErrNoMemory)
	}
	return nil
}

// hugePages looks into the pool of the page size, of the node if one is given.
func (h host) hugePages(size, page uint64, node int) error {
	dir := fmt.Sprintf("hugepages-%dkB", page>>10)
	pool := filepath.Join(h.root, "sys/kernel/mm/hugepages", dir)
	if node >= 0 {
		pool = filepath.Join(h.nodeDir(node), "hugepages", dir)
	}
	free, err := readUint(filepath.Join(pool, "free_hugepages"))
	if err != nil {
		return fmt.Errorf("this machine has no huge pages of %s (%w); set segment.huge_pages to off: %w", units.Size(page), err, ErrNoMemory)
	}
	// Pages that other mappings have reserved are still counted as free. Nodes do not count reservations.
	reserved, _ := readUint(filepath.Join(pool, "resv_hugepages"))
	free -= min(reserved, free)
	if need := size / page; need > free {
		return fmt.Errorf("asked for %s = %d huge pages of %s, but %d are free; write the number needed to %s/nr_hugepages or set segment.huge_pages to off: %w",
			human(size), need, units.Size(page), free, pool, ErrNoMemory)
	}
	return nil
}

func (h host) nodeDir(node int) string {
	return filepath.Join(h.root, "sys/devices/system/node", "node"+strconv.Itoa(node))
}

func (h host) hasNode(node int) error {
	if _, err := os.Stat(h.nodeDir(node)); err == nil {
		return nil
	}
	online, err := os.ReadFile(filepath.Join(h.root, "sys/devices/system/node/online"))
	if err != nil {
		return fmt.Errorf("numa_node %d: this kernel shows no NUMA nodes (%w); set segment.numa_node to -1: %w", node, err, ErrNoNode)
	}
	return fmt.Errorf("numa_node %d does not exist; this machine has: %s; use one of them or -1 for any: %w", node, strings.TrimSpace(string(online)), ErrNoNode)
}

// nodeFree returns what a node can give: free memory and clean page cache.
func (h host) nodeFree(node int) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(h.nodeDir(node), "meminfo"))
	if err != nil {
		return 0, fmt.Errorf("memory of NUMA node %d: %w", node, err)
	}
	var free uint64
	for line := range strings.Lines(string(b)) { // "Node 0 MemFree:  24136012 kB"
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		kb, err := strconv.ParseUint(f[3], 10, 54)
		if err != nil {
			continue
		}
		switch f[2] {
		case "MemFree:", "Active(file):", "Inactive(file):":
			free += kb << 10
		}
	}
	return free, nil
}

// bind makes the kernel take the pages of b from one NUMA node only. For a memfd the rule belongs to
// the file, so it holds for fallocate too.
func bind(b []byte, node int) error {
	var mask [maxNodes / 64]uint64
	mask[node/64] = 1 << (node % 64)
	const mpolBind = 2
	_, _, e := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), mpolBind,
		uintptr(unsafe.Pointer(&mask[0])), maxNodes+1, 0)
	switch e {
	case 0:
		return nil
	case unix.EPERM, unix.ENOSYS:
		return fmt.Errorf("numa_node %d: mbind is forbidden here (%w; containers need CAP_SYS_NICE); allow it or set segment.numa_node to -1: %w", node, e, ErrNoNode)
	}
	return fmt.Errorf("numa_node %d: mbind: %w: %w", node, e, ErrNoNode)
}

func readUint(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}

// human writes sizes for people: "5.5GB", rounded down.
func human(n uint64) string {
	f, i := float64(n), 0
	for f >= 1024 && i < 4 {
		f, i = f/1024, i+1
	}
	return strconv.FormatFloat(math.Floor(f*10)/10, 'f', -1, 64) + [...]string{"B", "KB", "MB", "GB", "TB"}[i]
}

// asked says that n was asked for where only have is there, in bytes when the short forms look equal.
func asked(n uint64, on string, have uint64) string {
	a, b := human(n), human(have)
	if a == b {
		a, b = fmt.Sprintf("%d bytes", n), fmt.Sprintf("%d bytes", have)
	}
	return fmt.Sprintf("asked for %s%s, but only %s", a, on, b)
}
