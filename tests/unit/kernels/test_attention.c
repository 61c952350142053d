/* Attention against float64; bits of paged and packed, of chunks cut anywhere, of rows alone; the backward pass. */
#include "tests/unit/kernels/kernel_test.h"

struct shape {
    int H, HK, Dh;
};
static const struct shape SHAPES[] = {{4, 4, 8}, {4, 2, 64}, {6, 2, 40}, {8, 1, 128}};
static const int32_t STARTS[] = {0, 1, 6, 76, 140, 339}; /* sequences of 1, 5, 70, 64 and 199 */
enum { N_SEQ = 5, ROWS = 339 };

struct batch {
    struct clime_heads h;
    void *q, *k, *v, *out;
    float *lse;
    size_t nq, nk; /* elements */
};

static void batch_open(struct kt *k, const struct shape *s, struct batch *b) {
    b->h = (struct clime_heads){s->H, s->HK, s->Dh, 1.0f / sqrtf((float)s->Dh)};
    b->nq = ROWS * (size_t)(s->H * s->Dh);
    b->nk = ROWS * (size_t)(s->HK * s->Dh);
    b->q = kt_random(k, b->nq, 1.5);
    b->k = kt_random(k, b->nk, 1.5);
    b->v = kt_random(k, b->nk, 1);
    b->out = kt_room(k, b->nq);
    b->lse = kt_alloc(k, ROWS * (size_t)s->H * sizeof(float));
}

static void batch_close(struct kt *k, struct batch *b) {
    void *all[] = {b->q, b->k, b->v, b->out, b->lse};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
}

static struct clime_attn packed_context(void) {
    return (struct clime_attn){.n_seq = N_SEQ, .q_start = STARTS, .h_q_start = STARTS, .max_len = 199};
}

/* Softmax of one row in float64: w[key] over its sequence; returns the log-sum-exp. */
static double weights_ref(struct kt *k, const struct batch *b, int row0, int row, int head, double *w) {
    int G = b->h.H / b->h.HK, Dh = b->h.Dh;
    double max = -1e300, sum = 0;
    for (int j = row0; j <= row; j++) {
        double s = 0;
        for (int e = 0; e < Dh; e++) {
            s += kt_get(b->q, (size_t)((row * b->h.H + head) * Dh + e), k->dt) *
                 kt_get(b->k, (size_t)((j * b->h.HK + head / G) * Dh + e), k->dt);
        }
        w[j - row0] = s * (double)b->h.scale;
        max = fmax(max, w[j - row0]);
    }
    for (int j = row0; j <= row; j++) sum += w[j - row0] = exp(w[j - row0] - max);
    for (int j = row0; j <= row; j++) w[j - row0] /= sum;
    return max + log(sum);
}

static void test_values(struct kt *k) {
    for (size_t c = 0; c < CLIME_COUNT(SHAPES); c++) {
        struct batch b;
        batch_open(k, &SHAPES[c], &b);
        struct clime_attn a = packed_context();
        k->ops->attn(k->dev, &b.h, ROWS, &a, b.q, b.k, b.v, b.out, b.lse);
        int H = b.h.H, HK = b.h.HK, Dh = b.h.Dh, G = H / HK;
        double *want = calloc(b.nq, sizeof *want), w[256];
        for (int s = 0; s < N_SEQ; s++) {
            for (int t = STARTS[s]; t < STARTS[s + 1]; t++) {
                for (int i = 0; i < H; i++) {
                    double lse = weights_ref(k, &b, STARTS[s], t, i, w);
                    kt_near(k, "lse", (size_t)(t * H + i), (double)b.lse[t * H + i], lse, 2e-6, 2e-5);
                    for (int j = STARTS[s]; j <= t; j++) {
                        for (int e = 0; e < Dh; e++) {
                            want[(t * H + i) * Dh + e] +=
                                w[j - STARTS[s]] * kt_get(b.v, (size_t)((j * HK + i / G) * Dh + e), k->dt);
                        }
                    }
                }
            }
        }
        kt_close_norm(k, "out", b.out, k->dt, want, b.nq, kt_eps(k->dt) + 1e-5);
        free(want);
        batch_close(k, &b);
    }
}

/* The sequence of 199 again, through pages in scattered order, cut at every kind of place; the pool's other slots hold
 * NaN, and so do keys that a later chunk has not written yet. */
