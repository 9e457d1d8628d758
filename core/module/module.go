// Package module is the registry of the node's exchangeable parts.
//
// A kind ("transport", "metadata", ...) owns one [Kind]; every implementation registers itself in
// an init function with one line:
//
//	func init() { module.Define(transports.Kind, "tcp", "plain TCP sockets", Config{}, New) }
//
// Life of a part: Define (at init, no side effects) → Check (the config section is decoded over the
// defaults and validated; nothing is built) → Build (constructs, still no dial and no listen) → the
// life cycle that the kind's own interface documents. A part that cannot run on this machine answers
// [ErrSkip] from its probe or constructor: it stays in the list with its reason instead of vanishing.
//
// The shape follows containerd/plugin (sentinel errors, skipped parts are kept) and Caddy's modules
// (one file is one complete module).
package module

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// ErrSkip marks a part that is present in the binary but cannot run here (no device, no library).
// Wrap it with the reason: fmt.Errorf("libibverbs.so.1 not found: %w", module.ErrSkip).
var ErrSkip = errors.New("not available")

// ErrUnknown is wrapped by the error for a type name that no part has.
var ErrUnknown = errors.New("unknown type")

// Env is what a part gets from the node besides its config.
type Env struct {
	// Name is the instance name (the key of the config section), used in logs and metric labels.
	Name string
	// Log is never nil inside a build function.
	Log *slog.Logger
	// Metrics is where the part registers its collectors; never nil inside a build function.
	Metrics prometheus.Registerer
}

// Section is one config section. Decode fills into (a pointer to a struct that already holds the
// defaults) and reports every unknown key and every wrongly typed value at once, with positions.
type Section interface {
	Decode(into any) error
}

// NoConfig is the Section of a part that is named without settings.
type NoConfig struct{}

// Decode leaves the defaults untouched.
func (NoConfig) Decode(any) error { return nil }

// Validator is implemented by config structs that check more than types. The error may be a
// errors.Join of several; each should start with the key: "port_range: ...".
type Validator interface{ Validate() error }

// State tells whether a part can be used in this process.
type State string

const (
	// Available parts can be built here.
	Available State = "available"
	// Skipped parts are known but cannot run here; Info.Reason says why.
	Skipped State = "skipped"
)

// Info describes one registered part.
type Info struct {
	Kind    string   `json:"kind"`
	Name    string   `json:"name"`
	Doc     string   `json:"doc"`
	Aliases []string `json:"aliases,omitempty"`
	State   State    `json:"state"`
	Reason  string   `json:"reason"`
	// Defaults is a value of the part's config struct, for the config schema; nil for absent parts.
	Defaults any `json:"-"`
}

type part[T any] struct {
	info  Info
	probe func() error
	check func(Section) error
	build func(context.Context, Env, Section) (T, error)
}

// Kind is the registry of all parts that implement T. The zero value is not usable; see [NewKind].
// All methods may be called concurrently.
type Kind[T any] struct {
	name  string
	mu    sync.RWMutex
	parts map[string]*part[T] // by name and by alias
}

// NewKind returns an empty registry. name is the singular used in messages: "transport".
func NewKind[T any](name string) *Kind[T] {
	return &Kind[T]{name: name, parts: map[string]*part[T]{}}
}

// Option adjusts a definition.
type Option func(*options)

type options struct {
	aliases []string
	probe   func() error
}

// Alias gives a part further names (upstream says "rdma" for verbs).
func Alias(names ...string) Option { return func(o *options) { o.aliases = names } }

// Probe is asked by [Kind.List] whether the part can run on this machine. It must be quick and
// free of side effects. It answers nil or the reason.
func Probe(f func() error) Option { return func(o *options) { o.probe = f } }

// Define registers a part under a unique name. defaults is the complete default config: an empty
// section must be equal to it. C must not contain pointers or maps that build changes, because every
// build starts from a shallow copy of defaults. Define panics on a duplicate name: that is a
// programming error which the first start finds.
func Define[T, C any](k *Kind[T], name, doc string, defaults C, build func(context.Context, Env, C) (T, error), opts ...Option) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	decode := func(s Section) (C, error) {
		c := defaults
		if err := s.Decode(&c); err != nil {
			return c, err
		}
		if v, ok := any(&c).(Validator); ok {
			return c, v.Validate()
		}
		return c, nil
	}
	k.add(&part[T]{
		info:  Info{Kind: k.name, Name: name, Doc: doc, Aliases: o.aliases, State: Available, Defaults: defaults},
		probe: o.probe,
		check: func(s Section) error { _, err := decode(s); return err },
		build: func(ctx context.Context, env Env, s Section) (T, error) {
			c, err := decode(s)
			if err != nil {
				var zero T
				return zero, err
			}
			return build(ctx, env, c)
		},
	})
}

