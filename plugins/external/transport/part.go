package transport

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/plugins/external"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

func init() {
	module.Define(transports.Kind, "external", "a transport in a process of its own, over the plugin protocol", external.DefaultConfig(), Open)
}

// Open accepts the section's program and returns a transport that is not started.
func Open(ctx context.Context, env module.Env, cfg external.Config) (transports.Transport, error) {
	g, err := external.Open(ctx, pluginv1.Kind_KIND_TRANSPORT, cfg, env)
	if err != nil {
		return nil, err
	}
	return New(env.Name, g.Log(), supervisor{g.Plugin()}, cfg.CallTimeout), nil
}

// supervisor is that of package external.
type supervisor struct{ p *external.Plugin }

// Run implements Supervisor.
func (s supervisor) Run(ctx context.Context, join func(context.Context, Process) error) error {
	err := s.p.Start(func(ctx context.Context, p *external.Process) error { return join(ctx, p) })
	if err != nil {
		return err
	}
	if _, err = s.p.Process(ctx); err != nil && s.p.Status().State == external.StateRefused {
		return err
	}
	return nil
}

// Stop implements Supervisor.
func (s supervisor) Stop() error { return s.p.Stop() }
