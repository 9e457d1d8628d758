package memory

import (
	"fmt"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

// Config is the section of a memory backend.
type Config struct {
	URL      string        `koanf:"url" doc:"memory:// or memory://NAME"`
	Name     string        `koanf:"name" doc:"backends of one process with the same name share one store; empty = a store of its own"`
	LeaseTTL time.Duration `koanf:"lease_ttl" doc:"after this time the node's entries vanish when it is dead" range:"1s..1h"`
}

// defaultConfig is what an absent section equals.
func defaultConfig() Config { return Config{LeaseTTL: metadata.DefaultLeaseTTL} }

// Validate implements module.Validator.
func (c *Config) Validate() error {
	_, err := c.store()
	return err
}

// store is the name of the store.
func (c *Config) store() (string, error) {
	const scheme = "memory://"
	if c.URL == "" {
		return c.Name, nil
	}
	if len(c.URL) < len(scheme) || !strings.EqualFold(c.URL[:len(scheme)], scheme) {
		return "", fmt.Errorf("url: %q does not begin with %s", c.URL, scheme)
	}
	name := c.URL[len(scheme):]
	if err := remote.Differ("name", name, c.Name, false); err != nil {
		return "", err
	}
	if name == "" {
		name = c.Name
	}
	return name, nil
}
