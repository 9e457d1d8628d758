package telemetry

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// masked is what is written instead of a secret.
const masked = "***"

// secretKeys are parts of attribute names whose values are never written. "tokens" are counted in this
// field, so only names that end in "token" are secret.
var secretKeys = []string{"password", "passwd", "secret", "credential", "authorization", "private_key", "api_key"}

func isSecretKey(key string) bool {
	key = strings.ToLower(key)
	return strings.HasSuffix(key, "token") || slices.ContainsFunc(secretKeys, func(k string) bool { return strings.Contains(key, k) })
}

// redact is slog's ReplaceAttr of every handler of ours.
func redact(groups []string, a slog.Attr) slog.Attr {
	if isSecretKey(a.Key) {
		return slog.String(a.Key, masked)
	}
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindString:
		if s := v.String(); scrub(s) != s {
			a.Value = slog.StringValue(scrub(s))
		}
	case slog.KindAny:
		switch x := v.Any().(type) {
		case error:
			a.Value = slog.StringValue(scrub(x.Error()))
		case nil:
		default:
			if t := reflect.TypeOf(x); holdsSecrets(t) {
				a.Value = slog.StringValue("(a " + t.String() + " is not logged: it holds secrets)")
			} else if s, ok := x.(fmt.Stringer); ok && scrub(s.String()) != s.String() {
				a.Value = slog.StringValue(scrub(s.String()))
			} else if l, ok := x.([]string); ok {
				a.Value = slog.AnyValue(scrubAll(l))
			}
		}
	}
	return a
}

// scrub masks the passwords in all scheme://user:password@host inside s.
func scrub(s string) string {
	if !strings.Contains(s, "://") || !strings.Contains(s, "@") {
		return s
	}
	var out strings.Builder
	for {
		i := strings.Index(s, "://")
		if i < 0 {
			break
		}
		out.WriteString(s[:i+3])
		s = s[i+3:]
		end := len(s)
		if e := strings.IndexAny(s, " \t\r\n\"'"); e >= 0 {
			end = e
		}
		if e := strings.Index(s, "://"); e >= 0 {
			end = min(end, e)
		}
		colon := strings.IndexAny(s[:end], ":/@[") // '[': an IPv6 address without a user
		if colon < 0 || s[colon] != ':' {
			continue
		}
		at := strings.LastIndexByte(s[colon:end], '@')
		if at < 0 || isPort(s[colon+1:end]) {
			continue
		}
		out.WriteString(s[:colon+1] + masked)
		s = s[colon+at:]
	}
	out.WriteString(s)
	return out.String()
}

// isPort tells whether s starts with a port: digits up to a character that ends an address.
func isPort(s string) bool {
	rest := strings.TrimLeft(s, "0123456789")
	return len(rest) < len(s) && (rest == "" || strings.ContainsRune("/?#,;", rune(rest[0])))
}

func scrubAll(l []string) []string {
	out := make([]string, len(l))
	for i, s := range l {
		out[i] = scrub(s)
	}
	return out
}

var secretTypes sync.Map // reflect.Type → bool

// holdsSecrets tells whether a config struct of that type has a key tagged secret, however deep.
func holdsSecrets(t reflect.Type) bool {
	if v, ok := secretTypes.Load(t); ok {
		return v.(bool)
	}
	v := findSecret(t, map[reflect.Type]bool{})
	secretTypes.Store(t, v)
	return v
}

func findSecret(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return findSecret(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Tag.Get("secret") == "true" || findSecret(f.Type, seen) {
				return true
			}
		}
	}
	return false
}
