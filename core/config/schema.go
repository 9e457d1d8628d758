package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/units"
)

// KindInfo is what this package needs from a registry of parts; *module.Kind[T] implements it.
type KindInfo interface {
	// Name is the singular for messages: "transport".
	Name() string
	// Resolve returns the canonical name of a type, or an error that lists what there is.
	Resolve(typ string) (string, error)
	// Check decodes and validates a section without building anything.
	Check(typ string, s module.Section) error
	// List describes every part.
	List() []module.Info
}

// SectionSpec is a section that the core owns and that has one struct: "log", "admin", "transfer".
type SectionSpec struct {
	Key, Doc string
	// Defaults is the struct value that an absent section equals. If a pointer to it is a
	// module.Validator, Load calls it.
	Defaults any
}

// KindSpec is a section that configures exchangeable parts. Every instance may have the keys "type"
// (default: the instance name), "required" (a part that cannot run here is an error) and "enabled".
type KindSpec struct {
	Key, Doc string
	Kind     KindInfo
	// Single: the section itself is the one instance and names its "type" ("metadata"). Otherwise it
	// is a map of instances by name ("transports").
	Single bool
	// Shared is a struct of the keys that stand beside the instances in the section, nil if there are none. No
	// instance can have such a name.
	Shared any
	// Always lists types that have an instance of their name even if the file has none.
	Always []string
	// Live: instances may come, go and change without a restart.
	Live bool
}

// The keys that have rules of their own here.
const (
	metadataKey   = "metadata"   // fed by metadata_server too
	transportsKey = "transports" // chosen by protocol and prefer too
)

// Schema is everything that may stand in the file besides the flat keys of [Root].
type Schema struct {
	Sections []SectionSpec
	Kinds    []KindSpec
	// Inactive names flat keys or sections whose machinery this binary lacks; using one is answered
	// with a warning. Keys that no version of the node uses yet need not be named.
	Inactive []string
}

// plannedSections are accepted even when the schema does not have them (yet).
var plannedSections = []string{"admin", "eviction", "log", "metadata", "metadata_http", "segment", "store", "transfer", "transports"}

const notActive = "accepted, not active yet"

// inactive returns the warning for using a key, or "".
func (s *Schema) inactive(key string) string {
	for _, k := range s.Inactive {
		if k == key {
			return notActive
		}
	}
	return ""
}

func (s *Schema) section(key string) *SectionSpec {
	for i := range s.Sections {
		if s.Sections[i].Key == key {
			return &s.Sections[i]
		}
	}
	return nil
}

func (s *Schema) kind(key string) *KindSpec {
	for i := range s.Kinds {
		if s.Kinds[i].Key == key {
			return &s.Kinds[i]
		}
	}
	return nil
}

// topKeys returns every name that may stand at the top level: keys, their aliases, sections.
func (s *Schema) topKeys() []string {
	keys := append([]string{"$schema"}, plannedSections...)
	for _, f := range fieldsOf(defaultRoot()) {
		keys = append(append(keys, f.path), f.aliases...)
	}
	for _, sec := range s.Sections {
		keys = append(keys, sec.Key)
	}
	for _, k := range s.Kinds {
		keys = append(keys, k.Key)
	}
	return keys
}

// splitShared separates the keys of the section itself from its instances.
func (k *KindSpec) splitShared(section map[string]any) (shared, instances map[string]any) {
	shared, instances = map[string]any{}, map[string]any{}
	names := map[string]reflect.Type{}
	if k.Shared != nil {
		collectKeys(reflect.TypeOf(k.Shared), names)
	}
	for key, v := range section {
		if _, ok := names[key]; ok {
			shared[key] = v
		} else {
			instances[key] = v
		}
	}
	return shared, instances
}

// part returns what is known about a type, nil if there is no such type.
func (k *KindSpec) part(typ string) *module.Info {
	for _, i := range k.Kind.List() {
		if i.Name == typ {
			return &i
		}
	}
	return nil
}

// instanceKeys are the keys that every instance has besides those of its part.
type instanceKeys struct {
	Type     string `koanf:"type" doc:"type of the part; default: the name of the instance"`
	Required bool   `koanf:"required" doc:"refuse to start where the part cannot run, instead of going on without it"`
	Enabled  bool   `koanf:"enabled" doc:"false leaves the instance out"`
}

// KeyInfo describes one key, for "config schema" and the generated documentation.
type KeyInfo struct {
	// Key is the dotted path. Keys of parts are shown below an instance that has the type's name.
	Key string `json:"key"`
	// Section is the section's key, "" for the flat keys; Part is the type of part that has the key.
	Section string `json:"section,omitempty"`
	Part    string `json:"part,omitempty"`
	Type    string `json:"type"`
	Default any    `json:"default"`
	Doc     string `json:"doc"`
	// Env lists the variables that set the key, the preferred one first.
	Env     []string `json:"env,omitempty"`
	Aliases []string `json:"aliases,omitempty"`
	Range   string   `json:"range,omitempty"`
	Enum    []string `json:"enum,omitempty"`
	Live    bool     `json:"live"`
	Secret  bool     `json:"secret,omitempty"`
	// Note says why the key has no effect.
	Note string `json:"note,omitempty"`
}

// Keys lists every key: the flat ones, then the sections and kinds in the order of the schema.
func (s Schema) Keys() []KeyInfo {
	var out []KeyInfo
	add := func(section, part, prefix string, live bool, fields []field) {
		for i := range fields {
			f := &fields[i]
			k := KeyInfo{Key: dotted(join(prefix, f.path)), Section: section, Part: part, Type: typeName(f.typ),
				Default: plainValue(f.def), Doc: f.doc, Env: f.env, Aliases: f.aliases, Enum: f.enum,
				Live: live || f.live, Secret: f.secret, Note: f.inactive}
			if f.rng != nil {
				k.Range = f.limits()
			}
			if f.secret {
				k.Default = ""
			}
			top, _, _ := strings.Cut(join(prefix, f.path), sep)
			if why := s.inactive(top); why != "" {
				k.Note = why
			}
			out = append(out, k)
		}
	}
	add("", "", "", false, fieldsOf(defaultRoot()))
	for _, sec := range s.Sections {
		add(sec.Key, "", sec.Key, false, fieldsOf(sec.Defaults))
	}
	for _, k := range s.Kinds {
		add(k.Key, "", k.Key, k.Live, fieldsOf(k.Shared))
		for _, part := range k.Kind.List() {
			prefix, common := k.Key, []string{"type"}
			if !k.Single {
				prefix, common = join(k.Key, part.Name), []string{"type", "required", "enabled"}
			}
			fields := fieldsOf(instanceKeys{Type: part.Name, Enabled: true})[:len(common)]
			if k.Single {
				fields[0].doc = "type of the part"
			}
			add(k.Key, part.Name, prefix, k.Live, append(fields, fieldsOf(part.Defaults)...))
		}
	}
	return out
}

// plainValue turns a config value into what a file would say: sizes and durations as text.
func plainValue(v any) any {
	switch v := v.(type) {
	case nil:
		return nil
	case units.Size:
		return v.String()
	case time.Duration:
		return formatDuration(v)
	case fmt.Stringer:
		return v.String()
	}
	rv := reflect.ValueOf(v)
	if rv.Kind() == reflect.Slice {
		out := make([]any, rv.Len())
		for i := range out {
			out[i] = plainValue(rv.Index(i).Interface())
		}
		return out
	}
	if rv.Kind() == reflect.Map && rv.Len() == 0 {
		return map[string]any{}
	}
	return v
}
