/* The CPU context: the thread pool, memory, parallel loops.
 *
 * Called by the thread that owns the context; clime_cpu_scratch by the pool's threads, each for its own slot. Owns the
 * pool and the scratch buffers. Calls are synchronous, so sync has nothing to wait for.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"

#define ALIGN 256
#define HUGE_PAGE ((size_t)2 << 20)
#define INLINE_NS 20000.0 /* shorter work is not worth waking a thread */

void clime_cpu_close(struct clime_dev *d) {
    if (!d) return;
    clime_pool_free(d->pool);
    for (int i = 0; i < d->n_threads; i++) free(d->slot[i].p);
    free(d->slot);
    free(d->shared.p);
    free(d);
}

/* ---- memory ---------------------------------------------------------------------------------------------- */
void clime_cpu_memory(struct clime_dev *d, size_t *free_bytes, size_t *total_bytes) {
    (void)d;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *total_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    *free_bytes = (size_t)sysconf(_SC_AVPHYS_PAGES) * page;
    FILE *f = fopen("/proc/meminfo", "r"); /* MemAvailable includes the page cache, which can be evicted */
    if (!f) return;
    char line[128];
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "MemAvailable:", 13) == 0) *free_bytes = (size_t)strtoull(line + 13, NULL, 10) * 1024;
    }
    fclose(f);
}

size_t clime_cpu_scratch_bytes(const struct clime_scratch_shape *s) {
    (void)s;
    return 0; /* buffers of a few MiB per thread, which grow */
}

size_t clime_cpu_trial_bytes(struct clime_dev *d, enum clime_trial kind, int T, int N, int K) {
    (void)d, (void)kind, (void)T, (void)N, (void)K;
    return 0; /* nothing is tried */
}

void clime_cpu_choose(struct clime_dev *d, enum clime_trial kind, int T, int N, int K) {
    (void)d, (void)kind, (void)T, (void)N, (void)K;
}

enum clime_err clime_cpu_reserve_scratch(struct clime_dev *d, size_t bytes, struct clime_error *e) {
    (void)d;
    (void)bytes;
    (void)e;
    return CLIME_OK;
}

enum clime_err clime_cpu_alloc(struct clime_dev *d, size_t bytes, const char *what, void **out, struct clime_error *e) {
    *out = NULL;
    size_t available, total;
    clime_cpu_memory(d, &available, &total);
    /* Linux overcommits memory; sizes that cannot fit at all are refused here. */
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGN;
    if (bytes > total || posix_memalign(out, align, bytes ? bytes : 1) != 0) {
        *out = NULL;
        return clime_fail(e, CLIME_ERR_LIMIT, "%s needs %zu bytes; this machine has %zu, %zu of them free", what, bytes,
                          total, available);
    }
    if (bytes >= HUGE_PAGE) (void)madvise(*out, bytes, MADV_HUGEPAGE); /* a hint; fewer TLB misses on weights */
    return CLIME_OK;
}

void clime_cpu_copy(struct clime_dev *d, void *dst, const void *src, size_t bytes) {
    (void)d;
    if (bytes) memcpy(dst, src, bytes);
}

void clime_cpu_copy_rows(struct clime_dev *d, int n, size_t bytes, void *dst, size_t dst_step, const void *src,
                         size_t src_step) {
    for (size_t i = 0; i < (size_t)n; i++)
        clime_cpu_copy(d, (char *)dst + i * dst_step, (const char *)src + i * src_step, bytes);
}

void clime_cpu_copy_start(struct clime_dev *d, void *dst, const void *src, size_t bytes, int mark) {
    (void)mark; /* the copy was synchronous */
    clime_cpu_copy(d, dst, src, bytes);
}

enum clime_err clime_cpu_copy_wait(struct clime_dev *d, int mark, struct clime_error *e) {
    (void)mark;
    return clime_cpu_sync(d, e);
}

void clime_cpu_zero(struct clime_dev *d, void *p, size_t bytes) {
    (void)d;
    if (bytes) memset(p, 0, bytes);
}

enum clime_err clime_cpu_sync(struct clime_dev *d, struct clime_error *e) {
    (void)d;
    (void)e;
    return CLIME_OK;
}

/* ---- scratch and parallel loops -------------------------------------------------------------------------- */
static void *room(struct clime_cpu_room *r, size_t bytes) {
    if (r->bytes < bytes) {
        free(r->p);
        r->bytes = bytes + bytes / 4;
        r->p = xaligned(64, (r->bytes + 63) / 64 * 64);
    }
    return r->p;
}

void *clime_cpu_shared(struct clime_dev *d, size_t bytes) {
    return room(&d->shared, bytes);
}

void *clime_cpu_scratch(struct clime_dev *d, int slot, size_t bytes) {
    return room(&d->slot[slot], bytes);
}

struct loop {
    void (*fn)(void *arg, int i, int slot);
    void *arg;
    int n;
    atomic_int next;
};

/* One per slot: processes tiles until none are left, so that a slow core does not delay the others. */
static void drain(void *arg, int slot) {
    struct loop *l = arg;
    for (int i; (i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed)) < l->n;) l->fn(l->arg, i, slot);
}

void clime_cpu_for(struct clime_dev *d, int n, double ns, void (*fn)(void *arg, int i, int slot), void *arg) {
    if (n <= 1 || d->n_threads == 1 || ns < INLINE_NS) {
        for (int i = 0; i < n; i++) fn(arg, i, 0);
        return;
    }
    struct loop l = {.fn = fn, .arg = arg, .n = n};
    atomic_init(&l.next, 0);
    clime_pool_run(d->pool, n < d->n_threads ? n : d->n_threads, drain, &l);
}
