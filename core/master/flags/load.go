package flags

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/module"
)

// Value is one flag as it was given.
type Value struct {
	Flag *Flag
	// Name is the spelling that was used, Place where it stands: "--rpc_port", "master.yaml:3:1: rpc_port".
	Name, Place string
	Text        string
	file        bool
}

// Line is a parsed command line.
type Line struct {
	Values        []Value
	Help, Version bool
}

// Parse reads a command line in gflags' forms: --name=value, --name value, --name and --noname for switches, all
// with one or two dashes, names with dashes or underscores. The error has a line for each thing that is
// wrong; values are checked by [Load].
func Parse(args []string) (*Line, error) {
	l := &Line{}
	var errs []error
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, isFlag := strings.CutPrefix(arg, "-")
		name = strings.TrimPrefix(name, "-")
		if !isFlag || name == "" {
			errs = append(errs, stray(arg, l.Values))
			continue
		}
		name, text, hasText := strings.Cut(name, "=")
		shown := "--" + name
		name = Canonical(name)
		switch name {
		case "h", "help", "helpfull", "helpshort":
			l.Help = true
			continue
		case "version":
			l.Version = true
			continue
		case "flagfile", "fromenv", "tryfromenv", "undefok":
			errs = append(errs, fmt.Errorf("%s: not in this version; write the flags out or use --config_path", shown))
			continue
		}
		f, ok := Lookup(name)
		if !ok && !hasText {
			if f, ok = negated(name); ok {
				text, hasText = "false", true
			}
		}
		if !ok {
			errs = append(errs, unknown(shown, name))
			continue
		}
		switch {
		case hasText:
		case f.IsBool():
			text = "true"
		case i+1 < len(args):
			i++
			text = args[i]
		default:
			errs = append(errs, fmt.Errorf("%s: a value is missing", shown))
			continue
		}
		l.Values = append(l.Values, Value{Flag: f, Name: name, Place: shown, Text: text})
	}
	return l, errors.Join(errs...)
}

// negated finds the switch in "nolog" and "no_log".
func negated(name string) (*Flag, bool) {
	rest, ok := strings.CutPrefix(name, "no")
	if !ok {
		return nil, false
	}
	for _, n := range []string{rest, strings.TrimPrefix(rest, "_")} {
		if f, ok := Lookup(n); ok && f.IsBool() {
			return f, true
		}
	}
	return nil, false
}

func unknown(shown, name string) error {
	if near := module.Nearest(name, names()); near != "" && len(name) < 100 {
		return fmt.Errorf("%s: unknown flag; did you mean --%s?", shown, near)
	}
	return fmt.Errorf("%s: unknown flag; mooncake master --help lists them", shown)
}

// stray is the error for a word that is no flag. gflags ignores it, also in "--enable_ha false".
func stray(arg string, before []Value) error {
	if n := len(before); n > 0 && before[n-1].Flag.IsBool() {
		if _, err := parseBool(arg); err == nil {
			return fmt.Errorf("%q: unexpected; write %s=%s", arg, before[n-1].Place, arg)
		}
	}
	return fmt.Errorf("%q: unexpected; flags begin with -", arg)
}

// Result is what [Load] found.
type Result struct {
	Settings Settings
	// Path is the config file, "" without one.
	Path     string
	Warnings []string
}

