/* Eviction policies for the Mooncake agent, guest ABI version 1. ABI.md says what the calls mean.
 *
 * Freestanding C11 (and C++11). Build, for example:
 *   clang-22 --target=wasm32-unknown-unknown -O3 -nostdlib -ffreestanding -Wl,--no-entry \
 *     -Wl,-z,stack-size=65536 -Wl,--strip-all -o policy.wasm policy.c
 */
#ifndef MOONCAKE_POLICY_H
#define MOONCAKE_POLICY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define MC_STATIC_ASSERT static_assert
#else
#define MC_STATIC_ASSERT _Static_assert
#endif

#define MC_ABI_MINOR 0

/* Sizes in bytes that this header was written for. Step through records by the host's record_size. */
#define MC_RECORD_SIZE 64
#define MC_HEADER_SIZE 64
#define MC_MAX_STATE 1048576

/* Score mode: the greatest number of candidates in one call. */
#define MC_MAX_CANDIDATES 64

/* What happened: mc_event.kind. Ignore kinds that you do not know. */
enum {
	MC_INSERT = 1,    /* a put finished, the object is resident */
	MC_ACCESS = 2,    /* the object was read */
	MC_PROBE = 3,     /* somebody asked whether the object exists */
	MC_REMOVE = 4,    /* the object is gone; code says why */
	MC_REJECT = 5,    /* your victim was not taken; code says why */
	MC_PIN = 6,       /* flags: soft or hard; size: deadline in now_ms terms, 0 none */
	MC_UNPIN = 7,        /* no pin is left */
	MC_GHOST = 8,     /* a key that is not resident was asked for; handle is 0 */
	MC_TICK = 9,      /* only the time */
	MC_RESTORE = 10,  /* as INSERT, while a new instance is filled, oldest first */
	MC_RESIZE = 11,   /* size: the new capacity in bytes */
	MC_CANDIDATE = 12, /* score mode: now_ms is the last use, req the number of uses */
	MC_MOVED = 13     /* the replica is on another segment now */
};

/* mc_event.flags. Ignore bits that you do not know. */
enum {
	MC_FLAG_SOFT_PIN = 1,
	MC_FLAG_HARD_PIN = 2,
	MC_FLAG_LEASED = 4,
	MC_FLAG_PARTIAL = 8, /* a block that is not full: the end of a prompt */
	MC_FLAG_GROUPED = 16,
	MC_FLAG_TAIL_FIRST = 32 /* one of a batch that is delivered deepest block first */
};

/* mc_event.code of MC_REMOVE. */
enum {
	MC_REMOVED = 1,
	MC_EVICTED = 2,
	MC_EXPIRED = 3,
	MC_SEGMENT_LOST = 4,
	MC_REPLACED = 5
};

/* mc_event.code of MC_REJECT. */
enum {
	MC_REJECT_LEASED = 1,
	MC_REJECT_PINNED = 2,
	MC_REJECT_BUSY = 3,
	MC_REJECT_UNKNOWN = 4,
	MC_REJECT_DUPLICATE = 5,
	MC_REJECT_OTHER_TENANT = 6,
	MC_REJECT_USED = 7,     /* used since it was proposed */
	MC_REJECT_NOT_THERE = 8 /* no replica on the segment that was asked for */
};

/* Buffers, the first argument of policy_buffer. */
enum {
	MC_BUFFER_CONFIG = 0,  /* struct mc_config and the params; aligned to 8 */
	MC_BUFFER_EVENTS = 1,  /* struct mc_event; aligned to 8 */
	MC_BUFFER_VICTIMS = 2, /* uint32_t handles; aligned to 4 */
	MC_BUFFER_STATE = 3,   /* bytes */
	MC_BUFFER_SCORES = 4,  /* double; aligned to 8 */
	MC_BUFFER_ADMIT = 5    /* bits, least significant first, set = refuse */
};

/* Flags of policy_victims. */
enum {
	MC_NEED_SOFT_PINS = 1, /* soft-pinned objects may be named, after all others */
	MC_NEED_EMERGENCY = 2  /* a put fails if nothing is named */
};

/* Results of policy_load. */
enum {
	MC_LOAD_TAKEN = 0,
	MC_LOAD_NOT_MINE = 1
};

/* Levels of mc_log. */
enum {
	MC_LOG_DEBUG = 0,
	MC_LOG_INFO = 1,
	MC_LOG_WARN = 2,
	MC_LOG_ERROR = 3
};

#define MC_ANY_TENANT UINT32_MAX /* mc_config.tenant; -1 in policy_victims */
#define MC_ANY_SEGMENT 0

/* One event. */
struct mc_event {
	uint8_t kind;
	uint8_t flags;
	uint16_t code;
	uint32_t handle;  /* 1..max_handles; 0 none */
	uint32_t parent;  /* previous block of the chain; 0 none or unknown */
	uint32_t depth;   /* position in the chain, 0 first */
	uint32_t req;     /* number of the batch call */
	uint32_t matched; /* blocks of this batch's chain that were found before it */
	uint32_t added;   /* blocks newly written by this batch; 0 in ACCESS */
	uint32_t tenant;
	uint64_t size;     /* bytes */
	uint64_t now_ms;   /* the host's clock, never goes back */
	uint64_t key_hash; /* the same when a key comes back */
	uint32_t segment;  /* 0 none or several */
	uint32_t group;    /* 0 none */
};

/* Head of the config buffer. */
struct mc_config {
	uint32_t header_size;
	uint32_t record_size;
	uint32_t abi_minor;
	uint32_t host_features;
	uint64_t capacity_bytes;
	uint32_t max_handles;
	uint32_t block_tokens; /* tokens of a full block; 0 unknown */
	uint64_t seed;         /* the only source of chance */
	uint32_t tenant;
	uint32_t batch_max; /* the greatest number of records in one call */
	uint32_t params_off; /* from the buffer's start */
	uint32_t params_len;
	uint64_t reserved; /* 0 */
};

MC_STATIC_ASSERT(sizeof(struct mc_event) == MC_RECORD_SIZE, "mc_event has padding");
MC_STATIC_ASSERT(sizeof(struct mc_config) == MC_HEADER_SIZE, "mc_config has padding");

#ifdef __wasm__
#define MC_EXPORT(name) __attribute__((export_name(#name)))
#define MC_IMPORT(module, name) __attribute__((import_module(#module), import_name(#name)))
#else
#define MC_EXPORT(name)
#define MC_IMPORT(module, name)
#endif

/* What the host offers. */
MC_IMPORT(env, log) void mc_log(int32_t level, const char *text, int32_t len);

/* What a policy exports. Define what you need: the first three always, then events and victims, or score. */
MC_EXPORT(mooncake_eviction_v1) int32_t mooncake_eviction_v1(void);
MC_EXPORT(policy_buffer) void *policy_buffer(int32_t kind, int32_t size);
MC_EXPORT(policy_init) int32_t policy_init(void);
MC_EXPORT(policy_events) int32_t policy_events(int32_t n);
MC_EXPORT(policy_victims) int32_t policy_victims(int64_t need_bytes, int32_t max, int32_t tenant, int32_t segment, int32_t flags);
MC_EXPORT(policy_score) int32_t policy_score(int32_t n);
MC_EXPORT(policy_admit) int32_t policy_admit(int32_t n);
MC_EXPORT(policy_save) int32_t policy_save(void);
MC_EXPORT(policy_load) int32_t policy_load(int32_t len);
MC_EXPORT(policy_stats) int32_t policy_stats(void);

#ifdef __cplusplus
}
#endif
#endif
