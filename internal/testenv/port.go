package testenv

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// Ports are handed out below the ephemeral range (32768 and up) and outside upstream's own range
// (15000 to 17000), so that neither outgoing connections nor engines under test take a port between
// FreePort and its use. Each test process starts somewhere else.
const (
	portLow  = 20000
	portHigh = 32000
)

var nextPort atomic.Uint32

func init() { nextPort.Store(uint32(os.Getpid()) * 61) }

// FreePort returns a TCP port that nobody listens on, on 127.0.0.1 and on all addresses. It is not
// handed out again by this process.
func FreePort(t testing.TB) int {
	t.Helper()
	for range portHigh - portLow {
		p := portLow + int(nextPort.Add(1)%(portHigh-portLow))
		if portFree(p) {
			return p
		}
	}
	t.Fatalf("no free port in %d-%d", portLow, portHigh)
	return 0
}

// FreePorts returns n consecutive free ports and gives the first.
func FreePorts(t testing.TB, n int) int {
	t.Helper()
next:
	for range portHigh - portLow {
		p := portLow + int((nextPort.Add(uint32(n))-uint32(n)+1)%(portHigh-portLow))
		for i := range n {
			if p+i >= portHigh || !portFree(p+i) {
				continue next
			}
		}
		return p
	}
	t.Fatalf("no %d consecutive free ports in %d-%d", n, portLow, portHigh)
	return 0
}

func portFree(p int) bool {
	// The wildcard listener collides with every specific one, also with IPv6's.
	ln, err := net.Listen("tcp", fmt.Sprintf(":%d", p))
	if err != nil {
		return false
	}
	return ln.Close() == nil
}
