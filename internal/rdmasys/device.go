package rdmasys

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Root is where the kernel lists RDMA devices, relative to "/".
const Root = "sys/class/infiniband"

// LinkLayer is what a port speaks on the wire.
type LinkLayer uint8

const (
	// UnknownLink: the kernel does not tell.
	UnknownLink LinkLayer = iota
	// InfiniBand is a native InfiniBand port.
	InfiniBand
	// Ethernet is a RoCE (or iWARP) port.
	Ethernet
)

// String is the kernel's word.
func (l LinkLayer) String() string {
	switch l {
	case InfiniBand:
		return "InfiniBand"
	case Ethernet:
		return "Ethernet"
	}
	return "unknown"
}

// StateActive is the only port state in which data flows (IBTA: 1 down, 2 init, 3 armed, 4 active, 5 active defer).
const StateActive = 4

// Device is one RDMA device.
type Device struct {
	Name     string
	Type     string // hca_type: "MT4119" is a ConnectX-5; "" for software devices
	Firmware string
	// PCI is the address of the device, "" for software devices such as rxe.
	PCI string
	// NUMA is the node the device sits on, -1 if the kernel does not tell.
	NUMA  int
	Ports []Port
	// Problems are files that could not be read or made no sense.
	Problems []string
}

// Software reports a device without hardware (rxe, siw).
func (d *Device) Software() bool { return d.PCI == "" }

// Port is one port of a device.
type Port struct {
	Num       int
	State     int    // see [StateActive]; 0 = not known
	StateName string // "ACTIVE"
	Phys      string // "LinkUp"
	Link      LinkLayer
	// Rate is the speed in bits per second, 0 if not known; RateName is the kernel's text: "100 Gb/sec (4X EDR)".
	Rate     uint64
	RateName string
	LID      uint16
	// GIDs are the entries that are not empty.
	GIDs []GID
}

// Active reports a port over which data can flow.
func (p *Port) Active() bool { return p.State == StateActive }

// NetDevs are the network interfaces behind the port, each once.
func (p *Port) NetDevs() []string {
	var out []string
	for _, g := range p.GIDs {
		if g.NetDev != "" && !slices.Contains(out, g.NetDev) {
			out = append(out, g.NetDev)
		}
	}
	return out
}

// Read lists the devices in fsys, whose root is "/" of a machine, by name. No devices and no RDMA support at all are
// both an empty list. Whatever is odd about a device is in its Problems; the error is for the list itself.
func Read(fsys fs.FS) ([]Device, error) {
	entries, err := fs.ReadDir(fsys, Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	var out []Device
	for _, e := range entries {
		out = append(out, readDevice(fsys, e.Name()))
	}
	slices.SortFunc(out, func(a, b Device) int { return compareNames(a.Name, b.Name) })
	return out, nil
}

// compareNames puts mlx5_2 before mlx5_10.
func compareNames(a, b string) int {
	cut := func(s string) (string, int) {
		base := strings.TrimRight(s, "0123456789")
		n, _ := strconv.Atoi(s[len(base):])
		return base, n
	}
	ab, an := cut(a)
	bb, bn := cut(b)
	return cmp.Or(cmp.Compare(ab, bb), cmp.Compare(an, bn), cmp.Compare(a, b))
}

// reader reads the files of one device and collects what is wrong with them.
type reader struct {
	fsys     fs.FS
	dir      string
	problems []string
}

func (r *reader) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// text reads a file that may be absent: "" then.
func (r *reader) text(name string) string {
	s, err := Text(r.fsys, path.Join(r.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.problem("%s: %v", name, err)
	}
	return s
}

// maxFile is more than the kernel writes into any of these files (one page).
const maxFile = 64 << 10

// Text reads a small file, without white space around it. Longer files are cut.
func Text(fsys fs.FS, name string) (string, error) {
	b, err := Bytes(fsys, name)
	return strings.TrimSpace(string(b)), err
}

// Bytes reads a small file, at most 64 KiB of it.
func Bytes(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

func readDevice(fsys fs.FS, name string) Device {
	r := &reader{fsys: fsys, dir: path.Join(Root, name)}
	d := Device{Name: name, Type: r.text("hca_type"), Firmware: r.text("fw_ver"), NUMA: -1}
	for line := range strings.Lines(r.text("device/uevent")) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), "="); k == "PCI_SLOT_NAME" {
			d.PCI = v
		}
	}
	if s := r.text("device/numa_node"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < -1 {
			r.problem("device/numa_node: %.40q is not a node", s)
		} else {
			d.NUMA = n
		}
	}
	ports, err := fs.ReadDir(fsys, path.Join(r.dir, "ports"))
	if err != nil {
		r.problem("ports: %v", err)
	}
	for _, e := range ports {
		num, err := strconv.Atoi(e.Name())
		if err != nil || num < 1 || num > 255 {
			r.problem("ports/%.40s: not a port number", e.Name())
			continue
		}
		d.Ports = append(d.Ports, r.port(num))
	}
	slices.SortFunc(d.Ports, func(a, b Port) int { return cmp.Compare(a.Num, b.Num) })
	d.Problems = r.problems
	return d
}

