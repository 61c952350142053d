/* Placement table: open addressing over a fixed table of hashes, 8 ways per bucket; a full bucket replaces its least
 * recently used entry, so all copies of a hash are in one bucket. At 524,288 entries (16 MiB, resident from the start)
 * a false match has probability 1 in 10^12 and would only cost affinity. Guarded by the workers' mutex. */
#include "router/policy/placements.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"

enum { BUCKETS = 65536, WAYS = 8, CACHE_LINE = 64 };

struct entry {
    uint64_t hash; /* 0 = empty */
    struct clime_placement at;
};

struct clime_placements {
    int64_t ttl_us;
    int copies;
    bool in_memory;
    struct entry entries[BUCKETS][WAYS];
};

struct clime_placements *clime_placements_new(int64_t ttl_us, int copies) {
    struct clime_placements *p = xcalloc(1, sizeof *p);
    p->ttl_us = ttl_us;
    p->copies = copies;
    return p;
}

void clime_placements_free(struct clime_placements *p) {
    free(p);
}

static uint64_t not_zero(uint64_t hash) {
    return hash ? hash : 1;
}

void clime_placements_prefetch(const struct clime_placements *p, uint64_t hash) {
    const char *b = (const char *)p->entries[not_zero(hash) % BUCKETS];
    for (size_t i = 0; i < sizeof p->entries[0]; i += CACHE_LINE) __builtin_prefetch(b + i);
}

int clime_placements_all(const struct clime_placements *p, uint64_t hash, int64_t now_us,
                         struct clime_placement out[CLIME_PLACEMENTS_COPIES]) {
    const struct entry *b = p->entries[not_zero(hash) % BUCKETS];
    int n = 0;
    for (int i = 0; i < WAYS; i++)
        if (b[i].hash == not_zero(hash) && now_us - b[i].at.used_us <= p->ttl_us) out[n++] = b[i].at;
    return n;
}

int64_t clime_placements_get(const struct clime_placements *p, uint64_t hash, int64_t now_us) {
    struct clime_placement all[CLIME_PLACEMENTS_COPIES];
    int n = clime_placements_all(p, hash, now_us, all), last = 0;
    for (int i = 1; i < n; i++)
        if (all[i].used_us > all[last].used_us) last = i;
    return n ? all[last].worker : -1;
}

/* The slot for worker's entry of hash: its own; else the hash's oldest copy when it has all copies; else an empty or
 * the least recently used one. */
static struct entry *room_for(struct clime_placements *p, uint64_t hash, int64_t worker) {
    struct entry *b = p->entries[hash % BUCKETS], *oldest = &b[0], *oldest_copy = NULL;
    int n_copies = 0;
    for (int i = 0; i < WAYS; i++) {
        if (b[i].hash == hash && b[i].at.worker == worker) return &b[i];
        if (b[i].hash == hash) {
            n_copies++;
            if (!oldest_copy || b[i].at.used_us < oldest_copy->at.used_us) oldest_copy = &b[i];
        }
        if (b[i].hash == 0 || b[i].at.used_us < oldest->at.used_us) oldest = &b[i];
    }
    return n_copies >= p->copies ? oldest_copy : oldest;
}

void clime_placements_set(struct clime_placements *p, uint64_t hash, int64_t worker, int64_t note, int64_t now_us) {
    if (!p->in_memory) { /* touch all pages now: growth over days would look like a leak */
        memset(p->entries, 0, sizeof p->entries);
        p->in_memory = true;
    }
    *room_for(p, not_zero(hash), worker) =
        (struct entry){not_zero(hash), {.worker = worker, .note = note, .used_us = now_us}};
}

void clime_placements_remove(struct clime_placements *p, uint64_t hash) {
    struct entry *b = p->entries[not_zero(hash) % BUCKETS];
    for (int i = 0; i < WAYS; i++)
        if (b[i].hash == not_zero(hash)) b[i] = (struct entry){0};
}
