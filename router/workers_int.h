/* Internals of the workers' table: workers.c (the table), silence.c (silent workers), evict.c (eviction), choose.c
 * (choice of a worker) and prefixes.c (prefix cache estimates). */
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
    int silences_in_row;               /* probes only */
    int64_t frozen_since_us;           /* see clime_silence */
    int64_t suspect_since_us;          /* start of the unanswered probe; 0 = not suspected */
    _Atomic int64_t heard_us;          /* set without the lock */
    int64_t added_us;                  /* when last added */
    int64_t pause_us, paused_until_us; /* after failed trials */
    int64_t trial_us;                  /* start of its trial request */
    int64_t emptied_us;                /* requests sent before it are in no cache */
};

struct clime_workers {
    pthread_mutex_t lock;
    struct clime_workers_options opts;
    struct worker w[CLIME_WORKERS_MAX];
    struct clime_placements *sessions, *prefixes; /* keyed by slot and id as one number */
    char version[CLIME_LABEL_SIZE];               /* the fleet's; empty = none */
    int64_t next_id;
    uint64_t turn;
    uint64_t evicted[CLIME_WORKERS_MAX]; /* [n_evicted % max] hashes of the last urls; 0 = added again */
    uint64_t n_evicted;

    /* scratch of one pick: too large for a stack */
    struct clime_worker_view *ready[CLIME_WORKERS_MAX];
    int16_t at_of_slot[CLIME_WORKERS_MAX]; /* index in ready, -1 = none */
};

static inline uint64_t clime_workers_url_hash(struct clime_str url) {
    return clime_hash_bytes(url.ptr, url.len, 0x75726c);
}

/* A worker as one number, for placements: a new worker in the same slot has another number. */
static inline int64_t clime_workers_place(const struct clime_worker_view *v) {
    return v->id * CLIME_WORKERS_MAX + v->slot;
}
/* Its index in ready, or -1. */
static inline int clime_workers_ready_at(const struct clime_workers *w, int64_t place) {
    int at = place < 0 ? -1 : w->at_of_slot[place % CLIME_WORKERS_MAX];
    return at >= 0 && clime_workers_place(w->ready[at]) == place ? at : -1;
}

/* Sets matched and own of the first n views in ready. */
void clime_prefixes_find(struct clime_workers *w, const struct clime_route_request *rq, int n, int64_t now_us);
/* Records that the request goes to this worker. */
void clime_prefixes_note(struct clime_workers *w, const struct clime_route_request *rq, struct clime_worker_view *v,
                         int64_t now_us);

struct worker *clime_workers_find(struct clime_workers *w, int64_t id, struct clime_str url);
/* True when another READY worker has sent something since then: the silence of `but` is not our fault. */
bool clime_workers_another_was_heard(const struct clime_workers *w, const struct worker *but, int64_t since_us);
/* The worker is present: removes it from the evicted. */
void clime_workers_unevict(struct clime_workers *w, struct clime_str url);
/* Sets a healthy worker READY or STALE by its weights' version. */
void clime_workers_judge_version(const struct clime_workers *w, struct worker *k);

#endif
