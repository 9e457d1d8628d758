// Package abi is the host's side of the guest ABI for eviction policies, version 1: the names, numbers and
// byte layouts that ABI.md describes and policy.h declares for guests in C. All integers are little-endian.
//
// Tests compile policy.h and compare every size, offset and number with this package, and check the tables
// of ABI.md against it. Numbers are never given a second meaning; see "Adding to the ABI" in ABI.md.
package abi

import "github.com/mooncake-agent/mooncake/eviction"

// Minor is the header's abi_minor. It grows by one with each addition that guests may want to know of; a
// change that would break a guest needs a new marker export instead.
const Minor = 0

// What a module imports and exports.
const (
	// MemoryExport is the name of the exported linear memory.
	MemoryExport = "memory"

	// Marker tells that a module is a policy for version 1. Its result are the guest's feature bits.
	Marker = "mooncake_eviction_v1"
	// Initialize is the optional constructor call of reactor modules (Go, C++), made by the host before
	// anything else.
	Initialize = "_initialize"

	FuncBuffer  = "policy_buffer"
	FuncInit    = "policy_init"
	FuncEvents  = "policy_events"
	FuncVictims = "policy_victims"
	FuncScore   = "policy_score"
	FuncAdmit   = "policy_admit"
	FuncSave    = "policy_save"
	FuncLoad    = "policy_load"
	FuncStats   = "policy_stats"

	// ImportModule and ImportLog name the only function that the host offers.
	ImportModule = "env"
	ImportLog    = "log"
)

// GuestFeatures is the result of the marker: what the guest asks of the host. A host refuses a guest with a
// bit that it does not know.
type GuestFeatures uint32

// KnownGuestFeatures are the bits that this host serves: none yet.
const KnownGuestFeatures GuestFeatures = 0

// HostFeatures is the header's host_features. A guest ignores bits that it does not know.
type HostFeatures uint32

// OfferedHostFeatures are the bits that this host sets: none yet.
const OfferedHostFeatures HostFeatures = 0

// Sizes in bytes.
const (
	RecordSize = eviction.EventSize
	HeaderSize = 64
	HandleSize = 4 // an entry of the victims buffer
	ScoreSize  = 8 // an entry of the scores buffer, IEEE 754 binary64
	// MaxState is the greatest size of saved state, and of the JSON of policy_stats.
	MaxState = eviction.MaxState
)

// Score mode: at most MaxCandidates are asked about in one call, the tail-most of the host's LRU order first,
// then some chosen by chance.
const (
	TailCandidates   = 48
	RandomCandidates = 16
	MaxCandidates    = TailCandidates + RandomCandidates
)

// LoadResult is the result of policy_load. Every other value is a fault.
type LoadResult int32

// The results of policy_load.
const (
	// LoadTaken: the guest goes on with the state.
	LoadTaken LoadResult = 0
	// LoadNotMine: the state is another policy's, or damaged; the guest is as before.
	LoadNotMine LoadResult = 1
)

// LogLevel is the first argument of the log import. Other values are logged as LogError.
type LogLevel int32

// The log levels.
const (
	LogDebug LogLevel = 0
	LogInfo  LogLevel = 1
	LogWarn  LogLevel = 2
	LogError LogLevel = 3
)
