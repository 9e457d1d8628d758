package versions

import (
	"bufio"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Clients of several versions on the master's own host share an address, and a new connection of one of them may
// begin with a read. The kernel knows which process it belongs to, so its other connections tell the version.

// Undecided reports whether answering this request on the event loop would be a guess that a look at the host's
// processes may spare. The handler then leaves the loop; [Memory.Resolve] looks on the worker.
func (m *Memory) Undecided(c *rpc.Call) bool {
	x, ok := c.Conn().Data().(*caller)
	return ok && !c.Slow() && x.undecided.Load()
}

// look finds the process of a caller and shares what is known about its other connections. It reads /proc.
func (m *Memory) look(c *caller) {
	defer c.undecided.Store(false)
	defer c.looked.Store(true)
	m.processes.mu.Lock()
	defer m.processes.mu.Unlock()
	if c.looked.Load() {
		return
	}
	if c.pid.Load() == 0 { // else the look for another caller found this one, too
		if wait := lookPause - time.Since(m.processes.last); wait > 0 {
			time.Sleep(wait)
		}
		m.findProcesses(c.host)
		m.processes.last = time.Now()
	}
	pid := c.pid.Load()
	if pid == 0 {
		return
	}
	common, found := c.possible(), false
	ids := map[wire.UUID]bool{}
	for _, s := range m.callersOf(c.host) {
		if s == c || s.pid.Load() != pid {
			continue
		}
		found = true
		common &= s.possible()
		if cl := s.client.Load(); cl != nil {
			ids[cl.id] = true
		}
	}
	if !found || common == 0 { // nothing to learn, or a proxy that carries connections of several clients
		return
	}
	m.sameProcess.Add(1)
	c.known.Store(uint32(common))
	if len(ids) == 1 {
		for id := range ids {
			m.join(c, id)
		}
	}
}

// ownAddress reports whether an address is one of this host's. It is called with m.mu held.
func (m *Memory) ownAddress(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	if now := m.now(); m.own == nil || now.Sub(m.ownAt) > time.Minute {
		m.own, m.ownAt = map[netip.Addr]bool{}, now
		addrs, err := net.InterfaceAddrs()
		if err != nil { // then only loopback counts
			m.log.Debug("versions: addresses of this host", "error", err)
		}
		for _, x := range addrs {
			if n, ok := x.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					m.own[ip.Unmap()] = true
				}
			}
		}
	}
	return m.own[a.WithZone("")]
}

// lookups bounds how often the host's processes are looked through.
type lookups struct {
	mu   sync.Mutex
	last time.Time
}

// lookPause is the least time between two looks; callers that wait meanwhile are served by one.
const lookPause = 20 * time.Millisecond

func (m *Memory) callersOf(h *host) []*caller {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*caller, 0, len(h.callers))
	for c := range h.callers {
		out = append(out, c)
	}
	return out
}

// findProcesses fills in the processes of an address's callers, as far as this process may see them.
func (m *Memory) findProcesses(h *host) {
	wanted := map[netip.AddrPort]*caller{}
	for _, c := range m.callersOf(h) {
		if c.pid.Load() == 0 {
			wanted[c.addr] = c
		}
	}
	inodes := map[string]*caller{}
	for _, table := range []string{"tcp", "tcp6"} {
		socketInodes(filepath.Join(m.proc, "net", table), wanted, inodes)
	}
	setProcesses(m.proc, inodes)
}

// socketInodes reads a table of the kernel's TCP sockets: "sl local_address rem_address st ... inode" in hexadecimal.
func socketInodes(table string, wanted map[netip.AddrPort]*caller, into map[string]*caller) {
	f, err := os.Open(table)
	if err != nil {
		return // no IPv6, or no /proc: nothing is found
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[9] == "0" {
			continue
		}
		if a, ok := parseSocketAddr(fields[1]); ok && wanted[a] != nil {
			into[fields[9]] = wanted[a]
		}
	}
}

// parseSocketAddr reads "0100007F:C350": the address in 32-bit words of the host's byte order (little-endian here), the
// port as a number.
func parseSocketAddr(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	n, errPort := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || errPort != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		b[i], b[i+1], b[i+2], b[i+3] = b[i+3], b[i+2], b[i+1], b[i]
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), true
}

// setProcesses finds who holds sockets, by the links in /proc/PID/fd.
func setProcesses(proc string, inodes map[string]*caller) {
	if len(inodes) == 0 {
		return
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.ParseInt(e.Name(), 10, 64)
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name(), "fd")
		fds, err := os.ReadDir(dir) // not ours to see, or gone
		if err != nil {
			continue
		}
		for _, fd := range fds {
			target, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if err != nil {
				continue
			}
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				if c := inodes[strings.TrimSuffix(inode, "]")]; c != nil {
					c.pid.Store(pid)
				}
			}
		}
	}
}
