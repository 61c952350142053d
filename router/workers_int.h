/* Private to workers.c (the table), silence.c (who says nothing), evict.c (who is gone for good), choose.c (who gets a
 * request) and prefixes.c (who holds its beginning). */
#ifndef CLIME_ROUTER_WORKERS_INT_H
#define CLIME_ROUTER_WORKERS_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/hash.h"
#include "router/policy/placements.h"
#include "router/workers.h"

struct worker {
    struct clime_worker_view v;
    int fails_in_row, oks_in_row;      /* of probes and requests */
    int silences_in_row;               /* of probes alone */
    int64_t frozen_since_us;           /* see clime_silence */
    int64_t suspect_since_us;          /* the probe that it did not answer; 0 = it is not suspected */
    _Atomic int64_t heard_us;          /* set without the lock */
    int64_t added_us;                  /* when it was added last */
    int64_t pause_us, paused_until_us; /* after trials that failed */
    int64_t trial_us;                  /* when its trial's request began */
    int64_t emptied_us;                /* what it was sent before then is in no cache any more */
};

struct clime_workers {
    pthread_mutex_t lock;
    struct clime_workers_options opts;
    struct worker w[CLIME_WORKERS_MAX];
    struct clime_placements *sessions, *prefixes; /* of slot and id as one number */
    char version[CLIME_LABEL_SIZE];               /* the fleet's; empty = none */
    int64_t next_id;
    uint64_t turn;
    uint64_t evicted[CLIME_WORKERS_MAX]; /* [n_evicted % max] hashes of urls, the last ones; 0 = it is back */
    uint64_t n_evicted;

    /* of one pick: too large for a stack */
    struct clime_worker_view *ready[CLIME_WORKERS_MAX];
    int16_t at_of_slot[CLIME_WORKERS_MAX]; /* index in ready, -1 = not there */
};

static inline uint64_t clime_workers_url_hash(struct clime_str url) {
    return clime_hash_bytes(url.ptr, url.len, 0x75726c);
}

/* A worker as one number, by which placements know it: another one in the same slot is another number. */
static inline int64_t clime_workers_place(const struct clime_worker_view *v) {
    return v->id * CLIME_WORKERS_MAX + v->slot;
}
/* Its index in ready, or -1. */
static inline int clime_workers_ready_at(const struct clime_workers *w, int64_t place) {
    int at = place < 0 ? -1 : w->at_of_slot[place % CLIME_WORKERS_MAX];
    return at >= 0 && clime_workers_place(w->ready[at]) == place ? at : -1;
}

/* Sets matched and own of the first n that are ready. */
void clime_prefixes_find(struct clime_workers *w, const struct clime_route_request *rq, int n, int64_t now_us);
/* The request goes to this one of them. */
void clime_prefixes_note(struct clime_workers *w, const struct clime_route_request *rq, struct clime_worker_view *v,
                         int64_t now_us);

struct worker *clime_workers_find(struct clime_workers *w, int64_t id, struct clime_str url);
/* Another one that is READY has sent something since then: what `but` did not send is no fault of ours. */
bool clime_workers_another_was_heard(const struct clime_workers *w, const struct worker *but, int64_t since_us);
/* It is there: not evicted any more. */
void clime_workers_unevict(struct clime_workers *w, struct clime_str url);
/* READY or STALE, whichever its weights say, for one that is well. */
void clime_workers_judge_version(const struct clime_workers *w, struct worker *k);

#endif
