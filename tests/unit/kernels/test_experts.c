/* Experts: routers against float64 and by hand (ties, a bias that only chooses, groups, rows alone and in a batch,
 * NaN), their gradient by finite differences, the sorting of rows, grouped products against plain ones bit for bit, and
 * the sum of what comes back with its gradient. */
#include "kernels/checksum.h"
#include "tests/unit/kernels/kernel_test.h"

enum { T = 37, MAX_E = 40, MAX_K = 8 };

static const struct clime_router ROUTERS[] = {
    {.E = 8, .k = 2, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1},
    {.E = 37, .k = 8, .scale = 1, .n_groups = 1, .k_groups = 1},
    {.E = 5, .k = 5, .scale = 1, .n_groups = 1, .k_groups = 1},
    {.E = 16, .k = 4, .sigmoid = true, .renormalize = true, .scale = 2.5f, .n_groups = 4, .k_groups = 2},
    {.E = 40, .k = 6, .sigmoid = true, .renormalize = true, .scale = 1.8f, .n_groups = 1, .k_groups = 1},
    {.E = 7, .k = 3, .sigmoid = true, .scale = 1, .n_groups = 1, .k_groups = 1},
    {.E = 1, .k = 1, .sigmoid = true, .scale = 1, .n_groups = 1, .k_groups = 1},
};

struct routed {
    float scores[T * MAX_E], weights[T * MAX_K];
    int32_t ids[T * MAX_K];
};

/* ---- routers --------------------------------------------------------------------------------------------------- */

static double choice(const double *s, const double *bias, int e) {
    return s[e] + (bias ? bias[e] : 0);
}

/* By the definition: sort everything, best group first. bias [E] or NULL. */
static void route_ref(const struct clime_router *r, const float *x, const double *bias, double *s, int *ids,
                      double *w) {
    double most = -INFINITY, sum = 0, chosen = 0;
    int size = r->E / r->n_groups;
    bool in[MAX_E] = {0}, kept[MAX_E] = {0};
    for (int e = 0; e < r->E; e++) most = fmax(most, (double)x[e]);
    for (int e = 0; e < r->E; e++) sum += exp((double)x[e] - most);
    for (int e = 0; e < r->E; e++) s[e] = r->sigmoid ? 1 / (1 + exp(-(double)x[e])) : exp((double)x[e] - most) / sum;
    for (int g = 0; g < r->k_groups; g++) {
        int best = -1;
        double best_sum = 0;
        for (int c = 0; c < r->n_groups; c++) {
            double top[2] = {-INFINITY, -INFINITY};
            for (int e = c * size; e < (c + 1) * size; e++) {
                double v = choice(s, bias, e);
                if (v > top[0]) {
                    top[1] = top[0];
                    top[0] = v;
                } else if (v > top[1]) {
                    top[1] = v;
                }
            }
            if (kept[c] || (best >= 0 && !(top[0] + top[1] > best_sum))) continue;
            best = c;
            best_sum = top[0] + top[1];
        }
        kept[best] = true;
    }
    for (int i = 0; i < r->k; i++) {
        int best = -1;
        for (int e = 0; e < r->E; e++)
            if (!in[e] && kept[e / size] && (best < 0 || choice(s, bias, e) > choice(s, bias, best))) best = e;
        in[best] = true;
    }
    for (int e = 0, i = 0; e < r->E; e++) {
        if (!in[e]) continue;
        ids[i] = e;
        w[i++] = s[e];
        chosen += s[e];
    }
    for (int i = 0; i < r->k; i++) w[i] = (r->renormalize ? w[i] / chosen : w[i]) * (double)r->scale;
}

/* Weights of k experts that were not chosen by their scores. */
static void given_ref(const struct clime_router *r, const double *s, const int16_t *given, double *w) {
    double sum = 0;
    for (int i = 0; i < r->k; i++) sum += s[given[i]];
    for (int i = 0; i < r->k; i++) w[i] = (r->renormalize ? s[given[i]] / sum : s[given[i]]) * (double)r->scale;
}

