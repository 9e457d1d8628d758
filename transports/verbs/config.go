package verbs

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// The values of Config.EndpointStore.
const (
	storeFIFO  = "FIFO"
	storeSIEVE = "SIEVE"
)

// Config is the section of a verbs transport. Defaults that upstream has are upstream's.
type Config struct {
	Devices      []string `koanf:"devices" doc:"RDMA devices to use, all others are left alone; empty = those of device_name, else all" env:"MC_TE_FILTERS,MC_MS_FILTERS"`
	Port         int      `koanf:"port" doc:"port of each device" env:"MC_IB_PORT" range:"1..255"`
	GIDIndex     int      `koanf:"gid_index" doc:"entry of the GID table; -1 = the best one, RoCE v2 first" env:"MC_GID_INDEX,NCCL_IB_GID_INDEX" range:"-1..255"`
	GIDRetries   int      `koanf:"auto_gid_retries" doc:"with gid_index -1, how many other entries are tried on a device when the first cannot reach a peer" env:"MC_AUTO_GID_MAX_RETRIES" range:"0..16"`
	PKeyIndex    int      `koanf:"pkey_index" doc:"entry of the P_Key table" env:"MC_PKEY_INDEX" range:"0..65535"`
	MTU          int      `koanf:"mtu" doc:"largest path MTU in bytes; the smallest of this, the port's and the peer's is used" env:"MC_MTU" enum:"256|512|1024|2048|4096"`
	TrafficClass int      `koanf:"traffic_class" doc:"traffic class of packets (DSCP and ECN); -1 = the device's default" env:"MC_IB_TC" range:"-1..255"`
	ServiceLevel int      `koanf:"service_level" doc:"service level; -1 = 0" env:"MC_IB_SL" range:"-1..15"`

	QPs        int `koanf:"qps_per_endpoint" doc:"queue pairs to one device of a peer; must be the same at all engines" env:"MC_NUM_QP_PER_EP" range:"1..256"`
	MaxWork    int `koanf:"max_work" doc:"work requests outstanding on one queue pair" env:"MC_MAX_WR" range:"1..65536"`
	MaxSGE     int `koanf:"max_sge" doc:"scatter-gather entries that queue pairs are made with; one is used" env:"MC_MAX_SGE" range:"1..65536"`
	MaxInline  int `koanf:"max_inline" doc:"inline bytes that queue pairs are made with; none are used" env:"MC_MAX_INLINE" range:"0..65536"`
	CQs        int `koanf:"cqs_per_device" doc:"completion queues of a device, each polled by a goroutine" env:"MC_NUM_CQ_PER_CTX" range:"1..255"`
	MaxCQE     int `koanf:"max_cqe" doc:"entries of a completion queue; as many work requests may be outstanding on it" env:"MC_MAX_CQE_PER_CTX" range:"16..16777216"`
	Channels   int `koanf:"comp_channels_per_device" doc:"completion channels" env:"MC_NUM_COMP_CHANNELS_PER_CTX" range:"1..255" inactive:"accepted, not needed here: each completion queue has its own"`
	Workers    int `koanf:"workers_per_device" doc:"worker threads" env:"MC_WORKERS_PER_CTX" range:"1..8" inactive:"accepted, not needed here: who submits posts, and there is a goroutine for each completion queue"`
	MinRegSize int `koanf:"min_reg_size" doc:"smallest registration of barex builds" env:"MC_MIN_REG_SIZE" range:"0.." inactive:"accepted, not needed here: only barex reads it"`

	MaxEndpoints  int           `koanf:"max_endpoints" doc:"connections of a device, at most its queue pairs / qps_per_endpoint; beyond it an idle one goes" env:"MC_MAX_EP_PER_CTX" range:"1..1048576"`
	EndpointStore string        `koanf:"endpoint_store" doc:"which idle connection goes first" env:"MC_ENDPOINT_STORE_TYPE" enum:"FIFO|SIEVE"`
	ProbeInterval time.Duration `koanf:"probe_interval" doc:"a connection that was idle for so long is asked for with a write of 0 bytes, so that those of dead peers go; 0 = never" range:"0s..24h"`

	SliceSize     units.Size    `koanf:"slice_size" doc:"transfers are cut into work requests of this size" env:"MC_SLICE_SIZE" range:"4096..1GB"`
	FragmentRatio int           `koanf:"fragment_ratio" doc:"a rest up to slice_size / fragment_ratio is added to the work request before" env:"MC_FRAGMENT_RATIO" range:"1..65536"`
	SliceTimeout  time.Duration `koanf:"slice_timeout" doc:"a work request without completion for so long makes its connection fail; below 0: 5s" env:"MC_SLICE_TIMEOUT" envunit:"s" range:"-1s..1h"`
	MaxQueued     int           `koanf:"max_queued" doc:"work requests handed to the devices and not completed, for each peer" range:"16..1048576"`
	Retries       int           `koanf:"retries" doc:"how often a work request is tried again, each time over another pair of devices if there is one" env:"MC_RETRY_CNT" range:"1..127"`
	RailPause     time.Duration `koanf:"rail_pause" doc:"a pair of devices that failed 5 times within 5 s is not used for so long" env:"MC_RDMA_RAIL_PAUSE_SECONDS" envunit:"s" range:"1s..3599s"`
	ConnectPause  time.Duration `koanf:"connect_pause" doc:"first pause after a failed connection, doubled up to 5 s with every further one" env:"MC_CONN_PAUSE_TTL_MS" envunit:"ms" range:"0s..10m"`
	ReopenPause   time.Duration `koanf:"reopen_pause" doc:"first pause before a device that was lost is opened again; doubles up to a minute" range:"10ms..1m"`

	MaxMRSize             units.Size `koanf:"max_mr_size" doc:"largest memory region; larger ones are registered in pieces of this size, or of what the device allows" env:"MC_MAX_MR_SIZE" range:"1MB..1024TB"`
	RelaxedOrdering       int        `koanf:"relaxed_ordering" doc:"PCI relaxed ordering for registered memory: 0 = off, 1 or 2 = where the library has it" env:"MC_IB_PCI_RELAXED_ORDERING" range:"0..2"`
	ParallelRegistration  int        `koanf:"parallel_registration" doc:"register on all devices at once: 1 = yes, 0 = one after the other, -1 = yes if there are several" env:"MC_ENABLE_PARALLEL_REG_MR" range:"-1..1"`
	ConcurrentRegistering int        `koanf:"max_concurrent_registration" doc:"registrations running at once; 0 = no limit" env:"MC_MAX_CONCURRENT_REG_MR" range:"0..1024"`

	TopologyFile       string        `koanf:"topology_file" doc:"JSON file with a priority matrix, used instead of what the kernel tells" env:"MC_CUSTOM_TOPO_JSON"`
	DestDeviceAffinity bool          `koanf:"dest_device_affinity" doc:"prefer the peer's device of the same name" env:"MC_ENABLE_DEST_DEVICE_AFFINITY"`
	PeerAffinity       string        `koanf:"peer_affinity" doc:"which devices of a peer each local one prefers, as \"mlx5_0=mlx5_2,mlx5_3;mlx5_1=mlx5_4\"" env:"MC_NIC_PEER_AFFINITY"`
	UsePeerAffinity    bool          `koanf:"use_peer_affinity" doc:"apply peer_affinity" env:"MC_ENABLE_HCA_PEER_AFFINITY"`
	RoundRobin         bool          `koanf:"round_robin" doc:"take equally good devices in turn; false = the one with least to do" env:"MC_PATH_ROUNDROBIN"`
	BindAddress        string        `koanf:"rdma_server_host" doc:"host under which peers connect queue pairs, published as rdma_server_name; empty = the segment's name" env:"MC_RDMA_BIND_ADDRESS"`
	BusyPoll           time.Duration `koanf:"busy_poll" doc:"how long a completion queue with work outstanding is polled before its goroutine sleeps" range:"0s..10ms"`
	LogAffinity        bool          `koanf:"log_slice_affinity" doc:"log of each choice" env:"MC_LOG_RDMA_SLICE_AFFINITY" inactive:"accepted, not needed here: see the metrics by device"`
	TrackPosted        bool          `koanf:"track_posted_slices" doc:"books on posted work" env:"MC_TRACK_RDMA_POSTED_SLICES" inactive:"accepted, not needed here: they are always kept"`
}

