package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/internal/rdmasys"
)

// Host is the machine as checks see it, and what is wanted of it. Its parts are read by many checks at once.
type Host struct {
	// FS is "/" of the machine; paths have no leading slash. It should follow symbolic links.
	FS      fs.FS
	Kernel  Kernel
	Network Network
	Setup   Setup
}

// Kernel are the system calls that checks make.
type Kernel struct {
	// Rlimit is the soft limit of a resource; unix.RLIM_INFINITY for none.
	Rlimit func(resource int) (uint64, error)
	// Available is the memory in bytes that can be taken now; see [units.AvailableMemory].
	Available func() (uint64, error)
	// Adjtimex reads the state of the clock.
	Adjtimex func() (unix.Timex, error)
	// Addrs are the addresses of this machine's interfaces.
	Addrs func() ([]netip.Addr, error)
}

// Network are the connections that checks make.
type Network struct {
	// Dial connects to host:port over TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Probe asks the handshake daemon of an engine whether it lives.
	Probe func(ctx context.Context, host string, port int) error
	// Segments tells the largest packet payload that both sides of a connection agreed on, and that this side offered,
	// in bytes; 0 if it cannot be known.
	Segments func(net.Conn) (agreed, offered int)
}

// Machine is the machine that this process runs on.
func Machine() *Host {
	return &Host{FS: os.DirFS("/"), Kernel: machineKernel(), Network: machineNetwork()}
}

func machineKernel() Kernel {
	return Kernel{
		Rlimit: func(resource int) (uint64, error) {
			var l unix.Rlimit
			err := unix.Getrlimit(resource, &l)
			return l.Cur, err
		},
		Available: units.AvailableMemory,
		Adjtimex: func() (unix.Timex, error) {
			var t unix.Timex
			_, err := unix.Adjtimex(&t)
			return t, err
		},
		Addrs: interfaceAddrs,
	}
}

func interfaceAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	var out []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr())
		}
	}
	return out, err
}

// text reads a small file of the machine.
func (h *Host) text(name string) (string, error) { return rdmasys.Text(h.FS, name) }

// number reads a file that holds one decimal number.
func (h *Host) number(name string) (uint64, error) {
	s, err := h.text(name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(s, 10, 64)
}

// sysctl reads a kernel parameter by its name in /proc/sys, whose parts are separated by slashes.
func (h *Host) sysctl(name string) (string, error) { return h.text("proc/sys/" + name) }

// status returns a field of /proc/self/status, "" if there is none.
func (h *Host) status(field string) string {
	s, _ := h.text("proc/self/status")
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(line, ":"); ok && k == field {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Capabilities, by their bits in /proc/self/status.
const (
	capNetBindService = 10
	capIPCLock        = 14
)

// capable reports whether this process has a capability.
func (h *Host) capable(bit int) bool {
	v, err := strconv.ParseUint(h.status("CapEff"), 16, 64)
	return err == nil && v>>bit&1 == 1
}

// kilobytes returns a field of a file in the format of /proc/meminfo, in bytes.
func (h *Host) kilobytes(file, field string) (uint64, bool) {
	s, err := h.text(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(s) {
		k, v, _ := strings.Cut(line, ":")
		if k != field {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 53)
		return n << 10, err == nil
	}
	return 0, false
}

// exists reports whether the machine shows a file.
func (h *Host) exists(name string) bool {
	_, err := fs.Stat(h.FS, name)
	return err == nil
}

// absent reports an error that means "this kernel has no such file".
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// bytesText writes a size for people, with one decimal.
func bytesText(n uint64) string {
	f := float64(n)
	for _, u := range []string{"B", "KB", "MB", "GB"} {
		if f < 1024 {
			return strconv.FormatFloat(float64(int64(f*10))/10, 'f', -1, 64) + u
		}
		f /= 1024
	}
	return strconv.FormatFloat(float64(int64(f*10))/10, 'f', -1, 64) + "TB"
}
