package rest

import (
	"errors"
	"fmt"

	"github.com/mooncake-agent/mooncake/core/units"
)

// Config is the config section "store.rest".
type Config struct {
	Access   string     `koanf:"access" doc:"who may use the REST paths of the admin server: nobody, callers on loopback or the admin socket, or everybody who reaches the server; there is no password" enum:"off|local|open"`
	MaxValue units.Size `koanf:"max_value" doc:"largest object that is put over REST; at most local_buffer_size in any case" range:"1B..1TB"`
	MaxKey   units.Size `koanf:"max_key" doc:"longest key" range:"1B..64KB"`
	MaxList  int        `koanf:"max_list" doc:"most objects in the answer to a list" range:"1..10000000"`
}

// DefaultConfig returns the defaults of the section.
func DefaultConfig() Config {
	return Config{Access: "local", MaxValue: units.GiB, MaxKey: 4 * units.KiB, MaxList: 100_000}
}

// Validate makes a Config that was built by hand safe.
func (c *Config) Validate() error {
	var errs []error
	switch c.Access {
	case "off", "local", "open":
	default:
		errs = append(errs, fmt.Errorf("access: %q is unknown; use off, local or open", c.Access))
	}
	if c.MaxValue < 1 || c.MaxKey < 1 || c.MaxList < 1 {
		errs = append(errs, errors.New("max_value, max_key, max_list: must be positive"))
	}
	return errors.Join(errs...)
}
