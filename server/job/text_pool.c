/* Text threads. Called by HTTP workers; owns the threads and their scratch; callers own tasks.
 *
 * Invariant: a task is marked done exactly once, and not touched after.
 * The default of one thread on two cores leaves the other to the engine; tokenising is short compared with generating.
 */
#include "server/job/text_pool.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/os/thread.h"
#include "common/thread/queue.h"

#define STACK_BYTES ((size_t)8 << 20)

struct task {
    clime_text_fn fn;
    void *arg;
    bool done; /* guarded by the pool's lock */
    pthread_cond_t is_done;
};

struct clime_text_pool {
    const struct clime_tokenizer *tokenizer;
    struct clime_queue *queue;
    pthread_t *threads;
    int n_threads;
    pthread_mutex_t lock;
};

static void *text_main(void *arg) {
    struct clime_text_pool *p = arg;
    struct clime_tok_scratch *scratch = clime_tok_scratch_new(p->tokenizer);
    void *item;
    while (clime_queue_pop(p->queue, &item, 1, -1) == 1) {
        struct task *t = item;
        bool more = true, queued = false;
        while (more && !queued) {
            more = t->fn(t->arg, scratch);
            queued = more && clime_queue_push(p->queue, t); /* full or closed: continue here */
        }
        if (queued) continue;
        pthread_mutex_lock(&p->lock);
        t->done = true;
        pthread_cond_signal(&t->is_done); /* wakes only its caller: there may be a thousand */
        pthread_mutex_unlock(&p->lock);
    }
    clime_tok_scratch_free(scratch);
    return NULL;
}

struct clime_text_pool *clime_text_pool_open(const struct clime_tokenizer *t, int n_threads, int max_queued) {
    struct clime_text_pool *p = xcalloc(1, sizeof *p);
    pthread_attr_t attr;
    p->tokenizer = t;
    p->queue = clime_queue_new((size_t)max_queued);
    p->n_threads = n_threads;
    p->threads = xcalloc((size_t)n_threads, sizeof *p->threads);
    pthread_mutex_init(&p->lock, NULL);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (int i = 0; i < n_threads; i++) xthread(&p->threads[i], &attr, text_main, p);
    pthread_attr_destroy(&attr);
    return p;
}

void clime_text_pool_close(struct clime_text_pool *p) {
    if (!p) return;
    clime_queue_close(p->queue);
    for (int i = 0; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
    clime_queue_free(p->queue);
    pthread_mutex_destroy(&p->lock);
    free(p->threads);
    free(p);
}

enum clime_err clime_text_pool_run(struct clime_text_pool *p, clime_text_fn fn, void *arg, struct clime_error *e) {
    struct task t = {.fn = fn, .arg = arg, .is_done = PTHREAD_COND_INITIALIZER};
    if (!clime_queue_push(p->queue, &t)) return clime_fail(e, CLIME_ERR_BUSY, "the tokenizer's queue is full");
    pthread_mutex_lock(&p->lock);
    while (!t.done) pthread_cond_wait(&t.is_done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    pthread_cond_destroy(&t.is_done);
    return CLIME_OK;
}
