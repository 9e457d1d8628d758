package node

import (
	"context"
	"errors"
	"log/slog"
	"reflect"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
)

// Preflighter is implemented by config structs of parts that run code of third parties to be built. Preflight looks at
// what the start needs of this machine and runs none of it; each of its errors begins with the key, as those of
// module.Validator do.
type Preflighter interface{ Preflight() error }

// CheckParts goes further than loading does, without running anything of a third party: parts with a [Preflighter] are
// asked, all other eviction policies are built as a start would, which compiles WebAssembly modules. The error is a
// [config.Errors].
func CheckParts(ctx context.Context, l *config.Loaded) error {
	var bad []config.Problem
	for _, k := range Schema().Kinds {
		for _, i := range l.Instances(k.Key) {
			asked, err := preflight(k, i)
			switch {
			case err != nil:
				bad = append(bad, l.PartProblems(k.Key, i, err)...)
			case k.Key == evictionKey && !asked:
				env := module.Env{Name: i.Name, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}
				if _, err := eviction.Kind.Build(ctx, i.Type, env, i.Section); err != nil && (i.Required || !errors.Is(err, module.ErrSkip)) {
					bad = append(bad, l.InstanceProblem(evictionKey, i.Name, err.Error()))
				}
			}
		}
	}
	if len(bad) > 0 {
		return &config.Errors{Problems: bad, Warnings: l.Warnings()}
	}
	return nil
}

// preflight asks an instance's config, if it is a Preflighter.
func preflight(k config.KindSpec, i config.Instance) (asked bool, err error) {
	for _, part := range k.Kind.List() {
		if part.Name != i.Type || part.Defaults == nil {
			continue
		}
		defaults := reflect.Indirect(reflect.ValueOf(part.Defaults))
		c := reflect.New(defaults.Type())
		c.Elem().Set(defaults)
		p, ok := c.Interface().(Preflighter)
		if !ok {
			return false, nil
		}
		if err := i.Section.Decode(c.Interface()); err != nil {
			return true, err
		}
		return true, p.Preflight()
	}
	return false, nil
}
