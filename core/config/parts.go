package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/core/module"
)

// pending is an instance whose type is known and whose section is not checked yet.
type pending struct {
	Instance
	kind *KindSpec
	path string
	url  string // connection string from metadata_server
}

// resolve names the part of a type, or reports at path that there is none.
func (l *loading) resolve(kindKey, typ, path string) (string, bool) {
	k := l.schema.kind(kindKey)
	if k == nil {
		l.fail(path, fmt.Sprintf("this binary has no %s parts", kindKey))
		return "", false
	}
	name, err := k.Kind.Resolve(typ)
	if err != nil {
		l.fail(path, err.Error())
		return "", false
	}
	return name, true
}

// typeList is the hint for a missing type.
func (l *loading) typeList(kindKey string) string {
	k := l.schema.kind(kindKey)
	if k == nil {
		return ""
	}
	var names []string
	for _, p := range k.Kind.List() {
		names = append(names, p.Name)
	}
	return "; this binary has: " + strings.Join(names, ", ")
}

// resolveParts finds out which instances there are and of which type, then lets the environment set
// the keys of those in use.
func (l *loading) resolveParts(root *Root) {
	if l.schema.kind(metadataKey) == nil {
		l.metadata(root) // without backends only P2PHANDSHAKE passes
	}
	for i := range l.schema.Kinds {
		k := &l.schema.Kinds[i]
		switch {
		case k.Key == metadataKey:
			if typ, url, ok := l.metadata(root); ok {
				l.parts = append(l.parts, &pending{kind: k, path: k.Key, url: url, Instance: Instance{Name: typ, Type: typ, Required: true}})
			}
		case k.Single:
			l.single(k)
		default:
			l.mapped(k)
		}
		if k.Key == transportsKey {
			l.protocolPart(k, root)
			l.rdmaDevices(root)
		}
	}
	for _, p := range l.parts {
		if info := p.kind.part(p.Type); info != nil && (p.kind.Single || p.Name == p.Type) {
			l.env.apply(p.path, fieldsOf(info.Defaults))
		}
	}
	for i := range l.schema.Kinds {
		for _, info := range l.schema.Kinds[i].Kind.List() {
			l.env.claim(fieldsOf(info.Defaults))
		}
	}
}

func (l *loading) single(k *KindSpec) {
	raw, given := l.tree[k.Key].(map[string]any)
	if !given {
		return
	}
	typ, ok := l.typeOf(raw, k.Key)
	if !ok || typ == "" {
		return
	}
	if name, ok := l.resolve(k.Key, typ, join(k.Key, "type")); ok {
		l.parts = append(l.parts, &pending{kind: k, path: k.Key, Instance: Instance{Name: name, Type: name, Required: true}})
	}
}

// typeOf reads the "type" of a section that is one instance. It answers false after reporting that it
// is missing or not text, and "" for a section without any key.
func (l *loading) typeOf(raw map[string]any, kindKey string) (string, bool) {
	switch typ := raw["type"].(type) {
	case string:
		return typ, true
	case nil:
		if len(raw) == 0 {
			return "", true
		}
		l.fail(kindKey, "has no \"type\""+l.typeList(kindKey))
	default:
		l.fail(join(kindKey, "type"), "needs text, got "+show(typ))
	}
	return "", false
}

func (l *loading) mapped(k *KindSpec) {
	all, _ := l.tree[k.Key].(map[string]any)
	_, section := k.splitShared(all)
	l.checkShared(k)
	for _, name := range slices.Sorted(maps.Keys(section)) {
		path := join(k.Key, name)
		raw, ok := section[name].(map[string]any)
		if !ok && section[name] != nil {
			l.fail(path, fmt.Sprintf("needs an object, got %s", kindOf(section[name])))
			continue
		}
		common := instanceKeys{Type: name, Enabled: true}
		keys, _ := splitInstance(raw)
		l.errors = append(l.errors, decode(keys, path, &common, strict, l.origin)...)
		typ, err := k.Kind.Resolve(common.Type)
		if err != nil {
			at, hint := join(path, "type"), ""
			if !l.given(at) {
				at, hint = path, "; add a \"type\""
			}
			l.fail(at, err.Error()+hint)
			continue
		}
		if common.Enabled {
			l.parts = append(l.parts, &pending{kind: k, path: path, Instance: Instance{Name: name, Type: typ, Required: common.Required}})
		}
	}
	for _, typ := range k.Always {
		if _, named := section[typ]; !named {
			l.parts = append(l.parts, &pending{kind: k, path: join(k.Key, typ), Instance: Instance{Name: typ, Type: typ, Implied: true}})
		}
	}
}

