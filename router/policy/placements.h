/* Placement table: a bounded map from a 64-bit hash (of a session's key, of a prompt's pages) to the last worker or
 * last few workers. Idle entries expire. Guarded by the workers' mutex; called only by router/workers.c,
 * router/choose.c and router/prefixes.c. */
#ifndef CLIME_ROUTER_POLICY_PLACEMENTS_H
#define CLIME_ROUTER_POLICY_PLACEMENTS_H

#include <stdint.h>

#define CLIME_PLACEMENTS_COPIES 4

struct clime_placements;

struct clime_placement {
    int64_t worker, note, used_us; /* note: the caller's own value */
};

/* copies: workers kept per hash, 1 to CLIME_PLACEMENTS_COPIES. */
struct clime_placements *clime_placements_new(int64_t ttl_us, int copies);
void clime_placements_free(struct clime_placements *p);

/* Prefetches the entry of hash: the table is far larger than a CPU cache, and lookups come in batches. */
void clime_placements_prefetch(const struct clime_placements *p, uint64_t hash);

/* The worker last set for hash if not expired, or -1. */
int64_t clime_placements_get(const struct clime_placements *p, uint64_t hash, int64_t now_us);
/* All unexpired workers for hash, unordered; returns their number. */
int clime_placements_all(const struct clime_placements *p, uint64_t hash, int64_t now_us,
                         struct clime_placement out[CLIME_PLACEMENTS_COPIES]);
void clime_placements_set(struct clime_placements *p, uint64_t hash, int64_t worker, int64_t note, int64_t now_us);
void clime_placements_remove(struct clime_placements *p, uint64_t hash);

#endif
