package handshake

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"

	"github.com/mooncake-agent/mooncake/core/units"
)

// PortRange is where an engine's listeners live, both ends included.
type PortRange = units.PortRange

// DefaultPorts is upstream's range.
var DefaultPorts = PortRange{Min: 15000, Max: 17000}

// maxListenAttempts is upstream's number of ports tried.
const maxListenAttempts = 500

// ErrNoPort is wrapped by Listen when it found no free port.
var ErrNoPort = errors.New("no free port")

// Listen opens a listener on host ("" = all addresses, IPv4 and IPv6) and a random free port of r, in up
// to 500 attempts, each with another port. Other errors than a port in use end it at once.
func Listen(ctx context.Context, host string, r PortRange) (net.Listener, error) {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	size := r.Max - r.Min + 1
	if size < 1 {
		return nil, r.Validate()
	}
	attempts := min(size, maxListenAttempts)
	// An odd step with no common divisor visits every port once, without a list of them.
	at, step := rand.IntN(size), coprime(size)
	for range attempts {
		port := r.Min + at
		at = (at + step) % size
		ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return ln, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("listen on %s: %w (bind_address must be an address of this machine)", describe(host), err)
		}
	}
	return nil, fmt.Errorf("listen on %s: %w in %v after %d attempts; widen rpc_port_min..rpc_port_max (MC_MIN_RPC_PORT, MC_MAX_RPC_PORT)",
		describe(host), ErrNoPort, r, attempts)
}

func describe(host string) string {
	if host == "" {
		return "all addresses"
	}
	return host
}

// coprime returns a random step in 1..n-1 (1 for n = 1) that has no common divisor with n.
func coprime(n int) int {
	for n > 1 {
		s := 1 + rand.IntN(n-1)
		a, b := s, n
		for b != 0 {
			a, b = b, a%b
		}
		if a == 1 {
			return s
		}
	}
	return 1
}
