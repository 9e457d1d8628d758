package backend

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/plugins/external"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

func init() {
	module.Define(metadata.Kind, "external", "a program of its own, supervised", DefaultConfig(), New)
}

// Config of a metadata backend of type external.
type Config struct {
	external.Config `koanf:",squash"`
}

// DefaultConfig is the complete default configuration; it names no program.
func DefaultConfig() Config { return Config{external.DefaultConfig()} }

// Validate implements module.Validator.
func (c *Config) Validate() error { return c.Config.Validate() }

// RegisterMetrics registers the metrics of a plugin, for a list of all metrics.
func (Config) RegisterMetrics(env module.Env) error {
	return external.RegisterMetrics(pluginv1.Kind_KIND_METADATA, env)
}

// Features of metadata plugins.
const (
	featureList       = "list"
	featureCommit     = "commit"
	featureWatch      = "watch"
	featureWatchPolls = "watch-polls"
	featureLease      = "lease"
)

// New accepts a program, see external.Open, and returns a backend that has exactly the abilities that the program
// announced. No process is left running: the first call starts one.
func New(ctx context.Context, env module.Env, c Config) (metadata.Backend, error) {
	g, err := external.Open(ctx, pluginv1.Kind_KIND_METADATA, c.Config, env)
	if err != nil {
		return nil, err
	}
	return newBackend(g).withAbilities(), nil
}
