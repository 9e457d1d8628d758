package flags

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// Flag is one setting. It is the same for command line and file.
type Flag struct {
	// Name is upstream's spelling, with underscores; dashes are accepted everywhere.
	Name string
	// Type and Default are shown to people; Default is a text that the flag accepts, "" for none.
	Type, Default string
	Doc           string
	// Group orders the help text.
	Group Group
	// Alias is another name of the same flag.
	Alias string
	// Off says what is missing in this version; a value that switches it on is refused.
	Off string
	// Needs names the switch without which the flag has no effect; with Off's switch missing that is always so.
	Needs string
	// Repeat: the flag may be given several times.
	Repeat bool

	set func(*Settings, string) error
	// reset forgets what was set; only flags that may be repeated have it.
	reset func(*Settings)
	// on tells whether a value differs from what is off; nil = any but the default.
	on func(string) bool
}

// Group is a heading of the help text.
type Group string

// The groups in the order of the help text.
const (
	Upstream Group = "Flags of mooncake_master"
	Ours     Group = "Flags of this master"
	Inert    Group = "Flags of mooncake_master without effect in this version"
	Logging  Group = "Flags of upstream's logging library"
)

// IsBool reports whether the flag may be given without a value.
func (f *Flag) IsBool() bool { return f.Type == "bool" }

// Check reports whether the flag accepts a value.
func (f *Flag) Check(value string) error {
	s := Defaults()
	return f.set(&s, value)
}

// isDefault reports whether a valid value is the default, whatever its spelling.
func (f *Flag) isDefault(value string) bool {
	if f.Type == "bool" {
		a, _ := parseBool(value)
		b, _ := parseBool(f.Default)
		return a == b
	}
	a, errA := strconv.ParseFloat(value, 64)
	b, errB := strconv.ParseFloat(f.Default, 64)
	return value == f.Default || errA == nil && errB == nil && a == b
}

// problem is the error of a value that a flag does not accept.
type problem string

func (p problem) Error() string { return string(p) }

func wrong(format string, args ...any) error { return problem(fmt.Sprintf(format, args...)) }

func setString(at func(*Settings) *string) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		*at(s) = v
		return nil
	}
}

func setBool(at func(*Settings) *bool) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		b, err := parseBool(v)
		if err == nil {
			*at(s) = b
		}
		return err
	}
}

// parseBool takes the words that gflags takes.
func parseBool(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "true", "t", "yes", "y", "1":
		return true, nil
	case "false", "f", "no", "n", "0":
		return false, nil
	}
	return false, wrong("%q is not true or false", v)
}

func setInt(lo, hi int64, at func(*Settings) *int) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		n, err := parseInt(v, lo, hi)
		if err == nil {
			*at(s) = int(n)
		}
		return err
	}
}

func parseInt(v string, lo, hi int64) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
	if err != nil && !isRange(err) {
		return 0, wrong("%q is not a whole number", v)
	}
	if err != nil || n < lo || n > hi {
		switch {
		case hi == math.MaxInt64:
			return 0, wrong("%s is not %d or more", v, lo)
		default:
			return 0, wrong("%s is not between %d and %d", v, lo, hi)
		}
	}
	return n, nil
}

func isRange(err error) bool { return strings.HasSuffix(err.Error(), strconv.ErrRange.Error()) }

func parseFloat(v string, lo, hi float64) (float64, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) || strings.ContainsAny(v, "xXpP_") {
		return 0, wrong("%q is not a number", v)
	}
	if x < lo || x > hi {
		return 0, wrong("%s is not between %v and %v", v, lo, hi)
	}
	return x, nil
}

// maxDuration keeps sums of times and durations far from overflow.
const maxDuration = 100 * 365 * 24 * time.Hour

// parseDuration takes a whole number with one of upstream's units ms, s, m, h, and without a unit if the flag
// has one of its own.
func parseDuration(v string, unit time.Duration) (time.Duration, error) {
	text := strings.TrimSpace(v)
	digits := strings.TrimRight(text, "mshMSH")
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil && isRange(err) {
		return 0, wrong("%s is too long", v)
	}
	scale := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour}[strings.ToLower(text[len(digits):])]
	if len(digits) == len(text) {
		scale = unit
		if n == 0 && scale == 0 {
			scale = 1
		}
	}
	if err != nil || scale == 0 {
		switch unit {
		case time.Millisecond:
			return 0, wrong("%q is not a duration; write milliseconds or a form such as 5000ms, 5s, 30m, 1h", v)
		case time.Second:
			return 0, wrong("%q is not a duration; write seconds or a form such as 5000ms, 5s, 30m, 1h", v)
		default:
			return 0, wrong("%q is not a duration; write a form such as 5000ms, 5s, 30m, 1h", v)
		}
	}
	if n > uint64(maxDuration/scale) {
		return 0, wrong("%s is too long", v)
	}
	return time.Duration(n) * scale, nil
}

// parseSize takes bytes and forms such as 4GB. Upstream's unsigned flags may be larger than 2^63-1, which means
// "no limit" here too.
func parseSize(v string) (units.Size, error) {
	if n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64); err == nil && n > math.MaxInt64 {
		return math.MaxInt64, nil
	}
	n, err := units.ParseSize(v)
	if err != nil {
		return 0, problem(err.Error())
	}
	return n, nil
}

// oneOf finds a choice in any letter case.
func oneOf(v string, choices []string) (string, error) {
	for _, c := range choices {
		if strings.EqualFold(c, v) {
			return c, nil
		}
	}
	return "", wrong("%q is unknown; use %s", v, strings.Join(choices, ", "))
}
