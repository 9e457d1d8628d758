package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"

	"github.com/mooncake-agent/mooncake/core/module"
)

// decoding is the decode of one section into one struct. mapstructure does the assignment with our
// hook; unknown keys, nulls and unexpanded templates are found in a walk of our own, because
// mapstructure does not report unknown keys of an object that has another error.
type decoding struct {
	how      style
	at       func(path string) source
	raw      map[string]any
	base     string           // path of the section
	fields   map[string]field // by path relative to the section
	names    map[string]string
	bad      map[string]bool // absolute paths that already have a problem
	problems []Problem
}

// decode fills into (a pointer to a struct that holds the defaults) from raw, the section at base.
func decode(raw map[string]any, base string, into any, how style, at func(string) source) []Problem {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: decode into %T, want a pointer to a struct", into))
	}
	d := &decoding{how: how, at: at, raw: raw, base: base, fields: map[string]field{}, names: map[string]string{}, bad: map[string]bool{}}
	for _, f := range fieldsOf(into) {
		d.fields[f.path] = f
	}
	clean := d.object(raw, v.Elem().Type(), "", "")
	dec, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result:               into,
		TagName:              "koanf",
		MatchName:            func(key, field string) bool { return key == field },
		IgnoreUntaggedFields: true,
		ZeroFields:           true, // a list or map replaces the default one instead of writing into it
		DecodeHook:           d.hook,
	})
	if err != nil {
		panic("config: " + err.Error())
	}
	d.collect(dec.Decode(clean))
	d.limits(v.Elem())
	return d.problems
}

func (d *decoding) problem(rel, msg string) {
	path := join(d.base, rel)
	if !d.bad[path] {
		d.bad[path] = true
		d.problems = append(d.problems, d.at(path).problem(path, msg))
	}
}

// object returns a copy of raw without the members that cannot be decoded. rel is the path inside the
// section, name the same in mapstructure's notation.
func (d *decoding) object(raw map[string]any, t reflect.Type, rel, name string) map[string]any {
	known := map[string]reflect.Type{}
	collectKeys(t, known)
	out := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		ft, ok := known[key]
		if !ok {
			d.problem(join(rel, key), d.unknown(key, known))
			continue
		}
		child := key
		if name != "" {
			child = name + "." + key
		}
		if v, ok := d.value(raw[key], ft, join(rel, key), child); ok {
			out[key] = v
		}
	}
	return out
}

func collectKeys(t reflect.Type, out map[string]reflect.Type) {
	for i := range t.NumField() {
		key, squash := keyOf(t.Field(i))
		if squash {
			collectKeys(t.Field(i).Type, out)
		} else if key != "" {
			out[key] = t.Field(i).Type
		}
	}
}

func (d *decoding) unknown(key string, known map[string]reflect.Type) string {
	if len(d.problems) > maxProblems { // will not be shown
		return "unknown key"
	}
	return unknownKey(key, slices.Sorted(maps.Keys(known)))
}

func unknownKey(key string, known []string) string {
	if len(key) > 100 { // nobody's typing mistake, and slow to compare
		return "unknown key"
	}
	msg := "unknown key " + key
	if near := module.Nearest(key, known); near != "" {
		msg += "; did you mean " + near + "?"
	}
	return msg
}

func (d *decoding) value(v any, t reflect.Type, rel, name string) (any, bool) {
	d.names[name] = rel
	switch v := v.(type) {
	case nil:
		if isNested(t) || t.Kind() == reflect.Map { // "tls:" without members, as YAML writes it
			return map[string]any{}, true
		}
		f := d.field(rel, t)
		d.problem(rel, f.complaint(nil, errMismatch))
		return nil, false
	case map[string]any:
		switch {
		case isNested(t):
			return d.object(v, t, rel, name), true
		case t.Kind() == reflect.Map:
			out := map[string]any{}
			for _, k := range slices.Sorted(maps.Keys(v)) {
				if e, ok := d.value(v[k], t.Elem(), join(rel, k), name+"["+k+"]"); ok {
					out[k] = e
				}
			}
			return out, true
		}
	case []any:
		if t.Kind() == reflect.Slice {
			out := []any{}
			for i, e := range v {
				if e, ok := d.value(e, t.Elem(), join(rel, fmt.Sprintf("[%d]", i)), fmt.Sprintf("%s[%d]", name, i)); ok {
					out = append(out, e)
				}
			}
			if len(out) < len(v) {
				return nil, false // would be decoded with wrong indices
			}
			return out, true
		}
	case string:
		if f := d.field(rel, t); !f.secret {
			if form := template(v); form != "" {
				d.problem(rel, fmt.Sprintf("%s contains an unexpanded %s", show(v), form))
				return nil, false
			}
		}
	}
	return v, true
}

