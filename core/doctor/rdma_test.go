package doctor

import (
	"errors"
	"testing"

	"github.com/mooncake-agent/mooncake/core/units"
)

func required(h *Host) { h.Setup.RDMA.Wanted, h.Setup.RDMA.Required = true, true }
func unwanted(h *Host) { h.Setup.RDMA.Wanted = false }

func TestDevices(t *testing.T) {
	try(t, checkDevices, []situation{
		{"none and none asked for", none, nil, Pass, []string{"no RDMA devices"}, nil},
		{"none, protocol rdma", none, func(h *Host) { h.Setup.RDMA.Wanted = true }, Warn, []string{"no RDMA devices"}, []string{"will use tcp"}},
		{"none, required", none, required, Fail, []string{"transports.verbs.required"}, []string{"/dev/infiniband"}},
		{"two RoCE ports", roce, required, Pass, []string{"mlx5_0 (MT4125, firmware 22.36.1010) port 1 ACTIVE/LinkUp 100 Gb/sec", "mlx5_1"}, nil},
		{"not asked for", roce, unwanted, Pass, []string{"mlx5_0", "not used"}, nil},
		{"InfiniBand with one cable", ib, nil, Warn, []string{"mlx5_0 (MT4129, firmware 28.38.1002) port 1 ACTIVE", "mlx5_1 (MT4129, firmware 28.38.1002) port 1 DOWN/Polling"}, []string{"mlx5_1: check the cable"}},
		{"the port without cable is left out", ib, func(h *Host) { h.Setup.RDMA.Devices = []string{"mlx5_0"} }, Pass, []string{"mlx5_1 is not used"}, nil},
		{"only the port without cable", ib, func(h *Host) { required(h); h.Setup.RDMA.Devices = []string{"mlx5_1"} }, Fail, []string{"no active port 1"}, nil},
		{"no subnet manager", ib, func(h *Host) {
			h.put("sys/class/infiniband/mlx5_0/ports/1/state", "2: INIT")
		}, Warn, []string{"mlx5_0 (MT4129, firmware 28.38.1002) port 1 INIT/LinkUp"}, []string{"opensm"}},
		{"a device that is not there", roce, func(h *Host) { h.Setup.RDMA.Devices = []string{"mlx5_0", "mlx5_7"} }, Warn, []string{"mlx5_7 is configured but not there"}, []string{"mlx5_0, mlx5_1"}},
		{"... and is required", roce, func(h *Host) { required(h); h.Setup.RDMA.Devices = []string{"mlx5_7"} }, Fail, []string{"no active port"}, nil},
		{"another port", roce, func(h *Host) { h.Setup.RDMA.Port = 2 }, Warn, []string{"has no port 2"}, []string{"MC_IB_PORT"}},
		{"an interface that is down", defects, nil, Warn, []string{"mlx5_2 (MT4119, firmware 16.35.2000) port 1 DOWN/Disabled"}, []string{"ip link set eth4 up"}},
		{"a binary without verbs", roce, func(h *Host) { h.Setup.RDMA.Unavailable = "libibverbs.so.1 not found" }, Warn, []string{"libibverbs.so.1 not found"}, []string{"rdma-core"}},
		{"nonsense", broken, nil, Warn, []string{"files of /sys make no sense", "no active port 1"}, []string{"dmesg"}},
		{"a list that is a file", none, func(h *Host) { h.put("sys/class/infiniband", "") }, Warn, []string{"list RDMA devices"}, nil},
	})
}

func TestLinkLayer(t *testing.T) {
	try(t, checkLinkLayer, []situation{
		{"none", none, nil, "", nil, nil},
		{"RoCE", roce, nil, Pass, []string{"Ethernet (RoCE): mlx5_0/1, mlx5_1/1"}, nil},
		{"InfiniBand", ib, nil, Pass, []string{"InfiniBand: mlx5_0/1"}, nil},
		{"both", roce, func(h *Host) { h.put("sys/class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand") }, Warn, []string{"both link layers"}, []string{"cannot reach each other"}},
		{"unknown", roce, func(h *Host) { h.put("sys/class/infiniband/mlx5_1/ports/1/link_layer", "Pigeon") }, Warn, []string{"not known: mlx5_1/1"}, nil},
		{"a slow port among fast ones", roce, func(h *Host) { h.put("sys/class/infiniband/mlx5_1/ports/1/rate", "25 Gb/sec (1X EDR)") }, Warn, []string{"25 to 100 Gb/s"}, []string{"leave them out"}},
		{"nonsense", broken, nil, "", nil, nil},
	})
}

