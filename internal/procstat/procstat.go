// Package procstat reads from /proc what a benchmark needs to know about processes and the machine.
package procstat

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of /proc/*/stat on every Linux port of Go.
const tick = 10 * time.Millisecond

// Process is the state of a process.
type Process struct {
	CPU time.Duration // user and system time of all its threads, also of those that have ended; to 10 ms
	RSS uint64        // resident bytes
}

// Read returns the state of a process.
func Read(pid int) (Process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, err
	}
	return parseProcess(string(b))
}

func parseProcess(stat string) (Process, error) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // the name may hold spaces
	if len(f) < 22 {
		return Process{}, fmt.Errorf("procstat: %d fields in %q", len(f), stat)
	}
	var n [3]int64
	for i, at := range []int{11, 12, 21} {
		var err error
		if n[i], err = strconv.ParseInt(f[at], 10, 64); err != nil {
			return Process{}, fmt.Errorf("procstat: %w", err)
		}
	}
	return Process{CPU: time.Duration(n[0]+n[1]) * tick, RSS: uint64(n[2]) * uint64(os.Getpagesize())}, nil
}

// Busy is the time all processors spent working since boot, without waiting for disks and without what a
// hypervisor took.
func Busy() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(b))
}

func parseBusy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("procstat: first line of /proc/stat: %q", line)
	}
	var ticks int64
	for i, s := range f {
		if i == 0 || i == 4 || i == 5 || i > 7 { // name, idle, iowait; steal, guest
			continue
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("procstat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// Machine describes the machine in a line: processor, cores, kernel.
func Machine(cores int) string {
	cpu := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				cpu = strings.TrimSpace(v)
				break
			}
		}
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		kernel = []byte("unknown")
	}
	return fmt.Sprintf("%s, %d cores, Linux %s", cpu, cores, strings.TrimSpace(string(kernel)))
}
