/* Worker threads for parallel loops (see threadpool.h).
 *
 * Called by the thread that owns the pool. Workers claim tiles by compare-and-swap on `ticket`: the run number in its
 * high half, the next tile in its low half. A worker that slept through a run cannot claim its tiles, so the caller
 * never waits for sleeping threads. Sleepers announce themselves before they check the run number a last time, and the
 * other side checks for sleepers after changing it (all sequentially consistent), so no wake-up is lost. The spin
 * before sleep covers the gap between two operations of a decode step.
 */
#include "common/thread/threadpool.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/err.h"

/* A pause instruction takes 40 to 140 cycles: about 30 us, the cost of a sleep and a wake-up. */
#define SPINS 1000
#define NO_MORE_TILES INT32_MAX

struct clime_pool {
    int n_threads;                        /* the caller included */
    pthread_t *threads;                   /* n_threads - 1 */
    _Alignas(64) _Atomic uint64_t ticket; /* run << 32 | next tile */
    _Atomic int n;                        /* tiles of the run; this and the next two are set before the ticket */
    void (*_Atomic fn)(void *arg, int i);
    void *_Atomic arg;
    _Alignas(64) _Atomic int done; /* tiles finished in this run */
    _Alignas(64) _Atomic int n_asleep;
    _Atomic int caller_asleep;
    _Atomic int stop;
    pthread_mutex_t lock; /* guards the two sleeps only */
    pthread_cond_t work, finished;
};

static void pause_a_little(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Runs tiles of `run` until none is left. */
static void work_on(struct clime_pool *p, uint32_t run) {
    uint64_t t = atomic_load(&p->ticket);
    for (;;) {
        int n = atomic_load(&p->n), i = (int)(uint32_t)t;
        void (*fn)(void *, int) = atomic_load(&p->fn);
        void *arg = atomic_load(&p->arg);
        if ((uint32_t)(t >> 32) != run || i >= n) return;
        /* n, fn and arg may be of the next run; then the ticket has changed and the swap fails. */
        if (!atomic_compare_exchange_weak(&p->ticket, &t, t + 1)) continue;
        fn(arg, i);
        if (atomic_fetch_add(&p->done, 1) + 1 == n && atomic_load(&p->caller_asleep)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->finished);
            pthread_mutex_unlock(&p->lock);
        }
        t = atomic_load(&p->ticket);
    }
}

static uint32_t run_number(struct clime_pool *p) {
    return (uint32_t)(atomic_load(&p->ticket) >> 32);
}

static void *worker(void *arg) {
    struct clime_pool *p = arg;
    uint32_t seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && run_number(p) == seen; i++) pause_a_little();
        if (run_number(p) == seen) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->n_asleep, 1);
            while (run_number(p) == seen) pthread_cond_wait(&p->work, &p->lock);
            atomic_fetch_sub(&p->n_asleep, 1);
            pthread_mutex_unlock(&p->lock);
        }
        if (atomic_load(&p->stop)) return NULL;
        seen = run_number(p);
        work_on(p, seen);
    }
}

/* Starts the next run: spinning and sleeping workers see the new number. */
static uint32_t open_run(struct clime_pool *p) {
    uint32_t run = run_number(p) + 1;
    atomic_store(&p->ticket, (uint64_t)run << 32);
    if (atomic_load(&p->n_asleep)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
    return run;
}

/* Cores of a container's CPU quota (cgroup v2: "quota period", or "max period"), rounded up; INT_MAX = no quota. */
static int quota_cores(void) {
    char line[64] = "", *end;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f) return INT_MAX;
    bool read = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    long long quota = strtoll(line, &end, 10), period = strtoll(end, NULL, 10);
    if (!read || quota <= 0 || period <= 0) return INT_MAX;
    return (int)((quota + period - 1) / period);
}

int clime_allowed_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int cores = CPU_COUNT(&set), quota = quota_cores();
    return quota < cores ? quota : cores;
}

struct clime_pool *clime_pool_new(int n_threads) {
    CHECK(n_threads >= 0);
    struct clime_pool *p = xaligned(64, sizeof *p);
    *p = (struct clime_pool){.n_threads = n_threads ? n_threads : clime_allowed_cores()};
    p->threads = xcalloc((size_t)p->n_threads, sizeof p->threads[0]);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    int i = 0;
    while (i < p->n_threads - 1 && !pthread_create(&p->threads[i], NULL, worker, p)) i++;
    p->n_threads = i + 1; /* the threads that started; their number changes no result */
    return p;
}

void clime_pool_free(struct clime_pool *p) {
    if (!p) return;
    atomic_store(&p->stop, 1);
    open_run(p);
    for (int i = 0; i < p->n_threads - 1; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->threads);
    free(p);
}

int clime_pool_threads(const struct clime_pool *p) {
    return p->n_threads;
}

void clime_pool_run(struct clime_pool *p, int n, void (*fn)(void *arg, int i), void *arg) {
    if (n <= 1 || p->n_threads == 1) {
        for (int i = 0; i < n; i++) fn(arg, i);
        return;
    }
    /* Close the last run, so that a late worker with its ticket cannot claim a tile of this one. */
    atomic_store(&p->ticket, (uint64_t)run_number(p) << 32 | NO_MORE_TILES);
    atomic_store(&p->done, 0);
    atomic_store(&p->fn, fn);
    atomic_store(&p->arg, arg);
    atomic_store(&p->n, n);
    work_on(p, open_run(p));
    for (int i = 0; i < SPINS && atomic_load(&p->done) < n; i++) pause_a_little();
    if (atomic_load(&p->done) == n) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_asleep, 1);
    while (atomic_load(&p->done) < n) pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->caller_asleep, 0);
    pthread_mutex_unlock(&p->lock);
}
