package policy

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/external"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

func init() {
	module.Define(eviction.Kind, "external", "a program of its own, supervised", DefaultConfig(), func(ctx context.Context, env module.Env, c Config) (eviction.Factory, error) {
		f, err := Open(ctx, env, c)
		if err != nil {
			return nil, err // not a *Factory that is nil
		}
		return f, nil
	})
}

// Config of a policy of type external.
type Config struct {
	external.Config `koanf:",squash"`
	Reserve         int    `koanf:"reserve" doc:"victims named ahead, so that no put waits for the plugin; 0: ask for each, in exact order; -1: the master's default" range:"-1..4096"`
	Admission       string `koanf:"admission" doc:"on: the policy may refuse new objects when there is no room" enum:"on|off"`
}

// DefaultConfig is the complete default configuration; it names no program.
func DefaultConfig() Config {
	c := Config{Config: external.DefaultConfig(), Reserve: -1, Admission: "off"}
	c.CallTimeout = time.Second // the domain waits so long
	return c
}

// Validate implements module.Validator.
func (c *Config) Validate() error { return c.Config.Validate() }

// Features of eviction plugins.
const (
	featureAdmit = "admit"
	featureState = "state"
	featureStats = "stats"
)

// Factory makes instances, each with a process of its own. It may be used from several goroutines.
type Factory struct {
	cfg     Config
	program *external.Program
}

// Open accepts a program, see external.Open. c must be valid.
func Open(ctx context.Context, env module.Env, c Config) (*Factory, error) {
	g, err := external.Open(ctx, pluginv1.Kind_KIND_EVICTION, c.Config, env)
	if err != nil {
		return nil, err
	}
	return &Factory{c, g}, nil
}

// DomainSettings implements eviction.DomainConfig.
func (f *Factory) DomainSettings() eviction.Settings {
	return eviction.Settings{Reserve: f.cfg.Reserve, Admission: f.cfg.Admission == "on", Aside: true}
}

// New implements eviction.Factory: it starts a process and waits until it is ready, at most start_timeout.
func (f *Factory) New(s eviction.Spec) (eviction.Policy, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	p := newPolicy(f, s)
	if err := p.open(); err != nil {
		_ = p.Close() // it was never ready
		return nil, fmt.Errorf("external: %s: %w", f.program.Info().Name, err)
	}
	return p.withAbilities(), nil
}
