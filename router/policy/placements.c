/* The map: open addressing over a fixed table of hashes, 8 ways a bucket, the least recently used one of a full bucket
 * is replaced. At 524,288 entries (12 MiB, all of it in memory from the first on) a false match is a 1 in 10^12 event,
 * and it would only cost affinity. Guarded by the workers' mutex. */
#include "router/policy/placements.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"

enum { BUCKETS = 65536, WAYS = 8 };

struct entry {
    uint64_t hash; /* 0 = empty */
    int64_t worker, used_us;
};

struct clime_placements {
    int64_t ttl_us;
    bool in_memory;
    struct entry entries[BUCKETS][WAYS];
};

struct clime_placements *clime_placements_new(int64_t ttl_us) {
    struct clime_placements *p = xcalloc(1, sizeof *p);
    p->ttl_us = ttl_us;
    return p;
}

void clime_placements_free(struct clime_placements *p) {
    free(p);
}

static uint64_t not_zero(uint64_t hash) {
    return hash ? hash : 1;
}

int64_t clime_placements_get(const struct clime_placements *p, uint64_t hash, int64_t now_us) {
    const struct entry *b = p->entries[not_zero(hash) % BUCKETS];
    for (int i = 0; i < WAYS; i++)
        if (b[i].hash == not_zero(hash)) return now_us - b[i].used_us > p->ttl_us ? -1 : b[i].worker;
    return -1;
}

void clime_placements_set(struct clime_placements *p, uint64_t hash, int64_t worker, int64_t now_us) {
    struct entry *b = p->entries[not_zero(hash) % BUCKETS], *e = &b[0];
    if (!p->in_memory) { /* or it came page by page, for days, and looked like a leak */
        memset(p->entries, 0, sizeof p->entries);
        p->in_memory = true;
    }
    for (int i = 0; i < WAYS; i++) {
        if (b[i].hash == not_zero(hash)) {
            e = &b[i];
            break;
        }
        if (b[i].hash == 0 || b[i].used_us < e->used_us) e = &b[i];
    }
    *e = (struct entry){not_zero(hash), worker, now_us};
}

void clime_placements_remove(struct clime_placements *p, uint64_t hash) {
    struct entry *b = p->entries[not_zero(hash) % BUCKETS];
    for (int i = 0; i < WAYS; i++)
        if (b[i].hash == not_zero(hash)) b[i] = (struct entry){0};
}
