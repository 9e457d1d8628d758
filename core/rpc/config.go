package rpc

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// ServerConfig limits a [Server]. Use [DefaultServerConfig] and change what is needed.
type ServerConfig struct {
	Loops                int           `koanf:"loops" doc:"event loops; 0 = a quarter of the CPUs, at least 1 and at most 8" range:"0..64"`
	MaxBody              units.Size    `koanf:"max_body" doc:"largest request; a connection that announces more is closed" range:"64KB..4GB"`
	MaxOutput            units.Size    `koanf:"max_output" doc:"most unsent answer bytes of a connection; a larger single answer becomes an error" range:"64KB..4GB"`
	MaxBuffered          units.Size    `koanf:"max_buffered" doc:"most bytes of partial requests and unsent answers of all connections" range:"1MB.."`
	WriteTimeout         time.Duration `koanf:"write_timeout" doc:"how long unsent answers may wait, plus 1 s for each MiB" range:"100ms..1h"`
	ReadTimeout          time.Duration `koanf:"read_timeout" doc:"how long a request may arrive in pieces, plus 1 s for each MiB" range:"100ms..1h"`
	IdleTimeout          time.Duration `koanf:"idle_timeout" doc:"close connections without a request for so long; 0 = never" range:"0s.."`
	MaxConnections       int           `koanf:"max_connections" doc:"open connections" range:"1.."`
	MaxConnectionsPerIP  int           `koanf:"max_connections_per_address" doc:"open connections of one IP address" range:"1.."`
	MaxInFlightPerIP     int           `koanf:"max_in_flight_per_address" doc:"slow requests of one IP address; its connections are not read above" range:"1.."`
	Workers              int           `koanf:"workers" doc:"goroutines for slow requests; 0 = four times the CPUs, at least 8" range:"0..4096"`
	MaxQueued            int           `koanf:"max_queued" doc:"slow requests in all; connections that have one are not read above" range:"1.."`
	SlowBody             units.Size    `koanf:"slow_body" doc:"requests with a larger body leave the event loop" range:"4KB.."`
	SlowTimeout          time.Duration `koanf:"slow_timeout" doc:"deadline of the context of slow requests" range:"100ms..1h"`
	NoDelay              bool          `koanf:"no_delay" doc:"TCP_NODELAY on accepted connections"`
	KeepAlive            time.Duration `koanf:"keep_alive" doc:"TCP keep-alive probes after so long without data; 0 = none" range:"0s..24h"`
	HTTPReadTimeout      time.Duration `koanf:"http_read_timeout" doc:"for the header of a plain HTTP request on this port" range:"100ms..10m"`
	HTTPWriteTimeout     time.Duration `koanf:"http_write_timeout" doc:"for the answer of a plain HTTP request on this port" range:"100ms..1h"`
	HTTPConnectionsLimit int           `koanf:"http_connections" doc:"plain HTTP connections on this port" range:"1..65536"`
}

// DefaultServerConfig returns the defaults.
func DefaultServerConfig() ServerConfig {
	return ServerConfig{
		MaxBody: 256 * units.MiB, MaxOutput: 256 * units.MiB, MaxBuffered: 2 * units.GiB,
		WriteTimeout: 30 * time.Second, ReadTimeout: 30 * time.Second,
		MaxConnections: 65536, MaxConnectionsPerIP: 8192, MaxInFlightPerIP: 256,
		MaxQueued: 4096, SlowBody: 256 * units.KiB, SlowTimeout: 30 * time.Second,
		NoDelay: true, KeepAlive: time.Minute,
		HTTPReadTimeout: 5 * time.Second, HTTPWriteTimeout: time.Minute, HTTPConnectionsLimit: 256,
	}
}

// Validate checks what ranges of single keys cannot.
func (c *ServerConfig) Validate() error {
	var errs []error
	if c.MaxBuffered < c.MaxBody {
		errs = append(errs, fmt.Errorf("max_buffered: %d is less than max_body %d, so the largest request could never arrive", c.MaxBuffered, c.MaxBody))
	}
	if c.MaxConnectionsPerIP < 1 || c.MaxConnections < 1 {
		errs = append(errs, errors.New("max_connections, max_connections_per_address: must be at least 1"))
	}
	if c.MaxBody < 1 || c.MaxOutput < 1 || c.MaxInFlightPerIP < 1 || c.MaxQueued < 1 || c.SlowBody < 1 {
		errs = append(errs, errors.New("max_body, max_output, max_in_flight_per_address, max_queued, slow_body: must be positive"))
	}
	if c.WriteTimeout <= 0 || c.ReadTimeout <= 0 || c.SlowTimeout <= 0 || c.HTTPReadTimeout <= 0 || c.HTTPWriteTimeout <= 0 {
		errs = append(errs, errors.New("read_timeout, write_timeout, slow_timeout, http_read_timeout, http_write_timeout: must be positive"))
	}
	return errors.Join(errs...)
}

func (c *ServerConfig) loops() int {
	if c.Loops > 0 {
		return c.Loops
	}
	// One loop serves some 100,000 small requests a second. On few cores a second one only adds
	// wake-ups; the rest of the CPUs is for the client, the kernel's share and slow requests.
	return min(max(runtime.GOMAXPROCS(0)/4, 1), 8)
}

func (c *ServerConfig) workers() int {
	if c.Workers > 0 {
		return c.Workers
	}
	return max(4*runtime.GOMAXPROCS(0), 8)
}

// ClientConfig shapes a [Client].
type ClientConfig struct {
	MaxConnections int           `koanf:"max_connections" doc:"connections to the server; opened when those open are busy" range:"1..1024"`
	Pipeline       int           `koanf:"pipeline" doc:"calls in flight on one connection" range:"1..65536"`
	DialTimeout    time.Duration `koanf:"dial_timeout" doc:"for one connection attempt" env:"MC_RPC_CONNECT_TIMEOUT_MS" range:"10ms..10m"`
	DialAttempts   int           `koanf:"dial_attempts" doc:"connection attempts of one call" range:"1..100"`
	DialPause      time.Duration `koanf:"dial_pause" doc:"between connection attempts" range:"0s..1m"`
	Timeout        time.Duration `koanf:"timeout" doc:"for a call whose context has no earlier deadline" env:"MC_RPC_TIMEOUT_MS" range:"10ms..1h"`
	IdleTimeout    time.Duration `koanf:"idle_timeout" doc:"close a connection without calls after so long; 0 = never" range:"0s.."`
	MaxBody        units.Size    `koanf:"max_body" doc:"largest request and answer" range:"64KB..4GB"`
	Literal        bool          `koanf:"literal" doc:"send type literals, as the C++ clients do"`
}

// DefaultClientConfig returns the defaults; times are those of the C++ client.
func DefaultClientConfig() ClientConfig {
	return ClientConfig{MaxConnections: 4, Pipeline: 160, DialTimeout: 30 * time.Second, DialAttempts: 3, DialPause: time.Second,
		Timeout: 30 * time.Second, IdleTimeout: 30 * time.Second, MaxBody: 256 * units.MiB, Literal: true}
}

// Validate checks what ranges of single keys cannot.
func (c *ClientConfig) Validate() error {
	if c.MaxConnections < 1 || c.Pipeline < 1 || c.DialAttempts < 1 || c.DialTimeout <= 0 || c.Timeout <= 0 || c.MaxBody < 1 {
		return errors.New("max_connections, pipeline, dial_attempts, dial_timeout, timeout, max_body: must be positive")
	}
	return nil
}
