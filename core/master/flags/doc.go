// Package flags is the configuration of "mooncake master" as upstream's users know it: the flags of
// mooncake_master 0.3.13 by name and default, and its --config_path file in JSON or YAML with the same keys.
//
// A flag is one entry of a table ([All]); the command line, the file and the documentation use the same entry, so
// what one accepts the others accept too. Flags given on the command line override the file, also with their
// default value. Keys of [master.Config] that upstream lacks are flags too, under their own names.
//
// # Traps of upstream's file that are gone
//
//   - client_ttl and client_live_ttl_sec both name the same key (upstream ignores client_ttl in the file);
//   - every key may be left out and then has its documented default (upstream: rpc_port and rpc_thread_num are 0);
//   - port and max_threads may stand in the file;
//   - unknown keys, nested maps and lists are errors with file, line, column and the nearest known name (upstream
//     ignores the first two);
//   - a bad value is one line with its place (upstream aborts);
//   - choices are accepted in any letter case; an unknown allocation_strategy is refused;
//   - durations, sizes and numbers may be quoted or not.
//
// # What is refused
//
// A flag whose machinery is not in this version (HA, oplog, snapshots, CXL, KV events, ...) refuses the start as soon as
// it switches something on. Its companions (enable_ha's etcd_endpoints, ...) are accepted with a warning,
// because shipped files name them all.
package flags
