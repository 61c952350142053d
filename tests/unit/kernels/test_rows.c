/* Row operations against float64: norms, rotary embedding, SwiGLU, embedding, gather; backward by the formulas and by
 * finite differences; bits of rows alone and in batches. */
#include "tests/unit/kernels/kernel_test.h"

static double get(struct kt *k, const void *p, size_t i) {
    return kt_get(p, i, k->dt);
}

/* ---- RMSNorm --------------------------------------------------------------------------------------------- */
static void norm_ref(struct kt *k, const double *x, const void *w, size_t D, double eps, double *y) {
    double ss = 0;
    for (size_t i = 0; i < D; i++) ss += x[i] * x[i];
    double r = 1 / sqrt(ss / (double)D + eps);
    for (size_t i = 0; i < D; i++) y[i] = x[i] * r * get(k, w, i);
}

static void test_norm(struct kt *k) {
    static const int WIDTHS[] = {1, 8, 64, 100, 257, 1024};
    for (size_t c = 0; c < CLIME_COUNT(WIDTHS); c++) {
        enum { T = 19 };
        size_t D = (size_t)WIDTHS[c], n = T * D, size = clime_dtype_bytes(k->dt);
        int d = WIDTHS[c];
        void *x = kt_random(k, n, 2), *delta = kt_random(k, n, 1), *w = kt_random(k, D, 1), *y = kt_room(k, n);
        void *sum = kt_room(k, n), *y1 = kt_room(k, n);
        float rstd[T];
        double *row = malloc(2 * D * sizeof *row);
        k->ops->add_rmsnorm(k->dev, T, d, 1e-6f, x, delta, w, sum, y, rstd);
        for (size_t t = 0; t < T; t++) {
            for (size_t i = 0; i < D; i++) {
                kt_near(k, "sum", i, get(k, sum, t * D + i), get(k, x, t * D + i) + get(k, delta, t * D + i),
                        kt_eps(k->dt), 0);
                row[i] = get(k, sum, t * D + i);
            }
            norm_ref(k, row, w, D, 1e-6, row + D);
            for (size_t i = 0; i < D; i++) {
                kt_near(k, "norm", i, get(k, y, t * D + i), row[D + i], kt_eps(k->dt) + 1e-6, 1e-7);
            }
        }
        for (size_t t = 0; t < T; t++) { /* alone, in place and without the sum: the same bits */
            memcpy((char *)y1 + t * D * size, (char *)sum + t * D * size, D * size);
            char *at = (char *)y1 + t * D * size;
            k->ops->rmsnorm(k->dev, 1, d, 1e-6f, at, w, at, NULL);
        }
        assert_memory_equal(y, y1, n * size);
        k->ops->add(k->dev, T, d, x, delta, x);
        assert_memory_equal(x, sum, n * size);
        free(row);
        void *all[] = {x, delta, w, y, sum, y1};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
    }
}

static void test_norm_bwd(struct kt *k) {
    enum { T = 21, D = 72 };
    void *x = kt_random(k, T * D, 1), *w = kt_random(k, D, 1), *dy = kt_random(k, T * D, 1), *y = kt_room(k, T * D);
    void *add = kt_random(k, T * D, 1), *dx = kt_room(k, T * D);
    float rstd[T], *dw = kt_random_f32(k, D, 1);
    static double want_dx[T * D], want_dw[D];
    k->ops->rmsnorm(k->dev, T, D, 1e-5f, x, w, y, rstd);
    for (size_t i = 0; i < D; i++) want_dw[i] = (double)dw[i];
    for (size_t t = 0; t < T; t++) {
        double ss = 0, dot = 0;
        for (size_t i = 0; i < D; i++) ss += get(k, x, t * D + i) * get(k, x, t * D + i);
        double r = 1 / sqrt(ss / D + 1e-5);
        for (size_t i = 0; i < D; i++) dot += get(k, dy, t * D + i) * get(k, w, i) * get(k, x, t * D + i);
        for (size_t i = 0; i < D; i++) {
            double g = get(k, dy, t * D + i), v = get(k, x, t * D + i);
            want_dw[i] += g * v * r;
            want_dx[t * D + i] = get(k, add, t * D + i) + r * g * get(k, w, i) - v * r * r * r * dot / D;
        }
    }
    k->ops->rmsnorm_bwd(k->dev, T, D, dy, x, w, rstd, add, dx, dw);
    kt_close_norm(k, "dx", dx, k->dt, want_dx, T * D, kt_eps(k->dt) + 1e-6);
    kt_close_norm(k, "dw", dw, CLIME_F32, want_dw, D, 1e-6);
    float *again = kt_random_f32(k, D, 0);
    k->ops->rmsnorm_bwd(k->dev, T, D, dy, x, w, rstd, add, dy, again); /* over dy: the same bits */
    assert_memory_equal(dx, dy, T * D * clime_dtype_bytes(k->dt));
    void *all[] = {x, w, dy, y, add, dx, dw, again};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
}

