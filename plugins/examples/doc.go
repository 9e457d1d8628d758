// Package examples has no code of its own: its folders are eviction policies for WebAssembly and plugins in processes of
// their own, and its tests run them. See README.md.
package examples

import "embed"

// Files are the policies that `mooncake policy new` starts from.
//
//go:embed lru-c/lru.c lru-go/lru.go lru-rust/lru.rs lru-as/lru.ts
var Files embed.FS

// External are the plugins that `mooncake plugin new` starts from.
//
//go:embed external-transport external-metadata external-eviction
//go:embed external-metadata-python/sqlite_metadata.py external-eviction-python/lru_eviction.py external-transport-python/copy_transport.py
var External embed.FS
