/* Bounded queue of pointers (see queue.h).
 *
 * Any thread. One mutex guards everything. A ring of fixed size: a push never allocates. Each push signals one waiter,
 * which pops all items; a waiter that finds none sleeps again.
 */
#include "common/thread/queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/err.h"

struct clime_queue {
    pthread_mutex_t lock;
    pthread_cond_t filled; /* an item was pushed, or the queue closed; monotonic clock */
    size_t capacity;
    size_t first, len; /* guarded by lock; items first .. first + len - 1, modulo capacity */
    bool closed;       /* guarded by lock */
    void *items[];
};

struct clime_queue *clime_queue_new(size_t capacity) {
    CHECK(capacity > 0);
    struct clime_queue *q = xcalloc(1, sizeof *q + capacity * sizeof q->items[0]);
    q->capacity = capacity;
    pthread_mutex_init(&q->lock, NULL);
    clime_cond_init(&q->filled);
    return q;
}

void clime_queue_free(struct clime_queue *q) {
    if (!q) return;
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

bool clime_queue_push(struct clime_queue *q, void *item) {
    pthread_mutex_lock(&q->lock);
    bool ok = !q->closed && q->len < q->capacity;
    if (ok) {
        q->items[(q->first + q->len++) % q->capacity] = item;
        pthread_cond_signal(&q->filled);
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}

size_t clime_queue_pop(struct clime_queue *q, void **out, size_t max, int64_t deadline_us) {
    size_t n = 0;
    pthread_mutex_lock(&q->lock);
    while (q->len == 0 && !q->closed) {
        if (deadline_us < 0)
            pthread_cond_wait(&q->filled, &q->lock);
        else if (clime_cond_wait_until(&q->filled, &q->lock, deadline_us))
            break;
    }
    for (; n < max && q->len; n++, q->len--) {
        out[n] = q->items[q->first];
        q->first = (q->first + 1) % q->capacity;
    }
    pthread_mutex_unlock(&q->lock);
    return n;
}

void clime_queue_close(struct clime_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->lock);
}
