package doctor

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/units"
)

// checkFiles: each connection and each region takes a file descriptor.
func checkFiles(_ context.Context, h *Host) Result {
	const (
		few    = 1024
		enough = 65536
		advice = "ulimit -n 1048576; for services LimitNOFILE=1048576 (systemd) or --ulimit nofile=1048576 (docker)"
	)
	var f findings
	limit, err := h.Kernel.Rlimit(unix.RLIMIT_NOFILE)
	text := "unlimited"
	if err == nil && limit != unix.RLIM_INFINITY {
		text = strconv.FormatUint(limit, 10)
	}
	switch {
	case err != nil:
		f.warn(fmt.Sprintf("ulimit -n cannot be read: %v", err), advice)
	case limit < few:
		f.fail("ulimit -n is "+text, advice)
	case limit < enough:
		f.warn("ulimit -n is "+text, "enough for some hundred peers: "+advice)
	default:
		f.pass("ulimit -n is %s", text)
	}
	// "used, free, most" of the whole machine
	if s, err := h.sysctl("fs/file-nr"); err == nil {
		fields := strings.Fields(s)
		if len(fields) == 3 {
			used, err1 := strconv.ParseUint(fields[0], 10, 64)
			most, err2 := strconv.ParseUint(fields[2], 10, 64)
			if err1 == nil && err2 == nil && most > 0 && used > most/10*9 {
				f.fail(fmt.Sprintf("the machine has %d of %d files open", used, most), "find who holds them (lsof), or raise fs.file-max")
			}
		}
	}
	return f.result()
}

// checkClock: leases and logs of many nodes are compared by their times.
func checkClock(_ context.Context, h *Host) Result {
	var f findings
	t, err := h.Kernel.Adjtimex()
	const advice = "run chronyd or systemd-timesyncd (chronyc tracking, timedatectl), in virtual machines against the host's clock"
	switch {
	case err != nil:
		f.warn(fmt.Sprintf("state of the clock cannot be read: %v", err), advice)
	case t.Status&unix.STA_UNSYNC != 0:
		f.warn("the kernel says that the clock is not synchronised", advice)
	case t.Maxerror > int64(time.Second/time.Microsecond):
		f.warn(fmt.Sprintf("synchronised, but it may be off by %v", time.Duration(t.Maxerror)*time.Microsecond), advice)
	default:
		f.pass("synchronised, off by at most %v", time.Duration(max(t.Maxerror, 0))*time.Microsecond)
	}
	if s, err := h.text("sys/devices/system/clocksource/clocksource0/current_clocksource"); err == nil {
		switch s {
		case "hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit":
			f.warn("the clock source is "+s, "reading the time costs a microsecond or more with it: use tsc (or kvm-clock, hyperv) if the machine has a stable one")
		default:
			f.pass("clock source %s", s)
		}
	}
	return f.result()
}

// parameter is one kernel parameter with the least value that is good.
type parameter struct {
	name  string // below /proc/sys
	field int    // of several in one file
	least uint64
	why   string
	want  string // the value to set
}

func (p *parameter) dotted() string { return strings.ReplaceAll(p.name, "/", ".") }

// parameters lists what is wanted of the kernel, by the configuration.
func parameters(s *Setup) []parameter {
	// Least that the node asks for: 256 KB of send buffer to peers on its own host.
	send, receive := max(256*units.KiB, s.SendBuffer), max(128*units.KiB, s.ReceiveBuffer)
	return []parameter{
		{"net/core/wmem_max", 0, uint64(send), "send buffers that the node asks for are cut", fmt.Sprint(max(16<<20, uint64(send)))},
		{"net/core/rmem_max", 0, uint64(receive), "receive buffers that the node asks for are cut", fmt.Sprint(max(16<<20, uint64(receive)))},
		{"net/ipv4/tcp_rmem", 2, 4 << 20, "one connection does not fill a fast link", "'4096 131072 16777216'"},
		{"net/ipv4/tcp_wmem", 2, 4 << 20, "one connection does not fill a fast link", "'4096 131072 16777216'"},
		{"net/ipv4/tcp_window_scaling", 0, 1, "windows end at 64 KB, which no fast link can be filled with", "1"},
		{"net/core/somaxconn", 0, 1024, "connections are dropped when many clients start at once", "4096"},
		{"vm/max_map_count", 0, 65530, "maps of shared memory and policies run out", "262144"},
	}
}

