/* S3-FIFO (Yang et al., SOSP 2023): new blocks wait in a small queue and enter the main one only if they are used
 * there, or come back soon after they were thrown away. Params: small (share of the room, 0.1), promote (uses, 2). */
#include "mooncake.h"

enum { ABSENT, SMALL, MAIN, REFUSED, SOFT, HARD }; /* state of a handle and its list */
static const uint8_t pins[] = {ABSENT, SOFT, HARD, HARD}; /* state by flags of pins */
enum { MAX_USES = 3, MAX_SKIPS = 100, MAX_MOVES = 2, COME_BACK = 8, WAYS = 8 };

static struct object { uint32_t tenant, segment; uint8_t state, uses; } *obj; /* by handle */
static struct ghost { uint32_t key, seq; } *ghosts; /* buckets of WAYS, two to four ghosts for each object */
static struct mc_lists lists;
static uint32_t len[HARD + 1], seq, evicted, ghost_mask;
static uint64_t capacity, bytes, count;
static double small, promote;

int32_t policy_init(void)
{
	uint32_t max = mc_config()->max_handles, buckets = 1u << (30 - __builtin_clz(max | 2));
	small = mc_param("small", 0.1), promote = mc_param("promote", 2);
	capacity = mc_config()->capacity_bytes, ghost_mask = buckets - 1;
	obj = mc_alloc(((size_t)max + 1) * sizeof *obj);
	ghosts = mc_alloc((size_t)buckets * WAYS * sizeof *ghosts);
	return obj && ghosts && mc_lists_init(&lists, max, HARD + 1) ? 0 : 1;
}

/* room is how many blocks of the mean size fit into a share of the capacity. */
static MC_APART double room(double share) { return share * (bytes ? (double)capacity * (double)count / (double)bytes : 1); }

/* ghost tells whether a key was thrown away lately; with add it is, now. */
static MC_APART int ghost(uint64_t key, int add)
{
	struct ghost *b = ghosts + ((uint32_t)(key * 0x9e3779b97f4a7c15 >> 32) & ghost_mask) * WAYS, *oldest = b;
	for (int i = 0; i < WAYS; i++) {
		if (b[i].key == (uint32_t)key && b[i].seq && seq - b[i].seq < room(1 - small))
			return b[i].seq = add ? ++seq : 0, 1;
		oldest = seq - b[i].seq > seq - oldest->seq ? b + i : oldest;
	}
	if (add)
		*oldest = (struct ghost){(uint32_t)key, ++seq};
	return 0;
}

static MC_APART void enter(uint32_t h, uint8_t to)
{
	if (obj[h].state != ABSENT)
		mc_unlink(&lists, h), len[obj[h].state]--;
	if (to != ABSENT)
		mc_push_front(&lists, to, h), len[to]++;
	obj[h].state = to, obj[h].uses = 0;
}

static MC_APART int32_t insert(const struct mc_event *e)
{
	struct object *o = &obj[e->handle];
	if (e->handle == 0 || o->state != ABSENT)
		return -1;
	o->tenant = e->tenant, o->segment = e->segment;
	bytes += e->size, count++;
	enter(e->handle, e->flags & 3 ? pins[e->flags & 3] : ghost(e->key_hash, 0) ? MAIN : SMALL);
	return 0;
}

/* settle moves some of what was used away from the cold ends, so that the next question finds victims there. */
static MC_APART void settle(void)
{
	uint32_t h;
	for (int i = 0; i < MAX_MOVES && (h = mc_back(&lists, SMALL)) && obj[h].uses >= promote; i++)
		enter(h, MAIN);
	for (int i = 0; i < MAX_MOVES && (h = mc_back(&lists, MAIN)) && obj[h].uses; i++, obj[h].uses--)
		mc_move_front(&lists, MAIN, h);
	if (++evicted % COME_BACK == 0 && (h = mc_back(&lists, REFUSED)))
		enter(h, SMALL);
}

static MC_APART void removed(const struct mc_event *e)
{
	const uint8_t was = obj[e->handle].state;
	if (was == ABSENT)
		return;
	bytes -= e->size < bytes ? e->size : bytes, count--;
	enter(e->handle, ABSENT);
	if (e->code == MC_EVICTED && was == SMALL)
		ghost(e->key_hash, 1);
	if (e->code == MC_EVICTED)
		settle();
}

static MC_APART void rare(const struct mc_event *e)
{
	const uint32_t h = e->handle, was = obj[h].state;
	if (e->kind == MC_ACCESS && (was == REFUSED || was == SOFT))
		enter(h, was == SOFT ? SOFT : SMALL);
	else if (e->kind == MC_REJECT && (was == SMALL || was == MAIN))
		enter(h, REFUSED); /* aside for a while */
	else if (e->kind == MC_PIN && was != ABSENT && e->flags & 3)
		enter(h, pins[e->flags & 3]);
	else if (e->kind == MC_UNPIN && was >= SOFT)
		enter(h, SMALL);
	else if (e->kind == MC_MOVED)
		obj[h].tenant = e->tenant, obj[h].segment = e->segment;
	else if (e->kind == MC_RESIZE)
		capacity = e->size;
}

static int32_t apply(const struct mc_event *e)
{
	struct object *o = &obj[e->handle];
	if (e->handle > lists.max)
		return -1;
	if (e->kind == MC_INSERT || e->kind == MC_RESTORE)
		return insert(e);
	if (e->kind == MC_ACCESS && o->state < REFUSED)
		o->uses += o->uses < MAX_USES;
	else if (e->kind == MC_REMOVE)
		removed(e);
	else
		rare(e);
	return 0;
}
MC_EVENTS(apply)

static int32_t tenant, segment; /* of the question */
/* name adds handles from h towards the front, with least..most uses, until there are max victims. */
static int32_t name(uint32_t *h, int least, int most, int32_t n, int32_t max)
{
	for (int skips = 0; *h && n < max && skips < MAX_SKIPS; *h = mc_newer(&lists, *h)) {
		struct object *o = &obj[*h];
		if (o->uses >= least && o->uses <= most && mc_wants(tenant, segment, o->tenant, o->segment))
			mc_victims()[n++] = *h;
		else
			skips++;
	}
	return n;
}

int32_t policy_victims(int64_t need, int32_t max, int32_t want_tenant, int32_t want_segment, int32_t flags)
{
	tenant = want_tenant, segment = want_segment;
	uint32_t in_small = mc_back(&lists, SMALL), in_main = mc_back(&lists, MAIN);
	double over = len[MAIN] - room(1 - small);
	int32_t n = over > 0 ? name(&in_main, 0, 0, 0, over < max ? (int32_t)over : max) : 0;
	n = name(&in_small, 0, (int)promote - 1, n, max);
	n = name(&in_main, 0, 0, n, max);
	in_small = mc_back(&lists, SMALL), in_main = mc_back(&lists, MAIN);
	n = name(&in_small, (int)promote, MAX_USES, n, max);
	n = name(&in_main, 1, MAX_USES, n, max);
	n = name(&(uint32_t){mc_back(&lists, REFUSED)}, 0, MAX_USES, n, max);
	return flags & MC_NEED_SOFT_PINS ? name(&(uint32_t){mc_back(&lists, SOFT)}, 0, MAX_USES, n, max) : n;
}
