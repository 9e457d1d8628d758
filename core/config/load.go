package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"

	"github.com/mooncake-agent/mooncake/core/module"
)

// Options says what to load.
type Options struct {
	Schema Schema
	// Path is the file given by --config. If it is empty, the variable MOONCAKE_CONFIG_PATH names the
	// file; if that is empty too, there is no file.
	Path string
	// Environ is the environment as os.Environ returns it.
	Environ []string
	// Flags is the topmost layer, later entries win.
	Flags []Flag
}

// Flag is one key set on the command line.
type Flag struct {
	Name  string // of the flag without dashes, for messages
	Key   string // dotted path; an instance whose name contains a dot cannot be reached
	Value any    // text, or a value of the key's type
}

// Loaded is a complete, valid configuration. It does not change; a reload makes a new one.
type Loaded struct {
	path      string
	digest    uint64
	schema    Schema
	root      Root
	tree      map[string]any
	at        map[string]source
	instances map[string][]Instance
	values    []Value
	warnings  []Problem
}

// Instance is one configured part that is to be built.
type Instance struct {
	Name    string // instance name, the key of its section
	Type    string // canonical type
	Section module.Section
	// Required: a part that cannot run here must stop the start.
	Required bool
	// Implied: the file has no section for it; a default or the protocol asks for it.
	Implied bool
}

// Path returns the file that was read, "" if there is none.
func (l *Loaded) Path() string { return l.path }

// Root returns the flat keys and what they resolve to.
func (l *Loaded) Root() Root { return l.root }

// Section returns the section of a core-owned struct; an absent one leaves the defaults untouched.
func (l *Loaded) Section(key string) module.Section {
	raw, _ := l.tree[key].(map[string]any)
	return &section{raw: raw, path: key, at: l.origin}
}

// Shared returns the keys that stand beside the instances of a kind, see [KindSpec.Shared].
func (l *Loaded) Shared(kindKey string) module.Section {
	raw, _ := l.tree[kindKey].(map[string]any)
	if k := l.schema.kind(kindKey); k != nil {
		raw, _ = k.splitShared(raw)
	}
	return &section{raw: raw, path: kindKey, at: l.origin}
}

// Instances returns the parts to build for a kind, sorted by name. Parts that cannot run here are
// among them (their constructor answers module.ErrSkip); those with "enabled": false are not.
func (l *Loaded) Instances(kindKey string) []Instance { return slices.Clone(l.instances[kindKey]) }

// InstanceProblem places a finding at the section of an instance.
func (l *Loaded) InstanceProblem(kindKey, name, msg string) Problem {
	path := join(kindKey, name)
	return l.origin(path).problem(path, msg)
}

// PartProblems places what is wrong with an instance at the keys that the error names, as Load does with the errors of
// module.Validator: "command: no such file" is a problem of transports.mover.command.
func (l *Loaded) PartProblems(kindKey string, i Instance, err error) []Problem {
	path, fields := join(kindKey, i.Name), []field(nil)
	if k := l.schema.kind(kindKey); k != nil {
		if k.Single {
			path = kindKey
		}
		if info := k.part(i.Type); info != nil {
			fields = fieldsOf(info.Defaults)
		}
	}
	found := &loading{Loaded: l}
	found.failAll(path, err, fields)
	return found.errors
}

// Warnings returns what the user should know although the configuration is usable.
func (l *Loaded) Warnings() []Problem { return slices.Clone(l.warnings) }

// origin returns where the value of a key path came from.
func (l *Loaded) origin(path string) source {
	for p := path; ; {
		if s, ok := l.at[p]; ok {
			return s
		}
		i := strings.LastIndex(p, sep) // an absent member is reported at its section
		if i < 0 {
			return source{name: l.path}
		}
		p = p[:i]
	}
}

// given reports whether a layer sets the key.
func (l *Loaded) given(path string) bool { s, ok := l.at[path]; return ok && s.layer != fromRule }