// checkKernel: parameters of the kernel that the node's throughput depends on.
func checkKernel(_ context.Context, h *Host) Result {
	var f findings
	var fine []string
	params := parameters(&h.Setup)
	for i := range params {
		p := &params[i]
		text, err := h.sysctl(p.name)
		if absent(err) {
			continue // containers hide net.core; then the host's values hold
		}
		fields := strings.Fields(text)
		if err != nil || p.field >= len(fields) {
			f.warn(fmt.Sprintf("%s cannot be read (%.40q)", p.dotted(), text), "see whether /proc/sys is readable here")
			continue
		}
		v, err := strconv.ParseUint(fields[p.field], 10, 64)
		switch {
		case err != nil:
			f.warn(fmt.Sprintf("%s is %.40q, not a number", p.dotted(), text), "see whether /proc/sys is readable here")
		case v < p.least:
			f.warn(fmt.Sprintf("%s is %s, less than %d: %s", p.dotted(), strings.Join(fields, " "), p.least, p.why), "sysctl -w "+p.dotted()+"="+p.want)
		default:
			fine = append(fine, p.dotted()+" "+strings.Join(fields, " "))
		}
	}
	if len(fine) > 0 {
		f.pass("fine: %s", strings.Join(fine, ", "))
	}
	if f.level == "" {
		f.warn("no kernel parameters are visible", "see whether /proc/sys is mounted here")
	}
	return f.result()
}

// checkOutgoing: the kernel takes local ports for outgoing connections at random; it must not take those of the node.
func checkOutgoing(_ context.Context, h *Host) Result {
	var f findings
	text, err := h.sysctl("net/ipv4/ip_local_port_range")
	if absent(err) {
		return Result{}
	}
	fields := strings.Fields(text)
	if err != nil || len(fields) != 2 {
		f.warn(fmt.Sprintf("net.ipv4.ip_local_port_range cannot be read (%.40q)", text), "see whether /proc/sys is readable here")
		return f.result()
	}
	lo, err1 := strconv.Atoi(fields[0])
	hi, err2 := strconv.Atoi(fields[1])
	if err1 != nil || err2 != nil || lo < 0 || hi < lo || hi > math.MaxUint16 {
		f.warn(fmt.Sprintf("net.ipv4.ip_local_port_range is %.40q, not two ports", text), "sysctl -w net.ipv4.ip_local_port_range='32768 60999'")
		return f.result()
	}
	reserved := map[int]bool{}
	if text, err := h.sysctl("net/ipv4/ip_local_reserved_ports"); err == nil {
		list, _ := parseList(text)
		for _, p := range list {
			reserved[p] = true
		}
	}
	clash := func(key string, from, to int) {
		n := 0
		for p := max(from, lo); p <= min(to, hi); p++ {
			if !reserved[p] {
				n++
			}
		}
		if n == 0 {
			return
		}
		ports := strconv.Itoa(from)
		if to != from {
			ports += "-" + strconv.Itoa(to)
		}
		f.warn(fmt.Sprintf("%s (%s) lies in %d-%d, from which the kernel takes ports for outgoing connections", key, ports, lo, hi),
			"another program's connection may hold the port when the node starts: sysctl -w net.ipv4.ip_local_reserved_ports="+ports)
	}
	for _, r := range h.Setup.Ranges {
		clash(r.Key, r.Ports.Min, r.Ports.Max)
	}
	for _, l := range h.Setup.Listen {
		if _, port, err := splitListen(l.Addr); err == nil && port > 0 {
			clash(l.Key, port, port)
		}
	}
	if f.level == "" {
		f.pass("outgoing connections use ports %d-%d, none of the node's", lo, hi)
	}
	return f.result()
}
