/* Silent workers and what follows from it. Called by handlers for each piece of an answer, and by the prober; guarded
 * by the table's mutex, except the time of the last byte.
 *
 * A worker is suspected long before failed probes take it down. A wrong suspicion is cheap: only requests that lose
 * nothing are moved (relay.c), and the next byte ends it. A dead network or a stopped router makes all workers silent
 * at once, and none suspected. */
#include "common/clock.h"
#include "common/log.h"
#include "router/workers_int.h"

void clime_workers_heard(struct clime_workers *w, int slot, int64_t now_us) {
    atomic_store_explicit(&w->w[slot].heard_us, now_us, memory_order_relaxed);
}

static bool was_heard_since(const struct worker *k, int64_t since_us) {
    return atomic_load_explicit(&k->heard_us, memory_order_relaxed) > since_us;
}

bool clime_workers_another_was_heard(const struct clime_workers *w, const struct worker *but, int64_t since_us) {
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) {
        const struct worker *k = &w->w[i];
        if (k != but && k->v.state == CLIME_WORKER_READY && was_heard_since(k, since_us)) return true;
    }
    return false;
}

static void readmit(const struct clime_workers *w, struct worker *k) {
    k->suspect_since_us = 0;
    if (k->v.state == CLIME_WORKER_DOWN) clime_workers_judge_version(w, k);
}

void clime_workers_unanswered(struct clime_workers *w, int slot, int64_t id, int64_t since_us) {
    pthread_mutex_lock(&w->lock);
    struct worker *k = &w->w[slot];
    bool is_there = k->v.id == id && k->v.state != CLIME_WORKER_FREE;
    if (is_there && k->suspect_since_us) {
        if (was_heard_since(k, k->suspect_since_us)) readmit(w, k);
    } else if (is_there && k->v.state != CLIME_WORKER_DOWN && !was_heard_since(k, since_us) &&
               clime_workers_another_was_heard(w, k, since_us)) {
        k->suspect_since_us = since_us;
        LOG_WARN("worker %s has been silent for %.1f s, others have not: no requests until it says something", k->v.url,
                 (double)(clime_now_us() - since_us) / 1e6);
        if (k->v.state != CLIME_WORKER_DRAINING) k->v.state = CLIME_WORKER_DOWN;
    }
    pthread_mutex_unlock(&w->lock);
}

struct clime_silence clime_workers_silence(struct clime_workers *w, int slot, int64_t id) {
    struct clime_silence s = {0};
    pthread_mutex_lock(&w->lock);
    const struct worker *k = &w->w[slot];
    if (k->v.id == id && k->v.state != CLIME_WORKER_FREE) {
        s.heard_us = atomic_load_explicit(&k->heard_us, memory_order_relaxed);
        s.suspected = k->suspect_since_us && s.heard_us <= k->suspect_since_us;
        s.frozen_since_us = k->frozen_since_us;
    }
    pthread_mutex_unlock(&w->lock);
    return s;
}
