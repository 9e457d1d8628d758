package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
)

// Checks are the checks for a setup, in the order of the report. Their names are part of the interface of scripts.
func Checks(s *Setup) []Check {
	return append([]Check{
		{Name: "config", About: "the configuration has no errors", Run: checkConfig},
		{Name: "rdma-devices", About: "RDMA devices and the state of their ports", Run: checkDevices},
		{Name: "link-layer", About: "all ports speak the same: InfiniBand or Ethernet (RoCE)", Run: checkLinkLayer},
		{Name: "gid", About: "GID tables and the entry that connections use", Run: checkGID},
		{Name: "mtu", About: "active MTU of the RDMA ports", Run: checkMTU},
		{Name: "pci", About: "relaxed ordering, speed and width of the adapters' PCI links", Run: checkPCI},
		{Name: "numa", About: "NUMA nodes of adapters, segment and process", Run: checkNUMA},
		{Name: "memlock", About: "ulimit -l against the memory that RDMA pins", Run: checkMemlock},
		{Name: "huge-pages", About: "reserved huge pages against segment.huge_pages", Run: checkHugePages},
		{Name: "memory", About: "free memory against the configured pools, swap, overcommit", Run: checkMemory},
		{Name: "files", About: "ulimit -n and open files of the machine", Run: checkFiles},
		{Name: "ports", About: "addresses and ports that the node listens on are its own and free", Run: checkPorts},
		{Name: "outgoing-ports", About: "the kernel's range for outgoing connections leaves the node's ports alone", Run: checkOutgoing},
		{Name: "kernel", About: "kernel parameters: socket buffers, TCP windows, backlog, maps", Run: checkKernel},
		{Name: "clock", About: "the clock is synchronised, its source is fast", Run: checkClock},
		{Name: "metadata", About: "the metadata service answers", Run: checkMetadata},
		{Name: "master", About: "the Store's master answers and speaks the protocol", Run: checkMaster},
		{Name: "peers", About: "handshake daemons of peers answer, packets have the same size on the way", Run: checkPeers},
	}, baselineChecks(s)...)
}

// Only keeps the checks of the given names; "baseline" stands for all of that kind. Without names all are kept.
func Only(checks []Check, names []string) ([]Check, error) {
	if len(names) == 0 {
		return checks, nil
	}
	var out []Check
	known := make([]string, 0, len(checks))
	used := map[string]bool{}
	for _, c := range checks {
		known = append(known, c.Name)
		for _, n := range names {
			if n == c.Name || n == "baseline" && strings.HasPrefix(c.Name, "baseline-") {
				used[n] = true
				out = append(out, c)
				break
			}
		}
	}
	for _, n := range names {
		if !used[n] {
			return nil, fmt.Errorf("there is no check %q; there are: %s", n, strings.Join(known, ", "))
		}
	}
	return out, nil
}

// checkConfig: what is wrong with the configuration, in one line each.
func checkConfig(_ context.Context, h *Host) Result {
	var f findings
	s := &h.Setup
	for _, p := range s.Problems {
		f.fail(p, "correct it (mooncake config check); the checks below look at the defaults instead")
	}
	for _, w := range s.Warnings {
		f.warn(w, "see mooncake config check")
	}
	if f.level == "" {
		if s.File == "" {
			f.pass("no file: the defaults")
		} else {
			f.pass("%s", s.File)
		}
	}
	return f.result()
}

// interfaces are the network interfaces of the machine.
func (h *Host) interfaces() []string {
	entries, err := fs.ReadDir(h.FS, "sys/class/net")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
