package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/core/module"
)

// ConfigPathVar names the file when no --config is given.
const ConfigPathVar = "MOONCAKE_CONFIG_PATH"

// environment is the third layer: the variables that config structs claim with an env tag.
type environment struct {
	vars     map[string]string
	claimed  map[string]bool // by any part of this binary, in use or not
	refused  map[string]bool // one message per variable, however many keys it sets
	layer    *values
	errors   []Problem
	warnings []Problem
}

// values is one layer: nested values and their origins.
type values struct {
	tree map[string]any
	at   map[string]source
}

func newValues() *values { return &values{tree: map[string]any{}, at: map[string]source{}} }

func (v *values) set(path string, x any, s source) {
	m := v.tree
	parts := strings.Split(path, sep)
	for _, p := range parts[:len(parts)-1] {
		sub, ok := m[p].(map[string]any)
		if !ok {
			sub = map[string]any{}
			m[p] = sub
		}
		m = sub
	}
	m[parts[len(parts)-1]] = x
	v.at[path] = s
}

func newEnvironment(environ []string) *environment {
	e := &environment{vars: map[string]string{}, claimed: map[string]bool{}, refused: map[string]bool{}, layer: newValues()}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			e.vars[name] = value
		}
	}
	return e
}

// claim marks the variables of fields as known without applying them.
func (e *environment) claim(fields []field) {
	for _, f := range fields {
		for _, name := range f.env {
			e.claimed[name] = true
		}
	}
}

// apply sets the keys of a section from their variables. The first variable of a tag is the current
// name, the others are older ones.
func (e *environment) apply(section string, fields []field) {
	e.claim(fields)
	for i := range fields {
		f := &fields[i]
		path, taken := join(section, f.path), ""
		for n, name := range f.env {
			text, set := e.vars[name]
			if !set {
				continue
			}
			if taken != "" {
				e.warn(name, fmt.Sprintf("ignored, because %s is set", taken))
				continue
			}
			taken = name
			if n > 0 {
				e.warn(name, "is an old name of "+f.env[0])
			}
			e.setVar(name, text, path, f)
		}
	}
}

func (e *environment) setVar(name, text, path string, f *field) {
	src := source{layer: fromEnv, name: name}
	if f.typ.Kind() == reflect.Bool && presenceVars[name] {
		e.present(name, text, dotted(path)+" is switched on")
		e.layer.set(path, true, src)
		return
	}
	v, err := setting(name, text, f)
	switch {
	case err == nil:
		e.layer.set(path, v, src)
	case !e.refused[name]:
		e.refused[name] = true
		e.errors = append(e.errors, src.problem(path, f.complaint(text, err)))
	}
}

// present warns about a value that looks like "off" for a variable whose presence alone counts.
func (e *environment) present(name, text, effect string) {
	if slices.Contains([]string{"", "0", "false", "no", "off"}, strings.ToLower(text)) {
		e.warn(name, fmt.Sprintf("%s although the value is %q: any value does that; unset the variable to switch it off", effect, text))
	}
}

func (e *environment) warn(name, msg string) {
	p := Problem{File: "environment", Key: name, Msg: msg}
	if !slices.Contains(e.warnings, p) {
		e.warnings = append(e.warnings, p)
	}
}

// leftovers warns about variables that look like Mooncake's and do nothing here.
func (e *environment) leftovers() {
	known := slices.Concat(slices.Collect(maps.Keys(upstreamVars)), slices.Collect(maps.Keys(e.claimed)))
	slices.Sort(known)
	for _, name := range slices.Sorted(maps.Keys(e.vars)) {
		switch {
		case e.claimed[name], name == ConfigPathVar:
		case isUpstream(name) && name != "LOCAL_HOSTNAME":
			e.warn(name, "known upstream, not used by this binary")
		case strings.HasPrefix(name, "MC_"), strings.HasPrefix(name, "MOONCAKE_"):
			msg := "not known, ignored"
			if near := module.Nearest(name, known); near != "" {
				msg += "; did you mean " + near + "?"
			}
			e.warn(name, msg)
		}
	}
}
