/* Where something was sent last: a bounded map from a 64-bit hash (of a session's key, of a prompt's pages) to a
 * worker, forgotten when idle. Guarded by the workers' mutex; only router/workers.c and router/choose.c call it. */
#ifndef CLIME_ROUTER_POLICY_PLACEMENTS_H
#define CLIME_ROUTER_POLICY_PLACEMENTS_H

#include <stdint.h>

struct clime_placements;

struct clime_placements *clime_placements_new(int64_t ttl_us);
void clime_placements_free(struct clime_placements *p);

/* The worker last set for hash and not idle past the time limit, or -1. */
int64_t clime_placements_get(const struct clime_placements *p, uint64_t hash, int64_t now_us);
void clime_placements_set(struct clime_placements *p, uint64_t hash, int64_t worker, int64_t now_us);
void clime_placements_remove(struct clime_placements *p, uint64_t hash);

#endif
