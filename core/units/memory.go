package units

import (
	"bufio"
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryLimit returns how many bytes this process may use: the smallest limit of the cgroups it is in
// (v2 memory.max or v1 memory.limit_in_bytes, each level up to the root), else the machine's memory.
func MemoryLimit() (uint64, error) { return memoryLimit("/") }

func memoryLimit(root string) (uint64, error) {
	total, err := memInfo(filepath.Join(root, "proc/meminfo"), "MemTotal")
	if err != nil {
		return 0, err
	}
	for dir, files := range cgroups(root) {
		if n, ok := readLimit(filepath.Join(dir, files.limit)); ok && n < total {
			total = n
		}
	}
	return total, nil
}

// cgroupFiles names the files of one cgroup version.
type cgroupFiles struct{ limit, used, statFile, cacheInactive, cacheActive string }

// cgroups yields the folder of every memory cgroup that this process is in, up to the root.
func cgroups(root string) iter.Seq2[string, cgroupFiles] {
	return func(yield func(string, cgroupFiles) bool) {
		groups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
		for line := range strings.Lines(string(groups)) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(f) != 3 {
				continue
			}
			base := filepath.Join(root, "sys/fs/cgroup")
			files := cgroupFiles{"memory.max", "memory.current", "memory.stat", "inactive_file", "active_file"}
			if f[1] != "" {
				if f[1] != "memory" {
					continue
				}
				base = filepath.Join(base, "memory")
				files = cgroupFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file", "total_active_file"}
			}
			for dir := f[2]; ; dir = filepath.Dir(dir) {
				if !yield(filepath.Join(base, dir), files) {
					return
				}
				if dir == "/" || dir == "." || dir == "" {
					break
				}
			}
		}
	}
}

func readLimit(path string) (uint64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64) // "max" is no limit
	return n, err == nil && n > 0
}

// AvailableMemory returns how many bytes can be taken now without swapping: MemAvailable, but not more
// than what any cgroup of this process has left (its limit less its use, clean page cache not counted).
func AvailableMemory() (uint64, error) { return availableMemory("/") }

func availableMemory(root string) (uint64, error) {
	free, err := memInfo(filepath.Join(root, "proc/meminfo"), "MemAvailable")
	if err != nil {
		return 0, err
	}
	for dir, files := range cgroups(root) {
		limit, ok := readLimit(filepath.Join(dir, files.limit))
		if !ok {
			continue
		}
		used, _ := readLimit(filepath.Join(dir, files.used))
		used -= min(used, pageCache(filepath.Join(dir, files.statFile), files))
		free = min(free, limit-min(used, limit))
	}
	return free, nil
}

// pageCache returns the bytes that the kernel can take back from a cgroup. Shared memory is not among
// them.
func pageCache(path string, files cgroupFiles) uint64 {
	b, _ := os.ReadFile(path)
	var sum uint64
	for line := range strings.Lines(string(b)) {
		name, n, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == files.cacheInactive || name == files.cacheActive {
			v, _ := strconv.ParseUint(n, 10, 64)
			sum += v
		}
	}
	return sum
}

func memInfo(path, field string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("size of memory: %w", err)
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		if name == field {
			kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("size of memory: %s: %w", path, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("size of memory: %s has no %s", path, field)
}