/* k of E, ascending. */
static void random_choice(struct kt *k, const struct clime_router *r, int16_t *out) {
    int left = r->k;
    for (int e = 0; e < r->E; e++)
        if ((int)clime_rng_below(&k->rng, (uint64_t)(r->E - e)) < left) out[r->k - left--] = (int16_t)e;
}

static float *bias_floats(struct kt *k, int E, const double *bias) {
    float *b = kt_random_f32(k, (size_t)E, 1);
    for (int e = 0; e < E; e++) b[e] = (float)bias[e]; /* the CPU's memory */
    return b;
}

static void test_route(struct kt *k) {
    for (size_t c = 0; c < CLIME_COUNT(ROUTERS); c++) {
        for (int biased = 0; biased < 2; biased++) {
            const struct clime_router *r = &ROUTERS[c];
            size_t E = (size_t)r->E, K = (size_t)r->k;
            float *x = kt_random_f32(k, T * E, 1.5);
            double bias[MAX_E], s[MAX_E], w[MAX_K];
            int ids[MAX_K];
            struct routed got, one;
            for (size_t e = 0; e < E; e++) bias[e] = (double)(float)(clime_rng_normal(&k->rng) * 0.3);
            float *floats = bias_floats(k, r->E, bias);
            k->ops->route(k->dev, T, r, x, biased ? floats : NULL, NULL, got.scores, got.ids, got.weights, NULL);
            for (size_t t = 0; t < T; t++) {
                route_ref(r, x + t * E, biased ? bias : NULL, s, ids, w);
                for (size_t e = 0; e < E; e++) kt_near(k, "score", e, (double)got.scores[t * E + e], s[e], 1e-6, 1e-9);
                for (size_t i = 0; i < K; i++) {
                    assert_int_equal(got.ids[t * K + i], ids[i]);
                    kt_near(k, "weight", i, (double)got.weights[t * K + i], w[i], 3e-6, 0);
                }
                /* alone, and over its own logits: the same bits */
                float row[MAX_E];
                memcpy(row, x + t * E, E * 4);
                k->ops->route(k->dev, 1, r, row, biased ? floats : NULL, NULL, row, one.ids, one.weights, NULL);
                assert_memory_equal(row, got.scores + t * E, E * 4);
                assert_memory_equal(one.ids, got.ids + t * K, K * 4);
                assert_memory_equal(one.weights, got.weights + t * K, K * 4);
            }
            kt_free(k, floats);
            kt_free(k, x);
        }
    }
}

/* A row's own choice given to it: the same bits. Other experts: weights of their scores, whatever the bias is, and the
 * fold of them. Rows that are given none choose as ever, in the same call. */
static void test_given(struct kt *k) {
    for (size_t c = 0; c < CLIME_COUNT(ROUTERS); c++) {
        const struct clime_router *r = &ROUTERS[c];
        const size_t E = (size_t)r->E, K = (size_t)r->k;
        float *x = kt_random_f32(k, T * E, 1.5);
        double bias[MAX_E], s[MAX_E], w[MAX_K];
        int ids[MAX_K];
        struct routed own, got;
        int16_t same[T * MAX_K], given[T * MAX_K];
        uint32_t fold[T] = {0}, again[T] = {0};
        for (size_t e = 0; e < E; e++) bias[e] = (double)(float)(clime_rng_normal(&k->rng) * 0.3);
        float *floats = bias_floats(k, r->E, bias);
        k->ops->route(k->dev, T, r, x, floats, NULL, own.scores, own.ids, own.weights, fold);
        for (size_t i = 0; i < T * K; i++) same[i] = (int16_t)own.ids[i];
        k->ops->route(k->dev, T, r, x, floats, same, got.scores, got.ids, got.weights, again);
        assert_memory_equal(got.scores, own.scores, T * E * 4);
        assert_memory_equal(got.ids, own.ids, T * K * 4);
        assert_memory_equal(got.weights, own.weights, T * K * 4);
        assert_memory_equal(again, fold, sizeof fold);

        memset(again, 0, sizeof again);
        for (size_t t = 0; t < T; t++) {
            random_choice(k, r, given + t * K);
            if (t % 3 == 0) given[t * K] = -1;
        }
        k->ops->route(k->dev, T, r, x, floats, given, got.scores, got.ids, got.weights, again);
        assert_memory_equal(got.scores, own.scores, T * E * 4);
        for (size_t t = 0; t < T; t++) {
            uint32_t terms = 0;
            if (t % 3 == 0) {
                assert_memory_equal(got.ids + t * K, own.ids + t * K, K * 4);
                assert_memory_equal(got.weights + t * K, own.weights + t * K, K * 4);
                assert_int_equal(again[t], fold[t]);
                continue;
            }
            route_ref(r, x + t * E, bias, s, ids, w);
            given_ref(r, s, given + t * K, w);
            for (size_t i = 0; i < K; i++) {
                assert_int_equal(got.ids[t * K + i], given[t * K + i]);
                kt_near(k, "weight", i, (double)got.weights[t * K + i], w[i], 3e-6, 0);
                terms += clime_choice_term((uint32_t)given[t * K + i]);
            }
            assert_int_equal(again[t], clime_choice_fold(0, terms));
        }
        kt_free(k, floats);
        kt_free(k, x);
    }
}