/* ---- rotary embedding ------------------------------------------------------------------------------------ */
struct rope_case {
    int H, HK, Dh, rot;
    bool interleaved, norm;
};
static const struct rope_case ROPES[] = {
    {4, 2, 8, 8, false, false}, {4, 4, 64, 64, false, true}, {6, 2, 128, 64, true, false}, {2, 1, 40, 20, false, true}};

enum { MAX_POS = 300 };

static void rope_table(int rot, float *c, float *s) {
    for (int p = 0; p < MAX_POS; p++) {
        for (int i = 0; i < rot / 2; i++) {
            double angle = p * pow(10000, -2.0 * i / rot);
            c[p * rot / 2 + i] = (float)cos(angle);
            s[p * rot / 2 + i] = (float)sin(angle);
        }
    }
}

/* One head in float64: norm (w may be NULL), rotation. */
static void head_ref(struct kt *k, const struct rope_case *c, const float *cosines, const float *sines, int pos,
                     const double *x, const void *w, double *y) {
    size_t Dh = (size_t)c->Dh, half = (size_t)c->rot / 2;
    if (w) {
        norm_ref(k, x, w, Dh, 1e-6, y);
    } else {
        memcpy(y, x, Dh * sizeof *y);
    }
    for (size_t i = 0; i < half; i++) {
        size_t a = c->interleaved ? 2 * i : i, b = c->interleaved ? 2 * i + 1 : i + half;
        double cs = (double)cosines[(size_t)pos * half + i], sn = (double)sines[(size_t)pos * half + i];
        double ya = y[a] * cs - y[b] * sn, yb = y[b] * cs + y[a] * sn;
        y[a] = ya;
        y[b] = yb;
    }
}

static void test_rope(struct kt *k) {
    for (size_t n = 0; n < CLIME_COUNT(ROPES); n++) {
        const struct rope_case *c = &ROPES[n];
        enum { T = 11 };
        size_t H = (size_t)c->H, HK = (size_t)c->HK, Dh = (size_t)c->Dh, W = (H + 2 * HK) * Dh;
        size_t size = clime_dtype_bytes(k->dt);
        float *cosines = malloc(MAX_POS * Dh * 4), *sines = malloc(MAX_POS * Dh * 4);
        rope_table(c->rot, cosines, sines);
        struct clime_rope rope = {cosines, sines, MAX_POS, c->rot, c->interleaved};
        struct clime_heads h = {c->H, c->HK, c->Dh, 1};
        void *qkv = kt_random(k, T * W, 1), *qn = c->norm ? kt_random(k, Dh, 1) : NULL;
        void *kn = c->norm ? kt_random(k, Dh, 1) : NULL;
        void *q = kt_room(k, T * H * Dh), *kk = kt_room(k, T * HK * Dh), *v = kt_room(k, T * HK * Dh);
        void *q2 = kt_room(k, T * H * Dh), *pool_k = kt_room(k, 2 * HK * CLIME_PAGE * Dh);
        void *pool_v = kt_room(k, 2 * HK * CLIME_PAGE * Dh);
        int32_t pos[T], slot[T];
        for (int t = 0; t < T; t++) {
            pos[t] = t * 27;
            slot[t] = t % 2 * CLIME_PAGE + 5 * t;
        }
        k->ops->qkv_rope(k->dev, T, &h, &rope, 1e-6f, qkv, qn, kn, pos, NULL, q, kk, v);
        double x[128], y[128];
        for (size_t t = 0; t < T; t++) {
            for (size_t i = 0; i < H + 2 * HK; i++) {
                for (size_t e = 0; e < Dh; e++) x[e] = y[e] = get(k, qkv, t * W + i * Dh + e);
                if (i < H + HK) head_ref(k, c, cosines, sines, pos[t], x, i < H ? qn : kn, y);
                for (size_t e = 0; e < Dh; e++) {
                    double got = i < H        ? get(k, q, (t * H + i) * Dh + e)
                                 : i < H + HK ? get(k, kk, (t * HK + i - H) * Dh + e)
                                              : get(k, v, (t * HK + i - H - HK) * Dh + e);
                    kt_near(k, "rope", e, got, y[e], kt_eps(k->dt), 2e-6);
                }
            }
        }
        k->ops->qkv_rope(k->dev, T, &h, &rope, 1e-6f, qkv, qn, kn, pos, slot, q2, pool_k, pool_v);
        assert_memory_equal(q, q2, T * H * Dh * size);
        for (size_t t = 0; t < T; t++) {
            for (size_t i = 0; i < HK; i++) {
                size_t at = (((size_t)slot[t] / CLIME_PAGE * HK + i) * CLIME_PAGE + (size_t)slot[t] % CLIME_PAGE) * Dh;
                size_t row = (t * HK + i) * Dh;
                assert_memory_equal((char *)pool_k + at * size, (char *)kk + row * size, Dh * size);
                assert_memory_equal((char *)pool_v + at * size, (char *)v + row * size, Dh * size);
            }
        }
        void *all[] = {qkv, qn, kn, q, kk, v, q2, pool_k, pool_v};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
        free(cosines);
        free(sines);
    }
}

