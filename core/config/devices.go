package config

import (
	"fmt"
	"slices"
	"strings"
)

// rdmaDevices gives the names in the flat key device_name to the transports that have a key "devices", unless their
// section lists some itself.
func (l *loading) rdmaDevices(root *Root) {
	const flat = "device_name"
	var names []any
	for _, n := range strings.Split(root.DeviceName, ",") {
		switch n = strings.TrimSpace(n); strings.ToLower(n) {
		case "", "auto", "auto-discovery":
		default:
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return
	}
	for _, p := range l.parts {
		if p.kind.Key != transportsKey {
			continue
		}
		info := p.kind.part(p.Type)
		if info == nil || !slices.ContainsFunc(fieldsOf(info.Defaults), func(f field) bool { return f.path == "devices" }) {
			continue
		}
		path := join(p.path, "devices")
		if !l.given(path) {
			l.env.layer.set(path, names, l.at[flat])
			continue
		}
		own, _ := l.tree[transportsKey].(map[string]any)[p.Name].(map[string]any)
		if given, ok := own["devices"].([]any); ok && len(given) > 0 && fmt.Sprint(given) != fmt.Sprint(names) {
			l.fail(path, fmt.Sprintf("%s and device_name differ: %s and %s", dotted(path), show(given), show(names)))
		}
	}
}
