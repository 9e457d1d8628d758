/* Score mode: of a few candidates the one with the lowest score goes first. Here: used rarely and long ago. */
#include "mooncake.h"

int32_t policy_init(void) { return 0; }

int32_t policy_score(int32_t n)
{
	uint64_t now = mc_record(0)->now_ms;
	for (int32_t i = 1; i < n; i++)
		mc_scores()[i - 1] = (1.0 + mc_record(i)->req) / (1.0 + (double)(now - mc_record(i)->now_ms));
	return n - 1;
}
