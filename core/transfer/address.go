package transfer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// isUsableIP tells whether s is an IP address that peers could connect to.
func isUsableIP(s string) bool {
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return err == nil && !a.IsUnspecified()
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// firstAddress is upstream's choice of the address to advertise: that of the first interface which is up
// and not loopback; IPv4 goes first.
func firstAddress() (string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list network interfaces: %w", err)
	}
	const want = net.FlagUp | net.FlagRunning
	v6 := ""
	for _, i := range ifs {
		if i.Flags&want != want || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok || !n.IP.IsGlobalUnicast() {
				continue
			}
			if n.IP.To4() != nil {
				return n.IP.String(), nil
			}
			if v6 == "" {
				v6 = n.IP.String()
			}
		}
	}
	if v6 == "" {
		return "", errors.New("this machine has no address to advertise but loopback; set local_hostname (or MC_TCP_BIND_ADDRESS) to the address that peers connect to")
	}
	return v6, nil
}
