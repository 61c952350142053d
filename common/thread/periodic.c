/* Periodic thread (see periodic.h). Owns the thread, not fn's data. Invariant: fn never runs after stop. */
#include "common/thread/periodic.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/err.h"

struct clime_periodic {
    clime_periodic_fn *fn;
    void *arg;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t woken; /* on the monotonic clock */
    atomic_bool stopping; /* set under the lock */
};

static void *periodic_main(void *arg) {
    struct clime_periodic *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!atomic_load(&p->stopping)) {
        pthread_mutex_unlock(&p->lock);
        int64_t until = p->fn(p, p->arg);
        until += clime_now_us();
        pthread_mutex_lock(&p->lock);
        while (!atomic_load(&p->stopping) && clime_now_us() < until) clime_cond_wait_until(&p->woken, &p->lock, until);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void destroy(struct clime_periodic *p) {
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->woken);
    free(p);
}

struct clime_periodic *clime_periodic_start(clime_periodic_fn *fn, void *arg) {
    struct clime_periodic *p = xcalloc(1, sizeof *p);
    p->fn = fn;
    p->arg = arg;
    atomic_init(&p->stopping, false);
    pthread_mutex_init(&p->lock, NULL);
    clime_cond_init(&p->woken);
    if (!pthread_create(&p->thread, NULL, periodic_main, p)) return p;
    destroy(p);
    return NULL;
}

bool clime_periodic_stopping(const struct clime_periodic *p) {
    return atomic_load(&p->stopping);
}

void clime_periodic_stop(struct clime_periodic *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stopping, true);
    pthread_cond_signal(&p->woken);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    destroy(p);
}
