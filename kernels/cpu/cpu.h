/* What the files of the CPU table share: the context, scratch, parallel loops, and the names of its builds.
 *
 * The files with operations (gemm.c, norm.c, ...) are compiled once for each instruction set: by themselves for plain
 * C, and again through ops_avx2.c and ops_avx512.c. CPU(name) gives each build its own symbols; each ends in a table
 * CPU(ops), and cpu_table.c sends every call to the table that it chose when the context was opened.
 * Within one build, file-local names are unique across these files.
 */
#ifndef CLIME_KERNELS_CPU_CPU_H
#define CLIME_KERNELS_CPU_CPU_H

#include "common/thread/threadpool.h"
#include "kernels/kernels.h"

/* GEMM(name) names the table itself and its products, which a build may have of its own: AMX, over the rest of
 * AVX-512's. */
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

/* One chunk of AdamW and of the norm. Part of the numbers: it says in which order squares are added. */
#define CLIME_CPU_NORM_BLOCK 16384

struct clime_cpu_room { /* memory that only grows */
    void *p;
    size_t bytes;
};

struct clime_dev {
    struct clime_dev_head head;
    const struct clime_ops *isa; /* the operations compiled for the chosen instruction set */
    struct clime_pool *pool;
    int n_threads;
    struct clime_cpu_room shared;   /* one operation at a time, touched by all its tiles */
    struct clime_cpu_room *slot;    /* [n_threads] one tile at a time */
    struct clime_cpu_share *shares; /* cpu_share.c: what this context shares and maps */
};

/* Operations of each build; their context and memory entries are empty. */
extern const struct clime_ops clime_cpu_ops_generic, clime_cpu_ops_avx2, clime_cpu_ops_avx512, clime_cpu_ops_amx;

/* Runs fn(arg, i, slot) for i in [0, n). slot < n_threads is not in use by two tiles at once. ns: estimated time of the
 * whole on one core; short work stays on the caller's thread, since waking another costs some 10 us. */
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
