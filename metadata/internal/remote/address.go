package remote

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Address checks "host", "host:port", "[::1]:port", "[::1]" or a bare IPv6 literal and returns it as
// host:port with brackets where needed. An absent port becomes defaultPort; an empty one is an error.
func Address(s string, defaultPort int) (string, error) {
	host, port, err := split(s)
	if err != nil {
		return "", err
	}
	if port == "" {
		return net.JoinHostPort(host, strconv.Itoa(defaultPort)), nil
	}
	n, err := strconv.ParseUint(port, 10, 32)
	if err != nil || n == 0 || n > 65535 {
		return "", fmt.Errorf("%q: port %q is not a number from 1 to 65535", s, port)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// split returns port "" if s has none.
func split(s string) (host, port string, err error) {
	if ip, err := netip.ParseAddr(s); err == nil {
		return ip.String(), "", nil // 2001:db8::1 without brackets is a host, not host and port
	}
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		host = strings.TrimSuffix(inner, "]")
	} else if !strings.Contains(s, ":") {
		host = s
	} else {
		if host, port, err = net.SplitHostPort(s); err != nil {
			return "", "", fmt.Errorf("%q is not host:port (write an IPv6 address as [2001:db8::1]:port)", s)
		}
		if port == "" {
			return "", "", fmt.Errorf("%q: no port after the colon", s)
		}
	}
	if host == "" {
		return "", "", fmt.Errorf("%q has no host", s)
	}
	if strings.Contains(host, ":") || strings.HasPrefix(s, "[") {
		if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() {
			return "", "", fmt.Errorf("%q: %q is not an IPv6 address", s, host)
		}
		return host, port, nil
	}
	if i := strings.IndexFunc(host, notInName); i >= 0 {
		return "", "", fmt.Errorf("%q: %q cannot be part of a host name", s, host[i:])
	}
	return host, port, nil
}

// notInName finds what is left of templates and paths: a{{x}}, ${HOST}, <ip>, h/path.
func notInName(r rune) bool {
	return r <= ' ' || r == 0x7f || strings.ContainsRune(`{}[]<>$/\"'@,;?#%`, r)
}

// Differ is the error for a value given both in the URL and under a key of its own with another value.
// It does not show the values when they are secret.
func Differ(key, fromURL, detail string, secret bool) error {
	if fromURL == "" || detail == "" || fromURL == detail {
		return nil
	}
	if secret {
		return fmt.Errorf("url and %s: both are given and they differ", key)
	}
	return fmt.Errorf("url and %s: both are given and they differ: %q and %q", key, fromURL, detail)
}
