package versions

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// writeProc makes a /proc in which each connection belongs to a process.
func writeProc(t *testing.T, owners map[netip.AddrPort]int) string {
	t.Helper()
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	n := 0
	for a, pid := range owners {
		n++
		ip := a.Addr().As4()
		inode := 1000 + n
		table += fmt.Sprintf("%4d: %02X%02X%02X%02X:%04X 0100007F:C383 01 00000000:00000000 00:00000000 00000000     0        0 %d 1 0000000000000000\n",
			n, ip[3], ip[2], ip[1], ip[0], a.Port(), inode)
		fd := filepath.Join(proc, fmt.Sprint(pid), "fd")
		if err := os.MkdirAll(fd, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(fmt.Sprintf("socket:[%d]", inode), filepath.Join(fd, fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(proc, "net", "tcp"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	return proc
}

// Two clients of different versions on the master's host: a fresh connection that begins with a read is known by
// its process.
func TestProcessTells(t *testing.T) {
	const local = "127.0.0.1"
	w := newWorld(t)
	one, two := w.dial(wire.V0_3_12, local), w.dial(wire.V0_3_13, local)
	one.must(wire.PutStart, id(1))
	two.must(wire.PutStart, id(2))
	fresh, other, stranger := w.dial(wire.V0_3_12, local), w.dial(wire.V0_3_13, local), w.dial(wire.V0_3_12, local)
	w.proc = writeProc(t, map[netip.AddrPort]int{one.addr: 11, fresh.addr: 11, two.addr: 22, other.addr: 22})
	for _, c := range []*conn{fresh, other, stranger} {
		set, ambiguous := wire.GetReplicaList.Candidates(0x7cf91ed8)
		if c.resolve(c.caller, wire.GetReplicaList.ID(), none, set, ambiguous); !c.undecided.Load() {
			t.Fatal("guessed without a look")
		}
		w.look(c.caller)
	}
	fresh.must(wire.GetReplicaList, none)
	other.must(wire.GetReplicaList, none)
	if cl := fresh.client.Load(); cl == nil || cl.id != id(1) {
		t.Error("the fresh connection has not joined its client")
	}
	if stranger.ask(wire.GetReplicaList, none) {
		t.Error("a connection of an unknown process was not guessed as the newest")
	}
	if w.made.Load() != 1 || w.sameProcess.Load() != 2 {
		t.Errorf("%d guesses made, %d spared", w.made.Load(), w.sameProcess.Load())
	}
}

// A proxy on the master's host carries clients of several versions: its process tells nothing.
func TestProxyTellsNothing(t *testing.T) {
	const local = "127.0.0.1"
	w := newWorld(t)
	one, two := w.dial(wire.V0_3_12, local), w.dial(wire.V0_3_13, local)
	one.must(wire.PutStart, id(1))
	two.must(wire.PutStart, id(2))
	fresh := w.dial(wire.V0_3_13, local)
	w.proc = writeProc(t, map[netip.AddrPort]int{one.addr: 11, fresh.addr: 11, two.addr: 11})
	w.look(fresh.caller)
	fresh.must(wire.GetReplicaList, none)
	if fresh.client.Load() != nil || w.sameProcess.Load() != 0 {
		t.Error("learnt something from a proxy")
	}
}

func TestOwnAddresses(t *testing.T) {
	m := New(nil)
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range addrs {
		ip, _ := netip.AddrFromSlice(x.(*net.IPNet).IP)
		if !m.ownAddress(ip.Unmap()) {
			t.Errorf("%s is not ours", ip)
		}
	}
	if m.ownAddress(netip.MustParseAddr("192.0.2.1")) || !m.ownAddress(netip.MustParseAddr("127.9.9.9")) {
		t.Error("a documentation address is ours, or loopback is not")
	}
}

// The real /proc: a connection of this test belongs to this process.
func TestRealProcess(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp6"} {
		address := map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"}[network]
		ln, err := net.Listen(network, address)
		if err != nil {
			t.Logf("skipped %s: %v", network, err)
			continue
		}
		defer ln.Close()
		c, err := net.Dial(network, ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		m := New(nil)
		x := m.open(netip.MustParseAddrPort(c.LocalAddr().String()), 0, false)
		if !x.host.local {
			t.Error("loopback is not this host")
		}
		m.findProcesses(x.host)
		if pid := x.pid.Load(); pid != int64(os.Getpid()) {
			t.Errorf("%s: process %d, want %d", network, pid, os.Getpid())
		}
	}
}
