package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/transfer"
)

// Config is the config section "store".
type Config struct {
	RPCTimeout     time.Duration `koanf:"rpc_timeout" doc:"how long the master may take to answer a call" env:"MC_RPC_TIMEOUT_MS" envunit:"ms" range:"10ms..1h"`
	ConnectTimeout time.Duration `koanf:"connect_timeout" doc:"how long a connection to the master may take" env:"MC_RPC_CONNECT_TIMEOUT_MS" envunit:"ms" range:"10ms..10m"`
	ScanTimeout    time.Duration `koanf:"scan_timeout" doc:"how long calls may take that visit every object: list, remove by pattern, remove all" range:"100ms..1h"`
	Connections    int           `koanf:"connections" doc:"connections to the master, besides the heartbeat's; opened when those open are busy" range:"1..64"`
	Checksum       bool          `koanf:"checksum" doc:"put objects with a checksum (CRC-64) and check it when they are read" env:"MOONCAKE_STORE_CHECKSUM"`
	AvoidTime      time.Duration `koanf:"avoid_time" doc:"how long a peer that could not be reached is read last, if there are other replicas" range:"0s..1h"`

	Heartbeat    time.Duration `koanf:"heartbeat" doc:"how often the master is told that this node lives; it forgets nodes after client_ttl, 10 s" range:"20ms..1m"`
	TaskInterval time.Duration `koanf:"task_interval" doc:"how often the master is asked for objects to copy or move" range:"20ms..1m"`
	TaskLimit    int           `koanf:"task_limit" doc:"objects that are copied or moved at a time" range:"1..256"`
	UnmountGrace time.Duration `koanf:"unmount_grace" doc:"how long objects stay readable after this node has told the master that it leaves" range:"0s..1h"`
}

// DefaultConfig returns the defaults of the section.
func DefaultConfig() Config {
	return Config{
		RPCTimeout: 5 * time.Second, ConnectTimeout: 2 * time.Second, ScanTimeout: time.Minute, Connections: 4, AvoidTime: 5 * time.Second,
		Heartbeat: time.Second, TaskInterval: time.Second, TaskLimit: 4, UnmountGrace: 500 * time.Millisecond,
	}
}

// Validate makes a Config that was built by hand safe.
func (c *Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		key    string
		v, min time.Duration
	}{
		{"rpc_timeout", c.RPCTimeout, time.Millisecond},
		{"connect_timeout", c.ConnectTimeout, time.Millisecond},
		{"scan_timeout", c.ScanTimeout, time.Millisecond},
		{"heartbeat", c.Heartbeat, time.Millisecond},
		{"task_interval", c.TaskInterval, time.Millisecond},
		{"avoid_time", c.AvoidTime, 0},
		{"unmount_grace", c.UnmountGrace, 0},
	} {
		if d.v < d.min {
			errs = append(errs, fmt.Errorf("%s: %v is below %v", d.key, d.v, d.min))
		}
	}
	if c.Connections < 1 {
		errs = append(errs, fmt.Errorf("connections: %d would allow no call", c.Connections))
	}
	if c.TaskLimit < 1 {
		errs = append(errs, fmt.Errorf("task_limit: %d would do no task", c.TaskLimit))
	}
	return errors.Join(errs...)
}

// rpcConfig is that of a connection pool whose calls end after timeout.
func (c *Config) rpcConfig(timeout time.Duration, connections int) rpc.ClientConfig {
	r := rpc.DefaultClientConfig()
	r.MaxConnections, r.DialTimeout, r.DialAttempts, r.Timeout = connections, c.ConnectTimeout, 1, timeout
	return r
}

// Options are what a Client is made of.
type Options struct {
	Config

	// Master are the addresses of the master, host:port. With several the first that accepts connections is
	// used until it does so no more.
	Master []string
	// Leader tells the address instead of Master, for masters that elect one of them.
	Leader Leader
	// Engine moves the data. Without one only calls that move none work.
	Engine *transfer.Engine
	// Tenant is whose objects these are; "" means "default".
	Tenant string
	// ID identifies this client to the master; zero means a random one.
	ID wire.UUID
	// HostID tells which clients share a host, for placement near the writer; "" leaves it out. See [HostID].
	HostID string

	// Log is where the client logs; nil for nowhere.
	Log *slog.Logger
	// Metrics is where it registers its collectors; nil for nowhere.
	Metrics prometheus.Registerer
}

// Leader knows which master is in charge, see package leader.
type Leader interface {
	// Leader returns its host:port, or why there is none. It is asked before every call and answers at once, except
	// that it may wait before its first answer until ctx ends.
	Leader(ctx context.Context) (string, error)
}

func (o *Options) check() error {
	if err := o.Validate(); err != nil {
		return err
	}
	switch {
	case len(o.Master) == 0 && o.Leader == nil:
		return errors.New("no address of a master")
	case len(o.Master) > 0 && o.Leader != nil:
		return errors.New("addresses of a master and an election are given; one of them is too much")
	}
	for _, a := range o.Master {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return fmt.Errorf("address of the master %q: write host:port", a)
		}
	}
	return nil
}

// HostID is upstream's identity of a host by the name of one of its segments: the host part, or "" for
// loopback names, which say nothing.
func HostID(segment string) string {
	host := segment
	if h, _, err := net.SplitHostPort(segment); err == nil {
		host = h
	}
	switch host {
	case "", "localhost", "127.0.0.1", "0.0.0.0", "::1":
		return ""
	}
	return host
}