/* Backward: the derivative of sum(g . output) by central differences in float64. */
static void test_rope_bwd(struct kt *k) {
    for (size_t n = 0; n < CLIME_COUNT(ROPES); n++) {
        const struct rope_case *c = &ROPES[n];
        enum { T = 19 };
        size_t H = (size_t)c->H, HK = (size_t)c->HK, Dh = (size_t)c->Dh, W = (H + 2 * HK) * Dh;
        float *cosines = malloc(MAX_POS * Dh * 4), *sines = malloc(MAX_POS * Dh * 4);
        rope_table(c->rot, cosines, sines);
        struct clime_rope rope = {cosines, sines, MAX_POS, c->rot, c->interleaved};
        struct clime_heads h = {c->H, c->HK, c->Dh, 1};
        void *qkv = kt_random(k, T * W, 1), *norm[2] = {c->norm ? kt_random(k, Dh, 1) : NULL, NULL};
        norm[1] = c->norm ? kt_random(k, Dh, 1) : NULL;
        void *dq = kt_random(k, T * H * Dh, 1), *dk = kt_random(k, T * HK * Dh, 1), *dv = kt_random(k, T * HK * Dh, 1);
        void *dqkv = kt_room(k, T * W);
        float *dn[2] = {c->norm ? kt_random_f32(k, Dh, 1) : NULL, NULL};
        dn[1] = c->norm ? kt_random_f32(k, Dh, 1) : NULL;
        int32_t pos[T];
        for (int t = 0; t < T; t++) pos[t] = t * 13;
        double *want = malloc(T * W * sizeof *want), *want_n = calloc(2 * Dh, sizeof *want_n), x[128], y[128], g[128];
        for (size_t i = 0; c->norm && i < 2 * Dh; i++) want_n[i] = (double)dn[i / Dh][i % Dh];
        for (size_t t = 0; t < T; t++) {
            for (size_t i = 0; i < H + 2 * HK; i++) {
                const void *w = i < H ? norm[0] : norm[1];
                for (size_t e = 0; e < Dh; e++) {
                    x[e] = get(k, qkv, t * W + i * Dh + e);
                    g[e] = i < H        ? get(k, dq, (t * H + i) * Dh + e)
                           : i < H + HK ? get(k, dk, (t * HK + i - H) * Dh + e)
                                        : get(k, dv, (t * HK + i - H - HK) * Dh + e);
                }
                for (size_t e = 0; e < Dh; e++) {
                    if (i >= H + HK) {
                        want[t * W + i * Dh + e] = g[e];
                        continue;
                    }
                    double step = 1e-5, at = x[e], diff = 0;
                    x[e] = at + step;
                    head_ref(k, c, cosines, sines, pos[t], x, w, y);
                    for (size_t o = 0; o < Dh; o++) diff += g[o] * y[o];
                    x[e] = at - step;
                    head_ref(k, c, cosines, sines, pos[t], x, w, y);
                    for (size_t o = 0; o < Dh; o++) diff -= g[o] * y[o];
                    x[e] = at;
                    want[t * W + i * Dh + e] = diff / (2 * step);
                }
                if (!w || i >= H + HK) continue;
                double ss = 0;
                for (size_t e = 0; e < Dh; e++) ss += x[e] * x[e];
                double r = 1 / sqrt(ss / (double)Dh + 1e-6), back[128];
                size_t half = (size_t)c->rot / 2;
                memcpy(back, g, sizeof back);
                for (size_t e = 0; e < half; e++) {
                    size_t a = c->interleaved ? 2 * e : e, b = c->interleaved ? 2 * e + 1 : e + half;
                    double cs = (double)cosines[(size_t)pos[t] * half + e],
                           sn = (double)sines[(size_t)pos[t] * half + e];
                    back[a] = g[a] * cs + g[b] * sn;
                    back[b] = g[b] * cs - g[a] * sn;
                }
                for (size_t e = 0; e < Dh; e++) want_n[(i < H ? 0 : Dh) + e] += back[e] * x[e] * r;
            }
        }
        k->ops->qkv_rope_bwd(k->dev, T, &h, &rope, 1e-6f, qkv, norm[0], norm[1], pos, dq, dk, dv, dqkv, dn[0], dn[1]);
        kt_close_norm(k, "dqkv", dqkv, k->dt, want, T * W, kt_eps(k->dt) + 1e-6);
        if (c->norm) {
            kt_close_norm(k, "dq_norm", dn[0], CLIME_F32, want_n, Dh, 1e-5);
            kt_close_norm(k, "dk_norm", dn[1], CLIME_F32, want_n + Dh, Dh, 1e-5);
        }
        void *all[] = {qkv, norm[0], norm[1], dq, dk, dv, dqkv, dn[0], dn[1]};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
        free(want);
        free(want_n);
        free(cosines);
        free(sines);
    }
}

