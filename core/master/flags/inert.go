package flags

import "strings"

// inertFlags are upstream's flags that switch on, or belong to, something that is not in this version.
func inertFlags() []Flag {
	flag := func(name, def, doc string) Flag {
		return Flag{Name: name, Type: upstreamTypes[name], Default: def, Doc: doc, Group: Inert, set: func(_ *Settings, v string) error {
			return checkType(upstreamTypes[name], v)
		}}
	}
	// A switch is refused when it is on.
	gate := func(name, def, doc, off string) Flag {
		f := flag(name, def, doc)
		f.Off = off
		f.on = func(v string) bool {
			if f.Type == "bool" {
				on, err := parseBool(v)
				return err == nil && on
			}
			return v != def
		}
		return f
	}
	// A companion has a warning when it is not its default.
	of := func(needs string, f Flag) Flag {
		f.Needs = needs
		return f
	}
	return []Flag{
		gate("enable_ha", "false", "high availability", "high availability"),
		of("enable_ha", flag("ha_backend_type", "etcd", "backend of high availability")),
		of("enable_ha", flag("ha_backend_connstring", "", "connection string of that backend")),
		of("enable_ha", flag("etcd_endpoints", "", "etcd servers for high availability")),
		of("enable_ha", flag("pod_name", "", "Kubernetes pod that carries the leader's label")),
		of("enable_ha", flag("pod_namespace", "", "its namespace")),
		gate("enable_oplog", "false", "replicate metadata through an operation log", "the operation log"),
		of("enable_oplog", flag("oplog_poll_interval_ms", "1000", "how often a standby polls the log")),
		of("enable_oplog", flag("oplog_batch_max_entries", "1024", "most entries of a batch of the log")),
		of("enable_oplog", flag("batch_oplog_retry_timeout_sec", "180", "how long a standby retries")),
		gate("enable_snapshot", "false", "write snapshots of the metadata", "snapshots"),
		gate("enable_snapshot_restore", "false", "start from the latest snapshot", "snapshots"),
		of("enable_snapshot", flag("snapshot_interval_seconds", "600", "time between snapshots")),
		of("enable_snapshot", flag("snapshot_child_timeout_seconds", "300", "longest time of a snapshot")),
		of("enable_snapshot", flag("snapshot_retention_count", "2", "snapshots to keep")),
		of("enable_snapshot", flag("snapshot_backup_dir", "", "local copy of snapshots")),
		of("enable_snapshot", flag("snapshot_object_store_type", "", "where snapshots go")),
		of("enable_snapshot", flag("snapshot_payload_store_type", "", "same as snapshot_object_store_type")),
		of("enable_snapshot", flag("snapshot_payload_backend_type", "", "same as snapshot_object_store_type")),
		of("enable_snapshot", flag("snapshot_catalog_store_type", "", "where the list of snapshots is kept")),
		of("enable_snapshot", flag("snapshot_catalog_backend_type", "", "same as snapshot_catalog_store_type")),
		of("enable_snapshot", flag("snapshot_catalog_store_connstring", "", "connection string of that list")),
		of("enable_snapshot", flag("snapshot_catalog_backend_connstring", "", "same as snapshot_catalog_store_connstring")),
		gate("enable_cxl", "false", "memory on a CXL device", "CXL memory"),
		of("enable_cxl", flag("cxl_path", "/dev/dax0.0", "that device")),
		of("enable_cxl", flag("cxl_size", "8589934592", "its size")),
		gate("enable_kv_events", "false", "publish KV events over ZeroMQ", "KV events"),
		of("enable_kv_events", flag("kv_events_bind_endpoint", "", "where they are published")),
		of("enable_kv_events", flag("kv_events_backend_id", "", "their backend_id")),
		of("enable_kv_events", flag("kv_events_emit_legacy_compat", "true", "their older fields, too")),
		of("enable_kv_events", flag("kv_events_emit_object_key", "true", "their object_key")),
		of("enable_kv_events", flag("kv_events_queue_capacity", "65536", "events that wait")),
		of("enable_kv_events", flag("kv_events_model_name", "", "deprecated upstream")),
		of("enable_kv_events", flag("kv_events_tenant_id", "default", "deprecated upstream")),
		of("enable_kv_events", flag("kv_events_additional_salt", "", "deprecated upstream")),
		of("enable_kv_events", flag("kv_events_lora_name", "", "deprecated upstream")),
		of("enable_kv_events", flag("kv_events_block_size", "0", "deprecated upstream")),
		of("enable_kv_events", flag("kv_events_dp_rank", "0", "deprecated upstream")),
		of("dynamic_replication_mode", flag("dynamic_replication_heat_window_seconds", "10", "automatic copies: window of the reads that count")),
		of("dynamic_replication_mode", flag("dynamic_replication_admission_qps_threshold", "0.8", "automatic copies: reads a second that make a copy")),
		of("dynamic_replication_mode", flag("dynamic_replication_max_memory_replicas", "2", "automatic copies: most replicas")),
		of("NVMe-oF segments", flag("nof_eviction_ratio", "0.05", "NVMe-oF: least share that a round evicts")),
		of("NVMe-oF segments", flag("nof_eviction_high_watermark_ratio", "0.9", "NVMe-oF: used share above which a round runs")),
		of("NVMe-oF segments", flag("nof_heartbeat_interval_sec", "10", "NVMe-oF: time between probes")),
		of("NVMe-oF segments", flag("nof_heartbeat_probe_timeout_ms", "1000", "NVMe-oF: longest time of a probe")),
		of("NVMe-oF segments", flag("nof_heartbeat_failures_threshold", "3", "NVMe-oF: failed probes that remove a segment")),
		of("the memory allocator of upstream's clients", flag("use_mmap_arena_allocator", "false", "an allocator of upstream's process")),
		of("the memory allocator of upstream's clients", flag("mmap_arena_pool_size", "8589934592", "its pool")),
		gate("enable_metadata_cleanup_on_timeout", "false", "delete the Transfer Engine's metadata of clients that vanished", "deleting the metadata of clients that vanished"),
	}
}