func (r *reader) port(num int) Port {
	dir := path.Join("ports", strconv.Itoa(num))
	p := Port{Num: num, RateName: r.text(path.Join(dir, "rate"))}
	var err error
	if p.State, p.StateName, err = parseState(r.text(path.Join(dir, "state"))); err != nil {
		r.problem("%s/state: %v", dir, err)
	}
	if _, p.Phys, err = parseState(r.text(path.Join(dir, "phys_state"))); err != nil {
		r.problem("%s/phys_state: %v", dir, err)
	}
	if p.Rate, err = parseRate(p.RateName); err != nil {
		r.problem("%s/rate: %v", dir, err)
	}
	switch s := r.text(path.Join(dir, "link_layer")); s {
	case "InfiniBand":
		p.Link = InfiniBand
	case "Ethernet":
		p.Link = Ethernet
	default:
		r.problem("%s/link_layer: %.40q is unknown", dir, s)
	}
	if s := r.text(path.Join(dir, "lid")); s != "" {
		v, err := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 16)
		if err != nil {
			r.problem("%s/lid: %.40q is not a LID", dir, s)
		}
		p.LID = uint16(v)
	}
	p.GIDs = r.gids(dir, p.Link)
	return p
}

// gids reads the table. Attributes of empty entries answer EINVAL, which is no problem.
func (r *reader) gids(dir string, link LinkLayer) []GID {
	entries, err := fs.ReadDir(r.fsys, path.Join(r.dir, dir, "gids"))
	if err != nil {
		r.problem("%s/gids: %v", dir, err)
		return nil
	}
	var out []GID
	for _, e := range entries {
		i, err := strconv.Atoi(e.Name())
		if err != nil || i < 0 {
			r.problem("%s/gids/%.40s: not an index", dir, e.Name())
			continue
		}
		addr, err := ParseGID(r.text(path.Join(dir, "gids", e.Name())))
		if err != nil {
			r.problem("%s/gids/%d: %v", dir, i, err)
			continue
		}
		if addr.IsUnspecified() {
			continue
		}
		attr := func(name string) string {
			s, _ := Text(r.fsys, path.Join(r.dir, dir, "gid_attrs", name, e.Name()))
			return s
		}
		out = append(out, GID{Index: i, Addr: addr, Type: ParseGIDType(attr("types"), link), NetDev: attr("ndevs")})
	}
	slices.SortFunc(out, func(a, b GID) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

// parseState reads "4: ACTIVE".
func parseState(text string) (int, string, error) {
	n, name, ok := strings.Cut(text, ":")
	v, err := strconv.Atoi(strings.TrimSpace(n))
	if !ok || err != nil {
		return 0, "", fmt.Errorf("%.40q is not \"number: name\"", text)
	}
	return v, strings.TrimSpace(name), nil
}

// parseRate reads "100 Gb/sec (4X EDR)" and "2.5 Gb/sec (1X SDR)" into bits per second.
func parseRate(text string) (uint64, error) {
	n, rest, ok := strings.Cut(text, " Gb/sec")
	v, err := strconv.ParseFloat(n, 64)
	if !ok || err != nil || !(v > 0 && v < 1e6) || rest != "" && !strings.HasPrefix(rest, " (") {
		return 0, fmt.Errorf("%.40q is not a rate", text)
	}
	return uint64(v * 1e9), nil
}

// EthernetMTU is the MTU in bytes that RoCE uses over an interface of the given MTU: the largest that an RDMA packet
// may have with all its headers beside it, 0 if none fits. The kernel's rule is iboe_get_mtu.
func EthernetMTU(interfaceMTU int) int {
	const headers = 96 // GRH, UDP, BTH, XRC, AtomicETH, ICRC
	for mtu := 4096; mtu >= 256; mtu /= 2 {
		if interfaceMTU-headers >= mtu {
			return mtu
		}
	}
	return 0
}