// Load merges defaults, the file that the command line names, and the command line itself; env looks up
// environment variables. The error has a line for each thing that is wrong, with its place.
func Load(line *Line, env func(string) string) (*Result, error) {
	r := &Result{Settings: Defaults()}
	var errs []error
	fail := func(v Value, err error) { errs = append(errs, fmt.Errorf("%s: %w", v.Place, err)) }
	for _, v := range line.Values {
		if v.Flag.Name == "config_path" {
			r.Path = v.Text
		}
	}
	var values []Value
	if r.Path != "" {
		doc, err := config.ReadDocument(r.Path)
		if err != nil {
			return nil, err
		}
		if values, err = fileValues(doc); err != nil {
			errs = append(errs, err)
		}
	}
	values = append(values, line.Values...)
	given := map[string]bool{}
	last := map[*Flag]Value{}
	for _, v := range values {
		f := v.Flag
		given[f.Name] = true
		if old, twice := last[f]; twice && old.file && v.file && old.Text != v.Text && !(f.Repeat && old.Name == v.Name) {
			fail(v, fmt.Errorf("%s and %s are the same setting and differ", old.Name, v.Name))
		}
		if old, twice := last[f]; twice && old.file && !v.file && f.Repeat {
			f.reset(&r.Settings) // the command line replaces the file's list
		}
		last[f] = v
		if err := f.set(&r.Settings, v.Text); err != nil {
			fail(v, err)
		}
	}
	for _, v := range inOrder(values, last) {
		warning, err := v.standing()
		if err != nil {
			fail(v, err)
		}
		if warning != "" {
			r.Warnings = append(r.Warnings, v.Place+": "+warning)
		}
	}
	if id := env("MC_STORE_CLUSTER_ID"); id != "" && !given["cluster_id"] {
		r.Settings.Master.ClusterID = id
	}
	if p := env("MC_RPC_PROTOCOL"); p != "" && !strings.EqualFold(p, "tcp") {
		errs = append(errs, fmt.Errorf("MC_RPC_PROTOCOL=%s: RPC over %s is not in this version; unset it", p, p))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	warnings, err := r.Settings.settle(given)
	r.Warnings = append(r.Warnings, warnings...)
	if err != nil {
		return nil, placed(err, last)
	}
	return r, nil
}

// inOrder returns the values that hold, in the order in which they were given.
func inOrder(values []Value, last map[*Flag]Value) []Value {
	var out []Value
	seen := map[*Flag]bool{}
	for _, v := range values {
		if last[v.Flag] == v && !seen[v.Flag] {
			seen[v.Flag] = true
			out = append(out, v)
		}
	}
	return out
}

// standing tells whether a value is refused or has no effect.
func (v Value) standing() (warning string, err error) {
	f := v.Flag
	switch {
	case f.Off != "" && f.on(v.Text):
		if v.file {
			return "", fmt.Errorf("%s: not in this version; take the key out", f.Off)
		}
		return "", fmt.Errorf("%s: not in this version; leave the flag out", f.Off)
	case f.Group == Logging && f.Needs != "":
		return "no effect: it belongs to " + f.Needs, nil
	case f.Needs != "" && !f.isDefault(v.Text):
		return "no effect without " + f.Needs + ", which this version lacks", nil
	}
	return "", nil
}

// placed puts the place of a flag in front of errors that begin with its name.
func placed(err error, last map[*Flag]Value) error {
	var out []error
	for _, line := range strings.Split(err.Error(), "\n") {
		name, rest, _ := strings.Cut(line, ": ")
		if f, ok := Lookup(name); ok {
			if v, ok := last[f]; ok {
				line = v.Place + ": " + rest
			}
		}
		out = append(out, errors.New(line))
	}
	return errors.Join(out...)
}

// fileValues reads the flat keys of a file.
func fileValues(doc *config.Document) ([]Value, error) {
	var out []Value
	var problems config.Errors
	bad := func(key, format string, args ...any) {
		problems.Problems = append(problems.Problems, doc.Problem(key, format, args...))
	}
	for _, key := range doc.Keys() {
		value := doc.Value(key)
		f, known := Lookup(key)
		if nested, ok := value.(map[string]any); ok && !known {
			bad(key, "the file is flat: a key has one value%s", inside(nested))
			continue
		}
		switch {
		case !known || f.Group == Logging:
			problems.Problems = append(problems.Problems, doc.UnknownKey(key, names()))
			continue
		case f.Name == "config_path":
			bad(key, "a config file cannot name another one")
			continue
		}
		entries, list := value.([]any)
		if list = list && f.Repeat; !list {
			entries = []any{value}
		}
		for _, e := range entries {
			text, ok := asText(e)
			if _, isText := e.(string); !ok || list && !isText {
				bad(key, "needs one value, got %s", kindOf(value))
				break
			}
			out = append(out, Value{Flag: f, Name: key, Place: doc.Place(key) + ": " + key, Text: text, file: true})
		}
	}
	if len(problems.Problems) > 0 {
		return out, &problems
	}
	return out, nil
}

// inside names a key of a nested map that would be known at the top level.
func inside(nested map[string]any) string {
	for k := range nested {
		if f, ok := Lookup(k); ok {
			return fmt.Sprintf("; move %s and its neighbours to the top level", f.Name)
		}
	}
	return ""
}

func asText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case bool:
		return fmt.Sprint(v), true
	case json.Number:
		return v.String(), true
	}
	return "", false
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null; leave the key out to get its default"
	case []any:
		return "a list"
	default:
		return "an object"
	}
}