// checkType refuses values that upstream would refuse, too.
func checkType(typ, v string) (err error) {
	switch typ {
	case "bool":
		_, err = parseBool(v)
	case "int32":
		_, err = parseInt(v, -1<<31, 1<<31-1)
	case "uint32":
		_, err = parseInt(v, 0, 1<<32-1)
	case "int64":
		_, err = parseInt(v, -1<<63, 1<<63-1)
	case "uint64":
		_, err = parseSize(v)
	case "double":
		_, err = parseFloat(v, -1e308, 1e308)
	}
	return err
}

// loggingFlags are those of glog, which deployments pass along. Levels are understood, the rest has no effect.
func loggingFlags() []Flag {
	ignored := func(name, typ string) Flag {
		return Flag{Name: name, Type: typ, Group: Logging, Needs: "upstream's logging library (see log_level, log_file)",
			Doc: "accepted, no effect", set: func(*Settings, string) error { return nil }}
	}
	out := []Flag{
		{Name: "minloglevel", Type: "int32", Default: "0", Group: Logging, Doc: "0 = info, 1 = warn, 2 and above = error; see log_level",
			set: func(s *Settings, v string) error {
				n, err := parseInt(v, -1<<31, 1<<31-1)
				if err == nil {
					s.Log.Level = []string{"info", "warn", "error"}[min(max(n, 0), 2)]
				}
				return err
			}},
		{Name: "v", Type: "int32", Default: "0", Group: Logging, Doc: "above 0 = debug; see log_level",
			set: func(s *Settings, v string) error {
				n, err := parseInt(v, -1<<31, 1<<31-1)
				if err == nil && n > 0 {
					s.Log.Level = "debug"
				}
				return err
			}},
		{Name: "logtostderr", Type: "bool", Group: Logging, Doc: "as it is here anyway", set: func(_ *Settings, v string) error { return checkType("bool", v) }},
		{Name: "alsologtostderr", Type: "bool", Group: Logging, Doc: "as it is here anyway", set: func(_ *Settings, v string) error { return checkType("bool", v) }},
	}
	for _, f := range strings.Fields("log_dir:string log_link:string log_prefix:bool logbuflevel:int32 logbufsecs:int32 max_log_size:int32 " +
		"stderrthreshold:int32 stop_logging_if_full_disk:bool colorlogtostderr:bool vmodule:string logfile_mode:int32 symbolize_stacktrace:bool") {
		name, typ, _ := strings.Cut(f, ":")
		out = append(out, ignored(name, typ))
	}
	return out
}
