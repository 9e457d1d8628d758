package device

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// GID is the 128-bit address of a port.
type GID [16]byte

// GIDType is how an entry of the GID table travels.
type GIDType uint8

// GID types, with the values of the C API (ibv_gid_type).
const (
	GIDInfiniBand GIDType = 0
	GIDRoCEv1     GIDType = 1
	GIDRoCEv2     GIDType = 2
)

// String is the name that sysfs uses.
func (t GIDType) String() string {
	switch t {
	case GIDInfiniBand:
		return "IB"
	case GIDRoCEv1:
		return "RoCE v1"
	case GIDRoCEv2:
		return "RoCE v2"
	}
	return "type " + strconv.Itoa(int(t))
}

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	Index  int
	GID    GID
	Type   GIDType
	NetDev string // the network device behind it (RoCE), "" when unknown
}

// IsZero tells whether g is no address.
func (g GID) IsZero() bool { return g == GID{} }

// IPv4 returns the IPv4 address that g maps (::ffff:a.b.c.d).
func (g GID) IPv4() (netip.Addr, bool) {
	a := netip.AddrFrom16(g)
	return a.Unmap(), a.Is4In6()
}

// LinkLocal tells whether g is in fe80::/64, as the entry that every port has.
func (g GID) LinkLocal() bool { return g[0] == 0xfe && g[1]&0xc0 == 0x80 }

// String is upstream's form: 16 two-digit lower-case hex bytes joined by ':'.
func (g GID) String() string {
	const hex = "0123456789abcdef"
	b := make([]byte, 0, 47)
	for i, x := range g {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, hex[x>>4], hex[x&15])
	}
	return string(b)
}

// ParseGID reads upstream's form with its tolerance: 16 fields of hex digits of either case, each at most ff, joined
// by ':', and nothing else.
func ParseGID(s string) (g GID, err error) {
	fields := strings.Split(s, ":")
	if len(fields) != len(g) {
		return GID{}, fmt.Errorf("gid %q has %d fields, not 16", s, len(fields))
	}
	for i, f := range fields {
		v, err := strconv.ParseUint(f, 16, 64)
		if err != nil || v > 0xff || f[0] == '+' {
			return GID{}, fmt.Errorf("gid %q: field %d is %q, not a byte in hex", s, i+1, f)
		}
		g[i] = byte(v)
	}
	return g, nil
}
