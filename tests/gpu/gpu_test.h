/* What the GPU tests share: both devices open, arrays that lie on both, comparison by norm, a count of failures.
 * No test framework: the programs link only clime's archives, so that they run on a bare GPU machine. */
#ifndef CLIME_TESTS_GPU_GPU_TEST_H
#define CLIME_TESTS_GPU_GPU_TEST_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "kernels/kernels.h"

struct side {
    const struct clime_ops *ops;
    struct clime_dev *dev;
};

struct gpu_test {
    struct side cpu, gpu;
    struct clime_rng rng;
    int n_checks, n_failed;
};

/* The same n elements on both sides. */
struct both {
    void *cpu, *gpu;
    size_t n;
    enum clime_dtype dt;
};

static inline void side_open(struct side *s, const char *device) {
    struct clime_error e;
    struct clime_dev_options o = {.dt = CLIME_BF16, .deterministic = true};
    if (clime_ops_choose(device, &s->ops, &e) || s->ops->open(&o, &s->dev, &e)) {
        printf("%s: %s\n", device, e.msg);
        exit(77); /* skipped */
    }
}

static inline void gpu_test_open(struct gpu_test *t) {
    *t = (struct gpu_test){0};
    side_open(&t->gpu, "cuda");
    side_open(&t->cpu, "cpu");
    clime_rng_init(&t->rng, 1);
    printf("%s against %s\n", clime_dev_info(t->gpu.dev)->name, clime_dev_info(t->cpu.dev)->name);
}

static inline int gpu_test_close(struct gpu_test *t) {
    struct clime_error e;
    if (t->gpu.ops->sync(t->gpu.dev, &e)) {
        printf("FAILED: %s\n", e.msg);
        t->n_failed++;
    }
    t->gpu.ops->close(t->gpu.dev);
    t->cpu.ops->close(t->cpu.dev);
    printf("%d checks, %d failed\n", t->n_checks, t->n_failed);
    return t->n_failed ? 1 : 0;
}

static inline void check(struct gpu_test *t, bool good, const char *what, const char *detail) {
    t->n_checks++;
    if (good) return;
    t->n_failed++;
    printf("FAILED: %s %s\n", what, detail);
}

static inline void *side_alloc(struct side *s, size_t bytes) {
    void *p;
    struct clime_error e;
    if (s->ops->alloc(s->dev, bytes, "test", &p, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
    return p;
}

static inline float bf16_value(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t bf16_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float value_at(const void *p, size_t i, enum clime_dtype dt) {
    return dt == CLIME_BF16 ? bf16_value(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* Filled with 0xff, which is NaN: reading what was not written shows. */
static inline struct both both_room(struct gpu_test *t, size_t n, enum clime_dtype dt) {
    size_t bytes = n * clime_dtype_bytes(dt);
    struct both b = {side_alloc(&t->cpu, bytes), side_alloc(&t->gpu, bytes), n, dt};
    memset(b.cpu, 0xff, bytes);
    t->gpu.ops->copy_in(t->gpu.dev, b.gpu, b.cpu, bytes);
    return b;
}

static inline struct both both_random(struct gpu_test *t, size_t n, enum clime_dtype dt, double scale) {
    struct both b = both_room(t, n, dt);
    for (size_t i = 0; i < n; i++) {
        float v = (float)(clime_rng_normal(&t->rng) * scale);
        if (dt == CLIME_BF16)
            ((uint16_t *)b.cpu)[i] = bf16_of(v);
        else
            ((float *)b.cpu)[i] = v;
    }
    t->gpu.ops->copy_in(t->gpu.dev, b.gpu, b.cpu, n * clime_dtype_bytes(dt));
    return b;
}

static inline struct both both_ints(struct gpu_test *t, const int32_t *x, size_t n) {
    struct both b = both_room(t, n, CLIME_F32);
    memcpy(b.cpu, x, n * 4);
    t->gpu.ops->copy_in(t->gpu.dev, b.gpu, x, n * 4);
    return b;
}

static inline void both_free(struct gpu_test *t, struct both *b) {
    t->cpu.ops->free(t->cpu.dev, b->cpu);
    t->gpu.ops->free(t->gpu.dev, b->gpu);
}

/* The GPU's values as host memory; the caller frees. */
static inline void *fetch(struct gpu_test *t, const void *gpu, size_t bytes) {
    void *h = xmalloc(bytes);
    t->gpu.ops->copy_out(t->gpu.dev, h, gpu, bytes);
    return h;
}

/* norm(gpu - cpu) / norm(cpu) <= limit. */
static inline void near_norm(struct gpu_test *t, const char *what, const struct both *b, double limit) {
    void *h = fetch(t, b->gpu, b->n * clime_dtype_bytes(b->dt));
    double diff = 0, norm = 0;
    for (size_t i = 0; i < b->n; i++) {
        double want = (double)value_at(b->cpu, i, b->dt), got = (double)value_at(h, i, b->dt);
        diff += (got - want) * (got - want);
        norm += want * want;
    }
    free(h);
    double ratio = sqrt(diff) / (sqrt(norm) + 1e-30);
    char text[96];
    snprintf(text, sizeof text, "relative error %.3g over %.3g", ratio, limit);
    check(t, ratio <= limit, what, text);
}

/* The GPU's bytes at a and b are the same. */
static inline void same_bits(struct gpu_test *t, const char *what, const void *a, const void *b, size_t bytes) {
    char *x = fetch(t, a, bytes), *y = fetch(t, b, bytes);
    size_t i = 0, n = 0;
    for (size_t k = 0; k < bytes; k++) {
        if (x[k] == y[k]) continue;
        if (n++ == 0) i = k;
    }
    char text[96];
    snprintf(text, sizeof text, "%zu of %zu bytes differ, the first at %zu", n, bytes, i);
    check(t, n == 0, what, text);
    free(x);
    free(y);
}

/* An operation on both sides; AT(b) is the side's memory of a struct both. */
#define AT(b) (on_gpu ? (b).gpu : (b).cpu)
#define BOTH(t, op, ...)                                                                                               \
    for (int on_gpu = 0; on_gpu < 2; on_gpu++) {                                                                       \
        struct side *side = on_gpu ? &(t)->gpu : &(t)->cpu;                                                            \
        side->ops->op(side->dev, __VA_ARGS__);                                                                         \
    }

#endif
