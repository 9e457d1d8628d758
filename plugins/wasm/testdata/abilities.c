/* The LRU with everything that is optional: admission, saved state, statistics. */
#include "lru.h"

static uint8_t *state, *admit;
static uint32_t uses[2]; /* what it has learned: state is a magic word, uses, and their sum */

enum { MAGIC = 0x31494241, STATE = 16 };

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = v >> 8 * i;
}

static uint32_t get32(const uint8_t *p)
{
	return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}

void *policy_buffer(int32_t kind, int32_t size)
{
	void *p = lru_buffer(kind, size);
	if (kind == MC_BUFFER_STATE)
		state = p;
	if (kind == MC_BUFFER_ADMIT)
		admit = p;
	return p;
}

int32_t policy_events(int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		if (events[i].kind == MC_ACCESS)
			uses[events[i].handle & 1]++;
	return lru_events(n);
}

/* Refuses what is an odd number of blocks long. */
int32_t policy_admit(int32_t n)
{
	for (int32_t i = 0; i < (n + 7) / 8; i++)
		admit[i] = 0;
	for (int32_t i = 0; i < n; i++)
		if (events[i].added & 1)
			admit[i / 8] |= 1 << i % 8;
	return (n + 7) / 8;
}

int32_t policy_save(void)
{
	put32(state, MAGIC);
	put32(state + 4, uses[0]);
	put32(state + 8, uses[1]);
	put32(state + 12, uses[0] + uses[1] + MAGIC);
	return STATE;
}

int32_t policy_load(int32_t len)
{
	if (len != STATE || get32(state) != MAGIC)
		return MC_LOAD_NOT_MINE;
	uint32_t a = get32(state + 4), b = get32(state + 8);
	if (a + b + MAGIC != get32(state + 12))
		return MC_LOAD_NOT_MINE;
	uses[0] = a;
	uses[1] = b;
	return MC_LOAD_TAKEN;
}

static int32_t text(int32_t at, const char *s)
{
	while (*s)
		state[at++] = *s++;
	return at;
}

static int32_t number(int32_t at, uint32_t v)
{
	char digits[10];
	int n = 0;
	do
		digits[n++] = '0' + v % 10;
	while (v /= 10);
	while (n)
		state[at++] = digits[--n];
	return at;
}

int32_t policy_stats(void)
{
	int32_t at = text(0, "{\"even\":");
	at = number(at, uses[0]);
	at = text(at, ",\"odd\":");
	at = number(at, uses[1]);
	at = text(at, ",\"params\":");
	at = number(at, cfg->params_len);
	return text(at, "}");
}
