/* Shared by the files of the CPU table: the context, scratch, parallel loops, and the names of its builds.
 *
 * The files with operations (gemm.c, norm.c, ...) are compiled once per instruction set: directly for plain C, and
 * again through ops_avx2.c and ops_avx512.c. CPU(name) gives each build its own symbols; each has a table CPU(ops), and
 * cpu_table.c dispatches every call to the table chosen when the context was opened. Within one build, file-local names
 * are unique across these files.
 */
#ifndef CLIME_KERNELS_CPU_CPU_H
#define CLIME_KERNELS_CPU_CPU_H

#include "common/thread/threadpool.h"
#include "kernels/kernels.h"

/* GEMM(name) names the table and its products, which a build may replace: AMX does, on top of AVX-512. */
#if defined(CLIME_CPU_AVX512)
#define CPU(name) clime_cpu_##name##_avx512
#elif defined(CLIME_CPU_AVX2)
#define CPU(name) clime_cpu_##name##_avx2
#else
#define CPU(name) clime_cpu_##name##_generic
#endif
#if defined(CLIME_CPU_AMX)
#define GEMM(name) clime_cpu_##name##_amx
#else
#define GEMM(name) CPU(name)
#endif

/* One chunk of AdamW and of the norm. Part of the numerics: it fixes the order in which squares are added. */
#define CLIME_CPU_NORM_BLOCK 16384

struct clime_cpu_room { /* a buffer that only grows */
    void *p;
    size_t bytes;
};

struct clime_dev {
    struct clime_dev_head head;
    const struct clime_ops *isa; /* the operations compiled for the chosen instruction set */
    struct clime_pool *pool;
    int n_threads;
    struct clime_cpu_room shared;   /* scratch of one operation, shared by its tiles */
    struct clime_cpu_room *slot;    /* [n_threads] scratch of one tile */
    struct clime_cpu_share *shares; /* cpu_share.c: memory that this context exports and maps */
};

/* Operations of each build; their context and memory entries are empty. */
extern const struct clime_ops clime_cpu_ops_generic, clime_cpu_ops_avx2, clime_cpu_ops_avx512, clime_cpu_ops_amx;

/* Runs fn(arg, i, slot) for i in [0, n). slot < n_threads is used by one tile at a time. ns: estimated time of the
 * whole on one core; short work stays on the caller's thread, since waking another costs about 10 us. */
void clime_cpu_for(struct clime_dev *d, int n, double ns, void (*fn)(void *arg, int i, int slot), void *arg);

/* 64-byte aligned, not zeroed; valid until the next call for the same room. */
void *clime_cpu_shared(struct clime_dev *d, size_t bytes);
void *clime_cpu_scratch(struct clime_dev *d, int slot, size_t bytes);

static inline bool clime_cpu_bf16(const struct clime_dev *d) {
    return d->head.dt == CLIME_BF16;
}

/* Element i of an array of the context's type. */
static inline const void *clime_cpu_at(const struct clime_dev *d, const void *p, size_t i) {
    return (const char *)p + i * clime_dtype_bytes(d->head.dt);
}

static inline void *clime_cpu_at_mut(const struct clime_dev *d, void *p, size_t i) {
    return (char *)p + i * clime_dtype_bytes(d->head.dt);
}

#endif