// Absent records a part that this binary was built without, so that lists and errors can name it and a
// config that mentions it without requiring it still works.
func (k *Kind[T]) Absent(name, doc, reason string, aliases ...string) {
	err := fmt.Errorf("%s: %w", reason, ErrSkip)
	k.add(&part[T]{
		info:  Info{Kind: k.name, Name: name, Doc: doc, Aliases: aliases, State: Skipped, Reason: reason},
		probe: func() error { return err },
		check: func(Section) error { return err },
		build: func(context.Context, Env, Section) (T, error) { var zero T; return zero, err },
	})
}

func (k *Kind[T]) add(p *part[T]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range append([]string{p.info.Name}, p.info.Aliases...) {
		if _, dup := k.parts[n]; dup {
			panic(fmt.Sprintf("module: %s %q defined twice", k.name, n))
		}
		k.parts[n] = p
	}
}

// Name returns the singular name of the kind.
func (k *Kind[T]) Name() string { return k.name }

// Resolve returns the canonical name of typ (which may be an alias, in any letter case), or an error
// that wraps [ErrUnknown], lists what this binary has and suggests the nearest name.
func (k *Kind[T]) Resolve(typ string) (string, error) {
	p, err := k.lookup(typ)
	if err != nil {
		return "", err
	}
	return p.info.Name, nil
}

// Check decodes and validates a section for typ without building anything.
func (k *Kind[T]) Check(typ string, s Section) error {
	p, err := k.lookup(typ)
	if err != nil {
		return err
	}
	return p.check(s)
}

// Build constructs a part of type typ. Errors carry the instance name. An error that wraps
// [ErrSkip] means "cannot run here", to be listed rather than reported unless the config requires it.
func (k *Kind[T]) Build(ctx context.Context, typ string, env Env, s Section) (T, error) {
	var zero T
	p, err := k.lookup(typ)
	if err != nil {
		return zero, err
	}
	if env.Name == "" {
		env.Name = p.info.Name
	}
	if env.Log == nil {
		env.Log = slog.New(slog.DiscardHandler)
	}
	if env.Metrics == nil {
		env.Metrics = prometheus.NewRegistry()
	}
	t, err := p.build(ctx, env, s)
	if err != nil {
		return zero, fmt.Errorf("%s: %w", env.Name, err)
	}
	return t, nil
}

// List describes every part, sorted by name, asking each probe.
func (k *Kind[T]) List() []Info {
	k.mu.RLock()
	defer k.mu.RUnlock()
	var out []Info
	for n, p := range k.parts {
		if n != p.info.Name {
			continue
		}
		i := p.info
		if p.probe != nil {
			if err := p.probe(); err != nil {
				i.State, i.Reason = Skipped, strings.TrimSuffix(err.Error(), ": "+ErrSkip.Error())
			}
		}
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (k *Kind[T]) lookup(typ string) (*part[T], error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if p, ok := k.parts[strings.ToLower(typ)]; ok {
		return p, nil
	}
	known := slices.Sorted(maps.Keys(k.parts))
	shown := make([]string, 0, len(known))
	for _, n := range known {
		if p := k.parts[n]; n == p.info.Name {
			if len(p.info.Aliases) > 0 {
				n += " (" + strings.Join(p.info.Aliases, ", ") + ")"
			}
			shown = append(shown, n)
		}
	}
	msg := fmt.Sprintf("no %s of type %q; this binary has: %s", k.name, typ, strings.Join(shown, ", "))
	if s := Nearest(typ, known); s != "" {
		msg += fmt.Sprintf("; did you mean %s?", s)
	}
	return nil, &unknownError{msg}
}

type unknownError struct{ msg string }

func (e *unknownError) Error() string { return e.msg }
func (e *unknownError) Unwrap() error { return ErrUnknown }
