package transfer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/core/units"
)

// Config is the config section "transfer".
type Config struct {
	RPCPortMin int `koanf:"rpc_port_min" doc:"first port for the engine's listeners (handshake daemon and data), all drawn at random" env:"MC_MIN_RPC_PORT,MC_MIN_PRC_PORT" range:"1024..65535"`
	RPCPortMax int `koanf:"rpc_port_max" doc:"last port for the engine's listeners" env:"MC_MAX_RPC_PORT,MC_MAX_PRC_PORT" range:"1024..65535"`

	ConnectTimeout     time.Duration `koanf:"connect_timeout" doc:"longest wait for a connection to a peer's handshake daemon, for each of its addresses" env:"MC_HANDSHAKE_CONNECT_TIMEOUT" envunit:"s" range:"10ms..3599s"`
	HandshakeTimeout   time.Duration `koanf:"handshake_timeout" doc:"longest wait for the answer of a peer's handshake daemon" range:"100ms..10m"`
	HandshakeMaxLength units.Size    `koanf:"handshake_max_length" doc:"longest handshake message accepted, also as an answer; peers have a limit of their own" env:"MC_HANDSHAKE_MAX_LENGTH" range:"1MB..128MB"`

	TransferTimeout        time.Duration `koanf:"transfer_timeout" doc:"a batch that is not complete after this time plus 1 ns per byte ends with a timeout" env:"MC_TRANSFER_TIMEOUT" envunit:"s" range:"5s..24h"`
	MaxInflightBytes       units.Size    `koanf:"max_inflight_bytes_per_peer" doc:"payload handed to a transport and not yet completed, for each peer; a larger request travels alone" range:"64KB..1TB"`
	MaxInflightRequests    int           `koanf:"max_inflight_requests_per_peer" doc:"requests handed to a transport and not yet completed, for each peer" range:"1..65535"`
	NotifyQueue            int           `koanf:"notify_queue" doc:"received notifications kept until the application takes them; the oldest go first" range:"1..10000000"`
	ClusterID              string        `koanf:"cluster_id" doc:"prefix component of all metadata keys: mooncake/<cluster_id>/..." env:"MC_METADATA_CLUSTER_ID"`
	CheckInterval          time.Duration `koanf:"check_interval" doc:"how often the node's own entries are checked where the metadata service cannot be watched" range:"50ms..1m"`
	MetadataStartTimeout   time.Duration `koanf:"metadata_start_timeout" doc:"how long the start waits for a metadata service that does not answer" range:"0s..1h"`
	DescriptorRefresh      time.Duration `koanf:"descriptor_refresh" doc:"re-read the descriptors of all opened segments this often; 0 = only when a transfer fails" env:"MC_TE_METADATA_REFRESH_INTERVAL_SECONDS" envunit:"s" range:"0s..24h"`
	DisableDescriptorCache bool          `koanf:"disable_descriptor_cache" doc:"re-read a segment's descriptor each time it is opened" env:"MC_DISABLE_METACACHE"`
}

// DefaultConfig returns the defaults of the section; where upstream has the setting, they are upstream's.
func DefaultConfig() Config {
	return Config{
		RPCPortMin:           handshake.DefaultPorts.Min,
		RPCPortMax:           handshake.DefaultPorts.Max,
		ConnectTimeout:       5 * time.Second,
		HandshakeTimeout:     time.Minute,
		HandshakeMaxLength:   handshake.DefaultMaxLength,
		TransferTimeout:      30 * time.Second,
		MaxInflightBytes:     256 * units.MiB,
		MaxInflightRequests:  4096,
		NotifyQueue:          65536,
		CheckInterval:        500 * time.Millisecond,
		MetadataStartTimeout: 30 * time.Second,
	}
}

// Validate checks what the tags cannot express, and makes a Config that was built by hand safe.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := c.ports().Validate(); err != nil {
		bad("rpc_port_min, rpc_port_max: %w", err)
	}
	if c.HandshakeMaxLength < handshake.MinMaxLength || c.HandshakeMaxLength > handshake.MaxMaxLength {
		bad("handshake_max_length: %v is outside %v..%v", c.HandshakeMaxLength, handshake.MinMaxLength, handshake.MaxMaxLength)
	}
	for _, d := range []struct {
		key    string
		v, min time.Duration
	}{
		{"connect_timeout", c.ConnectTimeout, time.Millisecond},
		{"handshake_timeout", c.HandshakeTimeout, time.Millisecond},
		{"transfer_timeout", c.TransferTimeout, time.Millisecond},
		{"check_interval", c.CheckInterval, time.Millisecond},
		{"metadata_start_timeout", c.MetadataStartTimeout, 0},
		{"descriptor_refresh", c.DescriptorRefresh, 0},
	} {
		if d.v < d.min {
			bad("%s: %v is below %v", d.key, d.v, d.min)
		}
	}
	if c.MaxInflightBytes == 0 {
		bad("max_inflight_bytes_per_peer: 0 would admit no request")
	}
	if c.MaxInflightRequests < 1 {
		bad("max_inflight_requests_per_peer: %d would admit no request", c.MaxInflightRequests)
	}
	if c.NotifyQueue < 1 {
		bad("notify_queue: %d would keep no notification", c.NotifyQueue)
	}
	if strings.ContainsAny(c.ClusterID, "\x00\n") {
		bad("cluster_id: %q contains a control character", c.ClusterID)
	}
	return errors.Join(errs...)
}

func (c *Config) ports() handshake.PortRange {
	return handshake.PortRange{Min: c.RPCPortMin, Max: c.RPCPortMax}
}
