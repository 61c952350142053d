/* Eviction of dead workers: a worker that registered itself and has been silent for --evict-after is removed. Called by
 * the prober, and by handlers for requests about a worker; guarded by the table's mutex.
 *
 * Workers from an option, a file or a name are never evicted. When all workers are silent the network or this host is
 * at fault, and all stay. The router keeps the url's hash of evicted workers, so one that was only cut off learns of it
 * and registers again (server/registration.c), while one that an operator removed does not. */
#include "common/clock.h"
#include "common/log.h"
#include "router/workers_int.h"

static void note(struct clime_workers *w, struct clime_str url) {
    clime_workers_unevict(w, url);
    w->evicted[w->n_evicted++ % CLIME_WORKERS_MAX] = clime_workers_url_hash(url);
}

bool clime_workers_is_evicted(struct clime_workers *w, struct clime_str url) {
    uint64_t hash = clime_workers_url_hash(clime_workers_trim_url(url));
    bool found = false;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < CLIME_WORKERS_MAX && !found; i++) found = w->evicted[i] == hash;
    pthread_mutex_unlock(&w->lock);
    return found;
}

bool clime_workers_name(struct clime_workers *w, int64_t id) {
    struct clime_str none = {0};
    pthread_mutex_lock(&w->lock);
    struct worker *k = clime_workers_find(w, id, none);
    bool was = k && k->v.named;
    if (k) k->v.named = true;
    pthread_mutex_unlock(&w->lock);
    return was;
}

void clime_workers_give_up(struct clime_workers *w, struct clime_str url) {
    struct clime_error e;
    url = clime_workers_trim_url(url);
    clime_workers_remove(w, 0, url, &e); /* it may be removed already */
    pthread_mutex_lock(&w->lock);
    note(w, url);
    pthread_mutex_unlock(&w->lock);
}

int clime_workers_evict(struct clime_workers *w, int64_t after_us) {
    int64_t since_us = clime_now_us() - after_us;
    int n = 0;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) {
        struct worker *k = &w->w[i];
        if (k->v.state != CLIME_WORKER_DOWN || k->v.named || k->v.requests || k->added_us > since_us ||
            atomic_load(&k->heard_us) > since_us || !clime_workers_another_was_heard(w, k, since_us))
            continue;
        LOG_WARN("worker %s has said nothing for %.0f s: it is out of the fleet until it comes back", k->v.url,
                 (double)after_us / 1e6);
        note(w, clime_str_of(k->v.url));
        k->v.state = CLIME_WORKER_FREE;
        n++;
    }
    pthread_mutex_unlock(&w->lock);
    return n;
}
