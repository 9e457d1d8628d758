package config

import "github.com/mooncake-agent/mooncake/core/units"

// Root holds Mooncake's own flat keys as its users write them, and what they resolve to. The sources of
// the key names and forms are the public configs of the wheel, vLLM, SGLang, LMCache, FastDeploy,
// FlexKV and the deployment guides.
type Root struct {
	LocalHostname   string     `koanf:"local_hostname" env:"MOONCAKE_LOCAL_HOSTNAME,LOCAL_HOSTNAME" doc:"name or address under which peers reach this node, optionally with a port"`
	MetadataServer  string     `koanf:"metadata_server" env:"MOONCAKE_TE_META_DATA_SERVER" doc:"P2PHANDSHAKE, or where descriptors are kept: http://h:8080/metadata, etcd://h:2379, redis://h:6379; without a scheme it is etcd"`
	MetadataBackend string     `koanf:"metadata_backend" doc:"old: type of a metadata_server without a scheme"`
	MetadataAuth    string     `koanf:"metadata_server_auth" secret:"true" inactive:"accepted, not active yet; use metadata.password" doc:"password for the metadata server (FlexKV)"`
	MasterAddress   string     `koanf:"master_server_address" alias:"master_server_addr,master_server" env:"MOONCAKE_MASTER" doc:"Store master: host:port, etcd://..., redis://..., k8s://namespace/lease; empty: none"`
	GlobalSegment   units.Size `koanf:"global_segment_size" env:"MOONCAKE_GLOBAL_SEGMENT_SIZE" doc:"memory that this node contributes; 0: none"`
	LocalBuffer     units.Size `koanf:"local_buffer_size" env:"MOONCAKE_LOCAL_BUFFER_SIZE" doc:"memory for objects that the node itself puts and reads, over REST"`
	Protocol        string     `koanf:"protocol" env:"MOONCAKE_PROTOCOL" doc:"preferred transport: tcp, rdma (falls back to tcp) or shm, in any letter case"`
	DeviceName      string     `koanf:"device_name" alias:"rdma_devices" env:"MOONCAKE_DEVICE" doc:"RDMA devices with commas between them; empty or auto-discovery: all"`
	BindAddress     string     `koanf:"bind_address" doc:"IP address to listen on; empty: all, or loopback if local_hostname is loopback"`
	AdvertiseHost   string     `koanf:"advertise_host" env:"MC_TCP_BIND_ADDRESS" doc:"host or address that peers connect to when a metadata service is used; empty: local_hostname if it is an address, else the first one of an interface"`
	Prefer          []string   `koanf:"prefer" doc:"order in which transports are tried; default: shm, the protocol, tcp"`

	Mode            string `koanf:"mode" enum:"embedded|standalone-store" doc:"embedded (contributes memory) or standalone-store (does not)"`
	TenantID        string `koanf:"tenant_id" env:"MOONCAKE_TENANT_ID" doc:"tenant of the objects this node writes"`
	EnableOffload   bool   `koanf:"enable_offload" inactive:"accepted, not active yet" doc:"offload of objects to disk (vLLM)"`
	EnableSSD       bool   `koanf:"enable_ssd_offload" env:"MOONCAKE_OFFLOAD_ENABLED" inactive:"accepted, not active yet" doc:"offload of objects to SSD"`
	SSDPath         string `koanf:"ssd_offload_path" env:"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH" inactive:"accepted, not active yet" doc:"absolute path of the folder for offloaded objects"`
	EnableHTTP      bool   `koanf:"enable_client_http_server" env:"MOONCAKE_ENABLE_CLIENT_HTTP_SERVER" inactive:"accepted, not active yet; health and metrics are served at admin.listen" doc:"HTTP server of the store client"`
	HTTPPort        int    `koanf:"client_http_port" env:"MOONCAKE_CLIENT_HTTP_PORT" range:"0..65535" inactive:"accepted, not active yet; health and metrics are served at admin.listen" doc:"port of the store client's HTTP server"`
	EnginePoolsKeys `koanf:",squash"`
	ForeignKeys     `koanf:",squash"`

	// Host and Port are local_hostname taken apart; Host has no brackets, Port is 0 if none was given.
	Host string `koanf:"-"`
	Port int    `koanf:"-"`
	// Bind is the IP address to listen on, "" for all.
	Bind string `koanf:"-"`
	// Metadata is what metadata_server and the section "metadata" resolve to.
	Metadata MetadataTarget `koanf:"-"`
	// Master is master_server_address taken apart.
	Master MasterTarget `koanf:"-"`
}

