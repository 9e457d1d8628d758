package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// splitHost takes "host", "host:port", "[v6]:port", "[v6]" or a bare IPv6 address apart. The host is
// returned without brackets, the port is 0 if there is none.
func splitHost(s string) (host string, port int, err error) {
	if ip, err := netip.ParseAddr(s); err == nil && ip.Is6() {
		return s, 0, nil
	}
	var portText string
	switch {
	case strings.Contains(s, "://"):
		return "", 0, fmt.Errorf("%s is a URL; write a host or host:port", show(s))
	case strings.HasPrefix(s, "["):
		in, rest, closed := strings.Cut(s[1:], "]")
		ip, err := netip.ParseAddr(in)
		if !closed || err != nil || !ip.Is6() || (rest != "" && rest[0] != ':') {
			return "", 0, fmt.Errorf("%s is not an address; an IPv6 address with a port is written [::1]:9000", show(s))
		}
		if rest == "" {
			return in, 0, nil
		}
		host, portText = in, rest[1:]
	case strings.Count(s, ":") == 0:
		return s, 0, checkHost(s)
	case strings.Count(s, ":") > 1:
		return "", 0, fmt.Errorf("%s is not an address; an IPv6 address with a port is written [::1]:9000", show(s))
	default:
		host, portText, _ = strings.Cut(s, ":")
		if host == "" {
			return "", 0, fmt.Errorf("%s has no host before the port", show(s))
		}
		if err := checkHost(host); err != nil {
			return "", 0, err
		}
	}
	port, err = parsePort(portText)
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", show(s), err)
	}
	return host, port, nil
}

func parsePort(s string) (int, error) {
	if s == "" {
		return 0, errors.New("the port after the colon is missing")
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %s is not a number from 1 to 65535", s)
	}
	return int(n), nil
}

func checkHost(h string) error {
	if h == "" {
		return errors.New("the host is empty")
	}
	numeric := true
	for _, r := range h {
		switch {
		case r >= '0' && r <= '9', r == '.':
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '-', r == '_':
			numeric = false
		default:
			return fmt.Errorf("%s is not a host name: %q cannot stand in one", show(h), r)
		}
	}
	if _, err := netip.ParseAddr(h); numeric && err != nil {
		return fmt.Errorf("%s is not an IPv4 address", show(h))
	}
	if len(h) > 253 {
		return errors.New("the host name is longer than 253 characters")
	}
	return nil
}

// splitHosts takes a list such as "a:2379,b:2379" or upstream's "a:2379;b:2379" apart and returns it
// with every port filled in and every IPv6 address in brackets. An element may begin with http://,
// which is dropped, or https://, which is kept.
func splitHosts(s string, defaultPort int) ([]string, error) {
	var out []string
	for _, e := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ';' }) {
		e, prefix := strings.TrimSpace(e), ""
		if scheme, rest, ok := strings.Cut(e, "://"); ok && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https")) {
			e = strings.TrimSuffix(rest, "/")
			if strings.EqualFold(scheme, "https") {
				prefix = "https://"
			}
		}
		host, port, err := splitHost(strings.TrimSuffix(e, "/"))
		if err != nil {
			return nil, err
		}
		if port == 0 {
			port = defaultPort
		}
		out = append(out, prefix+net.JoinHostPort(host, strconv.Itoa(port)))
	}
	if len(out) == 0 {
		return nil, errors.New("the host is empty")
	}
	return out, nil
}

// isLoopback reports whether a host can only be reached from this machine.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func isUnspecified(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// MasterTarget is master_server_address taken apart. Scheme is "" if there is no master, "tcp" for a
// fixed Addrs[0] "host:port", "etcd" or "redis" for an election held at Addrs, "k8s" for the lease
// Addrs[0] "namespace/lease". URL is the whole address for etcd and redis; it may hold a password.
type MasterTarget struct {
	Scheme string
	Addrs  []string
	URL    string
}

// ParseMaster takes a master_server_address apart.
func ParseMaster(s string) (MasterTarget, error) {
	if s == "" {
		return MasterTarget{}, nil
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		host, port, err := splitHost(s)
		if err != nil {
			return MasterTarget{}, err
		}
		if port == 0 {
			return MasterTarget{}, fmt.Errorf("%s has no port; write %s", show(s), net.JoinHostPort(host, "50051"))
		}
		return MasterTarget{Scheme: "tcp", Addrs: []string{net.JoinHostPort(host, strconv.Itoa(port))}}, nil
	}
	switch scheme = strings.ToLower(scheme); scheme {
	case "etcd", "redis":
		u, err := parseStore(scheme, rest)
		if err != nil {
			return MasterTarget{}, err
		}
		return MasterTarget{Scheme: scheme, Addrs: u.hosts, URL: u.String()}, nil
	case "k8s":
		ns, lease, ok := strings.Cut(rest, "/")
		if !ok || ns == "" || lease == "" || strings.Contains(lease, "/") {
			return MasterTarget{}, fmt.Errorf("%s does not name a lease; write k8s://namespace/lease", show(s))
		}
		return MasterTarget{Scheme: scheme, Addrs: []string{rest}}, nil
	}
	return MasterTarget{}, fmt.Errorf("%s has the unknown scheme %q; known: host:port, etcd://, redis://, k8s://", show(s), scheme)
}