/* What was chosen and nothing else, of this router and of those before it: rows with equal sets have equal folds,
 * others have others, however the weights differ. */
static void test_fold(struct kt *k) {
    const struct clime_router r = {.E = 8, .k = 2, .scale = 1, .n_groups = 1, .k_groups = 1};
    enum { ROWS = 5 };
    float x[ROWS * 8] = {0}, scores[ROWS * 8], weights[ROWS * 2];
    const int chosen[ROWS][2] = {{1, 6}, {1, 6}, {1, 7}, {0, 6}, {6, 1}};
    int32_t ids[ROWS * 2];
    uint32_t fold[ROWS] = {0}, again[ROWS] = {0}, swapped = 0;
    for (int t = 0; t < ROWS; t++)
        for (int i = 0; i < 2; i++) x[t * 8 + chosen[t][i]] = 1 + (float)t + (float)i;
    k->ops->route(k->dev, ROWS, &r, x, NULL, NULL, scores, ids, weights, fold);
    assert_true(fold[0] == fold[1] && fold[0] == fold[4] && fold[0] != 0);
    assert_true(fold[0] != fold[2] && fold[0] != fold[3] && fold[2] != fold[3]);
    memcpy(again, fold, sizeof again);
    k->ops->route(k->dev, ROWS, &r, x, NULL, NULL, scores, ids, weights, again); /* a second layer */
    assert_true(again[0] == again[4] && again[0] != fold[0] && again[0] != again[2]);
    k->ops->route(k->dev, 1, &r, x + 2 * 8, NULL, NULL, scores, ids, weights, &swapped);
    k->ops->route(k->dev, 1, &r, x, NULL, NULL, scores, ids, weights, &swapped);
    uint32_t in_order = fold[0];
    k->ops->route(k->dev, 1, &r, x + 2 * 8, NULL, NULL, scores, ids, weights, &in_order);
    assert_true(swapped != in_order); /* which layer chose what */
}

