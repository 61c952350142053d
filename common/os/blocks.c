/* A ring of blocks between converting threads and their owner (see blocks.h). Created by weights_import.c: one run at a
 * time, consumed on the calling thread.
 *
 * Invariant: block i uses slot i % PLACES from when a thread begins it until the owner has consumed it; no thread
 * begins it before block i - PLACES is consumed. */
#include "common/os/blocks.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/thread/threadpool.h"

enum { PLACES = 32, MOST_THREADS = 8 };

struct clime_blocks {
    pthread_t thread[MOST_THREADS];
    int n_threads;
    size_t block_bytes;
    char *room; /* [PLACES][block_bytes] */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool ending;
    /* the current run */
    clime_block_make *make;
    void *arg;
    int64_t n, begun, taken; /* blocks; n 0: no run */
    int working;             /* threads inside `make` */
    bool ready[PLACES], good[PLACES];
};

static void *convert(void *arg) {
    struct clime_blocks *b = arg;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (!b->ending && (b->begun == b->n || b->begun == b->taken + PLACES)) pthread_cond_wait(&b->work, &b->lock);
        if (b->ending) break;
        int64_t i = b->begun++;
        int place = (int)(i % PLACES);
        b->working++;
        pthread_mutex_unlock(&b->lock);
        bool good = b->make(b->arg, i, b->room + (size_t)place * b->block_bytes);
        pthread_mutex_lock(&b->lock);
        b->working--;
        b->good[place] = good;
        b->ready[place] = true;
        pthread_cond_signal(&b->done);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

struct clime_blocks *clime_blocks_new(int n_threads, size_t block_bytes) {
    struct clime_blocks *b = xcalloc(1, sizeof *b);
    if (n_threads < 1) n_threads = clime_allowed_cores() > 1 ? clime_allowed_cores() - 1 : 1;
    if (n_threads > MOST_THREADS) n_threads = MOST_THREADS;
    b->block_bytes = block_bytes;
    b->room = xmalloc(PLACES * block_bytes);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    pthread_cond_init(&b->done, NULL);
    while (b->n_threads < n_threads && !pthread_create(&b->thread[b->n_threads], NULL, convert, b)) b->n_threads++;
    return b;
}

void clime_blocks_free(struct clime_blocks *b) {
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    b->ending = true;
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < b->n_threads; i++) pthread_join(b->thread[i], NULL);
    pthread_cond_destroy(&b->work);
    pthread_cond_destroy(&b->done);
    pthread_mutex_destroy(&b->lock);
    free(b->room);
    free(b);
}

/* Prevents new blocks and waits for those in progress. */
static void end_run(struct clime_blocks *b) {
    b->n = b->begun;
    while (b->working > 0) pthread_cond_wait(&b->done, &b->lock);
    b->n = b->begun = b->taken = 0;
    for (int i = 0; i < PLACES; i++) b->ready[i] = false;
}

enum clime_err clime_blocks_run(struct clime_blocks *b, int64_t n, clime_block_make *make, clime_block_take *take,
                                void *arg, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    pthread_mutex_lock(&b->lock);
    b->make = make;
    b->arg = arg;
    b->n = n;
    pthread_cond_broadcast(&b->work);
    while (b->taken < n && !rc) {
        int place = (int)(b->taken % PLACES);
        if (!b->n_threads) { /* no thread could start */
            b->good[place] = make(arg, b->taken, b->room + (size_t)place * b->block_bytes);
            b->ready[place] = true;
        }
        while (!b->ready[place]) pthread_cond_wait(&b->done, &b->lock);
        b->ready[place] = false;
        pthread_mutex_unlock(&b->lock);
        rc = take(arg, b->taken, b->good[place], b->room + (size_t)place * b->block_bytes, e);
        pthread_mutex_lock(&b->lock);
        b->taken++;
        pthread_cond_signal(&b->work);
    }
    end_run(b);
    pthread_mutex_unlock(&b->lock);
    return rc;
}
