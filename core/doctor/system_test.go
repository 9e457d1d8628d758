package doctor

import (
	"errors"
	"io/fs"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/units"
)

func TestFiles(t *testing.T) {
	limit := func(v uint64) func(*Host) { return func(h *Host) { h.rlimit(v) } }
	try(t, checkFiles, []situation{
		{"unlimited", none, nil, Pass, []string{"unlimited"}, nil},
		{"many", none, limit(1 << 20), Pass, []string{"1048576"}, nil},
		{"some", none, limit(20000), Warn, []string{"20000"}, []string{"LimitNOFILE"}},
		{"few", none, limit(256), Fail, []string{"256"}, []string{"ulimit -n 1048576"}},
		{"not readable", none, func(h *Host) { h.Kernel.Rlimit = func(int) (uint64, error) { return 0, errors.New("EPERM") } }, Warn, []string{"EPERM"}, nil},
		{"the machine is full", none, func(h *Host) { h.put("proc/sys/fs/file-nr", "99000\t0\t100000\n") }, Fail, []string{"99000 of 100000"}, []string{"fs.file-max"}},
		{"nonsense", none, func(h *Host) { h.put("proc/sys/fs/file-nr", "a b c") }, Pass, nil, nil},
	})
}

func TestClock(t *testing.T) {
	clock := func(x unix.Timex, err error) func(*Host) {
		return func(h *Host) { h.Kernel.Adjtimex = func() (unix.Timex, error) { return x, err } }
	}
	source := func(s string) func(*Host) {
		return func(h *Host) { h.put("sys/devices/system/clocksource/clocksource0/current_clocksource", s) }
	}
	try(t, checkClock, []situation{
		{"synchronised", none, nil, Pass, []string{"off by at most 1.5ms", "clock source tsc"}, nil},
		{"free running", none, clock(unix.Timex{Status: unix.STA_UNSYNC, Maxerror: 16000000}, nil), Warn, []string{"not synchronised"}, []string{"chronyd"}},
		{"far off", none, clock(unix.Timex{Maxerror: 2500000}, nil), Warn, []string{"off by 2.5s"}, nil},
		{"forbidden", none, clock(unix.Timex{}, unix.EPERM), Warn, []string{"operation not permitted"}, nil},
		{"a slow source", none, source("hpet"), Warn, []string{"clock source is hpet"}, []string{"tsc"}},
		{"no source shown", none, func(h *Host) {
			delete(h.tree(), "sys/devices/system/clocksource/clocksource0/current_clocksource")
		}, Pass, nil, nil},
	})
}

func TestKernel(t *testing.T) {
	set := func(name, value string) func(*Host) { return func(h *Host) { h.put("proc/sys/"+name, value) } }
	try(t, checkKernel, []situation{
		{"tuned", none, nil, Pass, []string{"net.core.wmem_max 16777216", "net.ipv4.tcp_rmem 4096 131072 16777216", "vm.max_map_count 262144"}, nil},
		{"old default of send buffers", none, set("net/core/wmem_max", "212992"), Warn, []string{"net.core.wmem_max is 212992, less than 262144"}, []string{"sysctl -w net.core.wmem_max=16777216"}},
		{"less than the configuration asks for", none, func(h *Host) { h.Setup.ReceiveBuffer = 64 * units.MiB }, Warn, []string{"net.core.rmem_max is 16777216, less than 67108864"}, []string{"net.core.rmem_max=67108864"}},
		{"small windows", none, set("net/ipv4/tcp_rmem", "4096 87380 131072"), Warn, []string{"tcp_rmem is 4096 87380 131072"}, []string{"'4096 131072 16777216'"}},
		{"no scaling", none, set("net/ipv4/tcp_window_scaling", "0"), Warn, nil, []string{"tcp_window_scaling=1"}},
		{"short backlog", none, set("net/core/somaxconn", "128"), Warn, []string{"somaxconn is 128"}, nil},
		{"few maps", none, set("vm/max_map_count", "1000"), Warn, nil, []string{"vm.max_map_count=262144"}},
		{"two fields instead of three", none, set("net/ipv4/tcp_wmem", "4096 16384"), Warn, []string{"net.ipv4.tcp_wmem cannot be read"}, nil},
		{"nonsense", none, set("net/core/rmem_max", "plenty"), Warn, []string{"not a number"}, nil},
		{"a container without net.core", none, func(h *Host) {
			delete(h.tree(), "proc/sys/net/core/wmem_max")
			delete(h.tree(), "proc/sys/net/core/rmem_max")
		}, Pass, []string{"somaxconn"}, nil},
		{"no /proc", none, func(h *Host) { h.FS = fstest.MapFS{} }, Warn, []string{"no kernel parameters"}, nil},
	})
}

