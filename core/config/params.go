package config

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/core/module"
)

// Params is a section of a part that is named on a command line with a few settings, as in "lru-k:k=3": every
// value is text, as in environment variables, and converted to what the key needs.
type Params map[string]string

// ParseParams reads "name", "name:key=value" or "name:key=value,key=value". A comma followed by something without
// "=" belongs to the value before it. The error says what is wrong.
func ParseParams(text string) (name string, params Params, err error) {
	name, rest, some := strings.Cut(text, ":")
	name = strings.TrimSpace(name)
	if name == "" {
		return "", nil, errors.New("a name is missing; write NAME or NAME:key=value,key=value")
	}
	params = Params{}
	if !some {
		return name, params, nil
	}
	last := ""
	for part := range strings.SplitSeq(rest, ",") {
		key, value, ok := strings.Cut(part, "=")
		key = strings.TrimSpace(key)
		switch {
		case ok && key != "":
			if _, twice := params[key]; twice {
				return "", nil, errors.New(show(key) + " is given twice")
			}
			params[key], last = value, key
		case !ok && last != "":
			params[last] += "," + part
		default:
			return "", nil, errors.New(show(part) + " is not key=value")
		}
	}
	return name, params, nil
}

// String is the form that ParseParams takes, without a name.
func (p Params) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(p)) {
		parts = append(parts, k+"="+p[k])
	}
	return strings.Join(parts, ",")
}

// Decode implements module.Section. The error has a line for each thing that is wrong.
func (p Params) Decode(into any) error {
	raw := map[string]any{}
	for k, v := range p {
		raw[strings.ReplaceAll(k, ".", sep)] = v
	}
	nested := map[string]any{}
	for path, v := range raw {
		at := nested
		keys := strings.Split(path, sep)
		for _, k := range keys[:len(keys)-1] {
			sub, ok := at[k].(map[string]any)
			if !ok {
				sub = map[string]any{}
				at[k] = sub
			}
			at = sub
		}
		at[keys[len(keys)-1]] = v
	}
	if ps := decode(nested, "", into, textual, func(string) source { return source{} }); len(ps) > 0 {
		return &Errors{Problems: sortProblems(ps)}
	}
	return nil
}

var _ module.Section = Params{}
