/* Least recently used, the end of a chain first: the same decisions as the built-in policy lru. */
#include "mooncake.h"

enum { ABSENT, IN_ORDER, SOFT, HARD }; /* state of a handle; IN_ORDER and SOFT are lists too, newest in front */
enum { MAX_SKIPS = 200 };              /* then the host helps itself: a call has a budget */

static struct mc_lists lists;
static uint8_t *state;
static struct place {
	uint32_t tenant, segment;
} *place;

int32_t policy_init(void)
{
	uint32_t max = mc_config()->max_handles;
	state = mc_alloc((size_t)max + 1);
	place = mc_alloc(((size_t)max + 1) * sizeof *place);
	return state && place && mc_lists_init(&lists, max, SOFT + 1) ? 0 : 1;
}

/* become gives h another state and the place in front that goes with it. */
static MC_APART void become(uint32_t h, uint8_t to)
{
	if (state[h] == IN_ORDER || state[h] == SOFT)
		mc_unlink(&lists, h);
	state[h] = to;
	if (to == IN_ORDER || to == SOFT)
		mc_push_front(&lists, to, h);
}

static int32_t apply(const struct mc_event *e)
{
	const uint8_t pinned = e->flags & MC_FLAG_HARD_PIN ? HARD : e->flags & MC_FLAG_SOFT_PIN ? SOFT : ABSENT;
	const uint32_t h = e->handle;
	if (h > lists.max)
		return -1;
	switch (e->kind) {
	case MC_ACCESS:
		if (state[h] != ABSENT)
			become(h, state[h]);
		break;
	case MC_INSERT:
	case MC_RESTORE:
		if (h == 0 || state[h] != ABSENT)
			return -1;
		place[h] = (struct place){e->tenant, e->segment};
		become(h, pinned ? pinned : IN_ORDER);
		break;
	case MC_REMOVE:
		become(h, ABSENT);
		break;
	case MC_REJECT: /* it is in use: others first */
		if (state[h] == IN_ORDER)
			become(h, IN_ORDER);
		break;
	case MC_PIN:
		if (state[h] != ABSENT && pinned)
			become(h, pinned);
		break;
	case MC_UNPIN:
		if (state[h] == SOFT || state[h] == HARD)
			become(h, IN_ORDER);
		break;
	case MC_MOVED:
		place[h] = (struct place){e->tenant, e->segment};
		break;
	}
	return 0; /* other kinds do not matter here, or are newer than this file */
}

MC_EVENTS(apply)

/* name adds list's handles, oldest first, to the n victims that there are. */
static int32_t name(uint32_t list, int32_t n, int32_t max, int32_t tenant, int32_t segment)
{
	int skips = 0;
	for (uint32_t h = mc_back(&lists, list); h && n < max && skips < MAX_SKIPS; h = mc_newer(&lists, h)) {
		if (mc_wants(tenant, segment, place[h].tenant, place[h].segment))
			mc_victims()[n++] = h;
		else
			skips++;
	}
	return n;
}

int32_t policy_victims(int64_t need, int32_t max, int32_t tenant, int32_t segment, int32_t flags)
{
	int32_t n = name(IN_ORDER, 0, max, tenant, segment);
	if (flags & MC_NEED_SOFT_PINS)
		n = name(SOFT, n, max, tenant, segment);
	return n;
}
