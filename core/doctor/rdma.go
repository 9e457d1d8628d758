package doctor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/mooncake-agent/mooncake/internal/rdmasys"
)

// rdmaPort is a port that the node would use.
type rdmaPort struct {
	dev  *rdmasys.Device
	port *rdmasys.Port
}

func (p rdmaPort) name() string { return p.dev.Name + "/" + strconv.Itoa(p.port.Num) }

// used reports whether the configuration leaves a device in.
func (r *RDMA) used(name string) bool { return len(r.Devices) == 0 || slices.Contains(r.Devices, name) }

// number is the port to use.
func (r *RDMA) number() int { return max(r.Port, 1) }

// bad is the level of something that makes RDMA unusable: a failure only where the node cannot start without.
func (r *RDMA) bad() Level {
	if r.Required {
		return Fail
	}
	return Warn
}

// activePorts are the ports over which the node would move data.
func (h *Host) activePorts() []rdmaPort {
	devices, err := rdmasys.Read(h.FS)
	if err != nil {
		return nil
	}
	var out []rdmaPort
	for i := range devices {
		d := &devices[i]
		for j := range d.Ports {
			if p := &d.Ports[j]; p.Num == h.Setup.RDMA.number() && p.Active() && h.Setup.RDMA.used(d.Name) {
				out = append(out, rdmaPort{d, p})
			}
		}
	}
	return out
}

// checkDevices: which RDMA devices there are, and whether the port to use is up.
func checkDevices(_ context.Context, h *Host) Result {
	var f findings
	r := &h.Setup.RDMA
	devices, err := rdmasys.Read(h.FS)
	switch {
	case err != nil:
		f.note(r.bad(), err.Error(), "see whether /sys is mounted and readable here")
		return f.result()
	case len(devices) == 0 && r.Required:
		f.fail("no RDMA devices, but transports.verbs.required is set", "load the driver of the adapter (lspci, dmesg), give the container the devices of /dev/infiniband, or drop transports.verbs.required")
		return f.result()
	case len(devices) == 0 && r.Wanted:
		f.warn("no RDMA devices", "the node will use tcp; for RDMA load the driver of the adapter (lspci, dmesg) and give containers the devices of /dev/infiniband")
		return f.result()
	case len(devices) == 0:
		f.pass("no RDMA devices; the configuration asks for none")
		return f.result()
	}
	for _, name := range r.Devices {
		if !slices.ContainsFunc(devices, func(d rdmasys.Device) bool { return d.Name == name }) {
			f.note(r.bad(), name+" is configured but not there", "this machine has "+deviceNames(devices)+"; change device_name or transports.verbs.devices")
		}
	}
	active := 0
	for i := range devices {
		d := &devices[i]
		if !r.used(d.Name) {
			f.pass("%s is not used", d.Name)
			continue
		}
		if describeDevice(&f, d, r.number()) {
			active++
		}
	}
	if active == 0 {
		level := r.bad()
		if !r.Wanted {
			level = Warn
		}
		f.note(level, fmt.Sprintf("no active port %d", r.number()), "bring a port up: cable, switch, subnet manager (InfiniBand), ip link set up (RoCE)")
	}
	if r.Wanted && r.Unavailable != "" {
		f.note(r.bad(), "this binary cannot use them: "+r.Unavailable, "install rdma-core (libibverbs1, ibverbs-providers) and use the binary with verbs; else tcp is used")
	}
	if !r.Wanted {
		f.pass("not used: the protocol is not rdma")
	}
	return f.result()
}

