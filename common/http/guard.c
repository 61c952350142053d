/* The guard of slow reads (see guard.h). One thread a server; a mutex guards the list of watches.
 *
 * A socket is looked up only once its deadline has passed, and under the lock: the request cannot take its watch back,
 * and so cannot end and give the descriptor to another connection, before the shutdown is done.
 */
#include "common/http/guard.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/http/peer.h"

struct clime_http_guard {
    pthread_t thread;
    int64_t period_us;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool stop;                      /* guarded by lock */
    struct clime_http_watch *first; /* guarded by lock */
};

static void check(struct clime_http_guard *g) {
    int64_t now = clime_now_us();
    for (struct clime_http_watch *w = g->first; w; w = w->next) {
        if (atomic_load(&w->deadline_us) > now || atomic_load(&w->fired)) continue;
        int socket = clime_peer_socket(w->remote_addr, w->remote_port, w->local_port);
        atomic_store(&w->fired, true);
        if (socket >= 0) shutdown(socket, SHUT_RD);
    }
}

static void *run(void *arg) {
    struct clime_http_guard *g = arg;
    pthread_mutex_lock(&g->lock);
    while (!g->stop) {
        int64_t wake = clime_now_us() + g->period_us;
        struct timespec until = {wake / 1000000, wake % 1000000 * 1000};
        pthread_cond_timedwait(&g->stopped, &g->lock, &until);
        check(g);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

struct clime_http_guard *clime_http_guard_new(int64_t period_us) {
    struct clime_http_guard *g = xcalloc(1, sizeof *g);
    g->period_us = period_us < 20000 ? 20000 : period_us > 1000000 ? 1000000 : period_us;
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->stopped, &attr);
    pthread_condattr_destroy(&attr);
    CHECK(pthread_create(&g->thread, NULL, run, g) == 0);
    return g;
}

void clime_http_guard_free(struct clime_http_guard *g) {
    pthread_mutex_lock(&g->lock);
    CHECK(!g->first);
    g->stop = true;
    pthread_cond_signal(&g->stopped);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    pthread_cond_destroy(&g->stopped);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void clime_http_watch_add(struct clime_http_guard *g, struct clime_http_watch *w) {
    atomic_store(&w->deadline_us, INT64_MAX);
    pthread_mutex_lock(&g->lock);
    w->previous = NULL;
    w->next = g->first;
    if (w->next) w->next->previous = w;
    g->first = w;
    pthread_mutex_unlock(&g->lock);
}

void clime_http_watch_remove(struct clime_http_guard *g, struct clime_http_watch *w) {
    pthread_mutex_lock(&g->lock);
    if (w->next) w->next->previous = w->previous;
    if (w->previous)
        w->previous->next = w->next;
    else
        g->first = w->next;
    pthread_mutex_unlock(&g->lock);
}

void clime_http_watch_set(struct clime_http_watch *w, int64_t deadline_us) {
    atomic_store(&w->deadline_us, deadline_us);
}

bool clime_http_watch_fired(const struct clime_http_watch *w) {
    return atomic_load(&w->fired);
}
