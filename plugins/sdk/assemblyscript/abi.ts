// Code generated from policy.h by plugins/sdk/gen. DO NOT EDIT.

// Sizes in bytes, and values with a meaning of their own.
export const ABI_MINOR: u32 = 0;
export const RECORD_SIZE: u32 = 64;
export const HEADER_SIZE: u32 = 64;
export const MAX_STATE: u32 = 1048576;
export const MAX_CANDIDATES: u32 = 64;
export const ANY_TENANT: u32 = 4294967295; // Config.tenant; -1 in policy_victims
export const ANY_SEGMENT: u32 = 0;

// What happened: Event.kind. Ignore kinds that you do not know.
export const INSERT: u32 = 1; // a put finished, the object is resident
export const ACCESS: u32 = 2; // the object was read
export const PROBE: u32 = 3; // somebody asked whether the object exists
export const REMOVE: u32 = 4; // the object is gone; code says why
export const REJECT: u32 = 5; // your victim was not taken; code says why
export const PIN: u32 = 6; // flags: soft or hard; size: deadline in now_ms terms, 0 none
export const UNPIN: u32 = 7; // no pin is left
export const GHOST: u32 = 8; // a key that is not resident was asked for; handle is 0
export const TICK: u32 = 9; // only the time
export const RESTORE: u32 = 10; // as INSERT, while a new instance is filled, oldest first
export const RESIZE: u32 = 11; // size: the new capacity in bytes
export const CANDIDATE: u32 = 12; // score mode: now_ms is the last use, req the number of uses
export const MOVED: u32 = 13; // the replica is on another segment now

// Event.flags. Ignore bits that you do not know.
export const FLAG_SOFT_PIN: u32 = 1;
export const FLAG_HARD_PIN: u32 = 2;
export const FLAG_LEASED: u32 = 4;
export const FLAG_PARTIAL: u32 = 8; // a block that is not full: the end of a prompt
export const FLAG_GROUPED: u32 = 16;
export const FLAG_TAIL_FIRST: u32 = 32; // one of a batch that is delivered deepest block first

// Event.code of REMOVE.
export const REMOVED: u32 = 1;
export const EVICTED: u32 = 2;
export const EXPIRED: u32 = 3;
export const SEGMENT_LOST: u32 = 4;
export const REPLACED: u32 = 5;

// Event.code of REJECT.
export const REJECT_LEASED: u32 = 1;
export const REJECT_PINNED: u32 = 2;
export const REJECT_BUSY: u32 = 3;
export const REJECT_UNKNOWN: u32 = 4;
export const REJECT_DUPLICATE: u32 = 5;
export const REJECT_OTHER_TENANT: u32 = 6;
export const REJECT_USED: u32 = 7; // used since it was proposed
export const REJECT_NOT_THERE: u32 = 8; // no replica on the segment that was asked for

// Buffers, the first argument of policy_buffer.
export const BUFFER_CONFIG: u32 = 0; // struct Config and the params; aligned to 8
export const BUFFER_EVENTS: u32 = 1; // struct Event; aligned to 8
export const BUFFER_VICTIMS: u32 = 2; // uint32_t handles; aligned to 4
export const BUFFER_STATE: u32 = 3; // bytes
export const BUFFER_SCORES: u32 = 4; // double; aligned to 8
export const BUFFER_ADMIT: u32 = 5; // bits, least significant first, set = refuse

// Flags of policy_victims.
export const NEED_SOFT_PINS: u32 = 1; // soft-pinned objects may be named, after all others
export const NEED_EMERGENCY: u32 = 2; // a put fails if nothing is named

// Results of policy_load.
export const LOAD_TAKEN: u32 = 0;
export const LOAD_NOT_MINE: u32 = 1;

// Levels of mc_log.
export const LOG_DEBUG: u32 = 0;
export const LOG_INFO: u32 = 1;
export const LOG_WARN: u32 = 2;
export const LOG_ERROR: u32 = 3;

// One event.
@unmanaged
export class Event {
  kind: u8;
  flags: u8;
  code: u16;
  handle: u32; // 1..max_handles; 0 none
  parent: u32; // previous block of the chain; 0 none or unknown
  depth: u32; // position in the chain, 0 first
  req: u32; // number of the batch call
  matched: u32; // blocks of this batch's chain that were found before it
  added: u32; // blocks newly written by this batch; 0 in ACCESS
  tenant: u32;
  size: u64; // bytes
  now_ms: u64; // the host's clock, never goes back
  key_hash: u64; // the same when a key comes back
  segment: u32; // 0 none or several
  group: u32; // 0 none
}

// Head of the config buffer.
@unmanaged
export class Config {
  header_size: u32;
  record_size: u32;
  abi_minor: u32;
  host_features: u32;
  capacity_bytes: u64;
  max_handles: u32;
  block_tokens: u32; // tokens of a full block; 0 unknown
  seed: u64; // the only source of chance
  tenant: u32;
  batch_max: u32; // the greatest number of records in one call
  params_off: u32; // from the buffer's start
  params_len: u32;
  reserved: u64; // 0
}
