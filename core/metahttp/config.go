package metahttp

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// Config is the section of the HTTP metadata server.
type Config struct {
	Listen            string        `koanf:"listen" doc:"host:port to serve on; empty = off. Upstream's servers use port 8080"`
	MaxBody           units.Size    `koanf:"max_body" doc:"largest value of a key; larger ones get 413" range:"1KB..1GB"`
	MaxInFlight       units.Size    `koanf:"max_in_flight" doc:"memory for bodies that are being received; further requests wait" range:"1KB.."`
	MaxKey            int           `koanf:"max_key" doc:"longest key in bytes" range:"16..65536"`
	ReadHeaderTimeout time.Duration `koanf:"read_header_timeout" doc:"bound for the header of a request" range:"100ms.."`
	ReadTimeout       time.Duration `koanf:"read_timeout" doc:"bound for header and body of a request" range:"100ms.."`
	WriteTimeout      time.Duration `koanf:"write_timeout" doc:"bound from the end of a header to the end of the answer" range:"100ms.."`
	IdleTimeout       time.Duration `koanf:"idle_timeout" doc:"close a connection that has been idle for so long; engines connect again" range:"1s.."`
	ProbeTimeout      time.Duration `koanf:"probe_timeout" doc:"bound for asking the holder of a name whether it lives; engines wait 3s for the whole answer" range:"10ms..2500ms"`
}

// DefaultConfig has the server off.
func DefaultConfig() Config {
	return Config{
		MaxBody: 32 * units.MiB, MaxInFlight: 256 * units.MiB, MaxKey: 4096,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: 5 * time.Minute, ProbeTimeout: time.Second,
	}
}

// Validate implements module.Validator.
func (c *Config) Validate() error {
	var errs []error
	if c.Listen != "" {
		_, port, err := net.SplitHostPort(c.Listen)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("listen: %q is not host:port: %w", c.Listen, err))
		}
	}
	if c.MaxInFlight < c.MaxBody {
		errs = append(errs, fmt.Errorf("max_in_flight: %v is less than max_body, %v", c.MaxInFlight, c.MaxBody))
	}
	return errors.Join(errs...)
}
