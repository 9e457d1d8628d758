#include "lru.h"

void *policy_buffer(int32_t kind, int32_t size) { return lru_buffer(kind, size); }
int32_t policy_events(int32_t n) { return lru_events(n); }