func defaultConfig() Config {
	return Config{
		Port: 1, GIDIndex: -1, GIDRetries: 2, MTU: 4096, TrafficClass: -1, ServiceLevel: -1,
		QPs: 2, MaxWork: 256, MaxSGE: 4, MaxInline: 64, CQs: 1, MaxCQE: 4096, Channels: 1, Workers: 2, MinRegSize: 64 << 20,
		MaxEndpoints: 65536, EndpointStore: storeSIEVE, ProbeInterval: 30 * time.Second,
		SliceSize: 64 * units.KiB, FragmentRatio: 4, SliceTimeout: -time.Second, MaxQueued: 2048, Retries: 9,
		RailPause: 30 * time.Second, ConnectPause: 100 * time.Millisecond, ReopenPause: time.Second,
		MaxMRSize: units.TiB, RelaxedOrdering: 1, ParallelRegistration: -1,
		BusyPoll: 50 * time.Microsecond,
	}
}

// hangTimeout is after how long without a completion a device is taken to hang, unless slice_timeout says otherwise. The
// device's own retries end after 4 s at most.
const hangTimeout = 5 * time.Second

func (c *Config) sliceTimeout() time.Duration {
	if c.SliceTimeout <= 0 {
		return hangTimeout
	}
	return c.SliceTimeout
}