func TestOutgoing(t *testing.T) {
	wide := func(reserved string) func(*Host) {
		return func(h *Host) {
			h.put("proc/sys/net/ipv4/ip_local_port_range", "1024\t65535")
			h.put("proc/sys/net/ipv4/ip_local_reserved_ports", reserved)
		}
	}
	const key = "proc/sys/net/ipv4/ip_local_port_range"
	try(t, checkOutgoing, []situation{
		{"apart", none, nil, Pass, []string{"32768-60999"}, nil},
		{"over all ports", none, wide(""), Warn, []string{"transfer.rpc_port_min to rpc_port_max (15000-17000) lies in 1024-65535", "admin.listen (9004)"}, []string{"ip_local_reserved_ports=15000-17000"}},
		{"over all ports, reserved", none, wide("9004,15000-17000"), Pass, nil, nil},
		{"over all ports, half reserved", none, wide("9004,15000-16000"), Warn, nil, nil},
		{"touching the last port", none, func(h *Host) { h.put(key, "17000 60999") }, Warn, nil, nil},
		{"next to it", none, func(h *Host) { h.put(key, "17001 60999") }, Pass, nil, nil},
		{"nonsense", none, func(h *Host) { h.put(key, "60999 32768") }, Warn, []string{"not two ports"}, nil},
		{"not shown", none, func(h *Host) { delete(h.tree(), key) }, "", nil, nil},
	})
}

func TestPorts(t *testing.T) {
	listen := func(ls ...Listener) func(*Host) { return func(h *Host) { h.Setup.Listen = ls } }
	try(t, checkPorts, []situation{
		{"a node runs already", none, nil, Warn, []string{"127.0.0.1:9004 is in use by mooncake (pid 777)", "15000-17000: 2001 free"}, []string{"a node is running already"}},
		{"free", none, listen(Listener{"admin.listen", "127.0.0.1:9005"}, Listener{"master.listen", ":50051"}), Pass, []string{"free: admin.listen 127.0.0.1:9005, master.listen :50051"}, nil},
		{"taken by another on all addresses", none, listen(Listener{"metadata_http.listen", "127.0.0.1:8080"}), Fail, []string{"in use by nginx (pid 4242)"}, []string{"change metadata_http.listen"}},
		{"another address of the same port", none, listen(Listener{"admin.listen", "10.10.1.11:9004"}), Pass, nil, nil},
		{"all addresses of a taken port", none, listen(Listener{"admin.listen", "0.0.0.0:9004"}), Warn, nil, nil},
		{"of a process out of sight", none, func(h *Host) {
			listen(Listener{"admin.listen", ":22"})(h)
			h.put("proc/self/status", "CapEff:\t0000000000000400\n")
		}, Fail, []string{"not visible"}, []string{"ss -ltnp"}},
		{"any port", none, listen(Listener{"admin.listen", "127.0.0.1:0"}), Pass, nil, nil},
		{"an address of another machine", none, listen(Listener{"master.listen", "10.9.9.9:50051"}), Fail, []string{"10.9.9.9 is not an address of this machine"}, nil},
		{"a port of root", none, listen(Listener{"master.listen", ":80"}), Fail, []string{"ports below 1024 are for root"}, []string{"CAP_NET_BIND_SERVICE"}},
		{"a low port that everybody may use", none, func(h *Host) {
			listen(Listener{"master.listen", ":80"})(h)
			h.put("proc/sys/net/ipv4/ip_unprivileged_port_start", "80")
		}, Pass, nil, nil},
		{"twice the same", none, listen(Listener{"admin.listen", ":9100"}, Listener{"master.admin", "127.0.0.1:9100"}), Fail, []string{"admin.listen and master.admin are both port 9100"}, nil},
		{"no address", none, listen(Listener{"admin.listen", "9100"}), Fail, []string{"not host:port"}, nil},
		{"a full range", none, func(h *Host) {
			listen()(h)
			h.Setup.Ranges = []Range{{"transports.tcp.port_range", units.PortRange{Min: 8080, Max: 8080}, 1}}
		}, Fail, []string{"8080-8080: 0 free"}, []string{"the node needs 1"}},
		{"nothing to listen on", none, func(h *Host) { listen()(h); h.Setup.Ranges = nil }, "", nil, nil},
		{"no /proc", none, func(h *Host) { h.FS = fstest.MapFS{} }, Warn, []string{"cannot be read"}, nil},
		{"sockets of nonsense", none, func(h *Host) {
			listen(Listener{"admin.listen", ":9100"})(h)
			h.put("proc/net/tcp", "garbage\n 0: zz:zz 0:0 0A 0 0 0 0 0 1\n1: 0:238C 0:0 0A 0 0 0 0 0 1\n")
			h.tree()["proc/net/tcp6"] = &fstest.MapFile{Mode: fs.ModeDir}
		}, Pass, nil, nil},
	})
}

func TestParseProcAddr(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F90": "127.0.0.1:8080", "00000000:0016": "0.0.0.0:22",
		"00000000000000000000000001000000:1F90": "[::1]:8080", "0000000000000000FFFF00000100007F:0050": "127.0.0.1:80",
	} {
		if a, err := parseProcAddr(text); err != nil || a.String() != want {
			t.Errorf("%s: %v, %v; want %s", text, a, err, want)
		}
	}
	for _, text := range []string{"", ":", "0100007F", "0100007F:10000", "01007F:0050", "zz00007F:0050", "0100007F:"} {
		if a, err := parseProcAddr(text); err == nil {
			t.Errorf("%q is %v", text, a)
		}
	}
}
