package wasm

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/plugins/wasm/meter"
)

// Config of a policy of type wasm.
type Config struct {
	Module         string         `koanf:"module" doc:"the .wasm file"`
	SHA256         string         `koanf:"sha256" doc:"what the file's SHA-256 must be, in hex; empty: any"`
	MemoryLimit    units.Size     `koanf:"memory_limit" doc:"the guest's linear memory; 0: 64 MiB and 64 bytes for each handle" range:"0..4GiB"`
	MaxModuleBytes units.Size     `koanf:"max_module_bytes" doc:"larger files are refused" range:"1KiB..64MiB"`
	FuelPerEvent   uint64         `koanf:"fuel_per_event" doc:"instructions that a call may execute for each event, on top of 10,000" range:"1..1000000"`
	Params         map[string]any `koanf:"params" doc:"given to the guest as a JSON object: names with strings, numbers, booleans"`
	Reserve        int            `koanf:"reserve" doc:"victims named ahead, so that no put waits for the guest; 0: ask for each, in exact order; -1: the master's default" range:"-1..4096"`
	Admission      string         `koanf:"admission" doc:"on: the guest may refuse new objects when there is no room" enum:"on|off"`
	CacheDir       string         `koanf:"cache_dir" doc:"folder for compiled code, owned by this user, mode 0700; empty: mooncake/wasm in the user's cache folder"`
}

// DefaultConfig is the complete default configuration; it names no module.
func DefaultConfig() Config {
	return Config{MaxModuleBytes: 8 * units.MiB, FuelPerEvent: meter.EventBudget, Reserve: -1, Admission: "off"}
}

// maxParams bounds the JSON that a guest has to find room for.
const maxParams = 64 << 10

// Validate reports what cannot be right whatever the module is.
func (c *Config) Validate() error {
	var errs []error
	if c.Module == "" {
		errs = append(errs, errors.New("module: name the .wasm file"))
	}
	if b, err := hex.DecodeString(c.SHA256); c.SHA256 != "" && (err != nil || len(b) != 32) {
		errs = append(errs, fmt.Errorf("sha256: %q is not 64 hex digits (sha256sum FILE prints them)", clean(c.SHA256, 70)))
	}
	if n := c.MemoryLimit; n != 0 && n < pageSize {
		errs = append(errs, fmt.Errorf("memory_limit: %d bytes are less than one page of %d", n, pageSize))
	}
	if _, err := c.params(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// params is the JSON that the guest gets, empty if none are configured.
func (c *Config) params() ([]byte, error) {
	if len(c.Params) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(c.Params)
	if err != nil {
		return nil, fmt.Errorf("params: %w", err)
	}
	if len(b) > maxParams {
		return nil, fmt.Errorf("params: %d bytes of JSON, at most %d", len(b), maxParams)
	}
	return b, nil
}