// Validate checks what the tags say too, so that a Config built by hand is safe.
func (c *Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	for _, n := range []struct {
		key        string
		v, lo, max int
	}{
		{"port", c.Port, 1, 255}, {"gid_index", c.GIDIndex, -1, 255}, {"auto_gid_retries", c.GIDRetries, 0, 16},
		{"pkey_index", c.PKeyIndex, 0, 65535}, {"traffic_class", c.TrafficClass, -1, 255}, {"service_level", c.ServiceLevel, -1, 15},
		{"qps_per_endpoint", c.QPs, 1, 256}, {"max_work", c.MaxWork, 1, 65536}, {"max_sge", c.MaxSGE, 1, 65536},
		{"max_inline", c.MaxInline, 0, 65536}, {"cqs_per_device", c.CQs, 1, 255}, {"max_cqe", c.MaxCQE, 16, 1 << 24},
		{"max_endpoints", c.MaxEndpoints, 1, 1 << 20}, {"fragment_ratio", c.FragmentRatio, 1, 65536},
		{"max_queued", c.MaxQueued, 16, 1 << 20}, {"retries", c.Retries, 1, 127}, {"relaxed_ordering", c.RelaxedOrdering, 0, 2},
		{"parallel_registration", c.ParallelRegistration, -1, 1}, {"max_concurrent_registration", c.ConcurrentRegistering, 0, 1024},
	} {
		if n.v < n.lo || n.v > n.max {
			bad(n.key, "%d is outside %d..%d", n.v, n.lo, n.max)
		}
	}
	for _, d := range []struct {
		key string
		v   time.Duration
		min time.Duration
	}{
		{"probe_interval", c.ProbeInterval, 0}, {"connect_pause", c.ConnectPause, 0}, {"busy_poll", c.BusyPoll, 0},
		{"rail_pause", c.RailPause, time.Millisecond}, {"reopen_pause", c.ReopenPause, time.Millisecond},
	} {
		if d.v < d.min {
			bad(d.key, "%v is below %v", d.v, d.min)
		}
	}
	switch c.MTU {
	case 256, 512, 1024, 2048, 4096:
	default:
		bad("mtu", "%d is none of 256, 512, 1024, 2048, 4096", c.MTU)
	}
	if c.EndpointStore != storeFIFO && c.EndpointStore != storeSIEVE {
		bad("endpoint_store", "%q is unknown; use %s or %s", c.EndpointStore, storeFIFO, storeSIEVE)
	}
	if c.SliceSize < 4096 || c.SliceSize > units.GiB {
		bad("slice_size", "%v is outside 4096..1GB", c.SliceSize)
	}
	if c.MaxMRSize < 4096 {
		bad("max_mr_size", "%v is below a page", c.MaxMRSize)
	}
	if _, err := parseAffinity(c.PeerAffinity); err != nil {
		bad("peer_affinity", "%v", err)
	}
	return errors.Join(errs...)
}

// affinity maps a local device to the peer's devices that it prefers.
type affinity map[string][]string

// parseAffinity reads "a=b,c;d=e".
func parseAffinity(s string) (affinity, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	out := affinity{}
	for _, part := range strings.Split(s, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, list, ok := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		var to []string
		for _, n := range strings.Split(list, ",") {
			if n = strings.TrimSpace(n); n != "" {
				to = append(to, n)
			}
		}
		if !ok || name == "" || len(to) == 0 {
			return nil, fmt.Errorf("%q is not of the form device=peer_device,peer_device", part)
		}
		out[name] = append(out[name], to...)
	}
	return out, nil
}