/* Equal scores: the lowest id; equal groups: the lowest group. Powers of two come out exactly. NaN: some choice. */
static void test_ties(struct kt *k) {
    const float equal[16] = {0}, some[16] = {1, 3, 3, 0, 3, 1, -1, 3}, bad[16] = {1, NAN, NAN, 2, NAN};
    struct clime_router soft = {.E = 8, .k = 2, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1};
    struct clime_router groups = {
        .E = 16, .k = 4, .sigmoid = true, .renormalize = true, .scale = 1, .n_groups = 4, .k_groups = 2};
    struct routed o;
    k->ops->route(k->dev, 1, &soft, equal, NULL, NULL, o.scores, o.ids, o.weights, NULL);
    assert_true(o.ids[0] == 0 && o.ids[1] == 1 && o.weights[0] == 0.5f && o.weights[1] == 0.5f);
    for (int e = 0; e < 8; e++) assert_true(o.scores[e] == 0.125f);
    k->ops->route(k->dev, 1, &soft, some, NULL, NULL, o.scores, o.ids, o.weights, NULL);
    assert_true(o.ids[0] == 1 && o.ids[1] == 2 && o.weights[0] == o.weights[1]);
    k->ops->route(k->dev, 1, &groups, equal, NULL, NULL, o.scores, o.ids, o.weights, NULL);
    for (int i = 0; i < 4; i++) assert_true(o.ids[i] == i && o.weights[i] == 0.25f);
    for (int i = 0; i < 2; i++) {
        const struct clime_router *r = i ? &groups : &soft;
        k->ops->route(k->dev, 1, r, bad, NULL, NULL, o.scores, o.ids, o.weights, NULL);
        for (int j = 0; j < r->k; j++)
            assert_true(o.ids[j] >= 0 && o.ids[j] < r->E && (j == 0 || o.ids[j] > o.ids[j - 1]));
    }
}

/* A bias changes who is chosen, and no weight of who is. A masked group's best expert stays out. */
static void test_bias_and_groups(struct kt *k) {
    const float x[8] = {0.5f, 0.4f, 0.3f, 0.2f, 3, -3, -3, -3};
    struct clime_router r = {
        .E = 8, .k = 2, .sigmoid = true, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1};
    double bias[8] = {0, 0, 0, (double)0.9f, 0, 0, 0, 0};
    struct routed plain, biased;
    float *floats = bias_floats(k, 8, bias);
    k->ops->route(k->dev, 1, &r, x, NULL, NULL, plain.scores, plain.ids, plain.weights, NULL);
    assert_true(plain.ids[0] == 0 && plain.ids[1] == 4);
    k->ops->route(k->dev, 1, &r, x, floats, NULL, biased.scores, biased.ids, biased.weights, NULL);
    assert_true(biased.ids[0] == 3 && biased.ids[1] == 4);
    float s3 = biased.scores[3], s4 = biased.scores[4];
    kt_near(k, "weight", 0, (double)biased.weights[0], (double)s3 / ((double)s3 + (double)s4), 1e-6, 0);
    r.n_groups = 2; /* 0-3: 0.62 + 0.60; 4-7: 0.95 + 0.05 */
    r.k_groups = 1;
    k->ops->route(k->dev, 1, &r, x, NULL, NULL, plain.scores, plain.ids, plain.weights, NULL);
    assert_true(plain.ids[0] == 0 && plain.ids[1] == 1);
    kt_free(k, floats);
}

static void test_route_bwd(struct kt *k) {
    for (size_t c = 0; c < CLIME_COUNT(ROUTERS); c++) {
        const struct clime_router *r = &ROUTERS[c];
        size_t E = (size_t)r->E, K = (size_t)r->k;
        float *x = kt_random_f32(k, T * E, 1), *dw = kt_random_f32(k, T * K, 1);
        void *dx = kt_room(k, T * E);
        double *want = xcalloc(T * E, sizeof *want);
        struct routed o;
        k->ops->route(k->dev, T, r, x, NULL, NULL, o.scores, o.ids, o.weights, NULL);
        for (size_t t = 0; t < T; t++) {
            for (size_t e = 0; e < E; e++) { /* the choice held, one logit moved both ways */
                for (int sign = -1; sign <= 1; sign += 2) {
                    double s[MAX_E], most = 0, sum = 0, chosen = 0;
                    for (size_t i = 0; i < E; i++) {
                        double v = (double)x[t * E + i] + (i == e ? sign * 1e-5 : 0);
                        s[i] = r->sigmoid ? 1 / (1 + exp(-v)) : exp(v - most);
                        sum += s[i];
                    }
                    for (size_t i = 0; i < E && !r->sigmoid; i++) s[i] /= sum;
                    for (size_t i = 0; i < K; i++) chosen += s[o.ids[t * K + i]];
                    for (size_t i = 0; i < K; i++) {
                        double w = s[o.ids[t * K + i]] / (r->renormalize ? chosen : 1) * (double)r->scale;
                        want[t * E + e] += sign * w * (double)dw[t * K + i] / 2e-5;
                    }
                }
            }
        }
        k->ops->route_bwd(k->dev, T, r, o.scores, o.ids, dw, dx);
        kt_close_norm(k, "dlogits", dx, k->dt, want, T * E, kt_eps(k->dt) + 2e-6);
        free(want);
        kt_free(k, x);
        kt_free(k, dw);
        kt_free(k, dx);
    }
}

