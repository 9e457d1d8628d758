package units

import (
	"fmt"
	"strconv"
	"strings"
)

// PortRange is a range of TCP ports, both ends included; in config "15000-17000" or one port. The zero
// value means "not set".
type PortRange struct{ Min, Max int }

// Validate checks upstream's rule: both ends in 1024..65535 and outside of 32768..60999, from which the
// kernel takes ports for outgoing connections. (Upstream falls back to its default silently.)
func (r PortRange) Validate() error {
	for _, p := range []int{r.Min, r.Max} {
		if p < 1024 || p > 65535 {
			return fmt.Errorf("port range %v: %d is outside 1024..65535", r, p)
		}
		if p >= 32768 && p <= 60999 {
			return fmt.Errorf("port range %v: %d is in 32768..60999, which the kernel uses for outgoing connections", r, p)
		}
	}
	if r.Min > r.Max {
		return fmt.Errorf("port range %v: the first port is above the last", r)
	}
	return nil
}

// IsZero reports whether the range is not set.
func (r PortRange) IsZero() bool { return r == PortRange{} }

// String is the form in config, "" for the zero value.
func (r PortRange) String() string {
	if r.IsZero() {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.Min, r.Max)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *PortRange) UnmarshalText(b []byte) error {
	s := strings.TrimSpace(string(b))
	if s == "" {
		*r = PortRange{}
		return nil
	}
	lo, hi, isRange := strings.Cut(s, "-")
	if !isRange {
		hi = lo
	}
	var v PortRange
	var err1, err2 error
	v.Min, err1 = strconv.Atoi(strings.TrimSpace(lo))
	v.Max, err2 = strconv.Atoi(strings.TrimSpace(hi))
	if err1 != nil || err2 != nil {
		return fmt.Errorf("%q is not a port range; write it as \"15000-17000\"", s)
	}
	if err := v.Validate(); err != nil {
		return err
	}
	*r = v
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
