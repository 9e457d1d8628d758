package wire

import (
	"fmt"
	"math/bits"
	"strings"
)

// Version is a protocol version, named after the Mooncake release that introduced it. Later versions
// compare greater.
type Version uint8

// The protocol versions. A new one goes before endOfVersions.
const (
	V0_3_7 Version = iota
	V0_3_8
	V0_3_9
	V0_3_10
	V0_3_11
	V0_3_12
	V0_3_13

	endOfVersions
)

const (
	// Oldest and Newest are the ends of the range that is spoken.
	Oldest Version = 0
	Newest         = endOfVersions - 1
	// NumVersions is how many versions there are; each is less than it, so it sizes arrays.
	NumVersions = int(endOfVersions)
)

var versionNames = [...]string{"0.3.7", "0.3.8", "0.3.9", "0.3.10", "0.3.11", "0.3.12", "0.3.13"}

// The names must keep up with the constants.
var _ = [1]struct{}{}[len(versionNames)-NumVersions]

// String returns the release, as "0.3.13".
func (v Version) String() string {
	if int(v) < len(versionNames) {
		return versionNames[v]
	}
	return fmt.Sprintf("Version(%d)", uint8(v))
}

// ParseVersion reads "0.3.13"; a leading v and a .post suffix are accepted, because releases of one
// number speak one protocol.
func ParseVersion(s string) (Version, error) {
	base, _, _ := strings.Cut(strings.TrimPrefix(s, "v"), ".post")
	for v, name := range versionNames {
		if name == base {
			return Version(v), nil
		}
	}
	return 0, fmt.Errorf("unknown Mooncake version %q; known: %s", s, strings.Join(versionNames[:], ", "))
}

// VersionSet is a set of versions.
type VersionSet uint16

// AllVersions is the set of every version.
const AllVersions = VersionSet(1)<<NumVersions - 1

// SetOf returns the set of the given versions.
func SetOf(vs ...Version) VersionSet {
	var s VersionSet
	for _, v := range vs {
		s |= 1 << v
	}
	return s
}

// Has reports whether v is in the set.
func (s VersionSet) Has(v Version) bool { return s>>v&1 == 1 }

// Len returns how many versions are in the set.
func (s VersionSet) Len() int { return bits.OnesCount16(uint16(s)) }

// Newest returns the latest version of the set; ok is false for the empty set.
func (s VersionSet) Newest() (v Version, ok bool) {
	return Version(bits.Len16(uint16(s)) - 1), s != 0
}

// Versions lists the set, oldest first.
func (s VersionSet) Versions() []Version {
	var vs []Version
	for v := range endOfVersions {
		if s.Has(v) {
			vs = append(vs, v)
		}
	}
	return vs
}

// String lists the versions, as "0.3.12 0.3.13".
func (s VersionSet) String() string {
	names := make([]string, 0, NumVersions)
	for _, v := range s.Versions() {
		names = append(names, v.String())
	}
	return strings.Join(names, " ")
}