/* ---- grouped products ------------------------------------------------------------------------------------------ */

struct sorted {
    int32_t start[MAX_E + 1], from[T * MAX_K], at[T * MAX_K];
};

/* Expert 1 gets no row, expert 2 every row, the others some. */
static void skewed(struct kt *k, const struct clime_router *r, int32_t *ids) {
    for (int t = 0; t < T; t++) {
        bool in[MAX_E] = {[2] = true};
        for (int n = 1; n < r->k;) {
            int e = (int)clime_rng_below(&k->rng, (uint64_t)r->E);
            if (e == 1 || in[e]) continue;
            in[e] = true;
            n++;
        }
        for (int e = 0, i = 0; e < r->E; e++)
            if (in[e]) ids[t * r->k + i++] = e;
    }
}

static void check_sorted(const struct clime_router *r, const int32_t *ids, const struct sorted *s) {
    assert_int_equal(s->start[0], 0);
    assert_int_equal(s->start[r->E], T * r->k);
    assert_int_equal(s->start[2], s->start[1]);
    assert_int_equal(s->start[3] - s->start[2], T);
    for (int t = 0; t < T; t++) {
        for (int j = 0; j < r->k; j++) {
            int e = ids[t * r->k + j], p = s->at[t * r->k + j];
            assert_true(p >= s->start[e] && p < s->start[e + 1] && s->from[p] == t);
            assert_true(p == s->start[e] || s->from[p - 1] < t);
        }
    }
}

/* Some neighbours alone, as a rank has them: their places are those of the whole, no other place is touched. want: of
 * all experts. */
static void check_neighbours(struct kt *k, const struct clime_matrix *all, int R, const struct sorted *s, const void *x,
                             const void *want) {
    const struct {
        int from, to;
    } of[] = {{0, 3}, {1, 2}, {2, 3}, {3, all->n_experts}}; /* the second has no row, the third all */
    size_t size = clime_dtype_bytes(k->dt), N = (size_t)all->N, F = N / 2, K = (size_t)all->K;
    size_t each = k->ops->pack_bytes(k->dev, all->N, all->K);
    char *untouched = kt_room(k, (size_t)R * (N + K)), *y = kt_room(k, (size_t)R * N), *in = kt_room(k, (size_t)R * K),
         *h = kt_room(k, (size_t)R * N), *gated = kt_room(k, (size_t)R * N), *gu = kt_room(k, (size_t)R * N);
    if (N % 2 == 0) k->ops->swiglu(k->dev, R, (int)F, want, gated); /* of the same products, of gathered rows */
    for (size_t i = 0; i < CLIME_COUNT(of); i++) {
        struct clime_matrix some = *all;
        const int32_t *start = s->start + of[i].from;
        size_t first = (size_t)start[0], end = (size_t)s->start[of[i].to];
        some.n_experts = of[i].to - of[i].from;
        some.data = (const char *)all->data + (size_t)of[i].from * N * K * size;
        if (all->packed) some.packed = (char *)all->packed + (size_t)of[i].from * each;
        memcpy(y, untouched, (size_t)R * N * size);
        k->ops->grouped_gemm(k->dev, R, start, x, &some, y);
        if (N % 2 == 0) { /* want is of gathered rows */
            memcpy(h, untouched, (size_t)R * F * size);
            k->ops->grouped_swiglu(k->dev, R, start, s->from, x, &some, in, gu, h);
            assert_memory_equal(h + first * F * size, gated + first * F * size, (end - first) * F * size);
            assert_memory_equal(h, untouched, first * F * size);
            assert_memory_equal(h + end * F * size, untouched, ((size_t)R - end) * F * size);
            k->ops->grouped_gemm(k->dev, R, start, in, &some, y);
        }
        assert_memory_equal(y + first * N * size, (const char *)want + first * N * size, (end - first) * N * size);
        assert_memory_equal(y, untouched, first * N * size);
        assert_memory_equal(y + end * N * size, untouched, ((size_t)R - end) * N * size);
    }
    void *used[] = {untouched, y, in, h, gated, gu};
    for (size_t i = 0; i < CLIME_COUNT(used); i++) kt_free(k, used[i]);
}

