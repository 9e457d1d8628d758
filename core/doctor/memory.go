package doctor

import (
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pools is the memory that the node takes at its start.
func (s *Setup) pools() uint64 {
	if uint64(s.Segment) > math.MaxUint64-uint64(s.Buffer) {
		return math.MaxUint64
	}
	return uint64(s.Segment) + uint64(s.Buffer)
}

// checkMemlock: RDMA pins all registered memory, which counts against ulimit -l.
func checkMemlock(_ context.Context, h *Host) Result {
	var f findings
	limit, err := h.Kernel.Rlimit(unix.RLIMIT_MEMLOCK)
	need := h.Setup.pools()
	pins := h.Setup.RDMA.Wanted && len(h.activePorts()) > 0
	const advice = "ulimit -l unlimited; for services LimitMEMLOCK=infinity (systemd) or --ulimit memlock=-1 (docker)"
	switch {
	case err != nil:
		f.warn(fmt.Sprintf("ulimit -l cannot be read: %v", err), advice)
	case limit == unix.RLIM_INFINITY:
		f.pass("unlimited")
	case h.capable(capIPCLock):
		f.pass("%s, which CAP_IPC_LOCK lifts", bytesText(limit))
	case !pins:
		f.pass("%s; memory is locked for RDMA only, which is not used", bytesText(limit))
	case limit < need:
		f.fail(fmt.Sprintf("%s, but RDMA pins %s (segment and buffer)", bytesText(limit), bytesText(need)), advice)
	default:
		f.pass("%s, RDMA pins %s", bytesText(limit), bytesText(need))
	}
	return f.result()
}

// checkHugePages: the reserved pool against what is configured.
func checkHugePages(_ context.Context, h *Host) Result {
	var f findings
	const root = "sys/kernel/mm/hugepages"
	pageOf := map[string]uint64{"2MB": 2 << 20, "1GB": 1 << 30}
	var pools []string
	free := map[uint64]uint64{}
	for _, name := range []string{"2MB", "1GB"} {
		dir := path.Join(root, fmt.Sprintf("hugepages-%dkB", pageOf[name]>>10))
		if n := h.Setup.NUMANode; n >= 0 && h.Setup.HugePages == name {
			dir = path.Join("sys/devices/system/node", "node"+strconv.Itoa(n), "hugepages", path.Base(dir))
		}
		total, err1 := h.number(path.Join(dir, "nr_hugepages"))
		left, err2 := h.number(path.Join(dir, "free_hugepages"))
		if err1 != nil || err2 != nil {
			continue
		}
		reserved, _ := h.number(path.Join(dir, "resv_hugepages"))
		left -= min(reserved, left)
		free[pageOf[name]] = left
		pools = append(pools, fmt.Sprintf("%s: %d of %d free", name, left, total))
	}
	seen := strings.Join(pools, ", ")
	if seen == "" {
		seen = "this kernel has no huge pages"
	}
	page, wanted := pageOf[h.Setup.HugePages]
	if !wanted {
		const muchMemory = 64 << 30
		switch {
		case h.Setup.RDMA.Wanted && len(h.activePorts()) > 0 && uint64(h.Setup.Segment) >= muchMemory:
			f.warn(fmt.Sprintf("off for a segment of %s (%s)", bytesText(uint64(h.Setup.Segment)), seen), "with small pages registration is slow and the adapter's address cache overflows: reserve pages and set segment.huge_pages to 2MB or 1GB")
		default:
			f.pass("off (%s)", seen)
		}
		return f.result()
	}
	need := uint64(h.Setup.Segment) / page
	if uint64(h.Setup.Segment)%page > 0 {
		need++
	}
	have, there := free[page]
	switch {
	case !there:
		f.fail(fmt.Sprintf("segment.huge_pages is %s, but %s", h.Setup.HugePages, orNone(seen)), "boot with hugepagesz="+h.Setup.HugePages+" or set segment.huge_pages to off")
	case have < need:
		where := "vm.nr_hugepages"
		if page != 2<<20 || h.Setup.NUMANode >= 0 {
			where = "nr_hugepages of the pool in /" + root
		}
		if h.Setup.NUMANode >= 0 {
			where += fmt.Sprintf(", on node %d", h.Setup.NUMANode)
		}
		f.fail(fmt.Sprintf("the segment needs %d pages of %s (%s)", need, h.Setup.HugePages, seen), fmt.Sprintf("raise %s by %d or more, early after boot while memory is not fragmented", where, need-have))
	default:
		f.pass("the segment needs %d pages of %s (%s)", need, h.Setup.HugePages, seen)
	}
	return f.result()
}

func orNone(s string) string {
	if s == "" {
		return "there are none"
	}
	return s
}

// checkMemory: what can be taken now against the pools.
func checkMemory(_ context.Context, h *Host) Result {
	var f findings
	have, err := h.Kernel.Available()
	if err != nil {
		f.warn(fmt.Sprintf("free memory is not known: %v", err), "see whether /proc is mounted here")
		return f.result()
	}
	need := h.Setup.pools()
	pooled := ""
	if _, huge := map[string]bool{"2MB": true, "1GB": true}[h.Setup.HugePages]; huge { // out of another pool
		need = uint64(h.Setup.Buffer)
		pooled = "; the segment comes from huge pages"
	}
	// Connections, indexes and the runtime need room beside the pools.
	const beside = 8 // percent
	switch {
	case need > have:
		f.fail(fmt.Sprintf("the pools take %s, available are %s (machine and cgroup)%s", bytesText(need), bytesText(have), pooled), "lower global_segment_size or local_buffer_size, raise the limit of the container, or free memory")
	case need > have/100*(100-beside):
		f.warn(fmt.Sprintf("the pools take %s of %s available (machine and cgroup)%s", bytesText(need), bytesText(have), pooled), fmt.Sprintf("leave %d%% for the node itself and the page cache: lower global_segment_size", beside))
	default:
		f.pass("the pools take %s of %s available (machine and cgroup)%s", bytesText(need), bytesText(have), pooled)
	}
	h.swap(&f)
	h.overcommit(&f, need)
	return f.result()
}

// swap: pool memory that RDMA does not pin can be swapped out.
func (h *Host) swap(f *findings) {
	total, ok := h.kilobytes("proc/meminfo", "SwapTotal")
	swappiness, err := h.number("proc/sys/vm/swappiness")
	if !ok || total == 0 || err != nil || h.Setup.Segment == 0 {
		return
	}
	const calm = 10
	if swappiness > calm {
		f.warn(fmt.Sprintf("%s of swap, vm.swappiness %d", bytesText(total), swappiness), "objects that lie unread are swapped out and slow to come back: sysctl vm.swappiness=1, or swapoff -a")
	}
}

// overcommit: with strict accounting the kernel refuses what it cannot back.
func (h *Host) overcommit(f *findings, need uint64) {
	mode, err := h.sysctl("vm/overcommit_memory")
	if err != nil || mode != "2" {
		return
	}
	limit, ok1 := h.kilobytes("proc/meminfo", "CommitLimit")
	used, ok2 := h.kilobytes("proc/meminfo", "Committed_AS")
	if !ok1 || !ok2 {
		return
	}
	left := limit - min(used, limit)
	const advice = "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio"
	if need > left {
		f.fail(fmt.Sprintf("vm.overcommit_memory is 2 and %s are left of the commit limit", bytesText(left)), advice)
	} else {
		f.warn(fmt.Sprintf("vm.overcommit_memory is 2, %s are left of the commit limit", bytesText(left)), "address space counts as well, and WebAssembly policies reserve much: "+advice)
	}
}

// checkNUMA: nodes, where the adapters sit, and where the segment and this process are bound to.
func checkNUMA(_ context.Context, h *Host) Result {
	var f findings
	text, err := h.text("sys/devices/system/node/online")
	if err != nil {
		f.pass("this kernel shows no NUMA nodes")
		return f.result()
	}
	nodes, err := parseList(text)
	if err == nil && len(nodes) > maxNodes {
		err = fmt.Errorf("%.60q are more than the kernel has", text)
	}
	if err != nil {
		f.warn(fmt.Sprintf("list of NUMA nodes: %v", err), "look for errors in dmesg")
		return f.result()
	}
	bound := h.Setup.NUMANode
	f.pass("%s", count(len(nodes), "NUMA node"))
	if bound >= 0 && !slices.Contains(nodes, bound) {
		f.fail(fmt.Sprintf("segment.numa_node is %d, this machine has %s", bound, text), "set segment.numa_node to one of them, or to -1 for any")
		return f.result()
	}
	if len(nodes) < 2 {
		return f.result()
	}
	near := h.adapters(&f)
	if bound >= 0 && len(near) > 0 && !slices.Contains(near, bound) {
		f.warn(fmt.Sprintf("the segment is bound to node %d", bound), fmt.Sprintf("no adapter sits there: set segment.numa_node to %d, or use a device of node %d", near[0], bound))
	}
	h.binding(&f, nodes, near)
	if v, err := h.sysctl("vm/zone_reclaim_mode"); err == nil && v != "0" {
		f.warn("vm.zone_reclaim_mode is "+v, "sysctl vm.zone_reclaim_mode=0, else memory of other nodes is not used before caches are dropped")
	}
	return f.result()
}

// adapters notes where the RDMA adapters in use sit and returns their nodes.
func (h *Host) adapters(f *findings) (near []int) {
	for _, p := range h.activePorts() {
		switch {
		case p.dev.Software():
		case p.dev.NUMA < 0:
			f.warn(p.dev.Name+": node not known", p.dev.Name+": the firmware does not tell the node of this slot, so it is used from both: update the BIOS, or bind by hand")
		default:
			f.pass("%s on node %d", p.dev.Name, p.dev.NUMA)
			if !slices.Contains(near, p.dev.NUMA) {
				near = append(near, p.dev.NUMA)
			}
		}
	}
	return near
}

// binding compares the processors and memory that this process may use with the adapters' nodes.
func (h *Host) binding(f *findings, nodes, near []int) {
	cpus, err1 := parseList(h.status("Cpus_allowed_list"))
	mems, err2 := parseList(h.status("Mems_allowed_list"))
	if err1 != nil || err2 != nil {
		return
	}
	allowed := map[int]bool{}
	for _, c := range cpus {
		allowed[c] = true
	}
	var run []int // nodes with a processor for this process
	for _, n := range nodes {
		text, err := h.text(path.Join("sys/devices/system/node", "node"+strconv.Itoa(n), "cpulist"))
		own, perr := parseList(text)
		if err != nil || perr != nil {
			continue
		}
		if slices.ContainsFunc(own, func(c int) bool { return allowed[c] }) {
			run = append(run, n)
		}
	}
	if len(run) > 0 && len(run) < len(nodes) {
		seen := fmt.Sprintf("this process may run on node %s only", joinInts(run))
		for _, n := range near {
			if !slices.Contains(run, n) {
				f.warn(seen, fmt.Sprintf("an adapter sits on node %d: let the node run there too (taskset, cpuset of the container)", n))
				return
			}
		}
		f.pass("%s", seen)
	}
	if b := h.Setup.NUMANode; b >= 0 && !slices.Contains(mems, b) {
		f.fail(fmt.Sprintf("this process may not take memory of node %d", b), "widen cpuset.mems of the container, or change segment.numa_node")
	}
}

func joinInts(v []int) string {
	var out []string
	for _, n := range v {
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ",")
}

// maxNodes is the kernel's limit on NUMA nodes.
const maxNodes = 1024

// maxListed bounds a list of processors or nodes.
const maxListed = 1 << 16

// parseList reads the kernel's form of lists: "0-3,8,10-11"; an empty one is no error.
func parseList(text string) ([]int, error) {
	var out []int
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		lo, hi, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			hi = lo
		}
		a, err1 := strconv.Atoi(lo)
		b, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil || a < 0 || b < a || b >= maxListed || len(out)+b-a >= maxListed {
			return nil, fmt.Errorf("%.60q is not a list such as 0-3,8", text)
		}
		for n := a; n <= b; n++ {
			out = append(out, n)
		}
	}
	return out, nil
}

// count writes a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
