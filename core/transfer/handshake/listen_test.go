package handshake

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func TestSplitName(t *testing.T) {
	for _, c := range []struct {
		name, host string
		port       int
		has, bad   bool
	}{
		{"10.0.0.1:15428", "10.0.0.1", 15428, true, false},
		{"10.0.0.1", "10.0.0.1", 12001, false, false},
		{"node-3:1", "node-3", 1, true, false},
		{"[::1]:9000", "::1", 9000, true, false},
		{"[2001:db8::1]:9000", "2001:db8::1", 9000, true, false},
		{"[::1]", "::1", 12001, false, false},
		{"::1", "::1", 12001, false, false},
		{"2001:db8::1", "2001:db8::1", 12001, false, false},
		{"fe80::1%eth0", "fe80::1%eth0", 12001, false, false},
		{"fe80::1%eth0:15000", "fe80::1%eth0", 15000, true, false},
		{"[fe80::1%eth0]:15000", "fe80::1%eth0", 15000, true, false},
		{":50051", "", 50051, true, false},
		{"", "", 12001, false, false},
		{"host:", "", 0, false, true},
		{"host:99999", "", 0, false, true},
		{"host:0", "", 0, false, true},
		{"host:-1", "", 0, false, true},
		{"host:x", "", 0, false, true},
		{"[::1", "", 0, false, true},
		{"[::1]x", "", 0, false, true},
		{"[10.0.0.1]:1", "", 0, false, true},
		{"a:b:c", "", 0, false, true},
	} {
		host, port, has, err := SplitName(c.name)
		if (err != nil) != c.bad || !c.bad && (host != c.host || port != c.port || has != c.has) {
			t.Errorf("%q: %q, %d, %v, %v", c.name, host, port, has, err)
		}
		if err == nil && has {
			h, p, _, err := SplitName(JoinName(host, port))
			if err != nil || h != host || p != port {
				t.Errorf("%q does not survive JoinName: %q %d %v", c.name, h, p, err)
			}
		}
	}
}

func TestListen(t *testing.T) {
	lo := testenv.FreePorts(t, 3)
	r := PortRange{Min: lo, Max: lo + 2}
	seen := map[string]bool{}
	for range 3 {
		ln, err := Listen(t.Context(), "127.0.0.1", r)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		seen[ln.Addr().String()] = true
	}
	if len(seen) != 3 {
		t.Fatalf("%v", seen)
	}
	_, err := Listen(t.Context(), "127.0.0.1", r)
	if !errors.Is(err, ErrNoPort) || !strings.Contains(err.Error(), r.String()) || !strings.Contains(err.Error(), "MC_MIN_RPC_PORT") {
		t.Errorf("got %v", err)
	}
	if _, err := Listen(t.Context(), "203.0.113.7", r); errors.Is(err, ErrNoPort) || err == nil || !strings.Contains(err.Error(), "bind_address") {
		t.Errorf("foreign address: %v", err)
	}
	if ln, err := Listen(t.Context(), "::1", DefaultPorts); err != nil {
		t.Logf("no IPv6 loopback here: %v", err)
	} else {
		ln.Close()
	}
}

// 32 engines that start at the same moment on one host, two listeners each, find ports.
func TestListenAtOnce(t *testing.T) {
	lo := testenv.FreePorts(t, 80)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Listener
	for range 64 {
		wg.Go(func() {
			ln, err := Listen(t.Context(), "127.0.0.1", PortRange{Min: lo, Max: lo + 79})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			open = append(open, ln)
			mu.Unlock()
		})
	}
	wg.Wait()
	for _, ln := range open {
		ln.Close()
	}
	if len(open) != 64 {
		t.Fatalf("%d listeners", len(open))
	}
}

func TestPortRange(t *testing.T) {
	for r, ok := range map[PortRange]bool{DefaultPorts: true, {Min: 1024, Max: 32767}: true, {Min: 61000, Max: 65535}: true, {Min: 16002, Max: 16002}: true,
		{Min: 40000, Max: 40100}: false, {Min: 1023, Max: 2000}: false, {Min: 17000, Max: 15000}: false, {Min: 15000, Max: 65536}: false, {Min: 32767, Max: 32768}: false} {
		if err := r.Validate(); (err == nil) != ok {
			t.Errorf("%v: %v", r, err)
		}
	}
}