// EnginePoolsKeys are the keys of the public deployment guides.
type EnginePoolsKeys struct {
	GPUPool        units.Size `koanf:"gpu_memory_pool_size" inactive:"accepted, not active yet" doc:"GPU memory pool (deployment guides)"`
	CPUPool        units.Size `koanf:"cpu_memory_pool_size" inactive:"accepted, not active yet; global_segment_size sets the memory of this node" doc:"CPU memory pool (deployment guides)"`
	RDMABuffer     units.Size `koanf:"rdma_buffer_size" inactive:"accepted, not active yet" doc:"RDMA buffer (deployment guides)"`
	MaxConnections int        `koanf:"max_connections" range:"0.." inactive:"accepted, not active yet" doc:"connections per node (deployment guides)"`
	SSDPoolPath    string     `koanf:"ssd_path" inactive:"accepted, not active yet" doc:"folder of the SSD pool (deployment guides)"`
	SSDPool        units.Size `koanf:"ssd_pool_size" inactive:"accepted, not active yet" doc:"size of the SSD pool (deployment guides)"`
	Failover       bool       `koanf:"failover_enabled" inactive:"accepted, not active yet" doc:"fail over to another node (deployment guides)"`
	FailoverMS     int        `koanf:"failover_timeout_ms" range:"0.." inactive:"accepted, not active yet" doc:"time before fail-over in ms (deployment guides)"`
	RetryAttempts  int        `koanf:"retry_attempts" range:"0.." inactive:"accepted, not active yet" doc:"tries of a failed operation (deployment guides)"`
	HealthCheckMS  int        `koanf:"health_check_interval_ms" range:"0.." inactive:"accepted, not active yet" doc:"time between health checks in ms (deployment guides)"`
}

// ForeignKeys are keys that other readers of the same file use. They are typed so that a mistake is
// found here, and have no effect on the node.
type ForeignKeys struct {
	PreferredSegment any        `koanf:"preferred_segment" inactive:"accepted, but only vLLM Ascend reads it" doc:"vLLM Ascend: write to the own segment first"`
	SameNode         bool       `koanf:"prefer_alloc_in_same_node" inactive:"accepted, but only vLLM Ascend reads it" doc:"vLLM Ascend: keep an object on one node"`
	StagingBuffer    units.Size `koanf:"staging_buffer_size" inactive:"accepted, but only vLLM Ascend reads it" doc:"vLLM Ascend: staging buffer"`
	CheckServer      bool       `koanf:"check_server" inactive:"accepted, but only SGLang reads it" doc:"SGLang: wait for the server at start"`
	StandaloneStore  bool       `koanf:"standalone_storage" inactive:"accepted, but only SGLang reads it" doc:"SGLang: use a storage process of its own"`
	ClientServer     string     `koanf:"client_server_address" env:"MOONCAKE_CLIENT" inactive:"accepted, but only SGLang reads it" doc:"SGLang: address of that storage process"`
	MasterMetrics    int        `koanf:"master_metrics_port" range:"0..65535" inactive:"accepted, but only SGLang reads it" doc:"SGLang: metrics port of the master"`
	TransferTimeout  float64    `koanf:"transfer_timeout" alias:"mooncake_transfer_timeout" range:"0.." inactive:"accepted, but only LMCache reads it" doc:"LMCache: seconds"`
	StorageRootDir   string     `koanf:"storage_root_dir" alias:"mooncake_storage_root_dir" inactive:"accepted, but only LMCache reads it" doc:"LMCache: folder"`
	PreferLocal      bool       `koanf:"prefer_local_alloc" alias:"mooncake_prefer_local_alloc" inactive:"accepted, but only LMCache reads it" doc:"LMCache: write to the own segment first"`
	SaveChunkMeta    bool       `koanf:"save_chunk_meta" inactive:"accepted, but only LMCache reads it" doc:"LMCache: store metadata with each chunk"`
	UseExistsSync    bool       `koanf:"use_exists_sync" inactive:"accepted, but only LMCache reads it" doc:"LMCache: synchronous lookups"`
	EngineIP         string     `koanf:"engine_ip" inactive:"accepted, but only FlexKV reads it" doc:"FlexKV: engine address"`
	EnginePort       int        `koanf:"engine_port" range:"0..65535" inactive:"accepted, but only FlexKV reads it" doc:"FlexKV: engine port"`
	PrefillURL       string     `koanf:"prefill_url" inactive:"accepted, but only the engines' proxy reads it" doc:"vLLM P/D v0: prefill instance"`
	DecodeURL        string     `koanf:"decode_url" inactive:"accepted, but only the engines' proxy reads it" doc:"vLLM P/D v0: decode instance"`
	ZeroCopy         bool       `koanf:"zero_copy" inactive:"accepted, but Mooncake reads no such key" doc:"seen in public files"`
	HighWatermark    float64    `koanf:"eviction_high_watermark_ratio" range:"0..1" inactive:"accepted, but it belongs to the master's configuration" doc:"seen in public files"`
	EvictionRatio    float64    `koanf:"eviction_ratio" range:"0..1" inactive:"accepted, but it belongs to the master's configuration" doc:"seen in public files"`
}

// defaultRoot is what an empty file means. The values are upstream's where it has the key.
func defaultRoot() Root {
	return Root{
		LocalHostname:  "localhost",
		MetadataServer: p2pHandshake,
		GlobalSegment:  3355443200,
		LocalBuffer:    1073741824,
		Protocol:       "tcp",
		Prefer:         []string{},
		TenantID:       "default",
		HTTPPort:       9300,
		ForeignKeys:    ForeignKeys{PreferredSegment: false, TransferTimeout: 1},
	}
}