/* Some experts are kept elsewhere: where the others lie these are NaN. y, dx: of all in one place. */
static void check_kept(struct kt *k, const struct clime_matrix *all, int R, const struct sorted *s, const void *x,
                       const void *y, const void *dy, const void *dx) {
    const size_t size = clime_dtype_bytes(k->dt), N = (size_t)all->N, K = (size_t)all->K, each = N * K * size;
    const struct { int from, to; } of[] = {{0, 2}, {1, all->n_experts - 1}, {0, all->n_experts}};
    char *others = kt_room(k, (size_t)all->n_experts * N * K), *got = kt_room(k, (size_t)R * (N > K ? N : K));
    for (size_t i = 0; i < CLIME_COUNT(of); i++) {
        const size_t from = (size_t)of[i].from, to = (size_t)of[i].to;
        struct clime_matrix w = {.N = all->N, .K = all->K, .data = others, .n_experts = all->n_experts};
        w.kept.data = (const char *)all->data + from * each;
        w.kept.from = of[i].from;
        w.kept.to = of[i].to;
        memcpy(others, all->data, (size_t)all->n_experts * each);
        memset(others + from * each, 0xff, (to - from) * each);
        k->ops->grouped_gemm(k->dev, R, s->start, x, &w, got);
        assert_memory_equal(got, y, (size_t)R * N * size);
        k->ops->grouped_dx(k->dev, R, s->start, dy, &w, got);
        assert_memory_equal(got, dx, (size_t)R * K * size);
    }
    kt_free(k, others);
    kt_free(k, got);
}

