package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Value is one key with its effective value.
type Value struct {
	Key string `json:"key"`
	// Value is the value as a file would say it; secrets and passwords in it are masked.
	Value any `json:"value"`
	// Source is "default", "file PATH:LINE:COL", "env NAME", "flag --NAME", or the rule that set it.
	Source string `json:"source"`
	// Live: a reload can change it.
	Live bool `json:"live"`

	plain string // unmasked, for Diff
}

// Effective returns every key in use with its value and source: the flat keys, then the sections and
// parts. Flat keys without effect are listed only if they are set.
func (l *Loaded) Effective() []Value { return slices.Clone(l.values) }

// Change is one difference between two configurations. Old or New is nil for a key that came or went;
// secrets are masked.
type Change struct {
	Key string `json:"key"`
	Old any    `json:"old"`
	New any    `json:"new"`
}

// Diff compares two configurations: live changes can be applied to a running node, the others need a
// restart.
func Diff(old, new *Loaded) (live, restart []Change) {
	before, after := map[string]Value{}, map[string]Value{}
	for _, v := range old.values {
		before[v.Key] = v
	}
	for _, v := range new.values {
		after[v.Key] = v
	}
	keys := map[string]bool{}
	for k := range before {
		keys[k] = true
	}
	for k := range after {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		a, had := before[k]
		b, has := after[k]
		if had && has && a.plain == b.plain {
			continue
		}
		c := Change{Key: k, Old: a.Value, New: b.Value}
		if (!had || a.Live) && (!has || b.Live) {
			live = append(live, c)
		} else {
			restart = append(restart, c)
		}
	}
	return live, restart
}

func (l *loading) add(path string, v any, live, secret bool) {
	out := Value{Key: dotted(path), Value: plainValue(v), Source: "default", Live: live, plain: fmt.Sprint(plainValue(v))}
	if s, ok := l.at[path]; ok {
		out.Source = s.String()
	}
	out.Value = mask(out.Value, secret)
	l.values = append(l.values, out)
}

// mask hides a secret, and passwords inside connection strings wherever they are.
func mask(v any, secret bool) any {
	switch v := v.(type) {
	case string:
		if secret && v != "" {
			return masked
		}
		return Redact(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = mask(v[i], secret)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k := range v {
			out[k] = mask(v[k], secret || secretName.MatchString(k))
		}
		return out
	case nil:
		return nil
	}
	if secret {
		return masked
	}
	if rv := reflect.ValueOf(v); rv.Kind() == reflect.Map {
		out := map[string]any{}
		for _, k := range rv.MapKeys() {
			out[k.String()] = mask(plainValue(rv.MapIndex(k).Interface()), secret || secretName.MatchString(k.String()))
		}
		return out
	}
	return v
}

// secretName finds secrets where no struct says which keys are.
var secretName = regexp.MustCompile(`(?i)password|passwd|secret|token|credential|private_key|access_key|auth`)

// list adds the keys of a decoded config struct.
func (l *loading) list(base string, live bool, decoded any) {
	for _, f := range fieldsOf(decoded) {
		l.add(join(base, f.path), f.def, live || f.live, f.secret)
	}
}

// listRoot adds the flat keys, with what they resolved to.
func (l *loading) listRoot(r *Root) {
	rest := l.values
	l.values = nil
	defer func() { l.values = append(l.values, rest...) }()
	for _, f := range fieldsOf(*r) {
		if f.inactive == "" && l.schema.inactive(f.path) == "" || l.given(f.path) {
			l.add(f.path, f.def, f.live, f.secret)
		}
	}
	for _, key := range plannedSections {
		if raw, ok := l.tree[key].(map[string]any); ok && l.schema.section(key) == nil && l.schema.kind(key) == nil {
			l.listRaw(key, raw)
		}
	}
}

// listRaw adds the keys of a section that no struct describes.
func (l *loading) listRaw(base string, raw map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(raw)) {
		path := join(base, k)
		if sub, ok := raw[k].(map[string]any); ok {
			l.listRaw(path, sub)
			continue
		}
		l.add(path, unnumber(raw[k]), false, secretName.MatchString(k))
	}
}

// unnumber lets JSON output show numbers as numbers; fmt and encoding/json agree on json.Number.
func unnumber(v any) any {
	if n, ok := v.(json.Number); ok && !strings.ContainsAny(string(n), ".eE") {
		if i, err := n.Int64(); err == nil {
			return i
		}
	}
	return v
}
