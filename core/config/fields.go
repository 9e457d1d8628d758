package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// field describes one leaf key of a config struct, read from its tags.
type field struct {
	path     string // relative to the struct, elements joined by sep
	index    []int  // for reflect.Value.FieldByIndex
	typ      reflect.Type
	def      any
	doc      string
	env      []string
	rng      *bounds
	enum     []string
	aliases  []string
	envUnit  time.Duration // of a bare number in a variable; 0: told by the variable's name
	inactive string        // why the key has no effect, "" if it has
	live     bool
	secret   bool
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[units.Size]()
)

// isText reports whether values of t are written as text that the type parses itself.
func isText(t reflect.Type) bool {
	return t != sizeType && reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// isNested reports whether t is a struct with keys of its own.
func isNested(t reflect.Type) bool { return t.Kind() == reflect.Struct && !isText(t) }

// fieldsOf lists the leaf keys of a config struct (or of nothing, for a nil default) in the order of
// the source. defaults is a struct or a pointer to one. A malformed tag is a programming error and
// panics; the first start finds it.
func fieldsOf(defaults any) []field {
	if defaults == nil {
		return nil
	}
	v := reflect.Indirect(reflect.ValueOf(defaults))
	return appendFields(nil, v, "", nil)
}

func appendFields(out []field, v reflect.Value, prefix string, index []int) []field {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		key, squash := keyOf(sf)
		idx := append(slices.Clone(index), i)
		switch {
		case squash:
			out = appendFields(out, v.Field(i), prefix, idx)
			continue
		case key == "":
			continue
		}
		path := join(prefix, key)
		if isNested(sf.Type) {
			out = appendFields(out, v.Field(i), path, idx)
			continue
		}
		tag := sf.Tag
		f := field{path: path, index: idx, typ: sf.Type, def: v.Field(i).Interface(), doc: tag.Get("doc"),
			env: list(tag.Get("env"), ","), enum: list(tag.Get("enum"), "|"), aliases: list(tag.Get("alias"), ","),
			inactive: tag.Get("inactive"), live: tag.Get("live") == "true", secret: tag.Get("secret") == "true"}
		if u := tag.Get("envunit"); u != "" {
			unit, err := time.ParseDuration("1" + u)
			if err != nil {
				panic(fmt.Sprintf("config: %s.%s: envunit %q: %v", v.Type(), sf.Name, u, err))
			}
			f.envUnit = unit
		}
		if r, ok := tag.Lookup("range"); ok {
			b, err := parseBounds(r, sf.Type)
			if err != nil {
				panic(fmt.Sprintf("config: %s.%s: range %q: %v", v.Type(), sf.Name, r, err))
			}
			f.rng = b
		}
		out = append(out, f)
	}
	return out
}

// keyOf returns the key of a struct field, "" if it is not a key.
func keyOf(sf reflect.StructField) (key string, squash bool) {
	name, opts, _ := strings.Cut(sf.Tag.Get("koanf"), ",")
	if opts == "squash" {
		return "", true
	}
	if !sf.IsExported() || name == "-" {
		return "", false
	}
	return name, false
}

func list(s, by string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, by)
}

// bounds is an inclusive range; a nil end is open.
type bounds struct{ min, max *float64 }

func parseBounds(s string, t reflect.Type) (*bounds, error) {
	lo, hi, ok := strings.Cut(s, "..")
	if !ok {
		return nil, fmt.Errorf("want min..max")
	}
	var b bounds
	for _, end := range []struct {
		text string
		to   **float64
	}{{lo, &b.min}, {hi, &b.max}} {
		if end.text == "" {
			continue
		}
		n, err := boundValue(end.text, t)
		if err != nil {
			return nil, err
		}
		*end.to = &n
	}
	return &b, nil
}

func boundValue(s string, t reflect.Type) (float64, error) {
	switch t {
	case durationType:
		d, err := time.ParseDuration(s)
		return float64(d), err
	case sizeType:
		n, err := units.ParseSize(s)
		return float64(n), err
	}
	if _, ok := numeric(reflect.Zero(t)); !ok {
		return 0, fmt.Errorf("%s has no range", t)
	}
	return strconv.ParseFloat(s, 64)
}

func numeric(v reflect.Value) (float64, bool) {
	switch {
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanUint():
		return float64(v.Uint()), true
	case v.CanFloat():
		return v.Float(), true
	}
	return 0, false
}

// allows reports whether the value of a field is inside its range and enum.
func (f *field) allows(v reflect.Value) bool {
	if f.rng != nil {
		if n, ok := numeric(v); ok && (f.rng.min != nil && n < *f.rng.min || f.rng.max != nil && n > *f.rng.max) {
			return false
		}
	}
	if f.enum == nil {
		return true
	}
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			if !slices.Contains(f.enum, fmt.Sprint(v.Index(i))) {
				return false
			}
		}
		return true
	}
	return slices.Contains(f.enum, fmt.Sprint(v))
}

// want says which values the field takes: "a whole number from 1 to 16".
func (f *field) want() string {
	if f.enum != nil {
		return "one of " + strings.Join(f.enum, ", ")
	}
	s := wantType(f.typ)
	if f.rng == nil {
		return s
	}
	if f.typ == sizeType || f.typ == durationType {
		s += ","
	}
	switch lo, hi := f.rng.min, f.rng.max; {
	case lo != nil && hi != nil:
		return fmt.Sprintf("%s from %s to %s", s, f.bound(*lo), f.bound(*hi))
	case lo != nil:
		return fmt.Sprintf("%s of at least %s", s, f.bound(*lo))
	default:
		return fmt.Sprintf("%s of at most %s", s, f.bound(*hi))
	}
}

// limits is the range as the tag writes it: "1..16".
func (f *field) limits() string {
	var lo, hi string
	if f.rng.min != nil {
		lo = f.bound(*f.rng.min)
	}
	if f.rng.max != nil {
		hi = f.bound(*f.rng.max)
	}
	return lo + ".." + hi
}

func (f *field) bound(n float64) string {
	switch f.typ {
	case durationType:
		return formatDuration(time.Duration(n))
	case sizeType:
		return units.Size(n).String()
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}

// formatDuration drops the zero units that Duration.String appends: "10m", not "10m0s".
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func wantType(t reflect.Type) string {
	switch {
	case t == durationType:
		return `a duration such as "10s"`
	case t == sizeType:
		return `a size such as 1048576 or "4GB"`
	case isText(t) || t.Kind() == reflect.String:
		return "text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list of " + strings.TrimPrefix(strings.TrimPrefix(wantType(t.Elem()), "a "), "an ")
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Interface:
		return "a single value"
	}
	return "a whole number"
}

// typeName is the type as shown in the schema.
func typeName(t reflect.Type) string {
	switch {
	case t == durationType:
		return "duration"
	case t == sizeType:
		return "size"
	case isText(t):
		return "text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.String:
		return "text"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list of " + typeName(t.Elem())
	case reflect.Map:
		return "map of " + typeName(t.Elem())
	case reflect.Struct:
		return "object"
	case reflect.Interface:
		return "any"
	}
	return "integer"
}
