/* What the benchmarks of tests/gpu share: one device, its clock, rooms filled with noise, and the ceilings that figures
 * are held against, measured in the same run. */
#ifndef CLIME_TESTS_GPU_BENCH_H
#define CLIME_TESTS_GPU_BENCH_H

#include <time.h>

#include "tests/gpu/gpu_test.h"

static const struct clime_ops *ops;
static struct clime_dev *dev;
static double copy_rate, gemm_rate; /* the ceilings: bytes/s read + written, FLOP/s */

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void finish(void) {
    struct clime_error e;
    if (ops->sync(dev, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
}

/* Seconds a turn of `body` over `turns`, after one warm-up. */
#define TIME(out, turns, ...)                                                                                          \
    do {                                                                                                               \
        int turn_ = 0;                                                                                                 \
        __VA_ARGS__;                                                                                                   \
        finish();                                                                                                      \
        double start_ = now();                                                                                         \
        for (; turn_ < (turns); turn_++) {                                                                             \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
        finish();                                                                                                      \
        (out) = (now() - start_) / (turns);                                                                            \
    } while (0)

static inline void *room(size_t bytes) {
    void *p;
    struct clime_error e;
    if (ops->alloc(dev, bytes, "bench", &p, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
    return p;
}

/* bf16 noise, uniform below `most`, one block made on the host and repeated. */
static inline void fill_below(void *p, size_t bytes, float most) {
    static uint16_t *block;
    static float made;
    enum { N = 8 << 20 };
    if (!block) block = xmalloc(N * 2);
    if (made != most) {
        uint64_t h = 1;
        for (size_t i = 0; i < N; i++) {
            h = h * 6364136223846793005u + 1442695040888963407u;
            block[i] = bf16_of(((float)(int32_t)(h >> 32)) * 0x1p-31f * most);
        }
        made = most;
    }
    for (size_t at = 0; at < bytes; at += N * 2) {
        size_t n = bytes - at < N * 2 ? bytes - at : N * 2;
        if (at == 0)
            ops->copy_in(dev, p, block, n);
        else
            ops->copy(dev, (char *)p + at, p, n);
    }
}

static inline void fill(void *p, size_t bytes) {
    fill_below(p, bytes, 0.035f);
}

static inline void bench_ceilings(void) {
    size_t bytes = (size_t)4 << 30;
    char *a = room(bytes), *b = room(bytes);
    double s;
    fill(a, bytes);
    TIME(s, 10, ops->copy(dev, b, a, bytes));
    copy_rate = 2 * (double)bytes / s;
    enum { N = 8192 };
    TIME(s, 20, ops->gemm(dev, CLIME_BF16, N, a, &(struct clime_matrix){N, N, a + (1 << 30), NULL}, b));
    gemm_rate = 2.0 * N * N * N / s;
    printf("ceilings: copy %.0f GB/s, bf16 GEMM 8192^3 %.0f TFLOP/s\n", copy_rate * 1e-9, gemm_rate * 1e-12);
    ops->free(dev, a);
    ops->free(dev, b);
}

#endif