static void test_paged(struct kt *k) {
    static const int CUTS[][5] = {{199, 0}, {1, 199, 0}, {64, 199, 0}, {63, 65, 199, 0}, {100, 101, 102, 199, 0}};
    for (size_t c = 0; c < CLIME_COUNT(SHAPES); c++) {
        struct batch b;
        batch_open(k, &SHAPES[c], &b);
        struct clime_attn a = packed_context();
        k->ops->attn(k->dev, &b.h, ROWS, &a, b.q, b.k, b.v, b.out, b.lse);
        size_t H = (size_t)b.h.H, HK = (size_t)b.h.HK, Dh = (size_t)b.h.Dh, size = clime_dtype_bytes(k->dt);
        enum { PAGES = 9, FIRST = 140, LEN = 199 };
        size_t pool = PAGES * HK * CLIME_PAGE * Dh;
        static const int32_t table[2][6] = {{0, 0, 0, 0, 0, 0}, {7, 2, 8, 4, 0, 0}};
        void *out = kt_room(k, b.nq);
        float *lse = kt_alloc(k, ROWS * H * sizeof *lse);
        for (size_t n = 0; n < CLIME_COUNT(CUTS) + 1; n++) {
            void *pk = kt_room(k, pool), *pv = kt_room(k, pool);
            int from = 0;
            for (int cut = 0; from < LEN; cut++) {
                /* the last round decodes row by row */
                int to = n < CLIME_COUNT(CUTS) ? CUTS[n][cut] : from + 1;
                for (int t = from; t < to; t++) {
                    for (size_t i = 0; i < HK; i++) {
                        size_t page = (size_t)table[1][t / CLIME_PAGE];
                        size_t at = ((page * HK + i) * CLIME_PAGE + (size_t)t % CLIME_PAGE) * Dh;
                        size_t row = ((size_t)(FIRST + t) * HK + i) * Dh;
                        memcpy((char *)pk + at * size, (char *)b.k + row * size, Dh * size);
                        memcpy((char *)pv + at * size, (char *)b.v + row * size, Dh * size);
                    }
                }
                /* an empty sequence before it in the batch */
                int32_t q_start[3] = {0, 0, to - from}, pos0[2] = {0, from};
                struct clime_attn p = {.n_seq = 2,
                                       .q_start = q_start,
                                       .h_q_start = q_start,
                                       .pos0 = pos0,
                                       .h_pos0 = pos0,
                                       .page_table = &table[0][0],
                                       .max_pages = 6,
                                       .max_len = to};
                k->ops->attn(k->dev, &b.h, to - from, &p, (char *)b.q + (size_t)(FIRST + from) * H * Dh * size, pk, pv,
                             (char *)out + (size_t)from * H * Dh * size, lse + (size_t)from * H);
                from = to;
            }
            assert_memory_equal(out, (char *)b.out + FIRST * H * Dh * size, LEN * H * Dh * size);
            assert_memory_equal(lse, b.lse + FIRST * H, LEN * H * sizeof *lse);
            kt_free(k, pk);
            kt_free(k, pv);
        }
        kt_free(k, out);
        kt_free(k, lse);
        batch_close(k, &b);
    }
}

/* A NaN in a key or value of a later position leaves earlier rows alone. */
static void test_causal(struct kt *k) {
    struct batch b;
    batch_open(k, &SHAPES[1], &b);
    struct clime_attn a = packed_context();
    void *out = kt_room(k, b.nq);
    size_t HK = (size_t)b.h.HK, Dh = (size_t)b.h.Dh, row = (size_t)(b.h.H * b.h.Dh) * clime_dtype_bytes(k->dt);
    k->ops->attn(k->dev, &b.h, ROWS, &a, b.q, b.k, b.v, b.out, NULL);
    for (size_t e = 0; e < HK * Dh; e++) {
        kt_set(b.k, 300 * HK * Dh + e, k->dt, NAN);
        kt_set(b.v, 300 * HK * Dh + e, k->dt, NAN);
    }
    k->ops->attn(k->dev, &b.h, ROWS, &a, b.q, b.k, b.v, out, NULL);
    assert_memory_equal(out, b.out, 300 * row);
    assert_true(isnan(kt_get(out, b.nq - 1, k->dt)));
    kt_free(k, out);
    batch_close(k, &b);
}