// loading is a load in progress.
type loading struct {
	*Loaded
	env    *environment
	errors []Problem
	parts  []*pending
	// protocolType is the transport type that the key protocol names, "" if this binary lacks it.
	protocolType string
}

func (l *loading) fail(path, msg string) {
	l.errors = append(l.errors, l.origin(path).problem(path, msg))
}
func (l *loading) warn(path, msg string) {
	l.warnings = append(l.warnings, l.origin(path).problem(path, msg))
}

// Load reads and checks everything: the file, the environment, the flags, every section by its owner's
// rules. Nothing is built, dialled or listened on. The error is an *Errors with every problem found.
func Load(o Options) (*Loaded, error) {
	l := &loading{Loaded: &Loaded{path: o.Path, schema: o.Schema, at: map[string]source{}, instances: map[string][]Instance{}}, env: newEnvironment(o.Environ)}
	if l.path == "" {
		l.path = l.env.vars[ConfigPathVar]
	}
	if l.path == "" {
		return l.load(nil, o.Flags)
	}
	data, p := readFile(l.path)
	if p != nil {
		return nil, &Errors{Problems: []Problem{*p}}
	}
	l.digest = xxhash.Sum64(data)
	return l.load(parse(l.path, data), o.Flags)
}

func (l *loading) load(doc *document, flags []Flag) (*Loaded, error) {
	file := newValues()
	if doc != nil {
		l.errors = append(l.errors, doc.problems...)
		if doc.fatal {
			return nil, l.failed()
		}
		file = &values{tree: doc.values, at: doc.at}
		l.at = file.at // for the problems found before the layers are merged
		l.tidy(file)
	}
	rootFields := fieldsOf(defaultRoot())
	l.env.apply("", rootFields)
	l.forceTCP()
	for _, s := range l.schema.Sections {
		l.env.apply(s.Key, fieldsOf(s.Defaults))
	}
	args := l.flagValues(flags, rootFields)
	l.merge(file, l.env.layer, args)
	root := defaultRoot()
	l.decodeRoot(&root)
	l.resolveParts(&root)
	l.merge(file, l.env.layer, args) // now with the variables of the parts in use
	l.checkRoot(&root)
	for _, s := range l.schema.Sections {
		l.checkSection(s)
	}
	for _, p := range l.parts {
		l.checkPart(p)
		if p.kind.Key == metadataKey {
			root.Metadata = MetadataTarget{Type: p.Type, Section: p.Section}
		}
	}
	for _, list := range l.instances {
		slices.SortFunc(list, func(a, b Instance) int { return strings.Compare(a.Name, b.Name) })
	}
	l.checkTransports(&root)
	l.checkReach(&root)
	l.listRoot(&root)
	l.warnInactive(rootFields)
	l.env.leftovers()
	l.root = root
	l.errors = append(l.errors, l.env.errors...)
	l.warnings = sortProblems(append(l.warnings, l.env.warnings...))
	if len(l.errors) > 0 {
		return nil, l.failed()
	}
	return l.Loaded, nil
}

// failed is the error of this load: what comes first, and how much more there is.
func (l *loading) failed() error {
	ps := sortProblems(l.errors)
	if n := len(ps) - maxProblems; n > 0 {
		ps = append(ps[:maxProblems], Problem{File: l.path, Msg: fmt.Sprintf("and at least %d more", n)})
	}
	return &Errors{Problems: ps, Warnings: sortProblems(l.warnings)}
}

// merge lays the layers on top of each other, lowest first.
func (l *loading) merge(layers ...*values) {
	ko := koanf.New(sep)
	at := map[string]source{}
	for _, v := range layers {
		if err := ko.Load(confmap.Provider(v.tree, ""), nil); err != nil {
			panic("config: " + err.Error()) // a map in memory cannot fail to load
		}
		for path := range v.at { // a list replaces the whole list below it
			maps.DeleteFunc(at, func(p string, _ source) bool { return strings.HasPrefix(p, path+sep+"[") })
		}
		maps.Copy(at, v.at)
	}
	l.tree, l.at = ko.Raw(), at
}

