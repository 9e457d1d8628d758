package doctor

import (
	"errors"
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/core/units"
)

func TestHugePages(t *testing.T) {
	pages := func(size string, node int) func(*Host) {
		return func(h *Host) { h.Setup.HugePages, h.Setup.NUMANode = size, node }
	}
	try(t, checkHugePages, []situation{
		{"off", none, nil, Pass, []string{"off (2MB: 32768 of 32768 free, 1GB: 0 of 0 free)"}, nil},
		{"off for much memory over RDMA", roce, nil, Warn, []string{"off for a segment of 64GB"}, []string{"segment.huge_pages to 2MB or 1GB"}},
		{"enough", roce, pages("2MB", -1), Pass, []string{"needs 32768 pages of 2MB"}, nil},
		{"reserved by others", roce, func(h *Host) {
			pages("2MB", -1)(h)
			h.put("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "100")
		}, Fail, []string{"32668 of 32768 free"}, []string{"raise vm.nr_hugepages by 100"}},
		{"a rest of a page", roce, func(h *Host) { pages("2MB", -1)(h); h.Setup.Segment++ }, Fail, []string{"needs 32769 pages"}, nil},
		{"of one node", roce, pages("2MB", 1), Fail, []string{"16384 of 16384 free"}, []string{"on node 1 by 16384"}},
		{"1 GB", roce, pages("1GB", -1), Fail, []string{"needs 64 pages of 1GB"}, []string{"nr_hugepages of the pool"}},
		{"a kernel without", none, func(h *Host) {
			pages("1GB", -1)(h)
			for name := range h.tree() {
				if len(name) > 24 && name[:24] == "sys/kernel/mm/hugepages/" {
					delete(h.tree(), name)
				}
			}
		}, Fail, []string{"this kernel has no huge pages"}, []string{"hugepagesz=1GB"}},
		{"nonsense", none, func(h *Host) {
			pages("2MB", -1)(h)
			h.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "many")
		}, Fail, nil, nil},
	})
}

func TestMemory(t *testing.T) {
	try(t, checkMemory, []situation{
		{"enough", none, nil, Pass, []string{"take 65GB of 470GB"}, nil},
		{"too little", none, func(h *Host) { h.Setup.Segment = 500 * units.GiB }, Fail, []string{"take 501GB, available are 470GB"}, []string{"global_segment_size"}},
		{"scarce", none, func(h *Host) { h.Setup.Segment = 450 * units.GiB }, Warn, nil, []string{"leave 8%"}},
		{"out of huge pages", none, func(h *Host) { h.Setup.Segment, h.Setup.HugePages = 500*units.GiB, "1GB" }, Pass, []string{"comes from huge pages"}, nil},
		{"not known", none, func(h *Host) { h.Kernel.Available = func() (uint64, error) { return 0, errors.New("no meminfo") } }, Warn, []string{"no meminfo"}, nil},
		{"swap", none, func(h *Host) { h.put("proc/meminfo", "SwapTotal:       8388604 kB\n") }, Warn, []string{"7.9GB of swap, vm.swappiness 60"}, []string{"vm.swappiness=1"}},
		{"swap, but calm", none, func(h *Host) {
			h.put("proc/meminfo", "SwapTotal:       8388604 kB\n")
			h.put("proc/sys/vm/swappiness", "1")
		}, Pass, nil, nil},
		{"strict accounting", none, func(h *Host) { h.put("proc/sys/vm/overcommit_memory", "2") }, Warn, []string{"240.2GB are left of the commit limit"}, []string{"vm.overcommit_memory=0"}},
		{"strict accounting, too little", none, func(h *Host) {
			h.put("proc/sys/vm/overcommit_memory", "2")
			h.Setup.Segment = 300 * units.GiB
		}, Fail, nil, []string{"overcommit_ratio"}},
		{"meminfo of nonsense", none, func(h *Host) {
			h.put("proc/sys/vm/overcommit_memory", "2")
			h.put("proc/meminfo", "SwapTotal: lots kB\nCommitLimit: -1 kB\n:::\n")
		}, Pass, nil, nil},
	})
}

func TestNUMA(t *testing.T) {
	try(t, checkNUMA, []situation{
		{"adapters on both nodes", roce, nil, Pass, []string{"2 NUMA nodes", "mlx5_0 on node 0", "mlx5_1 on node 1"}, nil},
		{"none", none, nil, Pass, []string{"2 NUMA nodes"}, nil},
		{"one node", roce, func(h *Host) { h.put("sys/devices/system/node/online", "0") }, Pass, []string{"1 NUMA node"}, nil},
		{"no nodes shown", none, func(h *Host) { delete(h.tree(), "sys/devices/system/node/online") }, Pass, []string{"shows no NUMA nodes"}, nil},
		{"nonsense", none, func(h *Host) { h.put("sys/devices/system/node/online", "1-0") }, Warn, []string{"is not a list"}, nil},
		{"a node that is not there", roce, func(h *Host) { h.Setup.NUMANode = 4 }, Fail, []string{"segment.numa_node is 4, this machine has 0-1"}, nil},
		{"segment away from the adapter", roce, func(h *Host) { h.Setup.NUMANode = 1; h.Setup.RDMA.Devices = []string{"mlx5_0"} }, Warn, []string{"bound to node 1"}, []string{"set segment.numa_node to 0"}},
		{"segment at the adapter", roce, func(h *Host) { h.Setup.NUMANode = 0; h.Setup.RDMA.Devices = []string{"mlx5_0"} }, Pass, nil, nil},
		{"node of a slot not told", defects, nil, Warn, []string{"mlx5_1: node not known"}, []string{"firmware"}},
		{"bound to the other node's processors", roce, func(h *Host) {
			h.put("proc/self/status", "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0-1\n")
			h.Setup.RDMA.Devices = []string{"mlx5_1"}
		}, Warn, []string{"may run on node 0 only"}, []string{"an adapter sits on node 1"}},
		{"bound to the adapter's processors", roce, func(h *Host) {
			h.put("proc/self/status", "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0-1\n")
			h.Setup.RDMA.Devices = []string{"mlx5_0"}
		}, Pass, []string{"may run on node 0 only"}, nil},
		{"memory of the node forbidden", roce, func(h *Host) {
			h.put("proc/self/status", "Cpus_allowed_list:\t0-63\nMems_allowed_list:\t0\n")
			h.Setup.NUMANode = 1
		}, Fail, []string{"may not take memory of node 1"}, []string{"cpuset.mems"}},
		{"zone reclaim", none, func(h *Host) { h.put("proc/sys/vm/zone_reclaim_mode", "1") }, Warn, []string{"vm.zone_reclaim_mode is 1"}, nil},
	})
}

func TestParseList(t *testing.T) {
	for text, want := range map[string][]int{"0-3,8": {0, 1, 2, 3, 8}, "5": {5}, "": nil, " 1 , 2-2 ": {1, 2}} {
		if got, err := parseList(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"x", "3-1", "-1", "1-", "0-99999999", ",", "0-65535,0-65535"} {
		if got, err := parseList(text); err == nil {
			t.Errorf("%q: %d numbers", text, len(got))
		}
	}
}
