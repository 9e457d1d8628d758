package doctor

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// listening is a socket of this machine that accepts connections.
type listening struct {
	addr  netip.AddrPort
	inode string
}

// maxSockets bounds how many lines of /proc/net/tcp are read.
const maxSockets = 1 << 20

// parseSockets reads the listening sockets of /proc/net/tcp or tcp6. Lines that make no sense are skipped: a check must
// not fail for a format of a later kernel.
func parseSockets(text string) []listening {
	const listenState = "0A"
	var out []listening
	n := 0
	for line := range strings.Lines(text) {
		if n++; n > maxSockets {
			break
		}
		f := strings.Fields(line) // sl local remote st queues tr retrnsmt uid timeout inode ...
		if len(f) < 10 || f[3] != listenState {
			continue
		}
		a, err := parseProcAddr(f[1])
		if err != nil {
			continue
		}
		out = append(out, listening{a, f[9]})
	}
	return out
}

// parseProcAddr reads "0100007F:1F90": 32-bit words of the address in the machine's byte order, and the port. Only
// little-endian machines are supported, as everywhere in the node.
func parseProcAddr(text string) (netip.AddrPort, error) {
	host, port, ok := strings.Cut(text, ":")
	p, err := strconv.ParseUint(port, 16, 16)
	raw, herr := hex.DecodeString(host)
	if !ok || err != nil || herr != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, fmt.Errorf("%.60q is not an address of /proc/net/tcp", text)
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	a, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), nil
}

// sockets are the listening sockets of this network namespace.
func (h *Host) sockets() ([]listening, error) {
	var out []listening
	var errs []error
	for _, name := range []string{"tcp", "tcp6"} {
		b, err := fs.ReadFile(h.FS, "proc/net/"+name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, parseSockets(string(b))...)
	}
	if len(errs) == 2 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

// splitListen takes the address of a listener apart; host is "" or an unspecified address for all.
func splitListen(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	p, err := strconv.ParseUint(text, 10, 16)
	return host, int(p), err
}

// takes reports whether a socket at s keeps another from listening on host:port.
func (s listening) takes(host string, port int) bool {
	if int(s.addr.Port()) != port {
		return false
	}
	a, err := netip.ParseAddr(host)
	if host == "" || err != nil || a.IsUnspecified() || s.addr.Addr().IsUnspecified() {
		return true
	}
	return a.Unmap() == s.addr.Addr()
}

// checkPorts: every address that the node will listen on is its own and free.
func checkPorts(ctx context.Context, h *Host) Result {
	if len(h.Setup.Listen) == 0 && len(h.Setup.Ranges) == 0 {
		return Result{}
	}
	var f findings
	sockets, err := h.sockets()
	if err != nil {
		f.warn(fmt.Sprintf("listening sockets cannot be read: %v", err), "see whether /proc is mounted here")
		return f.result()
	}
	var free []string
	mine := map[int]Listener{}
	for _, l := range h.Setup.Listen {
		host, port, err := splitListen(l.Addr)
		if err != nil {
			f.fail(fmt.Sprintf("%s: %q is not host:port", l.Key, l.Addr), "correct "+l.Key)
			continue
		}
		if port == 0 {
			continue // any free one
		}
		if other, twice := mine[port]; twice && sameHost(other.Addr, l.Addr) {
			f.fail(fmt.Sprintf("%s and %s are both port %d", other.Key, l.Key, port), "change one of them")
			continue
		}
		mine[port] = l
		if h.address(&f, l, host, port) && h.free(ctx, &f, l, host, port, sockets) {
			free = append(free, l.Key+" "+l.Addr)
		}
	}
	if len(free) > 0 {
		f.pass("free: %s", strings.Join(free, ", "))
	}
	for _, r := range h.Setup.Ranges {
		n := 0
		for p := r.Ports.Min; p <= r.Ports.Max; p++ {
			if !slices.ContainsFunc(sockets, func(s listening) bool { return int(s.addr.Port()) == p }) {
				n++
			}
		}
		seen := fmt.Sprintf("%s %v: %d free", r.Key, r.Ports, n)
		if n < r.Need {
			f.fail(seen, fmt.Sprintf("the node needs %d: widen %s or stop what listens there", r.Need, r.Key))
		} else {
			f.pass("%s", seen)
		}
	}
	if f.level == "" {
		f.pass("the node listens on no fixed port")
	}
	return f.result()
}

func sameHost(a, b string) bool {
	ha, _, _ := net.SplitHostPort(a)
	hb, _, _ := net.SplitHostPort(b)
	wide := func(h string) bool {
		ip, err := netip.ParseAddr(h)
		return h == "" || err == nil && ip.IsUnspecified()
	}
	return ha == hb || wide(ha) || wide(hb)
}

// address checks that a listener can be bound at all.
func (h *Host) address(f *findings, l Listener, host string, port int) bool {
	if a, err := netip.ParseAddr(host); err == nil && !a.IsUnspecified() && !a.IsLoopback() {
		own, err := h.Kernel.Addrs()
		if err == nil && !slices.ContainsFunc(own, func(o netip.Addr) bool { return o.Unmap().WithZone("") == a.Unmap().WithZone("") }) {
			f.fail(fmt.Sprintf("%s: %s is not an address of this machine", l.Key, host), "correct "+l.Key+", or bring the interface up")
			return false
		}
	}
	lowest := uint64(1024)
	if v, err := h.number("proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil {
		lowest = v
	}
	if uint64(port) < lowest && !h.capable(capNetBindService) {
		f.fail(fmt.Sprintf("%s: ports below %d are for root", l.Key, lowest), "use a higher port, or give the node CAP_NET_BIND_SERVICE")
		return false
	}
	return true
}

// free checks that nobody listens there yet.
func (h *Host) free(ctx context.Context, f *findings, l Listener, host string, port int, sockets []listening) bool {
	for _, s := range sockets {
		if !s.takes(host, port) {
			continue
		}
		holder, pid := h.holder(ctx, s.inode)
		seen := fmt.Sprintf("%s: %s is in use", l.Key, l.Addr)
		switch {
		case pid == "":
			f.fail(seen+" by a process that is not visible", "see ss -ltnp as root, stop it or change "+l.Key)
		case holder == "mooncake":
			f.warn(seen+" by mooncake (pid "+pid+")", "a node is running already; stop it before another is started")
		default:
			f.fail(seen+" by "+holder+" (pid "+pid+")", "stop that process or change "+l.Key)
		}
		return false
	}
	return true
}

// holder finds the process that has a socket open. It looks through the open files of all processes that this one
// may look at.
func (h *Host) holder(ctx context.Context, inode string) (name, pid string) {
	procs, err := fs.ReadDir(h.FS, "proc")
	if err != nil {
		return "", ""
	}
	want := "socket:[" + inode + "]"
	for _, p := range procs {
		if ctx.Err() != nil {
			return "", ""
		}
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		dir := path.Join("proc", p.Name(), "fd")
		fds, err := fs.ReadDir(h.FS, dir)
		if err != nil {
			continue // another user's, or gone
		}
		for _, fd := range fds {
			if to, err := fs.ReadLink(h.FS, path.Join(dir, fd.Name())); err == nil && to == want {
				comm, _ := h.text(path.Join("proc", p.Name(), "comm"))
				return orUnknown(comm), p.Name()
			}
		}
	}
	return "", ""
}