// tidy brings the top level of the file into shape: aliases take their main name, empty sections
// become objects, and what nobody knows is reported.
func (l *loading) tidy(file *values) {
	root := fieldsOf(defaultRoot())
	main := map[string]string{}
	for _, f := range root {
		main[f.path] = f.path
		l.aliases(file, f)
	}
	sections := slices.Clone(plannedSections)
	for _, s := range l.schema.Sections {
		sections = append(sections, s.Key)
	}
	for _, k := range l.schema.Kinds {
		sections = append(sections, k.Key)
	}
	delete(file.tree, "$schema") // for editors
	for _, key := range slices.Sorted(maps.Keys(file.tree)) {
		switch {
		case main[key] != "":
		case !slices.Contains(sections, key):
			if len(l.errors) <= maxProblems {
				l.fail(key, unknownKey(key, l.schema.topKeys()))
			}
			delete(file.tree, key)
		case file.tree[key] == nil:
			file.tree[key] = map[string]any{}
		case reflect.TypeOf(file.tree[key]) != reflect.TypeFor[map[string]any]():
			l.fail(key, fmt.Sprintf("needs an object, got %s", kindOf(file.tree[key])))
			delete(file.tree, key)
		}
		_, isSection := file.tree[key].(map[string]any)
		if isSection && main[key] == "" && l.schema.section(key) == nil && l.schema.kind(key) == nil {
			l.warn(key, notActive)
		}
	}
}

func (l *loading) aliases(file *values, f field) {
	used := f.path
	for _, alias := range f.aliases {
		v, ok := file.tree[alias]
		if !ok {
			continue
		}
		l.warn(alias, fmt.Sprintf("is another name of %s; write %s", f.path, f.path))
		if first, both := file.tree[used]; both {
			if fmt.Sprint(first) != fmt.Sprint(v) {
				l.fail(alias, fmt.Sprintf("%s and %s differ: %s and %s", used, alias, show(first), show(v)))
			}
		} else {
			used = alias
		}
	}
	if used != f.path {
		file.tree[f.path], file.at[f.path] = file.tree[used], file.at[used]
	}
	for _, alias := range f.aliases {
		delete(file.tree, alias)
	}
}

// forceTCP honours upstream's switch, which wins over MOONCAKE_PROTOCOL.
func (l *loading) forceTCP() {
	const name = "MC_FORCE_TCP"
	l.env.claimed[name] = true
	if text, set := l.env.vars[name]; set {
		l.env.present(name, text, "protocol tcp is forced")
		l.env.layer.set("protocol", "tcp", source{layer: fromEnv, name: name})
	}
}

func (l *loading) flagValues(flags []Flag, root []field) *values {
	out := newValues()
	for _, fl := range flags {
		src := source{layer: fromFlag, name: fl.Name}
		path := strings.ReplaceAll(fl.Key, ".", sep)
		f := l.schema.find(path, root)
		if f == nil {
			l.errors = append(l.errors, src.problem(path, unknownKey(fl.Key, l.schema.dottedKeys())))
			continue
		}
		v, err := setting(fl.Name, fl.Value, f)
		if err != nil {
			l.errors = append(l.errors, src.problem(path, f.complaint(fl.Value, err)))
			continue
		}
		out.set(path, v, src)
	}
	return out
}

// setting converts the value of a variable or flag and checks it as far as it can be checked alone.
func setting(name string, v any, f *field) (any, error) {
	text, isText := v.(string)
	var err error
	if isText {
		v, err = convertText(name, text, f)
	} else {
		v, err = convert(v, f.typ, lenient)
	}
	if err == nil && isText && f.typ.Kind() == reflect.String && !f.secret {
		if form := template(text); form != "" {
			err = spoken(fmt.Sprintf("%s contains an unexpanded %s", show(text), form))
		}
	}
	if err == nil && !f.allows(reflect.ValueOf(v)) {
		err = errMismatch
	}
	return v, err
}