// checkShared decodes the keys that stand beside the instances.
func (l *loading) checkShared(k *KindSpec) {
	if k.Shared == nil {
		return
	}
	into := reflect.New(reflect.TypeOf(k.Shared))
	into.Elem().Set(reflect.ValueOf(k.Shared))
	l.failAll(k.Key, l.Shared(k.Key).Decode(into.Interface()), fieldsOf(k.Shared))
	l.list(k.Key, k.Live, into.Interface())
}

// splitInstance separates the keys that every instance has from those of its part.
func splitInstance(raw map[string]any) (common, own map[string]any) {
	common, own = map[string]any{}, map[string]any{}
	for k, v := range raw {
		if k == "type" || k == "required" || k == "enabled" {
			common[k] = v
		} else {
			own[k] = v
		}
	}
	return common, own
}

// checkPart lets the part check its section and puts it on the list of instances.
func (l *loading) checkPart(p *pending) {
	raw, _ := lookup(l.tree, p.path)
	own, _ := raw.(map[string]any)
	_, own = splitInstance(own)
	if p.kind.Single { // only "type" is special in there
		for _, key := range []string{"required", "enabled"} {
			if v, ok := lookup(l.tree, join(p.path, key)); ok {
				own[key] = v
			}
		}
	}
	if p.url != "" {
		own["url"] = p.url
		for _, key := range []string{"url", "type"} {
			if at := join(p.path, key); !l.given(at) {
				l.at[at] = l.origin("metadata_server")
			}
		}
	}
	p.Section = &section{raw: own, path: p.path, at: l.origin}
	info := p.kind.part(p.Type)
	err := p.kind.Kind.Check(p.Type, p.Section)
	if err == nil && info != nil && info.State == module.Skipped {
		err = fmt.Errorf("%s: %w", info.Reason, module.ErrSkip)
	}
	switch {
	case errors.Is(err, module.ErrSkip):
		why := strings.TrimSuffix(err.Error(), ": "+module.ErrSkip.Error())
		switch {
		case p.Required:
			l.fail(p.path, fmt.Sprintf("%s %s is required but not available here: %s", p.kind.Kind.Name(), p.Type, why))
		case p.kind.Key == transportsKey && p.Type == l.protocolType:
			l.warn("protocol", fmt.Sprintf("%s %s is not available here: %s; tcp is used", p.kind.Kind.Name(), p.Type, why))
		default:
			l.warn(p.path, fmt.Sprintf("%s %s is not available here: %s", p.kind.Kind.Name(), p.Type, why))
		}
	case info != nil:
		l.failAll(p.path, err, fieldsOf(info.Defaults))
	default:
		l.failAll(p.path, err, nil)
	}
	l.listPart(p, info, own)
	l.instances[p.kind.Key] = append(l.instances[p.kind.Key], p.Instance)
}

func (l *loading) listPart(p *pending, info *module.Info, own map[string]any) {
	l.add(join(p.path, "type"), p.Type, p.kind.Live, false)
	if info == nil || info.Defaults == nil {
		l.listRaw(p.path, own)
		return
	}
	def := reflect.Indirect(reflect.ValueOf(info.Defaults))
	into := reflect.New(def.Type())
	into.Elem().Set(def)
	_ = p.Section.Decode(into.Interface()) // its problems were reported by Check
	l.list(p.path, p.kind.Live, into.Interface())
}