static void test_grouped(struct kt *k) {
    const struct {
        struct clime_router r;
        int N, K;
    } cases[] = {{{.E = 6, .k = 2}, 40, 24}, {{.E = 9, .k = 3}, 19, 33}};
    for (size_t c = 0; c < CLIME_COUNT(cases); c++) {
        const struct clime_router *r = &cases[c].r;
        size_t N = (size_t)cases[c].N, K = (size_t)cases[c].K, E = (size_t)r->E, R = (size_t)(T * r->k);
        size_t size = clime_dtype_bytes(k->dt), each = k->ops->pack_bytes(k->dev, cases[c].N, cases[c].K);
        int32_t ids[T * MAX_K];
        struct sorted s;
        skewed(k, r, ids);
        k->ops->permute(k->dev, T, r, ids, s.start, s.from, s.at);
        check_sorted(r, ids, &s);
        char *data = kt_random(k, E * N * K, 1), *packed = kt_alloc(k, E * each);
        void *x = kt_random(k, R * K, 1), *dy = kt_random(k, R * N, 1);
        char *y = kt_room(k, R * N), *y1 = kt_room(k, R * N), *dx = kt_room(k, R * K), *dx1 = kt_room(k, R * K);
        float *dw = kt_random_f32(k, E * N * K, 1), *dw1 = kt_alloc(k, E * N * K * 4);
        memcpy(dw1, dw, E * N * K * 4);
        struct clime_matrix all = {.N = cases[c].N, .K = cases[c].K, .data = data, .n_experts = r->E};
        for (int with_packed = 0; with_packed < 2; with_packed++) {
            for (size_t e = 0; e < E; e++) {
                size_t row = (size_t)s.start[e], n = (size_t)s.start[e + 1] - row;
                struct clime_matrix w = {.N = all.N, .K = all.K, .data = data + e * N * K * size};
                if (with_packed) {
                    w.packed = packed + e * each;
                    k->ops->pack(k->dev, &w);
                }
                for (size_t i = row; i < row + n; i++) { /* row by row: nothing of an expert's other rows */
                    k->ops->gemm(k->dev, k->dt, 1, (char *)x + i * K * size, &w, y1 + i * N * size);
                    k->ops->gemm_dx(k->dev, 1, (char *)dy + i * N * size, &w, dx1 + i * K * size);
                }
                if (!with_packed)
                    k->ops->gemm_dw(k->dev, (int)n, all.N, all.K, (char *)dy + row * N * size,
                                    (char *)x + row * K * size, true, dw1 + e * N * K);
            }
            if (with_packed) all.packed = packed;
            k->ops->grouped_gemm(k->dev, (int)R, s.start, x, &all, y);
            assert_memory_equal(y, y1, R * N * size);
        }
        check_kept(k, &all, (int)R, &s, x, y1, dy, dx1);
        if (N % 2 == 0) { /* gathered, multiplied and gated at once */
            size_t F = N / 2;
            void *h = kt_room(k, R * F), *h1 = kt_room(k, R * F), *in = kt_room(k, R * K);
            k->ops->gather(k->dev, (int)R, cases[c].K, s.from, x, in);
            k->ops->grouped_gemm(k->dev, (int)R, s.start, in, &all, y1);
            k->ops->swiglu(k->dev, (int)R, (int)F, y1, h1);
            k->ops->grouped_swiglu(k->dev, (int)R, s.start, s.from, x, &all, in, y, h);
            assert_memory_equal(y, y1, R * N * size);
            assert_memory_equal(h, h1, R * F * size);
            void *gated[] = {h, h1, in};
            for (size_t i = 0; i < CLIME_COUNT(gated); i++) kt_free(k, gated[i]);
        }
        check_neighbours(k, &all, (int)R, &s, x, y1);
        k->ops->grouped_dx(k->dev, (int)R, s.start, dy, &all, dx);
        assert_memory_equal(dx, dx1, R * K * size);
        k->ops->grouped_dw(k->dev, (int)R, s.start, &all, dy, x, true, dw);
        assert_memory_equal(dw, dw1, E * N * K * 4);
        k->ops->zero(k->dev, dw1, E * N * K * 4); /* written: as if it was added to zeros, whatever was there */
        k->ops->grouped_dw(k->dev, (int)R, s.start, &all, dy, x, true, dw1);
        k->ops->grouped_dw(k->dev, (int)R, s.start, &all, dy, x, false, dw);
        for (size_t i = 0; i < E * N * K; i++) assert_true(dw[i] == dw1[i]); /* but for the sign of a zero */
        void *used[] = {data, packed, x, dy, y, y1, dx, dx1, dw, dw1};
        for (size_t i = 0; i < CLIME_COUNT(used); i++) kt_free(k, used[i]);
    }
}

/* ---- sums ------------------------------------------------------------------------------------------------------ */