func TestGID(t *testing.T) {
	try(t, checkGID, []situation{
		{"none", none, nil, "", nil, nil},
		{"RoCE v2 with an address", roce, nil, Pass, []string{"mlx5_0/1: uses entry 3: RoCE v2 10.10.1.11 on ens1f0np0 (private address) of 4", "mlx5_1/1: uses entry 3"}, nil},
		{"InfiniBand", ib, nil, Pass, []string{"mlx5_0/1: uses entry 0: InfiniBand fe80::"}, nil},
		{"only RoCE v1 on one port", defects, nil, Warn, []string{"mlx5_0/1: uses entry 3: RoCE v2 192.168.5.4", "mlx5_1/1: uses entry 0: RoCE v1"}, []string{"mlx5_1/1: RoCE v1 does not cross routers"}},
		{"pinned to the best", roce, func(h *Host) { h.Setup.RDMA.GID = 3 }, Pass, []string{"as configured"}, nil},
		{"pinned to v1", roce, func(h *Host) { h.Setup.RDMA.GID = 0 }, Warn, []string{"entry 0: RoCE v1"}, []string{"entry 3: RoCE v2 10.10.1.11 on ens1f0np0 ranks higher"}},
		{"pinned outside", roce, func(h *Host) { required(h); h.Setup.RDMA.GID = 9 }, Fail, []string{"entry 9 is empty or not in the table"}, []string{"3: RoCE v2 10.10.1.11", "MC_GID_INDEX"}},
		{"only link-local", roce, func(h *Host) {
			for _, i := range []string{"2", "3"} {
				for _, d := range []string{"mlx5_0", "mlx5_1"} {
					delete(h.tree(), "sys/class/infiniband/"+d+"/ports/1/gids/"+i)
				}
			}
		}, Warn, []string{"entry 1: RoCE v2 fe80::bace:f6ff:fe57:3b0"}, []string{"reaches its own subnet only"}},
		{"an empty table", roce, func(h *Host) {
			for _, i := range []string{"0", "1", "2", "3"} {
				h.put("sys/class/infiniband/mlx5_1/ports/1/gids/"+i, "0000:0000:0000:0000:0000:0000:0000:0000")
			}
		}, Warn, []string{"mlx5_1/1: no usable GID"}, []string{"give the interface an IP address"}},
	})
}

func TestMTU(t *testing.T) {
	device := func(mtu int, err error) func(h *Host) {
		return func(h *Host) {
			h.Setup.RDMA.ActiveMTU = func(dev string, port int) (int, error) { return mtu, err }
		}
	}
	try(t, checkMTU, []situation{
		{"none", none, nil, "", nil, nil},
		{"jumbo frames", roce, nil, Pass, []string{"mlx5_0/1: active MTU 4096 (ens1f0np0 has MTU 9000)"}, nil},
		{"one interface at 1500", defects, nil, Warn, []string{"mlx5_0/1: active MTU 4096", "mlx5_1/1: active MTU 1024 (eth3 has MTU 1500)", "ports of this node differ"}, []string{"ip link set eth3 mtu 9000", "MC_MTU"}},
		{"limited by the configuration", roce, func(h *Host) { h.Setup.RDMA.MTU = 1024 }, Pass, []string{"limited to 1024"}, nil},
		{"small, and asked for", defects, func(h *Host) { h.Setup.RDMA.MTU = 1024; h.Setup.RDMA.Devices = []string{"mlx5_1"} }, Pass, []string{"active MTU 1024"}, nil},
		{"InfiniBand without a library", ib, nil, Warn, []string{"does not show that of InfiniBand"}, []string{"ibv_devinfo mlx5_0"}},
		{"InfiniBand, asked", ib, device(4096, nil), Pass, []string{"active MTU 4096 (told by the device)"}, nil},
		{"InfiniBand, small", ib, device(2048, nil), Warn, []string{"active MTU 2048"}, []string{"subnet manager (mtu=5)"}},
		{"RoCE, the device does not answer", roce, device(0, errors.New("EPERM")), Pass, []string{"active MTU 4096 (ens1f0np0"}, nil},
		{"InfiniBand, the device does not answer", ib, device(0, errors.New("EPERM")), Warn, []string{"EPERM"}, nil},
		{"an MTU too small for RDMA", roce, func(h *Host) { h.put("sys/class/net/ens1f0np0/mtu", "300") }, Warn, []string{"ens1f0np0 has MTU 300 is too small"}, nil},
		{"an MTU of nonsense", roce, func(h *Host) { h.put("sys/class/net/ens1f0np0/mtu", "-9000") }, Warn, []string{"MTU of ens1f0np0 cannot be read"}, nil},
	})
}

