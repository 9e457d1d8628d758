package telemetry

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// LogConfig is the config section "log".
type LogConfig struct {
	Level      string        `koanf:"level" doc:"lowest level that is written" enum:"debug|info|warn|error" live:"true"`
	Format     string        `koanf:"format" doc:"auto = text on a terminal, else json" enum:"auto|text|json"`
	File       string        `koanf:"file" doc:"log file; empty = stderr"`
	MaxSize    units.Size    `koanf:"max_size" doc:"size at which the log file is rotated, in whole MB" range:"1MB.."`
	MaxBackups int           `koanf:"max_backups" doc:"rotated files to keep; 0 = all" range:"0.."`
	MaxAge     time.Duration `koanf:"max_age" doc:"age at which rotated files are deleted, in whole days; 0 = never" range:"0s.."`
	Compress   bool          `koanf:"compress" doc:"gzip rotated files"`
}

// DefaultLog returns the defaults of the section "log".
func DefaultLog() LogConfig {
	return LogConfig{Level: "info", Format: "auto", MaxSize: 100 * units.MiB, MaxBackups: 5, MaxAge: 30 * 24 * time.Hour, Compress: true}
}

// Validate checks what the tags cannot express.
func (c *LogConfig) Validate() error {
	_, err := ParseLevel(c.Level)
	if err != nil {
		err = fmt.Errorf("level: %w", err)
	}
	switch c.Format {
	case "auto", "text", "json":
	default:
		err = errors.Join(err, fmt.Errorf("format: %q is unknown; use auto, text or json", c.Format))
	}
	return err
}

// ParseLevel reads a level name in any letter case.
func ParseLevel(s string) (slog.Level, error) {
	switch strings.ToLower(s) {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%q is not a level; use debug, info, warn or error", s)
}

// AdminConfig is the config section "admin".
type AdminConfig struct {
	Listen string `koanf:"listen" doc:"host:port of the admin HTTP server; port 0 = any free one; empty = off"`
	Socket string `koanf:"socket" doc:"path of a Unix socket (mode 0600) that serves the same; empty = none"`
	Pprof  bool   `koanf:"pprof" doc:"serve /debug/pprof to loopback and socket" live:"true"`
}

// DefaultAdmin returns the defaults of the section "admin".
func DefaultAdmin() AdminConfig { return AdminConfig{Listen: "127.0.0.1:9004"} }

// maxSocketPath is what fits into sockaddr_un, less the final zero.
const maxSocketPath = 107

// Validate checks what the tags cannot express.
func (c *AdminConfig) Validate() error {
	var errs []error
	if c.Listen != "" {
		_, port, err := net.SplitHostPort(c.Listen)
		if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n > 65535 {
			errs = append(errs, fmt.Errorf("listen: %q is not host:port, for example 127.0.0.1:9004 or [::1]:9004", c.Listen))
		}
	}
	if c.Socket != "" {
		if !filepath.IsAbs(c.Socket) {
			errs = append(errs, fmt.Errorf("socket: %q is not an absolute path", c.Socket))
		}
		if len(c.Socket) > maxSocketPath {
			errs = append(errs, fmt.Errorf("socket: the path has %d bytes, Unix sockets allow %d: %s", len(c.Socket), maxSocketPath, c.Socket))
		}
	}
	return errors.Join(errs...)
}