static void test_combine(struct kt *k) {
    enum { D = 45, K = 3 };
    const struct clime_router r = {.E = 9, .k = K};
    const size_t size = clime_dtype_bytes(k->dt);
    int32_t ids[T * MAX_K];
    struct sorted s;
    skewed(k, &r, ids);
    k->ops->permute(k->dev, T, &r, ids, s.start, s.from, s.at);
    void *x = kt_random(k, T * K * D, 1), *last = kt_random(k, T * D, 1), *y = kt_room(k, T * D), *one = kt_room(k, D);
    float *w = kt_random_f32(k, T * K, 1), *lw = kt_random_f32(k, T, 1);
    for (int with = 0; with < 4; with++) { /* nothing but rows; weights; and the last; and its weight */
        k->ops->combine(k->dev, T, D, K, s.at, with > 0 ? w : NULL, x, with > 1 ? last : NULL, with > 2 ? lw : NULL, y);
        for (size_t t = 0; t < T; t++) {
            for (size_t i = 0; i < D; i++) {
                double sum = 0, abs = 0;
                for (size_t j = 0; j < K; j++) {
                    double v =
                        kt_get(x, (size_t)s.at[t * K + j] * D + i, k->dt) * (with > 0 ? (double)w[t * K + j] : 1);
                    sum += v;
                    abs += fabs(v);
                }
                if (with > 1) sum += kt_get(last, t * D + i, k->dt) * (with > 2 ? (double)lw[t] : 1);
                kt_near(k, "sum", i, kt_get(y, t * D + i, k->dt), sum, kt_eps(k->dt), 1e-6 * (abs + 1));
            }
        }
        k->ops->combine(k->dev, 1, D, K, s.at + 5 * K, with > 0 ? w + 5 * K : NULL, x,
                        with > 1 ? (char *)last + 5 * D * size : NULL, with > 2 ? lw + 5 : NULL, one);
        assert_memory_equal(one, (char *)y + 5 * D * size, D * size); /* a row alone */
    }
    void *alias = kt_room(k, T * D);
    memcpy(alias, last, T * D * size);
    k->ops->combine(k->dev, T, D, K, s.at, w, x, alias, lw, alias);
    assert_memory_equal(alias, y, T * D * size);
    void *all[] = {x, last, y, one, w, lw, alias};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
}

static void test_combine_bwd(struct kt *k) {
    enum { F = 29, K = 3 };
    const struct clime_router r = {.E = 9, .k = K};
    int32_t ids[T * MAX_K];
    struct sorted s;
    skewed(k, &r, ids);
    k->ops->permute(k->dev, T, &r, ids, s.start, s.from, s.at);
    for (int rows = 0; rows < 2; rows++) { /* of experts in their places; of one that has all rows */
        size_t n = rows ? 1 : K;
        void *dh = kt_random(k, T * n * F, 1), *h = kt_random(k, T * n * F, 1);
        float *w = kt_random_f32(k, T * n, 1), *dw = kt_alloc(k, T * n * 4);
        double *before = xcalloc(2 * T * n * F, sizeof *before);
        for (size_t i = 0; i < T * n * F; i++) {
            before[i] = kt_get(dh, i, k->dt);
            before[T * n * F + i] = kt_get(h, i, k->dt);
        }
        k->ops->combine_bwd(k->dev, T, F, (int)n, rows ? NULL : s.at, w, dh, h, dw);
        for (size_t i = 0; i < T * n; i++) {
            size_t p = rows ? i : (size_t)s.at[i];
            double dot = 0;
            for (size_t c = 0; c < F; c++) {
                double a = before[p * F + c], b = before[(T * n + p) * F + c];
                dot += a * b;
                kt_near(k, "dh", c, kt_get(dh, p * F + c, k->dt), a * (double)w[i], kt_eps(k->dt), 1e-30);
                kt_near(k, "h", c, kt_get(h, p * F + c, k->dt), b * (double)w[i], kt_eps(k->dt), 1e-30);
            }
            kt_near(k, "dweight", i, (double)dw[i], dot, 1e-5, 1e-5);
        }
        free(before);
        void *all[] = {dh, h, w, dw};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
    }
}

#define EACH(name)                                                                                                     \
    static void each_##name(void **state) {                                                                            \
        (void)state;                                                                                                   \
        kt_each(test_##name);                                                                                          \
    }
EACH(route)
EACH(given)
EACH(ties)
EACH(bias_and_groups)
EACH(route_bwd)
EACH(grouped)
EACH(combine)
EACH(combine_bwd)
EACH(fold)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_route),       cmocka_unit_test(each_ties),    cmocka_unit_test(each_bias_and_groups),
        cmocka_unit_test(each_route_bwd),   cmocka_unit_test(each_grouped), cmocka_unit_test(each_combine),
        cmocka_unit_test(each_combine_bwd), cmocka_unit_test(each_fold),    cmocka_unit_test(each_given)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
