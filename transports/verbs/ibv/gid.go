//go:build !noverbs

package ibv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// maxGIDs is as much as one call can read: the kernel takes 64 KiB. Devices have some hundreds a port.
const maxGIDs = 2047

func (d *dev) GIDs(port int) ([]device.GIDEntry, error) {
	done, err := d.use()
	if err != nil {
		return nil, err
	}
	defer done()
	if d.lib.queryGIDTable == 0 { // before rdma-core 32
		return gidsOfSysfs(d.sysfs, d.name, port)
	}
	table := make([]cGIDEntry, maxGIDs)
	r, _ := d.lib.call(d.lib.queryGIDTable, d.ctx, uintptr(unsafe.Pointer(&table[0])), maxGIDs, 0, size[cGIDEntry]())
	n := int(r) // ssize_t, negative errno
	switch {
	case n == -int(unix.EOPNOTSUPP): // a kernel before 5.10
		return gidsOfSysfs(d.sysfs, d.name, port)
	case n < 0:
		return nil, fail("ibv_query_gid_table of "+d.name, unix.Errno(-n))
	}
	var list []device.GIDEntry
	for _, e := range table[:n] {
		if int(e.Port) != port || device.GID(e.GID).IsZero() {
			continue
		}
		g := device.GIDEntry{Index: int(e.Index), GID: e.GID, Type: device.GIDType(e.Type)}
		if e.NDevIndx != 0 {
			if i, err := net.InterfaceByIndex(int(e.NDevIndx)); err == nil {
				g.NetDev = i.Name
			}
		}
		list = append(list, g)
	}
	return list, nil
}

// gidsOfSysfs reads the table from files, as the library does where the kernel has no call for it.
func gidsOfSysfs(sysfs, name string, port int) ([]device.GIDEntry, error) {
	dir := portDir(sysfs, name, port)
	var list []device.GIDEntry
	for i := range maxGIDs {
		e, err := entryOfSysfs(dir, i)
		if i > 0 && errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("verbs: GID %d of %s port %d: %w", i, name, port, err)
		}
		if !e.GID.IsZero() {
			list = append(list, e)
		}
	}
	return list, nil
}

func portDir(sysfs, name string, port int) string {
	return filepath.Join(sysfs, "class/infiniband", name, "ports", strconv.Itoa(port))
}

func entryOfSysfs(dir string, i int) (e device.GIDEntry, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "gids", strconv.Itoa(i)))
	if err != nil {
		return e, err
	}
	e.Index = i
	if e.GID, err = gidOfSysfs(strings.TrimSpace(string(raw))); err != nil || e.GID.IsZero() {
		return e, err
	}
	e.NetDev = attr(dir, "ndevs", i)
	// The kernel answers EINVAL for the type of an entry that is being replaced, and one name for two types.
	switch kind := attr(dir, "types", i); {
	case kind == "RoCE v2":
		e.Type = device.GIDRoCEv2
	case kind == "IB/RoCE v1" && e.NetDev != "":
		e.Type = device.GIDRoCEv1
	}
	return e, nil
}

func attr(dir, what string, i int) string {
	b, err := os.ReadFile(filepath.Join(dir, "gid_attrs", what, strconv.Itoa(i)))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// gidOfSysfs reads eight groups of four hex digits, never shortened.
func gidOfSysfs(s string) (g device.GID, err error) {
	groups := strings.Split(s, ":")
	if len(groups) != 8 {
		return g, fmt.Errorf("%q has %d groups, not 8", s, len(groups))
	}
	for i, x := range groups {
		v, err := strconv.ParseUint(x, 16, 16)
		if err != nil {
			return device.GID{}, fmt.Errorf("%q: %w", s, err)
		}
		g[2*i], g[2*i+1] = byte(v>>8), byte(v)
	}
	return g, nil
}