static void test_backward(struct kt *k) {
    for (size_t c = 0; c < CLIME_COUNT(SHAPES); c++) {
        struct batch b;
        batch_open(k, &SHAPES[c], &b);
        struct clime_attn a = packed_context();
        int H = b.h.H, HK = b.h.HK, Dh = b.h.Dh, G = H / HK;
        k->ops->attn(k->dev, &b.h, ROWS, &a, b.q, b.k, b.v, b.out, b.lse);
        void *dout = kt_random(k, b.nq, 1), *dq = kt_room(k, b.nq), *dk = kt_room(k, b.nk), *dv = kt_room(k, b.nk);
        double *wq = calloc(b.nq, sizeof *wq), *wk = calloc(b.nk, sizeof *wk), *wv = calloc(b.nk, sizeof *wv), w[256];
        for (int s = 0; s < N_SEQ; s++) {
            for (int t = STARTS[s]; t < STARTS[s + 1]; t++) {
                for (int i = 0; i < H; i++) {
                    size_t q = (size_t)((t * H + i) * Dh);
                    double dp[256], delta = 0;
                    weights_ref(k, &b, STARTS[s], t, i, w);
                    for (int j = STARTS[s]; j <= t; j++) {
                        size_t kv = (size_t)((j * HK + i / G) * Dh);
                        double *p = &dp[j - STARTS[s]];
                        *p = 0;
                        for (size_t e = 0; e < (size_t)Dh; e++) {
                            *p += kt_get(dout, q + e, k->dt) * kt_get(b.v, kv + e, k->dt);
                            wv[kv + e] += w[j - STARTS[s]] * kt_get(dout, q + e, k->dt);
                        }
                        delta += *p * w[j - STARTS[s]];
                    }
                    for (int j = STARTS[s]; j <= t; j++) {
                        size_t kv = (size_t)((j * HK + i / G) * Dh);
                        double ds = w[j - STARTS[s]] * (dp[j - STARTS[s]] - delta) * (double)b.h.scale;
                        for (size_t e = 0; e < (size_t)Dh; e++) {
                            wq[q + e] += ds * kt_get(b.k, kv + e, k->dt);
                            wk[kv + e] += ds * kt_get(b.q, q + e, k->dt);
                        }
                    }
                }
            }
        }
        double limit = k->dt == CLIME_BF16 ? 0.006 : 1e-5;
        for (int common = 0; common < 2; common++) {
            b.h.common_keys = common;
            k->ops->attn_bwd(k->dev, &b.h, ROWS, &a, b.q, b.k, b.v, b.out, b.lse, dout, dq, dk, dv);
            kt_close_norm(k, "dq", dq, k->dt, wq, b.nq, limit);
            kt_close_norm(k, "dk", dk, k->dt, wk, b.nk, limit);
            kt_close_norm(k, "dv", dv, k->dt, wv, b.nk, limit);
        }
        void *all[] = {dout, dq, dk, dv};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
        free(wq);
        free(wk);
        free(wv);
        batch_close(k, &b);
    }
}

/* Forward and backward with 1, 2 and 3 threads: the same bits. */
static void threads(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(KT_ISAS); i++) {
        for (int dt = 0; dt < 2; dt++) {
            void *first[4] = {NULL, NULL, NULL, NULL};
            for (int n = 1; n <= 3; n++) {
                struct kt k;
                if (!kt_open(&k, KT_ISAS[i], (enum clime_dtype)dt, n)) continue;
                struct batch b;
                batch_open(&k, &SHAPES[1], &b);
                struct clime_attn a = packed_context();
                void *dout = kt_random(&k, b.nq, 1);
                void *out[4] = {b.out, kt_room(&k, b.nq), kt_room(&k, b.nk), kt_room(&k, b.nk)};
                size_t bytes[4] = {b.nq, b.nq, b.nk, b.nk};
                k.ops->attn(k.dev, &b.h, ROWS, &a, b.q, b.k, b.v, b.out, b.lse);
                k.ops->attn_bwd(k.dev, &b.h, ROWS, &a, b.q, b.k, b.v, b.out, b.lse, dout, out[1], out[2], out[3]);
                for (int o = 0; o < 4; o++) {
                    bytes[o] *= clime_dtype_bytes(k.dt);
                    if (n == 1) {
                        first[o] = malloc(bytes[o]);
                        memcpy(first[o], out[o], bytes[o]);
                    }
                    assert_memory_equal(out[o], first[o], bytes[o]);
                    if (o > 0) kt_free(&k, out[o]);
                }
                kt_free(&k, dout);
                batch_close(&k, &b);
                kt_close(&k);
            }
            for (int o = 0; o < 4; o++) free(first[o]);
        }
    }
}

#define EACH(name)                                                                                                     \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        kt_each(test_##name);                                                                                          \
    }
EACH(values)
EACH(paged)
EACH(causal)
EACH(backward)

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(paged), cmocka_unit_test(causal),
                                       cmocka_unit_test(backward), cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
