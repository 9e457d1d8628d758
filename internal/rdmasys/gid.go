package rdmasys

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// GIDType is how packets travel that carry a GID.
type GIDType uint8

const (
	// UnknownGID: the kernel shows no type, or one that is not known here.
	UnknownGID GIDType = iota
	// IB is the GID of an InfiniBand port.
	IB
	// RoCEv1 is Ethernet without IP: it does not cross routers.
	RoCEv1
	// RoCEv2 is UDP over IP.
	RoCEv2
)

// String is the name that users know.
func (t GIDType) String() string {
	switch t {
	case IB:
		return "InfiniBand"
	case RoCEv1:
		return "RoCE v1"
	case RoCEv2:
		return "RoCE v2"
	}
	return "unknown"
}

// ParseGIDType reads the text of gid_attrs/types/N, in which the kernel does not tell InfiniBand and RoCE v1 apart:
// the port's link layer does.
func ParseGIDType(text string, link LinkLayer) GIDType {
	switch strings.TrimSpace(text) {
	case "RoCE v2":
		return RoCEv2
	case "IB/RoCE v1":
		if link == Ethernet {
			return RoCEv1
		}
		return IB
	}
	return UnknownGID
}

// GID is one entry of a port's table.
type GID struct {
	Index int
	// Addr is the GID itself, always 16 bytes long; an IPv4 address is ::ffff:a.b.c.d.
	Addr netip.Addr
	Type GIDType
	// NetDev is the network interface behind it, "" for InfiniBand and entries whose interface lives in another
	// network namespace.
	NetDev string
}

// String is index, type and address, and the interface where there is one.
func (g GID) String() string {
	s := fmt.Sprintf("%d: %v %v", g.Index, g.Type, g.Addr.Unmap())
	if g.NetDev != "" {
		s += " on " + g.NetDev
	}
	return s
}

// ParseGID reads eight groups of four hexadecimal digits with colons between them, as in gids/N.
func ParseGID(text string) (netip.Addr, error) {
	text = strings.TrimSpace(text)
	groups := strings.Split(text, ":")
	if len(groups) != 8 {
		return netip.Addr{}, fmt.Errorf("%.60q is not a GID: it has %d groups, not 8", text, len(groups))
	}
	var raw [16]byte
	for i, g := range groups {
		v, err := strconv.ParseUint(g, 16, 16)
		if err != nil || len(g) != 4 {
			return netip.Addr{}, fmt.Errorf("%.60q is not a GID: group %d is not 4 hexadecimal digits", text, i+1)
		}
		raw[2*i], raw[2*i+1] = byte(v>>8), byte(v)
	}
	return netip.AddrFrom16(raw), nil
}

// Class says how useful a GID is for a connection to another host, the best first. The classes and their order are
// those of Mooncake (rdma_gid_probe.h), so that both choose the same entry on the same machine.
type Class uint8

const (
	// Routable: InfiniBand, or RoCE v2 with a public or unusual address, on a known interface.
	Routable Class = iota
	// RoutableElsewhere is the same without an interface that this process sees.
	RoutableElsewhere
	// Private is RoCE v2 with an address of 10/8, 172.16/12 or 100.64/10.
	Private
	// Degraded is RoCE v2 with a link-local address, or on the interface of a container network.
	Degraded
	// PrivateElsewhere is Private without an interface that this process sees.
	PrivateElsewhere
	// DegradedElsewhere is Degraded without an interface that this process sees.
	DegradedElsewhere
	// Fallback is the first entry of any other type: RoCE v1, or one that the kernel does not tell.
	Fallback
)

// String says why the entry has its place.
func (c Class) String() string {
	switch c {
	case Routable:
		return "routable"
	case RoutableElsewhere:
		return "routable, interface not visible"
	case Private:
		return "private address"
	case Degraded:
		return "link-local address or container network"
	case PrivateElsewhere:
		return "private address, interface not visible"
	case DegradedElsewhere:
		return "link-local address, interface not visible"
	case Fallback:
		return "neither RoCE v2 nor InfiniBand"
	}
	return "unknown"
}

// Choice is a GID with the reason for its place.
type Choice struct {
	GID
	Class Class
}

// Rank orders the usable GIDs of a port, the best first; entries of one class by index. Entries that are all zero are
// left out. RoCE v1 and unknown types are only tried when nothing else is there: the first of them comes last.
func Rank(gids []GID) []Choice {
	var ranked []Choice
	var fallback *Choice
	for _, g := range gids {
		if g.Index < 0 || !g.Addr.IsValid() || g.Addr.IsUnspecified() {
			continue
		}
		if c, ok := classify(g); ok {
			ranked = append(ranked, Choice{GID: g, Class: c})
		} else if fallback == nil {
			fallback = &Choice{GID: g, Class: Fallback}
		}
	}
	slices.SortStableFunc(ranked, func(a, b Choice) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Index, b.Index))
	})
	if fallback != nil {
		ranked = append(ranked, *fallback)
	}
	return ranked
}

// ErrNoGID is wrapped by Choose when no entry can be used.
var ErrNoGID = errors.New("no usable GID")

// Choose returns the entry that a connection uses: the one with index pinned, or the best for pinned = -1.
func Choose(gids []GID, pinned int) (Choice, error) {
	ranked := Rank(gids)
	if pinned < 0 {
		if len(ranked) == 0 {
			return Choice{}, fmt.Errorf("%w: all %d entries of the table are empty", ErrNoGID, len(gids))
		}
		return ranked[0], nil
	}
	for _, c := range ranked {
		if c.Index == pinned {
			return c, nil
		}
	}
	for _, g := range gids { // RoCE v1 beside the first: usable when the user asks for it
		if g.Index == pinned && g.Addr.IsValid() && !g.Addr.IsUnspecified() {
			return Choice{GID: g, Class: Fallback}, nil
		}
	}
	return Choice{}, fmt.Errorf("%w: entry %d is empty or not in the table", ErrNoGID, pinned)
}

func classify(g GID) (Class, bool) {
	if g.Type != IB && g.Type != RoCEv2 {
		return 0, false
	}
	near := g.NetDev != ""
	switch {
	case g.Type == RoCEv2 && (near && overlay(g.NetDev) || !g.Addr.Is4In6() && g.Addr.IsLinkLocalUnicast()):
		if near {
			return Degraded, true
		}
		return DegradedElsewhere, true
	case g.Type == RoCEv2 && private(g.Addr):
		if near {
			return Private, true
		}
		return PrivateElsewhere, true
	case near:
		return Routable, true
	}
	return RoutableElsewhere, true
}

// overlay tells an interface of a container network by its name.
func overlay(netdev string) bool {
	for _, p := range []string{"flannel", "cni", "calico", "vxlan", "docker"} {
		if strings.HasPrefix(netdev, p) {
			return true
		}
	}
	return netdev == "tunl0"
}

// privateNets are the ranges that rank lower. 192.168/16 is not among them, as upstream has it.
var privateNets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("100.64.0.0/10")}

func private(a netip.Addr) bool {
	if !a.Is4In6() {
		return false
	}
	v4 := a.Unmap()
	return slices.ContainsFunc(privateNets, func(p netip.Prefix) bool { return p.Contains(v4) })
}