// find returns the field that a key path names; below a kind, the instance name is free.
func (s *Schema) find(path string, root []field) *field {
	pick := func(fields []field, rel string) *field {
		for i := range fields {
			if fields[i].path == rel {
				return &fields[i]
			}
		}
		return nil
	}
	if f := pick(root, path); f != nil {
		return f
	}
	key, rel, _ := strings.Cut(path, sep)
	if sec := s.section(key); sec != nil {
		return pick(fieldsOf(sec.Defaults), rel)
	}
	k := s.kind(key)
	if k == nil {
		return nil
	}
	if f := pick(fieldsOf(k.Shared), rel); f != nil {
		return f
	}
	if !k.Single {
		_, rel, _ = strings.Cut(rel, sep)
	}
	if f := pick(fieldsOf(instanceKeys{}), rel); f != nil {
		return f
	}
	for _, part := range k.Kind.List() {
		if f := pick(fieldsOf(part.Defaults), rel); f != nil {
			return f
		}
	}
	return nil
}

func (s *Schema) dottedKeys() []string {
	var out []string
	for _, k := range s.Keys() {
		out = append(out, k.Key)
	}
	return out
}

func (l *loading) decodeRoot(root *Root) {
	raw := maps.Clone(l.tree)
	for key, v := range raw {
		if _, isSection := v.(map[string]any); isSection && !slices.ContainsFunc(fieldsOf(defaultRoot()), func(f field) bool { return f.path == key }) {
			delete(raw, key)
		}
	}
	l.errors = append(l.errors, decode(raw, "", root, lenient, l.origin)...)
}

func (l *loading) checkSection(s SectionSpec) {
	into := reflect.New(reflect.Indirect(reflect.ValueOf(s.Defaults)).Type())
	into.Elem().Set(reflect.Indirect(reflect.ValueOf(s.Defaults)))
	err := l.Section(s.Key).Decode(into.Interface())
	if v, ok := into.Interface().(module.Validator); ok && err == nil {
		err = v.Validate()
	}
	l.failAll(s.Key, err, fieldsOf(s.Defaults))
	l.list(s.Key, false, into.Interface())
	if why := l.schema.inactive(s.Key); why != "" && l.given(s.Key) {
		l.warn(s.Key, why)
	}
}

// failAll takes an error of a section apart: positions from Decode, "key: what" from Validate.
func (l *loading) failAll(base string, err error, fields []field) {
	if err == nil {
		return
	}
	if es := (*Errors)(nil); errors.As(err, &es) {
		l.errors = append(l.errors, es.Problems...)
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			l.failAll(base, err, fields)
		}
		return
	}
	key, msg, _ := strings.Cut(err.Error(), ": ")
	names := strings.FieldsFunc(strings.ReplaceAll(key, " and ", ","), func(r rune) bool { return r == ',' || r == ' ' })
	var paths []string
	for _, name := range names {
		rel := strings.ReplaceAll(name, ".", sep)
		if !slices.ContainsFunc(fields, func(f field) bool { return f.path == rel || strings.HasPrefix(f.path, rel+sep) }) {
			break
		}
		paths = append(paths, join(base, rel))
	}
	switch {
	case len(paths) == 0 || len(paths) != len(names):
		l.fail(base, err.Error())
	case len(paths) == 1:
		l.fail(paths[0], msg)
	default: // "a, b: they contradict": where the user wrote the first of them
		l.fail(paths[max(0, slices.IndexFunc(paths, l.given))], err.Error())
	}
}

func (l *loading) warnInactive(root []field) {
	for _, f := range root {
		why := f.inactive
		if s := l.schema.inactive(f.path); s != "" {
			why = s
		}
		if why != "" && l.given(f.path) {
			l.warn(f.path, why)
		}
	}
}
