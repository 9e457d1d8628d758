package node

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
)

// CheckPolicies builds the configured eviction policies as a start would, and forgets them: a module of a third
// party is read, compared with its digest and compiled, none of its code runs. The error is a [config.Errors].
func CheckPolicies(ctx context.Context, l *config.Loaded) error {
	var bad []config.Problem
	for _, i := range l.Instances(evictionKey) {
		env := module.Env{Name: i.Name, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}
		if _, err := eviction.Kind.Build(ctx, i.Type, env, i.Section); err != nil && (i.Required || !errors.Is(err, module.ErrSkip)) {
			bad = append(bad, l.InstanceProblem(evictionKey, i.Name, err.Error()))
		}
	}
	if len(bad) > 0 {
		return &config.Errors{Problems: bad, Warnings: l.Warnings()}
	}
	return nil
}