func TestPCI(t *testing.T) {
	try(t, checkPCI, []situation{
		{"none", none, nil, "", nil, nil},
		{"on, full link", roce, nil, Pass, []string{"mlx5_0: relaxed ordering is on, read requests up to 512 bytes", "mlx5_0: PCI link 16.0 GT/s PCIe x16"}, nil},
		{"off", ib, nil, Warn, []string{"mlx5_0: relaxed ordering is off"}, []string{"BIOS"}},
		{"not root", defects, nil, Pass, []string{"mlx5_0: relaxed ordering not visible (only root"}, nil},
		{"half of the lanes", roce, func(h *Host) { h.put("sys/class/infiniband/mlx5_1/device/current_link_width", "8") }, Warn, []string{"mlx5_1: PCI link runs at 16.0 GT/s PCIe x8 of 16.0 GT/s PCIe x16"}, []string{"slot with all its lanes"}},
		{"a slow link", roce, func(h *Host) { h.put("sys/class/infiniband/mlx5_1/device/current_link_speed", "2.5 GT/s PCIe") }, Warn, []string{"runs at 2.5 GT/s"}, nil},
		{"a device that is gone", roce, func(h *Host) {
			h.put("sys/class/infiniband/mlx5_0/device/config", string(make([]byte, 10)))
		}, Warn, []string{"mlx5_0: relaxed ordering not known"}, []string{"as root"}},
		{"nonsense", broken, func(h *Host) { h.Setup.RDMA.Port = 2 }, Warn, []string{"does not answer"}, nil},
	})
}

func TestMemlock(t *testing.T) {
	try(t, checkMemlock, []situation{
		{"unlimited", roce, nil, Pass, []string{"unlimited"}, nil},
		{"too little for RDMA", roce, func(h *Host) { h.rlimit(64 << 10) }, Fail, []string{"64KB, but RDMA pins 65GB"}, []string{"LimitMEMLOCK=infinity"}},
		{"enough", roce, func(h *Host) { h.rlimit(100 << 30) }, Pass, []string{"100GB, RDMA pins 65GB"}, nil},
		{"no RDMA", none, func(h *Host) { h.rlimit(8 << 20) }, Pass, []string{"8MB; memory is locked for RDMA only"}, nil},
		{"RDMA not wanted", roce, func(h *Host) { unwanted(h); h.rlimit(8 << 20) }, Pass, []string{"not used"}, nil},
		{"a capability", roce, func(h *Host) {
			h.rlimit(64 << 10)
			h.put("proc/self/status", "CapEff:\t0000000000004000\n")
		}, Pass, []string{"CAP_IPC_LOCK"}, nil},
		{"not readable", roce, func(h *Host) {
			h.Kernel.Rlimit = func(int) (uint64, error) { return 0, errors.New("EPERM") }
		}, Warn, []string{"EPERM"}, nil},
		{"pools beyond counting", roce, func(h *Host) { h.rlimit(1 << 40); h.Setup.Segment = units.Size(1<<64 - 1) }, Fail, nil, nil},
	})
}
