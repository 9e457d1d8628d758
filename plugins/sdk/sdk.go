// Package sdk holds the guest libraries for eviction policies, a folder each for C, Go, Rust and AssemblyScript:
// files to copy beside a policy, with nothing to install but the compiler. The constants and layouts in them come
// from plugins/abi/policy.h. Folder python is for plugins in processes of their own; external is the same in Go.
package sdk

import "embed"

//go:generate go run ./gen
//go:generate cp ../proto/v1/descriptor.binpb python/mooncake_plugin/protocol.binpb

// Files are the libraries and a Makefile for each, as `mooncake policy new` copies them.
//
//go:embed c/Makefile c/policy.h c/mooncake.h
//go:embed go/Makefile go/policy
//go:embed rust/Makefile rust/abi.rs rust/mooncake.rs
//go:embed assemblyscript/Makefile assemblyscript/abi.ts assemblyscript/mooncake.ts
var Files embed.FS

// Python is the library for plugins in Python, but for the compiled protocol: pluginv1.Descriptor belongs beside it as
// mooncake_plugin/protocol.binpb.
//
//go:embed python/requirements.txt python/mooncake_plugin/*.py
var Python embed.FS
