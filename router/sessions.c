/* Session map: open addressing over a fixed table of hashes, 8 slots a bucket, the least recently used one of a full
 * bucket is replaced. Only hashes are kept (64 bits: at 65,536 sessions a false match is a 1 in 10^9 event, and it
 * would only cost affinity). Guarded by the workers' mutex. */
#include "router/sessions.h"

#include <stdlib.h>

#include "common/err.h"
#include "common/hash.h"

enum { BUCKETS = 8192, WAYS = 8 };

struct entry {
    uint64_t hash; /* 0 = empty */
    int64_t worker_id, used_us;
};

struct clime_sessions {
    int64_t ttl_us;
    struct entry entries[BUCKETS][WAYS];
};

struct clime_sessions *clime_sessions_new(int64_t ttl_us) {
    struct clime_sessions *s = xcalloc(1, sizeof *s);
    s->ttl_us = ttl_us;
    return s;
}

void clime_sessions_free(struct clime_sessions *s) {
    free(s);
}

static uint64_t hash_of(struct clime_str key) {
    uint64_t h = clime_hash_bytes(key.ptr, key.len, 0x73657373);
    return h ? h : 1;
}

int64_t clime_sessions_get(struct clime_sessions *s, struct clime_str key, int64_t now_us) {
    uint64_t h = hash_of(key);
    struct entry *b = s->entries[h % BUCKETS];
    for (int i = 0; i < WAYS; i++)
        if (b[i].hash == h) return now_us - b[i].used_us > s->ttl_us ? -1 : b[i].worker_id;
    return -1;
}

void clime_sessions_set(struct clime_sessions *s, struct clime_str key, int64_t worker_id, int64_t now_us) {
    uint64_t h = hash_of(key);
    struct entry *b = s->entries[h % BUCKETS], *e = &b[0];
    for (int i = 0; i < WAYS; i++) {
        if (b[i].hash == h) {
            e = &b[i];
            break;
        }
        if (b[i].hash == 0 || b[i].used_us < e->used_us) e = &b[i];
    }
    *e = (struct entry){h, worker_id, now_us};
}