func deviceNames(ds []rdmasys.Device) string {
	var names []string
	for _, d := range ds {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}

// describeDevice notes a device that is to be used and reports whether its port is active.
func describeDevice(f *findings, d *rdmasys.Device, port int) bool {
	what := d.Name
	if d.Software() {
		what += " (software)"
	} else if d.Type != "" {
		what += " (" + d.Type + ", firmware " + d.Firmware + ")"
	}
	active, found := false, false
	for i := range d.Ports {
		p := &d.Ports[i]
		if p.Num != port {
			continue
		}
		found = true
		state := fmt.Sprintf("%s port %d %s/%s", what, p.Num, orUnknown(p.StateName), orUnknown(p.Phys))
		if active = p.Active(); active {
			f.pass("%s %s", state, p.RateName)
			continue
		}
		f.warn(state, portAdvice(d, p))
	}
	if !found {
		f.warn(fmt.Sprintf("%s has no port %d", what, port), "set MC_IB_PORT or transports.verbs.port to a port of the device")
	}
	if len(d.Problems) > 0 {
		f.warn(fmt.Sprintf("%s: %d files of /sys make no sense, such as %s", d.Name, len(d.Problems), d.Problems[0]), "look for errors of the driver in dmesg")
	}
	return active
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// portAdvice says what brings a port up.
func portAdvice(d *rdmasys.Device, p *rdmasys.Port) string {
	if p.Link == rdmasys.InfiniBand {
		if p.Phys == "LinkUp" {
			return d.Name + ": the link is up but the port is not active: start a subnet manager (opensm) in this fabric"
		}
		return d.Name + ": check the cable and the switch port, or leave the device out with transports.verbs.devices"
	}
	if nets := p.NetDevs(); len(nets) > 0 {
		return d.Name + ": ip link set " + nets[0] + " up, check the cable, or leave the device out with transports.verbs.devices"
	}
	return d.Name + ": set its network interface up, check the cable, or leave the device out with transports.verbs.devices"
}

// checkLinkLayer: ports of one node should speak the same, as peers choose among all of them.
func checkLinkLayer(_ context.Context, h *Host) Result {
	ports := h.activePorts()
	if len(ports) == 0 {
		return Result{}
	}
	var f findings
	byLink := map[rdmasys.LinkLayer][]string{}
	slowest, fastest := ports[0].port.Rate, ports[0].port.Rate
	for _, p := range ports {
		byLink[p.port.Link] = append(byLink[p.port.Link], p.name())
		slowest, fastest = min(slowest, p.port.Rate), max(fastest, p.port.Rate)
	}
	for _, l := range []rdmasys.LinkLayer{rdmasys.InfiniBand, rdmasys.Ethernet, rdmasys.UnknownLink} {
		names := byLink[l]
		switch {
		case len(names) == 0:
		case l == rdmasys.UnknownLink:
			f.warn("link layer not known: "+strings.Join(names, ", "), "look for errors of the driver in dmesg")
		case l == rdmasys.Ethernet:
			f.pass("Ethernet (RoCE): %s", strings.Join(names, ", "))
		default:
			f.pass("InfiniBand: %s", strings.Join(names, ", "))
		}
	}
	if len(byLink[rdmasys.InfiniBand]) > 0 && len(byLink[rdmasys.Ethernet]) > 0 {
		f.warn("both link layers are in use", "ports of different link layers cannot reach each other: name those of one in transports.verbs.devices (or device_name)")
	}
	if slowest > 0 && slowest*2 < fastest {
		f.warn(fmt.Sprintf("ports differ in speed: %g to %g Gb/s", float64(slowest)/1e9, float64(fastest)/1e9), "the slow ones hold transfers up: leave them out with transports.verbs.devices")
	}
	return f.result()
}

// checkGID: the GID table and the entry that connections use.
func checkGID(_ context.Context, h *Host) Result {
	ports := h.activePorts()
	if len(ports) == 0 {
		return Result{}
	}
	r := &h.Setup.RDMA
	var f findings
	for _, p := range ports {
		c, err := rdmasys.Choose(p.port.GIDs, r.GID)
		if err != nil {
			f.note(r.bad(), fmt.Sprintf("%s: %v", p.name(), err), "give the interface an IP address (RoCE), or name an entry of the table: "+gidTable(p.port.GIDs)+" in MC_GID_INDEX or transports.verbs.gid_index")
			continue
		}
		seen := fmt.Sprintf("%s: uses entry %v (%v) of %d", p.name(), c.GID, c.Class, len(p.port.GIDs))
		if r.GID >= 0 {
			seen += ", as configured"
		}
		switch best, _ := rdmasys.Choose(p.port.GIDs, -1); {
		case r.GID >= 0 && best.Index != c.Index && best.Class < c.Class:
			f.warn(seen, fmt.Sprintf("%s: entry %v ranks higher (%v); drop MC_GID_INDEX to use it", p.name(), best.GID, best.Class))
		case c.Class == rdmasys.Fallback:
			f.warn(seen, p.name()+": RoCE v1 does not cross routers and many fabrics refuse it: give the interface an IP address and let the driver make RoCE v2 entries")
		case c.Class == rdmasys.Degraded || c.Class == rdmasys.DegradedElsewhere:
			f.warn(seen, p.name()+": this address reaches its own subnet only: give the interface an IP address that peers can route to")
		default:
			f.pass("%s", seen)
		}
	}
	return f.result()
}

// gidTable is a table in short.
func gidTable(gids []rdmasys.GID) string {
	var out []string
	for i, g := range gids {
		if i == 8 {
			out = append(out, "...")
			break
		}
		out = append(out, g.String())
	}
	if len(out) == 0 {
		return "(empty)"
	}
	return strings.Join(out, ", ")
}

// checkMTU: both ends of a connection use the smaller MTU, so one small port slows all that it talks to down. (Engines
// of Mooncake that do not tell theirs fail instead.)
func checkMTU(_ context.Context, h *Host) Result {
	ports := h.activePorts()
	if len(ports) == 0 {
		return Result{}
	}
	r := &h.Setup.RDMA
	limit := r.MTU
	if limit == 0 {
		limit = 4096
	}
	var f findings
	sizes := map[int]bool{}
	for _, p := range ports {
		mtu, how, err := h.portMTU(p)
		switch {
		case err != nil:
			f.warn(fmt.Sprintf("%s: MTU not known: %v", p.name(), err), "see ibv_devinfo "+p.dev.Name+" for active_mtu; all nodes must have the same")
			continue
		case mtu == 0:
			f.warn(fmt.Sprintf("%s: %s is too small for RDMA", p.name(), how), "raise the MTU of the interface to 4200 or 9000 on all nodes and switches")
			continue
		}
		sizes[mtu] = true
		if mtu < min(limit, 4096) {
			f.warn(fmt.Sprintf("%s: active MTU %d (%s)", p.name(), mtu, how), mtuAdvice(p))
			continue
		}
		seen := fmt.Sprintf("%s: active MTU %d (%s)", p.name(), mtu, how)
		if limit < mtu {
			seen += fmt.Sprintf(", limited to %d by the configuration", limit)
		}
		f.pass("%s", seen)
	}
	if len(sizes) > 1 {
		f.warn("ports of this node differ in MTU", "connections between different ports use the smaller MTU, and engines that do not announce theirs fail: set all to the same, or MC_MTU to the smallest on all nodes")
	}
	return f.result()
}

func mtuAdvice(p rdmaPort) string {
	if p.port.Link == rdmasys.Ethernet {
		for _, n := range p.port.NetDevs() {
			return "ip link set " + n + " mtu 9000, and the same on all nodes and switches"
		}
		return "raise the MTU of its interface to 9000 on all nodes and switches"
	}
	return "raise the MTU of the partition in the subnet manager (mtu=5)"
}

// portMTU is the active MTU of a port and where it is known from: the device where this binary can ask it, else the
// interface behind a RoCE port.
func (h *Host) portMTU(p rdmaPort) (mtu int, how string, err error) {
	if ask := h.Setup.RDMA.ActiveMTU; ask != nil {
		if mtu, err = ask(p.dev.Name, p.port.Num); err == nil {
			return mtu, "told by the device", nil
		}
	}
	if p.port.Link != rdmasys.Ethernet {
		return 0, "", errors.Join(err, errors.New("the kernel does not show that of InfiniBand ports"))
	}
	for _, name := range p.port.NetDevs() {
		v, e := h.number(path.Join("sys/class/net", name, "mtu"))
		if e != nil || v > 1<<20 {
			err = errors.Join(err, fmt.Errorf("MTU of %s cannot be read", name))
			continue
		}
		return rdmasys.EthernetMTU(int(v)), fmt.Sprintf("%s has MTU %d", name, v), nil
	}
	return 0, "", errors.Join(err, errors.New("no network interface is visible behind the port"))
}

// checkPCI: whether adapters may write out of order, and run at the speed and width they were made for.
func checkPCI(_ context.Context, h *Host) Result {
	ports := h.activePorts()
	var f findings
	seen := map[string]bool{}
	for _, p := range ports {
		if p.dev.Software() || seen[p.dev.Name] {
			continue
		}
		seen[p.dev.Name] = true
		dir := path.Join(rdmasys.Root, p.dev.Name, "device")
		h.relaxedOrdering(&f, p.dev, dir)
		h.pciLink(&f, p.dev, dir)
	}
	return f.result()
}

func (h *Host) relaxedOrdering(f *findings, d *rdmasys.Device, dir string) {
	b, err := rdmasys.Bytes(h.FS, path.Join(dir, "config"))
	var c rdmasys.PCIe
	if err == nil {
		c, err = rdmasys.ParseConfig(b)
	}
	switch {
	case errors.Is(err, rdmasys.ErrConfigHidden):
		f.pass("%s: relaxed ordering not visible (%v)", d.Name, err)
	case err != nil:
		f.warn(fmt.Sprintf("%s: relaxed ordering not known: %v", d.Name, err), "run the doctor as root, or see lspci -vvv -s "+d.PCI+" for RlxdOrd")
	case !c.RelaxedOrdering:
		f.warn(fmt.Sprintf("%s: relaxed ordering is off, read requests up to %d bytes", d.Name, c.MaxReadRequest),
			d.Name+": turn on relaxed ordering in the BIOS (PCI relaxed ordering, enabled or auto) or in the adapter (mlxconfig PCI_WR_ORDERING=1); without it many cores or NUMA nodes share less bandwidth")
	case c.MaxReadRequest < 512:
		f.warn(fmt.Sprintf("%s: relaxed ordering is on, but read requests are limited to %d bytes", d.Name, c.MaxReadRequest), d.Name+": raise MaxReadReq to 4096 (BIOS, or setpci)")
	default:
		f.pass("%s: relaxed ordering is on, read requests up to %d bytes", d.Name, c.MaxReadRequest)
	}
}

// pciLink compares what the link was trained to with what the device can. Files that are absent or make no sense say
// nothing.
func (h *Host) pciLink(f *findings, d *rdmasys.Device, dir string) {
	read := func(name string) (float64, string) {
		s, _ := h.text(path.Join(dir, name))
		n, _, _ := strings.Cut(s, " ")
		v, err := strconv.ParseFloat(n, 64)
		if err != nil || !(v > 0 && v < 1e4) {
			return 0, s
		}
		return v, s
	}
	speed, speedText := read("current_link_speed")
	maxSpeed, maxSpeedText := read("max_link_speed")
	width, widthText := read("current_link_width")
	maxWidth, maxWidthText := read("max_link_width")
	if speed == 0 || maxSpeed == 0 || width == 0 || maxWidth == 0 {
		return
	}
	if speed < maxSpeed || width < maxWidth {
		f.warn(fmt.Sprintf("%s: PCI link runs at %s x%s of %s x%s", d.Name, speedText, widthText, maxSpeedText, maxWidthText), d.Name+": put the adapter into a slot with all its lanes, reseat it, check the BIOS")
		return
	}
	f.pass("%s: PCI link %s x%s", d.Name, speedText, widthText)
}