/* ---- SwiGLU ---------------------------------------------------------------------------------------------- */
static void test_swiglu(struct kt *k) {
    enum { T = 17, F = 172 };
    void *gu = kt_random(k, T * 2 * F, 4), *h = kt_room(k, T * F), *dh = kt_random(k, T * F, 1),
         *h1 = kt_room(k, T * F);
    size_t size = clime_dtype_bytes(k->dt);
    kt_set(gu, 0, k->dt, -200); /* the sigmoid's far ends */
    kt_set(gu, 1, k->dt, 200);
    k->ops->swiglu(k->dev, T, F, gu, h);
    double *want = malloc(2 * T * F * sizeof *want);
    for (size_t t = 0; t < T; t++) {
        for (size_t i = 0; i < F; i++) {
            double g = get(k, gu, t * 2 * F + i), u = get(k, gu, t * 2 * F + F + i), s = 1 / (1 + exp(-g));
            double d = get(k, dh, t * F + i);
            kt_near(k, "swiglu", t * F + i, get(k, h, t * F + i), g * s * u, kt_eps(k->dt) + 1e-6, 1e-30);
            want[t * 2 * F + i] = d * u * s * (1 + g * (1 - s));
            want[t * 2 * F + F + i] = d * g * s;
        }
        k->ops->swiglu(k->dev, 1, F, (char *)gu + t * 2 * F * size, (char *)h1 + t * F * size);
    }
    assert_memory_equal(h, h1, T * F * size);
    k->ops->swiglu_bwd(k->dev, T, F, gu, dh, gu);
    for (size_t i = 0; i < T * 2 * F; i++) kt_near(k, "dgu", i, get(k, gu, i), want[i], kt_eps(k->dt) + 1e-5, 1e-5);
    free(want);
    void *all[] = {gu, h, dh, h1};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
}

/* ---- rows by index --------------------------------------------------------------------------------------- */
static void test_embed(struct kt *k) {
    enum { T = 90, D = 300, V = 23 };
    void *table = kt_random(k, V * D, 1), *y = kt_room(k, T * D), *dy = kt_random(k, T * D, 1);
    float *dtable = kt_random_f32(k, V * D, 1), *ref = malloc(V * D * sizeof *ref);
    size_t size = clime_dtype_bytes(k->dt);
    int32_t ids[T];
    for (int t = 0; t < T; t++) ids[t] = (int32_t)clime_rng_below(&k->rng, V);
    k->ops->embed(k->dev, T, D, ids, table, y);
    memcpy(ref, dtable, V * D * sizeof *ref);
    for (size_t t = 0; t < T; t++) {
        assert_memory_equal((char *)y + t * D * size, (char *)table + (size_t)ids[t] * D * size, D * size);
        for (size_t i = 0; i < D; i++) ref[(size_t)ids[t] * D + i] += (float)get(k, dy, t * D + i);
    }
    k->ops->embed_bwd(k->dev, T, D, V, ids, dy, dtable);
    assert_memory_equal(dtable, ref, V * D * sizeof *ref); /* the order is part of the contract: exact */

    int32_t rows[5] = {3, 80, 0, 41, 7};
    void *x = kt_room(k, 5 * D), *back = kt_room(k, T * D);
    k->ops->gather(k->dev, 5, D, rows, y, x);
    k->ops->scatter(k->dev, T, 5, D, rows, x, back);
    for (size_t t = 0; t < T; t++) {
        bool in = false;
        for (int r = 0; r < 5; r++) in |= rows[r] == (int32_t)t;
        for (size_t i = 0; i < D; i++) {
            assert_true(get(k, back, t * D + i) == (in ? get(k, y, t * D + i) : 0));
        }
    }
    void *all[] = {table, y, dy, dtable, x, back};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
    free(ref);
}

#define EACH(name)                                                                                                     \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        kt_each(test_##name);                                                                                          \
    }
EACH(norm)
EACH(norm_bwd)
EACH(rope)
EACH(rope_bwd)
EACH(swiglu)
EACH(embed)

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(norm),     cmocka_unit_test(norm_bwd), cmocka_unit_test(rope),
                                       cmocka_unit_test(rope_bwd), cmocka_unit_test(swiglu),   cmocka_unit_test(embed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
