// Package policies makes eviction policies of their names, as flags, the config file and the admin server give them:
//
//	adaptive
//	lru-k:k=3
//	team-a=s3fifo:small=0.2,guard=alarm     for the tenant team-a
//	/etc/mooncake/p.wasm:fuel_per_event=2000    a WebAssembly module; the same as wasm:module=/etc/mooncake/p.wasm,...
//
// Keys are those of the policy, and of the host: admission (on, off), refused (no_space, evict) and guard
// (fallback, alarm, off), see [master.Policy]. "native" is the master's own tail-first LRU.
package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
)

// Everyone is the domain of all tenants without a policy of their own.
const Everyone = "*"

// Named is a policy as it was asked for.
type Named struct {
	// Domain is a tenant's name or [Everyone].
	Domain string
	// Text is the policy's name and settings.
	Text string
}

// Split reads "[TENANT=]NAME[:key=value,...]".
func Split(text string) Named {
	head, _, _ := strings.Cut(text, ":")
	if tenant, _, ok := strings.Cut(head, "="); ok && tenant != "" && !strings.Contains(tenant, "/") {
		return Named{tenant, strings.TrimPrefix(text, tenant+"=")}
	}
	return Named{Everyone, strings.TrimPrefix(text, "=")}
}

// String is the form that Split takes.
func (n Named) String() string {
	if n.Domain == Everyone {
		return n.Text
	}
	return n.Domain + "=" + n.Text
}

// parse takes the host's settings out.
func parse(text string) (typ string, params config.Params, p master.Policy, err error) {
	if typ, params, err = config.ParseParams(text); err == nil {
		typ, params, err = ofFile(typ, params)
	}
	if err != nil {
		return "", nil, p, err
	}
	p.Name = shown(text, typ, params)
	for key, at := range map[string]*string{"admission": &p.Admission, "refused": &p.Refused, "guard": &p.Guard} {
		if v, ok := params[key]; ok {
			*at = v
			delete(params, key)
		}
	}
	return typ, params, p, p.Validate()
}

// Check reports what is wrong with a text, without building anything.
func Check(text string) error {
	typ, params, _, err := parse(text)
	switch {
	case err != nil:
		return err
	case isNative(typ):
		return own(params)
	}
	return eviction.Kind.Check(typ, params)
}

// Build makes the policy of a text. Building a guest compiles it.
func Build(ctx context.Context, text string, env module.Env) (master.Policy, error) {
	typ, params, p, err := parse(text)
	if err != nil {
		return p, err
	}
	return build(ctx, typ, params, p, env)
}

func build(ctx context.Context, typ string, params config.Params, p master.Policy, env module.Env) (_ master.Policy, err error) {
	if isNative(typ) {
		return p, own(params)
	}
	if env.Name == "" {
		env.Name = typ
	}
	p.Factory, err = eviction.Kind.Build(ctx, typ, env, params)
	return p, err
}

func isNative(typ string) bool { return strings.EqualFold(typ, master.Native) }

func own(params config.Params) error {
	if len(params) > 0 {
		return fmt.Errorf("%s has no settings, got %s", master.Native, params)
	}
	return nil
}

// BuildAll makes the policies of a list. A domain that is named twice is an error, as is whatever is wrong with
// one of them.
func BuildAll(ctx context.Context, list []Named, env module.Env) (map[string]master.Policy, error) {
	out := map[string]master.Policy{}
	var errs []error
	for _, n := range list {
		if _, twice := out[n.Domain]; twice {
			errs = append(errs, fmt.Errorf("%s: two policies: %s", n.Domain, n.Text))
			continue
		}
		p, err := Build(ctx, n.Text, env)
		if err != nil {
			errs = append(errs, err)
		}
		out[n.Domain] = p
	}
	return out, errors.Join(errs...)
}

// Store is what changes policies, a [master.Service].
type Store interface {
	SetPolicy(domain string, p master.Policy) error
	DropPolicy(domain string) error
}

var _ Store = (*master.Service)(nil)

// Apply changes a running store from one list to another, whose policies were built already. Domains whose text is
// the same are left alone. It returns the domains that changed, and what failed.
func Apply(s Store, from, to []Named, built map[string]master.Policy) (changed []string, err error) {
	text := func(list []Named, domain string) (string, bool) {
		i := slices.IndexFunc(list, func(n Named) bool { return n.Domain == domain })
		if i < 0 {
			return "", false
		}
		return list[i].Text, true
	}
	var errs []error
	for _, n := range to {
		if old, ok := text(from, n.Domain); ok && old == n.Text {
			continue
		}
		if err := s.SetPolicy(n.Domain, built[n.Domain]); err != nil {
			errs = append(errs, err)
			continue
		}
		changed = append(changed, n.Domain)
	}
	for _, n := range from {
		if _, stays := text(to, n.Domain); stays {
			continue
		}
		err := error(nil)
		if n.Domain == Everyone {
			err = s.SetPolicy(Everyone, master.Policy{})
		} else {
			err = s.DropPolicy(n.Domain)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		changed = append(changed, n.Domain)
	}
	return changed, errors.Join(errs...)
}

// preferred is the policy of everyone who has chosen none.
const preferred = "adaptive"

// Default is the text of the policy of [Everyone] when none is chosen: adaptive, in binaries that have it.
func Default() string {
	if _, err := eviction.Kind.Resolve(preferred); err != nil {
		return master.Native
	}
	return preferred
}

// WithDefault adds the default to a list that names no policy for everyone.
func WithDefault(list []Named) []Named {
	if slices.ContainsFunc(list, func(n Named) bool { return n.Domain == Everyone }) {
		return list
	}
	return append([]Named{{Everyone, Default()}}, list...)
}
