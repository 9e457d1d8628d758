/* Tail-first LRU that honours pins, tenants and segments: the same answers as the built-in policy lru. */
#include "policy.h"

enum { NONE, MAIN, SOFT, HARD, LISTS };

struct node {
	uint32_t prev, next, tenant, segment;
};

extern unsigned char __heap_base;
static uintptr_t heap;
static struct mc_config *cfg;
static struct mc_event *events;
static uint32_t *victims, max_handles, record_size;
static struct node *nodes;
static uint8_t *place;
static uint32_t front[LISTS], back[LISTS];

static void *take(size_t n)
{
	if (!heap)
		heap = (uintptr_t)&__heap_base;
	heap = (heap + 15) & ~(uintptr_t)15;
	uintptr_t at = heap, end = at + n, have = __builtin_wasm_memory_size(0) << 16;
	if (end > have && __builtin_wasm_memory_grow(0, (end - have + 65535) >> 16) == (size_t)-1)
		return 0;
	heap = end;
	return (void *)at;
}

int32_t mooncake_eviction_v1(void) { return 0; }

static void *lru_buffer(int32_t kind, int32_t size)
{
	void *p = take(size);
	switch (kind) {
	case MC_BUFFER_CONFIG: cfg = p; break;
	case MC_BUFFER_EVENTS: events = p; break;
	case MC_BUFFER_VICTIMS: victims = p; break;
	}
	return p;
}

int32_t policy_init(void)
{
	max_handles = cfg->max_handles;
	record_size = cfg->record_size;
	nodes = take(sizeof *nodes * (max_handles + 1));
	place = take(max_handles + 1);
	return nodes && place ? 0 : 1;
}

static void leave(uint32_t h)
{
	struct node *n = &nodes[h];
	uint8_t l = place[h];
	if (n->prev)
		nodes[n->prev].next = n->next;
	else
		front[l] = n->next;
	if (n->next)
		nodes[n->next].prev = n->prev;
	else
		back[l] = n->prev;
	place[h] = NONE;
}

static void push(uint8_t l, uint32_t h)
{
	nodes[h].prev = 0;
	nodes[h].next = front[l];
	if (front[l])
		nodes[front[l]].prev = h;
	else
		back[l] = h;
	front[l] = h;
	place[h] = l;
}

static void move(uint8_t l, uint32_t h)
{
	if (front[l] == h && place[h] == l)
		return;
	leave(h);
	push(l, h);
}

static uint8_t list_of(uint8_t flags)
{
	return flags & MC_FLAG_HARD_PIN ? HARD : flags & MC_FLAG_SOFT_PIN ? SOFT : MAIN;
}

static int32_t lru_events(int32_t n)
{
	struct mc_event *e = events;
	for (; n > 0; n--, e = (struct mc_event *)((char *)e + record_size)) {
		uint32_t h = e->handle;
		if (h > max_handles)
			return -1;
		if (e->kind == MC_INSERT || e->kind == MC_RESTORE) {
			nodes[h].tenant = e->tenant;
			nodes[h].segment = e->segment;
			push(list_of(e->flags), h);
			continue;
		}
		if (!h || !place[h])
			continue;
		switch (e->kind) {
		case MC_ACCESS:
			if (place[h] != HARD)
				move(place[h], h);
			break;
		case MC_REJECT:
			if (place[h] == MAIN)
				move(MAIN, h);
			break;
		case MC_REMOVE: leave(h); break;
		case MC_PIN: {
			uint8_t l = list_of(e->flags);
			if (l != MAIN) {
				leave(h);
				push(l, h);
			}
			break;
		}
		case MC_UNPIN:
			if (place[h] != MAIN)
				move(MAIN, h);
			break;
		case MC_MOVED: nodes[h].segment = e->segment; break;
		}
	}
	return 0;
}

int32_t policy_victims(int64_t need_bytes, int32_t max, int32_t tenant, int32_t segment, int32_t flags)
{
	int32_t n = 0;
	(void)need_bytes;
	for (uint8_t l = MAIN; l <= (flags & MC_NEED_SOFT_PINS ? SOFT : MAIN); l++)
		for (uint32_t h = back[l]; h && n < max; h = nodes[h].prev) {
			if (tenant != -1 && nodes[h].tenant != (uint32_t)tenant)
				continue;
			if (segment && nodes[h].segment && nodes[h].segment != (uint32_t)segment)
				continue;
			victims[n++] = h;
		}
	return n;
}
