package shm

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

// The values of Config.Mode.
const (
	readWrite = "read-write"
	readOnly  = "read-only"
)

// Config is the section of a shm transport.
type Config struct {
	Mode           string        `koanf:"mode" doc:"read-only: peers can map this node's memory for reading only, and this node maps theirs so; writes take the next path" enum:"read-write|read-only"`
	SocketDir      string        `koanf:"socket_dir" doc:"folder (mode 0700) of the socket, for containers that share it; empty = an abstract socket, which only peers in the same network namespace see"`
	ConnectTimeout time.Duration `koanf:"connect_timeout" doc:"longest wait for a peer to connect and to prove that it is on this host" range:"10ms..1m"`
	AnswerTimeout  time.Duration `koanf:"answer_timeout" doc:"a peer that does not answer a question about its memory for so long is given up" range:"10ms..5m"`
	DrainTimeout   time.Duration `koanf:"drain_timeout" doc:"at the end, how long peers may take to let go of this node's memory" range:"10ms..5m"`
	ReconnectPause time.Duration `koanf:"reconnect_pause" doc:"longest pause before a lost peer is connected again; starts at a sixteenth and doubles" range:"10ms..5m"`
	Copiers        int           `koanf:"copiers" doc:"processors that copy at once; 0 = half of them, at least 2, at most 8" range:"0..256"`
	MaxPeers       int           `koanf:"max_peers" doc:"peers that may have this node's memory mapped at once" range:"1..65535"`
}

func defaultConfig() Config {
	return Config{
		Mode:           readWrite,
		ConnectTimeout: time.Second,
		AnswerTimeout:  5 * time.Second,
		DrainTimeout:   5 * time.Second,
		ReconnectPause: 5 * time.Second,
		MaxPeers:       1024,
	}
}

// Validate checks what the tags say too, so that a Config built by hand is safe.
func (c *Config) Validate() error {
	var errs []error
	if c.Mode != readWrite && c.Mode != readOnly {
		errs = append(errs, fmt.Errorf("mode: %q is unknown; use %s or %s", c.Mode, readWrite, readOnly))
	}
	if n := len(c.SocketDir); n > maxSocketDir {
		errs = append(errs, fmt.Errorf("socket_dir: %d bytes are too long for a socket's path; use at most %d", n, maxSocketDir))
	}
	for _, d := range []struct {
		key string
		v   time.Duration
	}{{"connect_timeout", c.ConnectTimeout}, {"answer_timeout", c.AnswerTimeout}, {"drain_timeout", c.DrainTimeout}, {"reconnect_pause", c.ReconnectPause}} {
		if d.v <= 0 {
			errs = append(errs, fmt.Errorf("%s: %v is not positive", d.key, d.v))
		}
	}
	if c.Copiers < 0 || c.Copiers > 256 {
		errs = append(errs, fmt.Errorf("copiers: %d is outside 0..256", c.Copiers))
	}
	if c.MaxPeers < 1 || c.MaxPeers > 65535 {
		errs = append(errs, fmt.Errorf("max_peers: %d is outside 1..65535", c.MaxPeers))
	}
	return errors.Join(errs...)
}

// copiers is the number in effect. More than a few only fight for the same memory channels.
func (c *Config) copiers() int {
	if c.Copiers > 0 {
		return c.Copiers
	}
	return min(max(2, runtime.GOMAXPROCS(0)/2), 8)
}
