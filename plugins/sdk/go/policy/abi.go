// Code generated from policy.h by plugins/sdk/gen. DO NOT EDIT.

package policy

// Sizes in bytes, and values with a meaning of their own.
const (
	ABIMinor      = 0
	RecordSize    = 64
	HeaderSize    = 64
	MaxState      = 1048576
	MaxCandidates = 64
	AnyTenant     = 4294967295 // Config.tenant; -1 in policy_victims
	AnySegment    = 0
)

// What happened: Event.kind. Ignore kinds that you do not know.
const (
	Insert    = 1  // a put finished, the object is resident
	Access    = 2  // the object was read
	Probe     = 3  // somebody asked whether the object exists
	Remove    = 4  // the object is gone; code says why
	Reject    = 5  // your victim was not taken; code says why
	Pin       = 6  // flags: soft or hard; size: deadline in now_ms terms, 0 none
	Unpin     = 7  // no pin is left
	Ghost     = 8  // a key that is not resident was asked for; handle is 0
	Tick      = 9  // only the time
	Restore   = 10 // as INSERT, while a new instance is filled, oldest first
	Resize    = 11 // size: the new capacity in bytes
	Candidate = 12 // score mode: now_ms is the last use, req the number of uses
	Moved     = 13 // the replica is on another segment now
)

// Event.flags. Ignore bits that you do not know.
const (
	FlagSoftPin   = 1
	FlagHardPin   = 2
	FlagLeased    = 4
	FlagPartial   = 8 // a block that is not full: the end of a prompt
	FlagGrouped   = 16
	FlagTailFirst = 32 // one of a batch that is delivered deepest block first
)

// Event.code of REMOVE.
const (
	Removed     = 1
	Evicted     = 2
	Expired     = 3
	SegmentLost = 4
	Replaced    = 5
)

// Event.code of REJECT.
const (
	RejectLeased      = 1
	RejectPinned      = 2
	RejectBusy        = 3
	RejectUnknown     = 4
	RejectDuplicate   = 5
	RejectOtherTenant = 6
	RejectUsed        = 7 // used since it was proposed
	RejectNotThere    = 8 // no replica on the segment that was asked for
)

// Buffers, the first argument of policy_buffer.
const (
	BufferConfig  = 0 // struct Config and the params; aligned to 8
	BufferEvents  = 1 // struct Event; aligned to 8
	BufferVictims = 2 // uint32_t handles; aligned to 4
	BufferState   = 3 // bytes
	BufferScores  = 4 // double; aligned to 8
	BufferAdmit   = 5 // bits, least significant first, set = refuse
)

// Flags of policy_victims.
const (
	NeedSoftPins  = 1 // soft-pinned objects may be named, after all others
	NeedEmergency = 2 // a put fails if nothing is named
)

// Results of policy_load.
const (
	LoadTaken   = 0
	LoadNotMine = 1
)

// Levels of mc_log.
const (
	LogDebug = 0
	LogInfo  = 1
	LogWarn  = 2
	LogError = 3
)

// Event: One event.
type Event struct {
	Kind    uint8
	Flags   uint8
	Code    uint16
	Handle  uint32 // 1..max_handles; 0 none
	Parent  uint32 // previous block of the chain; 0 none or unknown
	Depth   uint32 // position in the chain, 0 first
	Req     uint32 // number of the batch call
	Matched uint32 // blocks of this batch's chain that were found before it
	Added   uint32 // blocks newly written by this batch; 0 in ACCESS
	Tenant  uint32
	Size    uint64 // bytes
	NowMS   uint64 // the host's clock, never goes back
	KeyHash uint64 // the same when a key comes back
	Segment uint32 // 0 none or several
	Group   uint32 // 0 none
}

// Config: Head of the config buffer.
type Config struct {
	HeaderSize    uint32
	RecordSize    uint32
	ABIMinor      uint32
	HostFeatures  uint32
	CapacityBytes uint64
	MaxHandles    uint32
	BlockTokens   uint32 // tokens of a full block; 0 unknown
	Seed          uint64 // the only source of chance
	Tenant        uint32
	BatchMax      uint32 // the greatest number of records in one call
	ParamsOff     uint32 // from the buffer's start
	ParamsLen     uint32
	Reserved      uint64 // 0
}
