package verbs

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
	"github.com/mooncake-agent/mooncake/internal/rdmasys"
)

// anywhere is the location of memory that may be on any node.
const anywhere = "*"

// matrix says which devices are near to memory at a location, and which can be used besides: upstream's
// priority_matrix.
type matrix map[string]devices

type devices struct{ preferred, others []string }

// encode returns the JSON of the segment document, locations in byte order.
func (m matrix) encode() []byte {
	b := []byte{'{'}
	for i, loc := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(jsoncpp.AppendString(b, loc), ":["...)
		b = append(appendNames(b, m[loc].preferred), ',')
		b = append(appendNames(b, m[loc].others), ']')
	}
	return append(b, '}')
}

func appendNames(b []byte, names []string) []byte {
	b = append(b, '[')
	for i, n := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsoncpp.AppendString(b, n)
	}
	return append(b, ']')
}

// maxMatrix bounds what a peer's document can make us keep.
const maxMatrix = 4096

// parseMatrix reads a priority matrix. As upstream, each value must be an array of exactly two arrays of names.
func parseMatrix(doc []byte) (matrix, error) {
	var raw map[string][][]string
	if len(doc) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(doc, &raw); err != nil {
		return nil, fmt.Errorf("priority matrix: %w", err)
	}
	if len(raw) > maxMatrix {
		return nil, fmt.Errorf("priority matrix: %d locations are more than %d", len(raw), maxMatrix)
	}
	out := matrix{}
	for loc, lists := range raw {
		if len(lists) != 2 {
			return nil, fmt.Errorf("priority matrix: %.60q has %d lists, not 2 (preferred and other devices)", loc, len(lists))
		}
		out[loc] = devices{lists[0], lists[1]}
	}
	return out, nil
}

// keep drops all names but those given, and locations that are left without any.
func (m matrix) keep(names []string) matrix {
	known := func(list []string) (out []string) {
		for _, n := range list {
			if slices.Contains(names, n) {
				out = append(out, n)
			}
		}
		return out
	}
	out := matrix{}
	for loc, d := range m {
		if k := (devices{known(d.preferred), known(d.others)}); len(k.preferred)+len(k.others) > 0 {
			out[loc] = k
		}
	}
	return out
}

// discover builds the matrix of a machine: for each NUMA node with memory the devices on it, and the others. A device
// whose node the kernel does not tell is near to none. sys is the file system of the machine.
func discover(sys fs.FS, names []string) matrix {
	node := map[string]int{}
	all, err := rdmasys.Read(sys)
	if err == nil {
		for i := range all {
			node[all[i].Name] = all[i].NUMA
		}
	}
	m := matrix{}
	for _, n := range numaNodes(sys) {
		d := devices{}
		for _, name := range names {
			if at, ok := node[name]; ok && at == n {
				d.preferred = append(d.preferred, name)
			} else {
				d.others = append(d.others, name)
			}
		}
		m["cpu:"+strconv.Itoa(n)] = d
	}
	return m
}

// numaNodes lists the nodes of the machine, at least node 0.
func numaNodes(sys fs.FS) []int {
	var out []int
	entries, err := fs.ReadDir(sys, "sys/devices/system/node")
	if err == nil {
		for _, e := range entries {
			if s, ok := strings.CutPrefix(e.Name(), "node"); ok {
				if n, err := strconv.Atoi(s); err == nil && n >= 0 {
					out = append(out, n)
				}
			}
		}
	}
	if len(out) == 0 {
		return []int{0}
	}
	slices.Sort(out)
	return out
}

// readTopology reads a matrix that the user wrote.
func readTopology(file string) (matrix, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("topology_file: %w", err)
	}
	m, err := parseMatrix(b)
	if err == nil && len(m) == 0 {
		err = fmt.Errorf("priority matrix: no location")
	}
	if err != nil {
		return nil, fmt.Errorf("topology_file: %s: %w", file, err)
	}
	return m, nil
}

// locate returns the location of memory whose owner does not know: that of its first page, or "*".
func locate(mem []byte) string {
	page := uintptr(unsafe.Pointer(unsafe.SliceData(mem))) &^ 4095
	status := int32(-1)
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, 1, uintptr(unsafe.Pointer(&page)), 0, uintptr(unsafe.Pointer(&status)), 0)
	if errno != 0 || status < 0 {
		return anywhere
	}
	return "cpu:" + strconv.Itoa(int(status))
}
