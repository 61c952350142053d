/* What the kernel tests share: a context for each instruction set, type and thread count, random arrays of the
 * context's type, and comparison with float64 references.
 *
 * An array is kept as host float64 values that the type can hold exactly, so a reference sees the operation's very
 * inputs. Sizes are in elements.
 */
#ifndef CLIME_TESTS_UNIT_KERNELS_KERNEL_TEST_H
#define CLIME_TESTS_UNIT_KERNELS_KERNEL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/rng.h"
#include "kernels/kernels.h"

static const char *const KT_ISAS[] = {"generic", "avx2", "avx512", "amx"};
#define KT_UNUSED __attribute__((unused))

struct kt {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    enum clime_dtype dt;
    struct clime_rng rng;
};

/* False when this machine does not have the instruction set. */
KT_UNUSED static bool kt_open(struct kt *k, const char *isa, enum clime_dtype dt, int n_threads) {
    struct clime_error e;
    struct clime_dev_options o = {.dt = dt, .n_threads = n_threads, .isa = isa};
    k->ops = &clime_cpu_ops;
    k->dt = dt;
    clime_rng_init(&k->rng, 1);
    enum clime_err err = k->ops->open(&o, &k->dev, &e);
    if (err) {
        assert_int_equal(err, CLIME_ERR_UNAVAILABLE);
        return false;
    }
    return true;
}

KT_UNUSED static void kt_close(struct kt *k) {
    k->ops->close(k->dev);
}

/* Runs body(k) for each instruction set and type, with two threads. */
KT_UNUSED static void kt_each(void (*body)(struct kt *k)) {
    for (size_t i = 0; i < CLIME_COUNT(KT_ISAS); i++) {
        for (int dt = CLIME_F32; dt <= CLIME_BF16; dt++) {
            struct kt k;
            if (!kt_open(&k, KT_ISAS[i], (enum clime_dtype)dt, 2)) continue;
            body(&k);
            kt_close(&k);
        }
    }
}

KT_UNUSED static float kt_bf16_value(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

KT_UNUSED static uint16_t kt_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- arrays ---------------------------------------------------------------------------------------------- */
KT_UNUSED static void *kt_alloc(struct kt *k, size_t bytes) {
    void *p;
    struct clime_error e;
    assert_int_equal(k->ops->alloc(k->dev, bytes, "test", &p, &e), CLIME_OK);
    memset(p, 0xff, bytes); /* NaN in either type: reading what was not written shows */
    return p;
}

KT_UNUSED static void *kt_room(struct kt *k, size_t n) { /* of the context's type */
    return kt_alloc(k, n * clime_dtype_bytes(k->dt));
}

KT_UNUSED static double kt_get(const void *p, size_t i, enum clime_dtype dt) {
    return dt == CLIME_BF16 ? (double)kt_bf16_value(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

KT_UNUSED static void kt_set(void *p, size_t i, enum clime_dtype dt, double x) {
    if (dt == CLIME_BF16) {
        ((uint16_t *)p)[i] = kt_bf16((float)x);
    } else {
        ((float *)p)[i] = (float)x;
    }
}

/* n normal values times scale. */
KT_UNUSED static void *kt_random(struct kt *k, size_t n, double scale) {
    void *p = kt_room(k, n);
    for (size_t i = 0; i < n; i++) kt_set(p, i, k->dt, clime_rng_normal(&k->rng) * scale);
    return p;
}

KT_UNUSED static float *kt_random_f32(struct kt *k, size_t n, double scale) {
    float *p = kt_alloc(k, n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = (float)(clime_rng_normal(&k->rng) * scale);
    return p;
}

KT_UNUSED static void kt_free(struct kt *k, void *p) {
    k->ops->free(k->dev, p);
}

/* Error of one rounding to the type, relative. */
KT_UNUSED static double kt_eps(enum clime_dtype dt) {
    return dt == CLIME_BF16 ? 1.0 / 256 : 1.2e-7;
}

/* |got - want| <= rel * |want| + abs, with a message that says where. */
KT_UNUSED static void kt_near(struct kt *k, const char *what, size_t i, double got, double want, double rel,
                              double abs) {
    if (fabs(got - want) <= rel * fabs(want) + abs) return;
    fail_msg("%s[%zu] on %s, %s: got %.9g, want %.9g", what, i, clime_dev_info(k->dev)->name,
             k->dt == CLIME_BF16 ? "bf16" : "f32", got, want);
}

/* norm(got - want) / norm(want) over n elements. */
KT_UNUSED static void kt_close_norm(struct kt *k, const char *what, const void *got, enum clime_dtype dt,
                                    const double *want, size_t n, double limit) {
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double x = kt_get(got, i, dt);
        diff += (x - want[i]) * (x - want[i]);
        norm += want[i] * want[i];
    }
    double ratio = sqrt(diff) / (sqrt(norm) + 1e-30);
    if (!(ratio <= limit)) {
        fail_msg("%s on %s, %s: relative error %.3g over %.3g", what, clime_dev_info(k->dev)->name,
                 k->dt == CLIME_BF16 ? "bf16" : "f32", ratio, limit);
    }
}

#endif
