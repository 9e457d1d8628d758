// Code generated from policy.h by plugins/sdk/gen. DO NOT EDIT.

// Sizes in bytes, and values with a meaning of their own.
pub const ABI_MINOR: u32 = 0;
pub const RECORD_SIZE: u32 = 64;
pub const HEADER_SIZE: u32 = 64;
pub const MAX_STATE: u32 = 1048576;
pub const MAX_CANDIDATES: u32 = 64;
pub const ANY_TENANT: u32 = 4294967295; // Config.tenant; -1 in policy_victims
pub const ANY_SEGMENT: u32 = 0;

// What happened: Event.kind. Ignore kinds that you do not know.
pub const INSERT: u32 = 1; // a put finished, the object is resident
pub const ACCESS: u32 = 2; // the object was read
pub const PROBE: u32 = 3; // somebody asked whether the object exists
pub const REMOVE: u32 = 4; // the object is gone; code says why
pub const REJECT: u32 = 5; // your victim was not taken; code says why
pub const PIN: u32 = 6; // flags: soft or hard; size: deadline in now_ms terms, 0 none
pub const UNPIN: u32 = 7; // no pin is left
pub const GHOST: u32 = 8; // a key that is not resident was asked for; handle is 0
pub const TICK: u32 = 9; // only the time
pub const RESTORE: u32 = 10; // as INSERT, while a new instance is filled, oldest first
pub const RESIZE: u32 = 11; // size: the new capacity in bytes
pub const CANDIDATE: u32 = 12; // score mode: now_ms is the last use, req the number of uses
pub const MOVED: u32 = 13; // the replica is on another segment now

// Event.flags. Ignore bits that you do not know.
pub const FLAG_SOFT_PIN: u32 = 1;
pub const FLAG_HARD_PIN: u32 = 2;
pub const FLAG_LEASED: u32 = 4;
pub const FLAG_PARTIAL: u32 = 8; // a block that is not full: the end of a prompt
pub const FLAG_GROUPED: u32 = 16;
pub const FLAG_TAIL_FIRST: u32 = 32; // one of a batch that is delivered deepest block first

// Event.code of REMOVE.
pub const REMOVED: u32 = 1;
pub const EVICTED: u32 = 2;
pub const EXPIRED: u32 = 3;
pub const SEGMENT_LOST: u32 = 4;
pub const REPLACED: u32 = 5;

// Event.code of REJECT.
pub const REJECT_LEASED: u32 = 1;
pub const REJECT_PINNED: u32 = 2;
pub const REJECT_BUSY: u32 = 3;
pub const REJECT_UNKNOWN: u32 = 4;
pub const REJECT_DUPLICATE: u32 = 5;
pub const REJECT_OTHER_TENANT: u32 = 6;
pub const REJECT_USED: u32 = 7; // used since it was proposed
pub const REJECT_NOT_THERE: u32 = 8; // no replica on the segment that was asked for

// Buffers, the first argument of policy_buffer.
pub const BUFFER_CONFIG: u32 = 0; // struct Config and the params; aligned to 8
pub const BUFFER_EVENTS: u32 = 1; // struct Event; aligned to 8
pub const BUFFER_VICTIMS: u32 = 2; // uint32_t handles; aligned to 4
pub const BUFFER_STATE: u32 = 3; // bytes
pub const BUFFER_SCORES: u32 = 4; // double; aligned to 8
pub const BUFFER_ADMIT: u32 = 5; // bits, least significant first, set = refuse

// Flags of policy_victims.
pub const NEED_SOFT_PINS: u32 = 1; // soft-pinned objects may be named, after all others
pub const NEED_EMERGENCY: u32 = 2; // a put fails if nothing is named

// Results of policy_load.
pub const LOAD_TAKEN: u32 = 0;
pub const LOAD_NOT_MINE: u32 = 1;

// Levels of mc_log.
pub const LOG_DEBUG: u32 = 0;
pub const LOG_INFO: u32 = 1;
pub const LOG_WARN: u32 = 2;
pub const LOG_ERROR: u32 = 3;

/// One event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    pub kind: u8,
    pub flags: u8,
    pub code: u16,
    pub handle: u32, // 1..max_handles; 0 none
    pub parent: u32, // previous block of the chain; 0 none or unknown
    pub depth: u32, // position in the chain, 0 first
    pub req: u32, // number of the batch call
    pub matched: u32, // blocks of this batch's chain that were found before it
    pub added: u32, // blocks newly written by this batch; 0 in ACCESS
    pub tenant: u32,
    pub size: u64, // bytes
    pub now_ms: u64, // the host's clock, never goes back
    pub key_hash: u64, // the same when a key comes back
    pub segment: u32, // 0 none or several
    pub group: u32, // 0 none
}

/// Head of the config buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    pub header_size: u32,
    pub record_size: u32,
    pub abi_minor: u32,
    pub host_features: u32,
    pub capacity_bytes: u64,
    pub max_handles: u32,
    pub block_tokens: u32, // tokens of a full block; 0 unknown
    pub seed: u64, // the only source of chance
    pub tenant: u32,
    pub batch_max: u32, // the greatest number of records in one call
    pub params_off: u32, // from the buffer's start
    pub params_len: u32,
    pub reserved: u64, // 0
}
