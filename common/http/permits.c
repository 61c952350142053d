/* Permits (see permits.h). Called on the connections' worker threads; a lock guards all.
 *
 * Invariant: no thread waits while a permit is free. A returned permit passes directly to the first waiter, so a
 * newcomer cannot overtake it.
 */
#include "common/http/permits.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/err.h"

struct waiter { /* on its thread's stack */
    pthread_cond_t called;
    bool has_permit;
    struct waiter *next;
};

struct clime_permits {
    pthread_mutex_t lock; /* guards the rest */
    int n_free, n_waiting;
    struct waiter *first, **end;
};

struct clime_permits *clime_permits_new(int n) {
    CHECK(n > 0);
    struct clime_permits *p = xcalloc(1, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->n_free = n;
    p->end = &p->first;
    return p;
}

void clime_permits_free(struct clime_permits *p) {
    CHECK(!p->first);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void clime_permits_take(struct clime_permits *p) {
    pthread_mutex_lock(&p->lock);
    if (p->n_free > 0) {
        p->n_free--;
    } else {
        struct waiter me = {.called = PTHREAD_COND_INITIALIZER};
        *p->end = &me;
        p->end = &me.next;
        p->n_waiting++;
        while (!me.has_permit) pthread_cond_wait(&me.called, &p->lock);
        pthread_cond_destroy(&me.called);
    }
    pthread_mutex_unlock(&p->lock);
}

void clime_permits_give(struct clime_permits *p) {
    pthread_mutex_lock(&p->lock);
    struct waiter *w = p->first;
    if (w) {
        p->first = w->next;
        if (!p->first) p->end = &p->first;
        w->has_permit = true;
        p->n_waiting--;
        pthread_cond_signal(&w->called);
    } else {
        p->n_free++;
    }
    pthread_mutex_unlock(&p->lock);
}

int clime_permits_waiting(struct clime_permits *p) {
    pthread_mutex_lock(&p->lock);
    int n = p->n_waiting;
    pthread_mutex_unlock(&p->lock);
    return n;
}
