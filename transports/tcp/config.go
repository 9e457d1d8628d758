package tcp

import (
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// Config is the section of a tcp transport. The bind address is the engine's.
type Config struct {
	PortRange      units.PortRange `koanf:"port_range" doc:"ports for the data listener, as \"15000-17000\"; empty = transfer.rpc_port_min to rpc_port_max"`
	LanesPerPeer   int             `koanf:"lanes_per_peer" doc:"most TCP connections to one peer" env:"MC_TCP_LANES_PER_PEER,MC_TCP_MAX_CONNECTIONS_PER_PEER" range:"1..16"`
	Proto          string          `koanf:"proto" doc:"framing of our requests: auto = what the peer announces, 1 = v1 always" env:"MC_TCP_PROTO" enum:"auto|1|2"`
	ConnectionPool bool            `koanf:"connection_pool" doc:"keep connections for further requests; false = one connection per request" env:"MC_TCP_ENABLE_CONNECTION_POOL"`
	MaxQueued      int             `koanf:"max_queued" doc:"requests that wait for one peer before submitting blocks" env:"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER" range:"1..65535"`
	PipelineWindow int             `koanf:"pipeline_window" doc:"unanswered requests on one connection (v2 peers; v1 peers get one)" range:"1..1024"`
	PipelineBytes  units.Size      `koanf:"pipeline_bytes" doc:"unanswered payload on one connection; a larger request travels alone" range:"64KB..1GB"`

	ConnectTimeout  time.Duration `koanf:"connect_timeout" doc:"longest wait for a connection" range:"10ms..5m"`
	ReconnectPause  time.Duration `koanf:"reconnect_pause" doc:"longest pause before a failed peer is dialled again; starts at a sixteenth and doubles" range:"1ms..5m"`
	ProgressTimeout time.Duration `koanf:"progress_timeout" doc:"a connection with a request in progress that moves no byte for so long is dropped" env:"MC_TCP_PROGRESS_TIMEOUT_SEC" envunit:"s" range:"50ms..1h"`
	StatusTimeout   time.Duration `koanf:"status_timeout" doc:"longest wait for the peer's answer to a request that is completely sent" env:"MC_TCP_STATUS_TIMEOUT_SEC" envunit:"s" range:"50ms..1h"`
	IdleTimeout     time.Duration `koanf:"idle_timeout" doc:"our own connections without a request are closed after this" range:"50ms..24h"`
	StallTimeout    time.Duration `koanf:"stall_timeout" doc:"served connections that stop in the middle of a request are dropped after this; idle ones never" range:"50ms..24h"`
	DrainTimeout    time.Duration `koanf:"drain_timeout" doc:"a rejected peer that sends nothing for so long is disconnected; until then it can read the rejection" range:"1ms..5m"`

	MaxConnections int        `koanf:"max_connections" doc:"served connections; 0 = the limit of open files less a reserve. At the limit the longest idle one goes" range:"0..10000000"`
	Acceptors      int        `koanf:"acceptors" doc:"goroutines that accept connections" range:"1..64"`
	SendBuffer     units.Size `koanf:"send_buffer" doc:"SO_SNDBUF; 0 = 256KB to peers on this host, else the kernel adapts it" range:"0..1GB"`
	ReceiveBuffer  units.Size `koanf:"receive_buffer" doc:"SO_RCVBUF; 0 = the kernel adapts it" range:"0..1GB"`
}

func defaultConfig() Config {
	return Config{
		LanesPerPeer:    4,
		Proto:           "auto",
		ConnectionPool:  true,
		MaxQueued:       8192,
		PipelineWindow:  128,
		PipelineBytes:   4 * units.MiB,
		ConnectTimeout:  5 * time.Second,
		ReconnectPause:  time.Second,
		ProgressTimeout: 30 * time.Second,
		StatusTimeout:   30 * time.Second,
		IdleTimeout:     time.Minute,
		StallTimeout:    5 * time.Minute,
		DrainTimeout:    2 * time.Second,
		Acceptors:       2,
	}
}

// Validate checks what tags cannot say. It also makes a Config that was built by hand (tests, other
// programs) safe.
func (c *Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	switch c.Proto {
	case "auto", "1", "2":
	default:
		bad("proto", "%q is unknown; known: auto, 1, 2", c.Proto)
	}
	for _, n := range []struct {
		key        string
		v, lo, max int
	}{
		{"lanes_per_peer", c.LanesPerPeer, 1, 16},
		{"max_queued", c.MaxQueued, 1, 65535},
		{"pipeline_window", c.PipelineWindow, 1, 1024},
		{"acceptors", c.Acceptors, 1, 64},
		{"max_connections", c.MaxConnections, 0, 10_000_000},
	} {
		if n.v < n.lo || n.v > n.max {
			bad(n.key, "%d is outside %d..%d", n.v, n.lo, n.max)
		}
	}
	for _, d := range []struct {
		key string
		v   time.Duration
	}{
		{"connect_timeout", c.ConnectTimeout},
		{"reconnect_pause", c.ReconnectPause},
		{"progress_timeout", c.ProgressTimeout},
		{"status_timeout", c.StatusTimeout},
		{"idle_timeout", c.IdleTimeout},
		{"stall_timeout", c.StallTimeout},
		{"drain_timeout", c.DrainTimeout},
	} {
		if d.v <= 0 {
			bad(d.key, "%v is not positive", d.v)
		}
	}
	if c.PipelineBytes == 0 {
		bad("pipeline_bytes", "0 would admit no request")
	}
	return errors.Join(errs...)
}