// field finds the tags that apply to rel: its own, or those of the list or map it is an element of.
func (d *decoding) field(rel string, t reflect.Type) *field {
	for p := rel; p != ""; {
		if f, ok := d.fields[p]; ok {
			if p == rel {
				return &f
			}
			return &field{typ: t, secret: f.secret}
		}
		i := strings.LastIndex(p, sep)
		p = p[:max(i, 0)]
	}
	return &field{typ: t}
}

var templates = []struct {
	form, begin string
	re          *regexp.Regexp
}{
	{"${…}", "${", regexp.MustCompile(`\$\{[^}]*\}`)},
	{"{{…}}", "{{", regexp.MustCompile(`\{\{.*\}\}`)},
	{"<…>", "<", regexp.MustCompile(`<[A-Za-z_][A-Za-z0-9_ .-]*>`)},
}

// template returns the form of a placeholder that somebody forgot to fill in, or "".
func template(s string) string {
	for _, t := range templates {
		if strings.Contains(s, t.begin) && t.re.MatchString(s) {
			return t.form
		}
	}
	return ""
}

func (d *decoding) hook(from, to reflect.Value) (any, error) {
	if isNested(to.Type()) {
		if _, ok := from.Interface().(map[string]any); !ok {
			return nil, &badValue{from.Interface(), to.Type(), errMismatch}
		}
		return from.Interface(), nil
	}
	v, err := convert(from.Interface(), to.Type(), d.how)
	if err != nil {
		return nil, &badValue{from.Interface(), to.Type(), err}
	}
	return v, nil
}

// badValue carries a refused value out of mapstructure.
type badValue struct {
	value any
	typ   reflect.Type
	err   error
}

func (b *badValue) Error() string { return b.err.Error() }

// collect turns mapstructure's joined errors into problems.
func (d *decoding) collect(err error) {
	if err == nil {
		return
	}
	if de, ok := err.(*mapstructure.DecodeError); ok {
		rel := d.names[de.Name()]
		bad := (*badValue)(nil)
		if errors.As(de, &bad) {
			d.problem(rel, d.field(rel, bad.typ).complaint(bad.value, bad.err))
		} else {
			d.problem(rel, "cannot be used here") // the library's text would show the value
		}
		return
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			d.collect(err)
		}
	case interface{ Unwrap() error }:
		d.collect(e.Unwrap())
	default:
		d.problem("", "cannot be used here")
	}
}

// limits checks ranges and enums of the keys that were given. Defaults are the owner's business: a
// default outside the range can mean "off".
func (d *decoding) limits(v reflect.Value) {
	for _, f := range fieldsOf(v.Interface()) {
		raw, given := lookup(d.raw, f.path)
		if given && !d.bad[join(d.base, f.path)] && !f.allows(v.FieldByIndex(f.index)) {
			d.problem(f.path, f.complaint(raw, errMismatch))
		}
	}
}

// lookup finds a value in nested maps by its path.
func lookup(m map[string]any, path string) (any, bool) {
	key, rest, deeper := strings.Cut(path, sep)
	v, ok := m[key]
	if !ok || !deeper {
		return v, ok
	}
	sub, ok := v.(map[string]any)
	if !ok {
		return nil, false
	}
	return lookup(sub, rest)
}

// section is the module.Section of one part of a loaded configuration.
type section struct {
	raw  map[string]any
	path string
	at   func(string) source
}

// Decode implements module.Section. The error is an *Errors.
func (s *section) Decode(into any) error {
	if ps := decode(s.raw, s.path, into, strict, s.at); len(ps) > 0 {
		return &Errors{Problems: sortProblems(ps)}
	}
	return nil
}
