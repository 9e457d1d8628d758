/* What eviction policies in C have in common, for one file that is the whole policy: memory, buffers, params
 * and lists. It defines mooncake_eviction_v1 and policy_buffer, so include it once. All of it is optional: a
 * policy may as well use policy.h alone.
 */
#ifndef MOONCAKE_H
#define MOONCAKE_H

#include "policy.h"

extern unsigned char __heap_base;

/* MC_APART keeps a function out of those that call it. Fuel is charged for all the code of a function at its
 * entry and for all the code of a loop at each pass, also for branches that are not taken: what is large and
 * not done for each event is cheaper apart. */
#define MC_APART __attribute__((noinline))

/* mc_alloc gives zeroed memory that is never freed, aligned to 8; NULL at the memory limit. Allocate in
 * policy_init, by max_handles: the host charges growth dearly later on. */
static inline void *mc_alloc(size_t bytes)
{
	static uintptr_t next;
	uintptr_t at = ((next ? next : (uintptr_t)&__heap_base) + 7) & ~(uintptr_t)7;
	size_t have = __builtin_wasm_memory_size(0) << 16;
	if (bytes > (size_t)-1 - at)
		return NULL;
	if (at + bytes > have) {
		size_t pages = (at + bytes - have + 65535) >> 16;
		if (__builtin_wasm_memory_grow(0, pages) == (size_t)-1)
			return NULL;
	}
	next = at + bytes;
	return (void *)at;
}

static void *mc_buffers[6];

int32_t mooncake_eviction_v1(void) { return 0; }

void *policy_buffer(int32_t kind, int32_t size)
{
	if (kind < 0 || kind > MC_BUFFER_ADMIT)
		return NULL;
	if (!mc_buffers[kind])
		mc_buffers[kind] = mc_alloc((size_t)size);
	return mc_buffers[kind];
}

/* The contents of the buffers. */
static inline const struct mc_config *mc_config(void) { return mc_buffers[MC_BUFFER_CONFIG]; }
static inline uint32_t *mc_victims(void) { return mc_buffers[MC_BUFFER_VICTIMS]; }
static inline double *mc_scores(void) { return mc_buffers[MC_BUFFER_SCORES]; }
static inline char *mc_state(void) { return mc_buffers[MC_BUFFER_STATE]; }
static inline uint8_t *mc_admit(void) { return mc_buffers[MC_BUFFER_ADMIT]; }

/* mc_record is record i. A newer host may send longer ones. */
static inline const struct mc_event *mc_record(int32_t i)
{
	return (const void *)((const char *)mc_buffers[MC_BUFFER_EVENTS] + (size_t)i * mc_config()->record_size);
}

/* MC_EVENTS exports policy_events: it gives each record to apply until that returns something else than 0. */
#define MC_EVENTS(apply)                                                                                              \
	int32_t policy_events(int32_t n)                                                                                \
	{                                                                                                               \
		for (int32_t i = 0; i < n; i++)                                                                             \
			if (apply(mc_record(i)))                                                                                \
				return -1;                                                                                          \
		return 0;                                                                                                   \
	}

/* mc_wants tells whether an object may be named in answer to a question for a tenant and a segment. */
static inline int mc_wants(int32_t need_tenant, int32_t need_segment, uint32_t tenant, uint32_t segment)
{
	return ((uint32_t)need_tenant == MC_ANY_TENANT || (uint32_t)need_tenant == tenant) &&
	       (need_segment == MC_ANY_SEGMENT || segment == 0 || (uint32_t)need_segment == segment);
}

/* mc_param is the number that the params, a flat JSON object, have under key, or otherwise. */
static inline double mc_param(const char *key, double otherwise)
{
	const char *p = (const char *)mc_config() + mc_config()->params_off, *end = p + mc_config()->params_len;
	for (; p < end; p++) {
		const char *k = key, *q = p;
		if (*q++ != '"')
			continue;
		while (q < end && *k && *q == *k)
			q++, k++;
		if (*k || q >= end || *q++ != '"')
			continue;
		while (q < end && (*q == ' ' || *q == ':'))
			q++;
		int minus = q < end && *q == '-', digits = 0;
		double v = 0, unit = 0;
		for (q += minus; q < end && ((*q >= '0' && *q <= '9') || (*q == '.' && unit == 0)); q++) {
			if (*q == '.') {
				unit = 1;
				continue;
			}
			v = v * 10 + (*q - '0');
			unit *= 10;
			digits = 1;
		}
		if (digits)
			return (minus ? -v : v) / (unit > 1 ? unit : 1);
	}
	return otherwise;
}

/* Doubly linked lists over the handles 1..max: 8 bytes a handle. A handle is on at most one of them, the
 * caller knows on which. Front is the newest end by custom. */
struct mc_node {
	uint32_t prev, next;
};

struct mc_lists {
	struct mc_node *n; /* ends of lists are nodes too, behind the last handle */
	uint32_t max;
};

/* mc_lists_init makes empty lists 0..lists-1; 0 if there is no memory for them. */
static inline int mc_lists_init(struct mc_lists *l, uint32_t max, uint32_t lists)
{
	l->max = max;
	l->n = mc_alloc(((size_t)max + 1 + lists) * sizeof *l->n);
	if (!l->n)
		return 0;
	for (uint32_t end = max + 1; end <= max + lists; end++)
		l->n[end] = (struct mc_node){end, end};
	return 1;
}

static inline void mc_push_front(struct mc_lists *l, uint32_t list, uint32_t h)
{
	uint32_t end = l->max + 1 + list, first = l->n[end].next;
	l->n[h] = (struct mc_node){end, first};
	l->n[end].next = h;
	l->n[first].prev = h;
}

static inline void mc_unlink(struct mc_lists *l, uint32_t h)
{
	struct mc_node at = l->n[h];
	l->n[at.prev].next = at.next;
	l->n[at.next].prev = at.prev;
}

static inline void mc_move_front(struct mc_lists *l, uint32_t list, uint32_t h)
{
	mc_unlink(l, h);
	mc_push_front(l, list, h);
}

/* Oldest handle of a list, and the neighbour of h towards the front; 0 at the end. */
static inline uint32_t mc_back(const struct mc_lists *l, uint32_t list)
{
	uint32_t h = l->n[l->max + 1 + list].prev;
	return h > l->max ? 0 : h;
}

static inline uint32_t mc_newer(const struct mc_lists *l, uint32_t h)
{
	h = l->n[h].prev;
	return h > l->max ? 0 : h;
}

#endif
