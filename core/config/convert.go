package config

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// errMismatch is answered for a value of the wrong sort; the caller says what was wanted.
var errMismatch = errors.New("wrong type")

// spoken is an error whose text is the whole message.
type spoken string

func (s spoken) Error() string { return string(s) }

// style is how forgiving the conversion of a value is.
type style uint8

const (
	strict  style = iota // sections of a file: a number is a number
	lenient              // upstream's flat keys: also strings for numbers, booleans and sizes
	textual              // environment and flags: everything is a string
)

// convert turns a value of a document into one of type t, for leaf types. Errors other than
// errMismatch carry a message that shows the value.
func convert(v any, t reflect.Type, how style) (any, error) {
	if reflect.TypeOf(v) == t {
		return v, nil // already typed: a flag, or a variable converted before
	}
	text, isString := v.(string)
	number, isNumber := v.(json.Number)
	switch {
	case t == sizeType:
		return toSize(v)
	case t == durationType:
		if !isString {
			return nil, errMismatch
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, errMismatch
		}
		return d, nil
	case isText(t):
		if !isString {
			return nil, errMismatch
		}
		p := reflect.New(t)
		if err := p.Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
			return nil, err
		}
		return p.Elem().Interface(), nil
	}
	switch t.Kind() {
	case reflect.String:
		if isString {
			return text, nil
		}
		if isNumber {
			return nil, fmt.Errorf("%w; put it in quotes", errMismatch)
		}
	case reflect.Bool:
		return toBool(v, how)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		if isNumber {
			return toNumber(string(number), t)
		}
		if isString && how != strict {
			return toNumber(text, t)
		}
	case reflect.Slice:
		if isString && how != strict && t.Elem().Kind() == reflect.String {
			out := []any{}
			for _, e := range strings.Split(text, ",") {
				if e = strings.TrimSpace(e); e != "" {
					out = append(out, e)
				}
			}
			return out, nil
		}
		if _, ok := v.([]any); ok {
			return v, nil
		}
	case reflect.Map, reflect.Struct:
		if isString && how == textual && t.Kind() == reflect.Map {
			return toMap(text)
		}
		if _, ok := v.(map[string]any); ok {
			return v, nil
		}
	case reflect.Interface:
		if isString || isNumber || reflect.TypeOf(v) == reflect.TypeFor[bool]() {
			return v, nil
		}
	}
	return nil, errMismatch
}

func toSize(v any) (any, error) {
	var text string
	switch v := v.(type) {
	case string:
		text = v
	case json.Number:
		if _, err := strconv.ParseInt(string(v), 10, 64); err != nil {
			return nil, errMismatch // negative, fraction, exponent, or more than 2^63-1
		}
		text = string(v)
	default:
		return nil, errMismatch
	}
	n, err := units.ParseSize(text)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// toBool accepts the words upstream's loader accepts, when strings are allowed at all.
func toBool(v any, how style) (any, error) {
	if b, ok := v.(bool); ok {
		return b, nil
	}
	if how == strict {
		return nil, errMismatch
	}
	switch strings.ToLower(fmt.Sprint(v)) {
	case "true", "1", "yes", "on", "enable":
		return true, nil
	case "false", "0", "no", "off", "disable":
		return false, nil
	}
	return nil, errMismatch
}

// toNumber is exact: integers above 2^53 keep every digit, and nothing is rounded or wrapped.
func toNumber(s string, t reflect.Type) (any, error) {
	if !jsonNumber.MatchString(s) {
		return nil, errMismatch
	}
	out := reflect.New(t).Elem()
	switch {
	case out.CanInt():
		n, err := strconv.ParseInt(s, 10, t.Bits())
		if errors.Is(err, strconv.ErrRange) {
			return nil, fmt.Errorf("%w; it must be from %d to %d", errMismatch, int64(-1)<<(t.Bits()-1), uint64(1)<<(t.Bits()-1)-1)
		}
		if err != nil {
			return nil, errMismatch
		}
		out.SetInt(n)
	case out.CanUint():
		n, err := strconv.ParseUint(s, 10, t.Bits())
		if errors.Is(err, strconv.ErrRange) || s[0] == '-' {
			return nil, fmt.Errorf("%w; it must be from 0 to %d", errMismatch, ^uint64(0)>>(64-t.Bits()))
		}
		if err != nil {
			return nil, errMismatch
		}
		out.SetUint(n)
	default:
		n, err := strconv.ParseFloat(s, t.Bits())
		if err != nil {
			return nil, errMismatch
		}
		out.SetFloat(n)
	}
	return out.Interface(), nil
}

func toMap(s string) (any, error) {
	out := map[string]any{}
	for _, e := range strings.Split(s, ",") {
		if e = strings.TrimSpace(e); e == "" {
			continue
		}
		k, v, ok := strings.Cut(e, "=")
		if !ok {
			return nil, errors.New("needs name=value pairs with commas between them")
		}
		out[k] = v
	}
	return out, nil
}

// convertText converts the text of a variable or flag. Upstream's variables give durations as bare
// numbers whose unit is in the tag envunit or in the name: MC_..._MS, else seconds.
func convertText(name, text string, f *field) (any, error) {
	if f.typ.Kind() != reflect.String && text != strings.TrimSpace(text) {
		return nil, errMismatch
	}
	if f.typ == durationType && jsonNumber.MatchString(text) {
		unit := f.envUnit
		switch {
		case unit != 0:
		case strings.HasSuffix(name, "_MS"):
			unit = time.Millisecond
		default:
			unit = time.Second
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n > int64((1<<63-1)/unit) || n < -int64((1<<63-1)/unit) {
			return nil, errMismatch
		}
		return time.Duration(n) * unit, nil
	}
	return convert(text, f.typ, textual)
}

// complaint is the message for a value that a field does not take.
func (f *field) complaint(v any, err error) string {
	if f.secret {
		return fmt.Sprintf("needs %s, got %s (the value is not shown)", f.want(), kindOf(v))
	}
	var hint string
	if s := spoken(""); errors.As(err, &s) {
		return string(s)
	}
	switch {
	case v == nil:
		hint = "; leave the key out to get its default"
	case errors.Is(err, errMismatch) && err != errMismatch && f.rng == nil:
		hint = strings.TrimPrefix(err.Error(), errMismatch.Error())
	case errors.Is(err, errMismatch):
	case err != nil:
		return fmt.Sprintf("needs %s: %s", f.want(), err)
	}
	return fmt.Sprintf("needs %s, got %s%s", f.want(), show(v), hint)
}
