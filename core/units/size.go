// Package units holds the value types of config keys that need more than Go's basic types.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. In config it is written as an integer, as "4GB", "1.5gb", "16 MB", or as
// "50%" of the memory this process may use (see [MemoryLimit]). Units are powers of 1024 as in
// upstream's configs: B, K/KB/KiB, M/MB/MiB, G/GB/GiB, T/TB/TiB, in any letter case.
type Size uint64

const (
	// KiB is 1024 bytes.
	KiB Size = 1 << (10 * (iota + 1))
	// MiB is 1024 KiB.
	MiB
	// GiB is 1024 MiB.
	GiB
	// TiB is 1024 GiB.
	TiB
)

// ParseSize reads one of the forms of [Size]. Negative numbers, unknown units, other number bases,
// exponents and values above 2^63-1 are errors.
func ParseSize(s string) (Size, error) {
	t := strings.TrimSpace(s)
	if t == "" {
		return 0, fmt.Errorf("size is empty; write bytes or a form such as \"4GB\"")
	}
	end := strings.IndexFunc(t, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	num, unit := t, ""
	if end >= 0 {
		num, unit = t[:end], strings.TrimSpace(t[end:])
	}
	if num == "" || strings.Count(num, ".") > 1 || num == "." {
		return 0, fmt.Errorf("%q is not a size; write bytes or a form such as \"4GB\"", s)
	}
	if unit == "%" {
		return parsePercent(s, num)
	}
	scale, ok := map[string]Size{"": 1, "b": 1, "k": KiB, "kb": KiB, "kib": KiB, "m": MiB, "mb": MiB, "mib": MiB,
		"g": GiB, "gb": GiB, "gib": GiB, "t": TiB, "tb": TiB, "tib": TiB}[strings.ToLower(unit)]
	if !ok {
		return 0, fmt.Errorf("%q has the unknown unit %q; known: B, KB, MB, GB, TB, %%", s, unit)
	}
	if n, err := strconv.ParseUint(num, 10, 64); err == nil {
		if n > math.MaxInt64/uint64(scale) {
			return 0, fmt.Errorf("%q is larger than 2^63-1 bytes", s)
		}
		return Size(n) * scale, nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f*float64(scale) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is larger than 2^63-1 bytes", s)
	}
	if unit == "" {
		return 0, fmt.Errorf("%q is a fraction of a byte; add a unit, for example \"%sGB\"", s, num)
	}
	return Size(f * float64(scale)), nil
}

func parsePercent(s, num string) (Size, error) {
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f > 100 {
		return 0, fmt.Errorf("%q: a share of memory is between 0%% and 100%%", s)
	}
	limit, err := MemoryLimit()
	if err != nil {
		return 0, fmt.Errorf("%q: %w", s, err)
	}
	return Size(float64(limit)*f/100) &^ 4095, nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(b []byte) error {
	v, err := ParseSize(string(b))
	if err == nil {
		*s = v
	}
	return err
}

// MarshalText writes the shortest exact form.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns the shortest exact form: "4GB", "1536MB", "17".
func (s Size) String() string {
	for _, u := range []struct {
		n    Size
		name string
	}{{TiB, "TB"}, {GiB, "GB"}, {MiB, "MB"}, {KiB, "KB"}} {
		if s >= u.n && s%u.n == 0 {
			return strconv.FormatUint(uint64(s/u.n), 10) + u.name
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}
