package handshake

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// DefaultPort is the port of a peer name that has none; upstream's default of MC_HANDSHAKE_PORT.
const DefaultPort = 12001

// SplitName splits a peer's name into host and port, without brackets: "10.0.0.1:15428",
// "[::1]:15428", "::1", "fe80::1%eth0", "fe80::1%eth0:15428", "node-3". hasPort is false and port is
// DefaultPort when there is none. A port that is empty, no number or outside 1..65535 is an error (upstream
// dials 12001 instead). The host may come back empty.
func SplitName(name string) (host string, port int, hasPort bool, err error) {
	bad := func(what string) (string, int, bool, error) {
		return "", 0, false, fmt.Errorf("peer name %q: %s; write host:port, with IPv6 as [address]:port", name, what)
	}
	host, digits := name, ""
	switch {
	case strings.HasPrefix(name, "["):
		end := strings.IndexByte(name, ']')
		if end < 0 {
			return bad("no ] after [")
		}
		host = name[1:end]
		if rest := name[end+1:]; rest != "" {
			if rest[0] != ':' {
				return bad("text after ]")
			}
			hasPort, digits = true, rest[1:]
		}
		if a, err := netip.ParseAddr(host); err != nil || !a.Is6() {
			return bad("the brackets hold no IPv6 address")
		}
	case strings.Count(name, ":") == 1, strings.Contains(name, "%"):
		if i := strings.LastIndexByte(name, ':'); i > strings.IndexByte(name, '%') {
			host, hasPort, digits = name[:i], true, name[i+1:]
		}
	case strings.Count(name, ":") > 1:
		if _, err := netip.ParseAddr(name); err != nil {
			return bad("several colons, but no IPv6 address")
		}
	}
	if !hasPort {
		return host, DefaultPort, false, nil
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 {
		return bad(fmt.Sprintf("port %q is not in 1..65535", digits))
	}
	return host, int(n), true, nil
}

// JoinName is the inverse of SplitName; IPv6 gets its brackets.
func JoinName(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
