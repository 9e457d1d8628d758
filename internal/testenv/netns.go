package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

// NetPair is two network namespaces of the test's own, A and B, joined by a virtual cable. Nothing
// else is reachable from them and the host's network is not touched.
type NetPair struct {
	A, B Netns

	t testing.TB
}

// Netns is one end of a [NetPair].
type Netns struct {
	Name string // for "ip netns exec"
	Addr string // its address on the cable
	dev  string
}

var netnsCount atomic.Uint32

// NetNS creates a pair of namespaces with 10.99.0.1 (A) and 10.99.0.2 (B); loopback is up in both.
// It needs root and iproute2: without the rights the test is skipped, also under CI=true, because no
// set-up can provide them.
func NetNS(t testing.TB) *NetPair {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		MustNotSkip(t, "ip (package iproute2): %v", err)
	}
	id := fmt.Sprintf("mck%d-%d", os.Getpid(), netnsCount.Add(1))
	p := &NetPair{
		A: Netns{Name: id + "a", Addr: "10.99.0.1", dev: "cable"},
		B: Netns{Name: id + "b", Addr: "10.99.0.2", dev: "cable"},
		t: t,
	}
	for _, n := range []Netns{p.A, p.B} {
		if out, err := exec.Command("ip", "netns", "add", n.Name).CombinedOutput(); err != nil {
			t.Skipf("skipped: network namespaces: %v: %s", err, out)
		}
		t.Cleanup(func() { exec.Command("ip", "netns", "del", n.Name).Run() })
		// Entering one needs more rights than making one (not in every container or chroot).
		if out, err := exec.Command("ip", "netns", "exec", n.Name, "true").CombinedOutput(); err != nil {
			t.Skipf("skipped: network namespaces: %v: %s", err, out)
		}
	}
	ip(t, "link", "add", p.A.dev, "netns", p.A.Name, "type", "veth", "peer", "name", p.B.dev, "netns", p.B.Name)
	for _, n := range []Netns{p.A, p.B} {
		ip(t, "-n", n.Name, "link", "set", "lo", "up")
		ip(t, "-n", n.Name, "addr", "add", n.Addr+"/24", "dev", n.dev)
		ip(t, "-n", n.Name, "link", "set", n.dev, "up")
	}
	// Fixed neighbours: a blackholed peer must be silent, not answer "no such neighbour".
	ip(t, "-n", p.A.Name, "neigh", "replace", p.B.Addr, "lladdr", p.mac(p.B), "nud", "permanent", "dev", p.A.dev)
	ip(t, "-n", p.B.Name, "neigh", "replace", p.A.Addr, "lladdr", p.mac(p.A), "nud", "permanent", "dev", p.B.dev)
	return p
}

func (p *NetPair) mac(n Netns) string {
	out := ip(p.t, "-n", n.Name, "-br", "link", "show", "dev", n.dev)
	f := strings.Fields(out)
	if len(f) < 3 {
		p.t.Fatalf("netns: no link address in %q", out)
	}
	return f[2]
}

// Command is a command to be run inside the namespace.
func (n Netns) Command(argv ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", n.Name}, argv...)...)
}

// Blackhole makes B silent: what A sends is dropped without any answer, as by a host that lost its
// power or a route that swallows packets. Heal undoes it.
func (p *NetPair) Blackhole() {
	p.t.Helper()
	ip(p.t, "-n", p.A.Name, "neigh", "replace", p.B.Addr, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", p.A.dev)
	ip(p.t, "-n", p.B.Name, "neigh", "replace", p.A.Addr, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", p.B.dev)
}

// Heal joins A and B again after Blackhole.
func (p *NetPair) Heal() {
	p.t.Helper()
	ip(p.t, "-n", p.A.Name, "neigh", "replace", p.B.Addr, "lladdr", p.mac(p.B), "nud", "permanent", "dev", p.A.dev)
	ip(p.t, "-n", p.B.Name, "neigh", "replace", p.A.Addr, "lladdr", p.mac(p.A), "nud", "permanent", "dev", p.B.dev)
}

func ip(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
