package external

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// Config is the section of a part of type external, the same for each kind.
type Config struct {
	Command       []string          `koanf:"command" doc:"the program and its arguments"`
	SHA256        map[string]string `koanf:"sha256" doc:"SHA-256 in hex of the program, of each argument that is a file, and of other files that they load; empty: none is checked"`
	Env           []string          `koanf:"env" doc:"the program's environment: NAME=value, or NAME to pass on the node's; nothing else is passed on" secret:"true"`
	Config        map[string]any    `koanf:"config" doc:"given to the plugin as a JSON object: names with strings, numbers, booleans"`
	RunDir        string            `koanf:"run_dir" doc:"folder for the plugin's socket, owned by this user, mode 0700; empty: mooncake-plugins-UID in the folder for temporary files"`
	StartTimeout  time.Duration     `koanf:"start_timeout" doc:"a process that is not ready after this time is killed" range:"100ms..10m"`
	HealthTimeout time.Duration     `koanf:"health_timeout" doc:"a process that does not answer for this time is killed" range:"100ms..10m"`
	CallTimeout   time.Duration     `koanf:"call_timeout" doc:"bound for one call without a deadline of its own" range:"10ms..10m"`
	Grace         time.Duration     `koanf:"grace" doc:"at shutdown, what the plugin gets to finish before it is killed" range:"0s..10m"`
	MemoryLimit   units.Size        `koanf:"memory_limit" doc:"private memory of the process (RLIMIT_DATA); 0: no limit" range:"0..1TiB"`
	FileLimit     uint64            `koanf:"file_limit" doc:"open files of the process (RLIMIT_NOFILE)" range:"32..1048576"`
}

// DefaultConfig is the complete default configuration; it names no program.
func DefaultConfig() Config {
	return Config{
		StartTimeout: 20 * time.Second, HealthTimeout: 3 * time.Second, CallTimeout: 5 * time.Second, Grace: 5 * time.Second,
		MemoryLimit: units.GiB, FileLimit: 4096,
	}
}

const (
	maxConfig = 64 << 10  // bytes of JSON for the plugin
	minMemory = 128 << 20 // what a program in Go or Python takes to start
)

// Validate reports what cannot be right whatever the program is.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Command) == 0 || c.Command[0] == "" {
		errs = append(errs, errors.New("command: name the program and its arguments, as a list"))
	}
	for file, sum := range c.SHA256 {
		if b, err := hex.DecodeString(sum); err != nil || len(b) != 32 {
			errs = append(errs, fmt.Errorf("sha256: %q of %s is not 64 hex digits (sha256sum FILE prints them)", clean(sum, 70), file))
		}
	}
	for _, e := range c.Env {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case name == "" || strings.ContainsAny(name, " \x00"):
			errs = append(errs, fmt.Errorf("env: %q is no NAME=value and no NAME", clean(name, 70)))
		case strings.HasPrefix(name, "PLUGIN_") || strings.HasPrefix(name, "MOONCAKE_PLUGIN"):
			errs = append(errs, fmt.Errorf("env: %s is set by the node itself", clean(name, 70)))
		}
	}
	if n := c.MemoryLimit; n != 0 && n < minMemory {
		errs = append(errs, fmt.Errorf("memory_limit: %d bytes are too few to start a program, at least %s", n, units.Size(minMemory)))
	}
	if _, err := c.pluginConfig(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// pluginConfig is the JSON for Configure.
func (c *Config) pluginConfig() ([]byte, error) {
	if len(c.Config) == 0 {
		return []byte("{}"), nil
	}
	b, err := json.Marshal(c.Config)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if len(b) > maxConfig {
		return nil, fmt.Errorf("config: %d bytes of JSON, at most %d", len(b), maxConfig)
	}
	return b, nil
}

// clean makes one printable line of a text that a plugin has a say in.
func clean(s string, most int) string {
	cut := len(s) > most
	if cut {
		s = s[:most]
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if cut {
		s += "..."
	}
	return strings.TrimSpace(s)
}
