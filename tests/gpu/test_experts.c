/* Experts on the GPU: routers, sorting and sums against the CPU table; grouped products bit for bit against products of
 * each expert's rows, at every kind of load and at real widths; NaN of one expert, which no other sees; a recorded
 * step, which follows what is chosen when it is replayed. */
#include "tests/gpu/gpu_test.h"

#define BF16_NEAR 6e-3
#define F32_NEAR 2e-5

/* ---- routers ---- */

static const struct clime_router ROUTERS[] = {
    {.E = 128, .k = 8, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1},
    {.E = 64, .k = 6, .sigmoid = true, .renormalize = true, .scale = 2.446f, .n_groups = 1, .k_groups = 1},
    {.E = 256, .k = 8, .sigmoid = true, .renormalize = true, .scale = 2.5f, .n_groups = 8, .k_groups = 4},
    {.E = 60, .k = 4, .scale = 1, .n_groups = 1, .k_groups = 1},
    {.E = 37, .k = 8, .sigmoid = true, .scale = 1, .n_groups = 1, .k_groups = 1},
    {.E = 5, .k = 5, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1},
    {.E = 16, .k = 4, .sigmoid = true, .renormalize = true, .scale = 1, .n_groups = 4, .k_groups = 2},
    {.E = CLIME_MAX_EXPERTS, .k = 10, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1},
    {.E = 1, .k = 1, .sigmoid = true, .scale = 1, .n_groups = 1, .k_groups = 1},
};

static void same_ints(struct gpu_test *t, const char *what, const struct both *b, size_t n) {
    int32_t *h = fetch(t, b->gpu, n * 4);
    size_t differ = 0, first = 0;
    for (size_t i = 0; i < n; i++)
        if (h[i] != ((int32_t *)b->cpu)[i] && differ++ == 0) first = i;
    char text[96];
    snprintf(text, sizeof text, "%zu of %zu differ, the first at %zu", differ, n, first);
    check(t, differ == 0, what, text);
    free(h);
}

static void test_route(struct gpu_test *t) {
    enum { T = 203 };
    for (size_t c = 0; c < CLIME_COUNT(ROUTERS); c++) {
        const struct clime_router *r = &ROUTERS[c];
        size_t E = (size_t)r->E, K = (size_t)r->k;
        printf("router of %d, %d chosen\n", r->E, r->k);
        struct both x = both_random(t, T * E, CLIME_F32, 1.5), bias = both_random(t, E, CLIME_F32, 0.2),
                    scores = both_room(t, T * E, CLIME_F32), ids = both_room(t, T * K, CLIME_F32),
                    w = both_room(t, T * K, CLIME_F32), one = both_room(t, T * E, CLIME_F32),
                    one_ids = both_room(t, T * K, CLIME_F32), one_w = both_room(t, T * K, CLIME_F32),
                    fold = both_room(t, T, CLIME_F32), one_fold = both_room(t, T, CLIME_F32),
                    dw = both_random(t, T * K, CLIME_F32, 1), dx = both_room(t, T * E, CLIME_BF16);
        for (int biased = 0; biased < 2; biased++) {
            BOTH(t, zero, AT(fold), T * 4);
            BOTH(t, route, T, r, AT(x), biased ? AT(bias) : NULL, NULL, AT(scores), AT(ids), AT(w), AT(fold));
            same_ints(t, "folds", &fold, T);
            near_norm(t, "scores", &scores, F32_NEAR);
            same_ints(t, biased ? "ids, with a bias" : "ids", &ids, T * K);
            near_norm(t, "weights", &w, F32_NEAR);
        }
        const struct clime_ops *ops = t->gpu.ops;
        ops->copy(t->gpu.dev, one.gpu, x.gpu, T * E * 4);
        ops->zero(t->gpu.dev, one_fold.gpu, T * 4);
        for (size_t row = 0; row < T; row++) /* alone, and over its logits */
            ops->route(t->gpu.dev, 1, r, (float *)one.gpu + row * E, bias.gpu, NULL, (float *)one.gpu + row * E,
                       (int32_t *)one_ids.gpu + row * K, (float *)one_w.gpu + row * K, (uint32_t *)one_fold.gpu + row);
        same_bits(t, "scores of a row alone", scores.gpu, one.gpu, T * E * 4);
        same_bits(t, "ids of a row alone", ids.gpu, one_ids.gpu, T * K * 4);
        same_bits(t, "weights of a row alone", w.gpu, one_w.gpu, T * K * 4);
        same_bits(t, "folds of a row alone", fold.gpu, one_fold.gpu, T * 4);
        BOTH(t, route_bwd, T, r, AT(scores), AT(ids), AT(dw), AT(dx));
        near_norm(t, "route_bwd", &dx, BF16_NEAR);
        struct both *all[] = {&x, &bias, &scores, &ids, &w, &one, &one_ids, &one_w, &dw, &dx};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

/* Two rows of three are given experts: ids and folds as on the CPU, weights of their scores; the third chooses as if
 * nobody were given any, and a row's own choice that is given to it gives the bits of that. */
static void test_given(struct gpu_test *t) {
    enum { T = 203 };
    for (size_t c = 0; c < CLIME_COUNT(ROUTERS); c++) {
        const struct clime_router *r = &ROUTERS[c];
        const size_t E = (size_t)r->E, K = (size_t)r->k;
        const struct clime_ops *ops = t->gpu.ops;
        printf("given, router of %d, %d chosen\n", r->E, r->k);
        struct both x = both_random(t, T * E, CLIME_F32, 1.5), bias = both_random(t, E, CLIME_F32, 0.2),
                    scores = both_room(t, T * E, CLIME_F32), ids = both_room(t, T * K, CLIME_F32),
                    w = both_room(t, T * K, CLIME_F32), fold = both_room(t, T, CLIME_F32),
                    given = both_room(t, T * K, CLIME_BF16), dw = both_random(t, T * K, CLIME_F32, 1),
                    dx = both_room(t, T * E, CLIME_BF16), own = both_room(t, T * K, CLIME_F32),
                    own_w = both_room(t, T * K, CLIME_F32), own_fold = both_room(t, T, CLIME_F32);
        int16_t *choice = given.cpu;
        for (size_t row = 0; row < T; row++) {
            int left = r->k;
            for (int e = 0; e < r->E; e++) /* the first ones that it must, then every other */
                if (left > 0 && (r->E - e <= left || (e + (int)row) % 2))
                    choice[row * K + K - (size_t)left--] = (int16_t)e;
            if (row % 3 == 0) choice[row * K] = -1;
        }
        ops->copy_in(t->gpu.dev, given.gpu, choice, T * K * sizeof *choice);
        BOTH(t, zero, AT(fold), T * 4);
        BOTH(t, route, T, r, AT(x), AT(bias), AT(given), AT(scores), AT(ids), AT(w), AT(fold));
        same_ints(t, "ids, given", &ids, T * K);
        same_ints(t, "folds, given", &fold, T);
        near_norm(t, "weights, given", &w, F32_NEAR);
        BOTH(t, route_bwd, T, r, AT(scores), AT(ids), AT(dw), AT(dx));
        near_norm(t, "route_bwd, given", &dx, BF16_NEAR);

        ops->zero(t->gpu.dev, own_fold.gpu, T * 4);
        ops->route(t->gpu.dev, T, r, x.gpu, bias.gpu, NULL, scores.gpu, own.gpu, own_w.gpu, own_fold.gpu);
        for (size_t row = 0; row < T; row += 3)
            same_bits(t, "weights of a row that is given none", (float *)w.gpu + row * K, (float *)own_w.gpu + row * K,
                      K * 4);
        int32_t *chosen = fetch(t, own.gpu, T * K * 4);
        for (size_t i = 0; i < T * K; i++) choice[i] = (int16_t)chosen[i];
        free(chosen);
        ops->copy_in(t->gpu.dev, given.gpu, choice, T * K * sizeof *choice);
        ops->zero(t->gpu.dev, fold.gpu, T * 4);
        ops->route(t->gpu.dev, T, r, x.gpu, bias.gpu, given.gpu, scores.gpu, ids.gpu, w.gpu, fold.gpu);
        same_bits(t, "ids of an own choice", ids.gpu, own.gpu, T * K * 4);
        same_bits(t, "weights of an own choice", w.gpu, own_w.gpu, T * K * 4);
        same_bits(t, "folds of an own choice", fold.gpu, own_fold.gpu, T * 4);
        struct both *all[] = {&x, &bias, &scores, &ids, &w, &fold, &given, &dw, &dx, &own, &own_w, &own_fold};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

/* Equal scores: the lowest ids of the lowest groups. NaN: some choice, each once. */
static void test_ties(struct gpu_test *t) {
    for (size_t c = 0; c < CLIME_COUNT(ROUTERS); c++) {
        const struct clime_router *r = &ROUTERS[c];
        size_t E = (size_t)r->E;
        struct both x = both_room(t, 2 * E, CLIME_F32), s = both_room(t, 2 * E, CLIME_F32),
                    ids = both_room(t, 2 * (size_t)r->k, CLIME_F32), w = both_room(t, 2 * (size_t)r->k, CLIME_F32);
        t->gpu.ops->zero(t->gpu.dev, x.gpu, E * 4); /* the second row stays NaN */
        t->gpu.ops->route(t->gpu.dev, 2, r, x.gpu, NULL, NULL, s.gpu, ids.gpu, w.gpu, NULL);
        int32_t *got = fetch(t, ids.gpu, 2 * (size_t)r->k * 4);
        bool lowest = true, once = true;
        for (int i = 0; i < r->k; i++) {
            int32_t id = got[r->k + i];
            lowest &= got[i] == i;
            once &= id >= 0 && id < r->E && (i == 0 || id > got[r->k + i - 1]);
        }
        check(t, lowest, "the lowest ids among equals", "");
        check(t, once, "ids of NaN", "");
        free(got);
        struct both *all[] = {&x, &s, &ids, &w};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

/* ---- loads ---- */

enum load { EVEN, SKEWED, ONE_HAS_ALL, N_LOADS };
static const char *const LOADS[] = {"even", "skewed", "one has all"};

/* Distinct ascending ids. SKEWED: a few experts have about ten times the mean; ONE_HAS_ALL: expert 2 has every row.
 * Expert 1 has none then. */
static void choose(struct gpu_test *t, enum load load, int T, const struct clime_router *r, int32_t *ids) {
    bool *in = xmalloc((size_t)r->E);
    for (int row = 0; row < T; row++) {
        memset(in, 0, (size_t)r->E);
        int n = 0;
        if (load == ONE_HAS_ALL) in[2] = true, n = 1;
        if (load == SKEWED && clime_rng_below(&t->rng, 10) < 7) in[r->E / 2] = true, n = 1;
        while (n < r->k) {
            int e = (int)clime_rng_below(&t->rng, (uint64_t)r->E);
            if (in[e] || (e == 1 && load != EVEN)) continue;
            in[e] = true;
            n++;
        }
        for (int e = 0, i = 0; e < r->E; e++)
            if (in[e]) ids[row * r->k + i++] = e;
    }
    free(in);
}

static void test_permute(struct gpu_test *t) {
    static const struct clime_router CASES[] = {
        {.E = 128, .k = 8}, {.E = 64, .k = 6}, {.E = 3, .k = 1}, {.E = 1024, .k = 10}};
    static const int ROWS[] = {1, 2, 65, 1000, 8192};
    for (size_t c = 0; c < CLIME_COUNT(CASES); c++) {
        for (size_t i = 0; i < CLIME_COUNT(ROWS); i++) {
            for (int load = 0; load < N_LOADS; load++) {
                const struct clime_router *r = &CASES[c];
                int T = ROWS[i];
                size_t n = (size_t)(T * r->k);
                int32_t *h = xmalloc(n * 4);
                choose(t, (enum load)load, T, r, h);
                struct both ids = both_ints(t, h, n), start = both_room(t, (size_t)r->E + 1, CLIME_F32),
                            from = both_room(t, n, CLIME_F32), at = both_room(t, n, CLIME_F32);
                BOTH(t, permute, T, r, AT(ids), AT(start), AT(from), AT(at));
                char what[96];
                snprintf(what, sizeof what, "permute, %d rows to %d of %d, %s:", T, r->k, r->E, LOADS[load]);
                same_ints(t, what, &start, (size_t)r->E + 1);
                same_ints(t, what, &from, n);
                same_ints(t, what, &at, n);
                free(h);
                struct both *all[] = {&ids, &start, &from, &at};
                for (size_t k = 0; k < CLIME_COUNT(all); k++) both_free(t, all[k]);
            }
        }
    }
}

/* ---- grouped products ---- */

struct grouped_case {
    struct clime_router r;
    int N, K;
};

/* Of the GPU alone: noise that repeats after a length that no row is a part of. */
static void *noise(struct gpu_test *t, size_t n, double scale) {
    enum { BLOCK = (1 << 20) - 296 };
    const struct clime_ops *ops = t->gpu.ops;
    struct both block = both_random(t, n < BLOCK ? n : BLOCK, CLIME_BF16, scale);
    char *p = side_alloc(&t->gpu, n * 2);
    for (size_t at = 0; at < n; at += block.n)
        ops->copy(t->gpu.dev, p + at * 2, block.gpu, (n - at < block.n ? n - at : block.n) * 2);
    both_free(t, &block);
    return p;
}

/* T rows under a load, every product against those of each expert by itself; then with one expert's rows NaN. */
static void check_grouped(struct gpu_test *t, const struct grouped_case *c, enum load load, int T, const void *w) {
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    const struct clime_router *r = &c->r;
    size_t N = (size_t)c->N, K = (size_t)c->K, E = (size_t)r->E, R = (size_t)(T * r->k), each = N * K;
    int32_t *h = xmalloc(R * 4);
    choose(t, load, T, r, h);
    struct both ids = both_ints(t, h, R), start = both_room(t, E + 1, CLIME_F32), from = both_room(t, R, CLIME_F32),
                at = both_room(t, R, CLIME_F32);
    ops->permute(d, T, r, ids.gpu, start.gpu, from.gpu, at.gpu);
    int32_t *s = fetch(t, start.gpu, (E + 1) * 4);
    char *x = noise(t, R * K, 1), *dy = noise(t, R * N, 1), *y = side_alloc(&t->gpu, R * N * 2),
         *y1 = side_alloc(&t->gpu, R * N * 2), *dx = side_alloc(&t->gpu, R * K * 2),
         *dx1 = side_alloc(&t->gpu, R * K * 2), *dw = side_alloc(&t->gpu, E * each * 4),
         *dw1 = side_alloc(&t->gpu, E * each * 4);
    struct clime_matrix all = {.N = c->N, .K = c->K, .data = w, .n_experts = r->E};
    ops->zero(d, dw, E * each * 4);
    ops->copy(d, dw, x, (R * K < E * each ? R * K : E * each) * 2); /* something to add to */
    ops->copy(d, dw1, dw, E * each * 4);
    for (size_t e = 0; e < E; e++) {
        size_t row = (size_t)s[e];
        int n = s[e + 1] - s[e];
        struct clime_matrix one = {.N = c->N, .K = c->K, .data = (const char *)w + e * each * 2};
        ops->gemm(d, CLIME_BF16, n, x + row * K * 2, &one, y1 + row * N * 2);
        ops->gemm_dx(d, n, dy + row * N * 2, &one, dx1 + row * K * 2);
        ops->gemm_dw(d, n, c->N, c->K, dy + row * N * 2, x + row * K * 2, true, (float *)(void *)dw1 + e * each);
    }
    ops->grouped_gemm(d, (int)R, start.gpu, x, &all, y);
    ops->grouped_dx(d, (int)R, start.gpu, dy, &all, dx);
    ops->grouped_dw(d, (int)R, start.gpu, &all, dy, x, true, (float *)(void *)dw);
    char what[96], of[64];
    snprintf(of, sizeof of, "N %d K %d, %d rows to %d of %d, %s:", c->N, c->K, T, r->k, r->E, LOADS[load]);
    snprintf(what, sizeof what, "grouped_gemm %s", of);
    same_bits(t, what, y1, y, R * N * 2);
    snprintf(what, sizeof what, "grouped_dx %s", of);
    same_bits(t, what, dx1, dx, R * K * 2);
    snprintf(what, sizeof what, "grouped_dw %s", of);
    same_bits(t, what, dw1, dw, E * each * 4);
    ops->zero(d, dw1, E * each * 4); /* written: as if it was added to zeros, whatever is there */
    ops->grouped_dw(d, (int)R, start.gpu, &all, dy, x, true, (float *)(void *)dw1);
    ops->grouped_dw(d, (int)R, start.gpu, &all, dy, x, false, (float *)(void *)dw);
    snprintf(what, sizeof what, "grouped_dw, written, %s", of);
    same_bits(t, what, dw1, dw, E * each * 4);
    struct clime_matrix some = all; /* the last half of the experts alone, as a rank has them */
    size_t half = E / 2, first = (size_t)s[half];
    some.n_experts = (int)(E - half);
    some.data = (const char *)w + half * each * 2;
    ops->zero(d, y, R * N * 2);
    ops->grouped_gemm(d, (int)R, (int32_t *)start.gpu + half, x, &some, y);
    snprintf(what, sizeof what, "some alone, grouped_gemm %s", of);
    same_bits(t, what, y1 + first * N * 2, y + first * N * 2, (R - first) * N * 2);

    struct clime_matrix parted = all; /* some of them kept elsewhere: where the others lie these are NaN */
    char *others = side_alloc(&t->gpu, E * each * 2), *poison = xmalloc(each * 2);
    memset(poison, 0xff, each * 2);
    parted.data = others;
    parted.kept.data = (const char *)w + E / 3 * each * 2;
    parted.kept.from = (int)(E / 3);
    parted.kept.to = (int)(E - E / 4);
    ops->copy(d, others, w, E * each * 2);
    for (size_t k = E / 3; k < E - E / 4; k++) ops->copy_in(d, others + k * each * 2, poison, each * 2);
    ops->grouped_gemm(d, (int)R, start.gpu, x, &parted, y);
    snprintf(what, sizeof what, "some elsewhere, grouped_gemm %s", of);
    same_bits(t, what, y1, y, R * N * 2);
    ops->grouped_dx(d, (int)R, start.gpu, dy, &parted, dx);
    snprintf(what, sizeof what, "some elsewhere, grouped_dx %s", of);
    same_bits(t, what, dx1, dx, R * K * 2);
    free(poison);
    ops->free(d, others);

    size_t e = 0; /* whose rows become NaN: in the middle, with rows before and behind where there are some */
    while (s[e + 1] <= (int32_t)R / 2) e++;
    size_t begin = (size_t)s[e], n = (size_t)s[e + 1] - begin, end = begin + n;
    char *nan = xmalloc(n * (N > K ? N : K) * 2);
    memset(nan, 0xff, n * (N > K ? N : K) * 2);
    ops->copy_in(d, x + begin * K * 2, nan, n * K * 2);
    ops->copy_in(d, dy + begin * N * 2, nan, n * N * 2);
    free(nan);
    ops->copy(d, dw1, dw, E * each * 4);
    ops->grouped_gemm(d, (int)R, start.gpu, x, &all, y);
    ops->grouped_dx(d, (int)R, start.gpu, dy, &all, dx);
    ops->grouped_dw(d, (int)R, start.gpu, &all, dy, x, true, (float *)(void *)dw1);
    snprintf(what, sizeof what, "beside NaN, grouped_gemm %s", of);
    same_bits(t, what, y1, y, begin * N * 2);
    same_bits(t, what, y1 + end * N * 2, y + end * N * 2, (R - end) * N * 2);
    snprintf(what, sizeof what, "beside NaN, grouped_dx %s", of);
    same_bits(t, what, dx1, dx, begin * K * 2);
    same_bits(t, what, dx1 + end * K * 2, dx + end * K * 2, (R - end) * K * 2);
    float *got = fetch(t, dw1, E * each * 4);
    size_t bad = 0, clean = 0;
    for (size_t i = 0; i < E * each; i++) {
        bad += i / each != e && isnan(got[i]);
        clean += i / each == e && !isnan(got[i]);
    }
    snprintf(what, sizeof what, "beside NaN, grouped_dw %s", of);
    check(t, bad == 0 && clean == 0, what, "NaN where there should be none, or none where it should be");
    free(got);
    free(s);
    free(h);
    void *rooms[] = {x, dy, y, y1, dx, dx1, dw, dw1};
    for (size_t i = 0; i < CLIME_COUNT(rooms); i++) ops->free(d, rooms[i]);
    struct both *boths[] = {&ids, &start, &from, &at};
    for (size_t i = 0; i < CLIME_COUNT(boths); i++) both_free(t, boths[i]);
}

/* The widths of Qwen3-30B-A3B and of Moonlight, with fewer experts, and what no fast way takes. */
static const struct grouped_case CASES[] = {
    {{.E = 6, .k = 2}, 40, 24},    {{.E = 9, .k = 3}, 19, 33},     {{.E = 8, .k = 3}, 1536, 2048},
    {{.E = 8, .k = 3}, 2048, 768}, {{.E = 8, .k = 3}, 2816, 2048}, {{.E = 8, .k = 3}, 2048, 1408},
    {{.E = 128, .k = 8}, 64, 128}, {{.E = 5, .k = 2}, 96, 64},     {{.E = 64, .k = 6}, 200, 72},
    {{.E = 300, .k = 8}, 128, 64}, {{.E = 4, .k = 1}, 72, 4096},
};

static void test_grouped(struct gpu_test *t) {
    static const int ROWS[] = {1, 3, 5, 16, 100, 700};
    for (size_t i = 0; i < CLIME_COUNT(CASES); i++) {
        const struct grouped_case *c = &CASES[i];
        printf("grouped products, N %d K %d of %d experts\n", c->N, c->K, c->r.E);
        void *w = noise(t, (size_t)(c->r.E * c->N) * (size_t)c->K, 0.05);
        for (size_t k = 0; k < CLIME_COUNT(ROWS); k++)
            for (int load = 0; load < N_LOADS; load++)
                if (load == EVEN || c->N < 1000 || ROWS[k] > 4) check_grouped(t, c, (enum load)load, ROWS[k], w);
        t->gpu.ops->free(t->gpu.dev, w);
    }
}

/* Leaves of two arrays of R rows those of the experts in the middle, a half of all. */
static void zero_others(const struct side *g, const int32_t *start, int E, size_t R, const size_t *row_bytes,
                        void *const *x) {
    int32_t from, to;
    g->ops->copy_out(g->dev, &from, start + E / 4, sizeof from);
    g->ops->copy_out(g->dev, &to, start + E / 4 + E / 2, sizeof to);
    for (int i = 0; i < 2; i++) {
        g->ops->zero(g->dev, x[i], (size_t)from * row_bytes[i]);
        g->ops->zero(g->dev, (char *)x[i] + (size_t)to * row_bytes[i], (R - (size_t)to) * row_bytes[i]);
    }
}

/* Gathered, multiplied and gated at once, against one after the other; and half of the experts alone, as a rank has
 * them, which leave others' places as they were. */
static void test_gated(struct gpu_test *t) {
    static const int SHAPES[][4] = {{768, 2048, 128, 8}, {1408, 2048, 64, 6}, {200, 136, 6, 3},
                                    {24, 72, 9, 3},      {20, 24, 5, 2},      {9, 33, 4, 2}};
    enum { MOST = 600 };
    static const int ROWS[] = {1, 2, 3, 4, 5, 8, 40, MOST};
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    for (size_t c = 0; c < CLIME_COUNT(SHAPES); c++) {
        struct clime_router r = {.E = SHAPES[c][2], .k = SHAPES[c][3]};
        size_t F = (size_t)SHAPES[c][0], K = (size_t)SHAPES[c][1], E = (size_t)r.E, most = (size_t)(MOST * r.k);
        struct clime_matrix w = {
            .N = 2 * SHAPES[c][0], .K = SHAPES[c][1], .data = noise(t, E * 2 * F * K, 0.05), .n_experts = r.E};
        void *x = noise(t, MOST * K, 1), *in = side_alloc(&t->gpu, most * K * 2),
             *want = side_alloc(&t->gpu, most * 4 * F), *want_h = side_alloc(&t->gpu, most * 2 * F),
             *gu = side_alloc(&t->gpu, most * 4 * F), *h = side_alloc(&t->gpu, most * 2 * F);
        printf("gate and up of experts, F %zu K %zu\n", F, K);
        for (size_t i = 0; i < CLIME_COUNT(ROWS) * N_LOADS; i++) {
            int T = ROWS[i / N_LOADS], R = T * r.k;
            int32_t *ids = xmalloc((size_t)R * 4);
            choose(t, (enum load)(i % N_LOADS), T, &r, ids);
            struct both b_ids = both_ints(t, ids, (size_t)R), start = both_room(t, E + 1, CLIME_F32),
                        from = both_room(t, (size_t)R, CLIME_F32), at = both_room(t, (size_t)R, CLIME_F32);
            ops->permute(d, T, &r, b_ids.gpu, start.gpu, from.gpu, at.gpu);
            ops->gather(d, R, w.K, from.gpu, x, in);
            ops->grouped_gemm(d, R, start.gpu, in, &w, want);
            ops->swiglu(d, R, w.N / 2, want, want_h);
            ops->zero(d, in, most * K * 2);
            ops->grouped_swiglu(d, R, start.gpu, from.gpu, x, &w, in, gu, h);
            char what[96];
            snprintf(what, sizeof what, "gate and up of %d rows, %s:", T, LOADS[i % N_LOADS]);
            same_bits(t, what, want, gu, (size_t)R * 4 * F);
            same_bits(t, what, want_h, h, (size_t)R * 2 * F);
            zero_others(&t->gpu, start.gpu, r.E, (size_t)R, (size_t[]){4 * F, 2 * F}, (void *[]){want, want_h});
            struct clime_matrix some = w;
            some.n_experts = r.E / 2;
            some.data = (const char *)w.data + (size_t)(r.E / 4) * 4 * F * K;
            ops->zero(d, gu, most * 4 * F);
            ops->zero(d, h, most * 2 * F);
            ops->grouped_swiglu(d, R, (int32_t *)start.gpu + r.E / 4, from.gpu, x, &some, in, gu, h);
            snprintf(what, sizeof what, "some alone, gate and up of %d rows, %s:", T, LOADS[i % N_LOADS]);
            same_bits(t, what, want, gu, (size_t)R * 4 * F);
            same_bits(t, what, want_h, h, (size_t)R * 2 * F);
            free(ids);
            struct both *all[] = {&b_ids, &start, &from, &at};
            for (size_t k = 0; k < CLIME_COUNT(all); k++) both_free(t, all[k]);
        }
        void *all[] = {(void *)(uintptr_t)w.data, x, in, want, want_h, gu, h};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) ops->free(d, all[i]);
    }
}

/* ---- sums, and against the CPU ---- */

static void test_sums(struct gpu_test *t) {
    static const int SHAPES[][4] = {
        {37, 45, 3, 9}, {1, 2048, 8, 128}, {300, 2048, 6, 64}, {70, 768, 8, 128}, {50, 1408, 4, 7}};
    for (size_t c = 0; c < CLIME_COUNT(SHAPES); c++) {
        int T = SHAPES[c][0], D = SHAPES[c][1], k = SHAPES[c][2];
        struct clime_router r = {.E = SHAPES[c][3], .k = k};
        size_t n = (size_t)T, R = n * (size_t)k, DD = (size_t)D;
        printf("sums of %d rows of %d, %d each\n", T, D, k);
        int32_t *h_ids = xmalloc(R * 4);
        choose(t, SKEWED, T, &r, h_ids);
        struct both ids = both_ints(t, h_ids, R), start = both_room(t, (size_t)r.E + 1, CLIME_F32),
                    from = both_room(t, R, CLIME_F32), at = both_room(t, R, CLIME_F32),
                    x = both_random(t, R * DD, CLIME_BF16, 1), last = both_random(t, n * DD, CLIME_BF16, 1),
                    w = both_random(t, R, CLIME_F32, 1), lw = both_random(t, n, CLIME_F32, 1),
                    y = both_room(t, n * DD, CLIME_BF16), one = both_room(t, DD, CLIME_BF16),
                    dh = both_random(t, R * DD, CLIME_BF16, 1), h = both_random(t, R * DD, CLIME_BF16, 1),
                    dw = both_room(t, R, CLIME_F32), dlw = both_room(t, n, CLIME_F32);
        BOTH(t, permute, T, &r, AT(ids), AT(start), AT(from), AT(at));
        for (int with = 0; with < 4; with++) {
            BOTH(t, combine, T, D, k, AT(at), with > 0 ? AT(w) : NULL, AT(x), with > 1 ? AT(last) : NULL,
                 with > 2 ? AT(lw) : NULL, AT(y));
            near_norm(t, "combine", &y, BF16_NEAR);
            size_t row = n / 2, slot = row * (size_t)k;
            t->gpu.ops->combine(t->gpu.dev, 1, D, k, (int32_t *)at.gpu + slot, with > 0 ? (float *)w.gpu + slot : NULL,
                                x.gpu, with > 1 ? (char *)last.gpu + row * DD * 2 : NULL,
                                with > 2 ? (float *)lw.gpu + row : NULL, one.gpu);
            same_bits(t, "combine, a row alone", (char *)y.gpu + row * DD * 2, one.gpu, DD * 2);
        }
        BOTH(t, combine, T, D, k, AT(at), AT(w), AT(x), AT(last), AT(lw), AT(last));
        same_bits(t, "combine over its last", y.gpu, last.gpu, n * DD * 2);
        BOTH(t, combine_bwd, T, D, k, AT(at), AT(w), AT(dh), AT(h), AT(dw));
        near_norm(t, "combine_bwd dh", &dh, BF16_NEAR);
        near_norm(t, "combine_bwd h", &h, BF16_NEAR);
        near_norm(t, "combine_bwd dweights", &dw, F32_NEAR);
        BOTH(t, combine_bwd, T, D, 1, NULL, AT(lw), AT(dh), AT(h), AT(dlw));
        near_norm(t, "combine_bwd of rows, dh", &dh, BF16_NEAR);
        near_norm(t, "combine_bwd of rows, dweights", &dlw, 1e-2); /* of what was rounded on either side */
        free(h_ids);
        struct both *all[] = {&ids, &start, &from, &at, &x, &last, &w, &lw, &y, &one, &dh, &h, &dw, &dlw};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

static void test_grouped_cpu(struct gpu_test *t) {
    static const struct grouped_case SMALL[] = {
        {{.E = 6, .k = 2}, 40, 24}, {{.E = 12, .k = 3}, 192, 256}, {{.E = 9, .k = 3}, 19, 33}};
    enum { T = 90 };
    for (size_t i = 0; i < CLIME_COUNT(SMALL); i++) {
        const struct grouped_case *c = &SMALL[i];
        size_t E = (size_t)c->r.E, N = (size_t)c->N, K = (size_t)c->K, R = (size_t)(T * c->r.k);
        int32_t *h = xmalloc(R * 4);
        choose(t, SKEWED, T, &c->r, h);
        struct both ids = both_ints(t, h, R), start = both_room(t, E + 1, CLIME_F32), from = both_room(t, R, CLIME_F32),
                    at = both_room(t, R, CLIME_F32), w = both_random(t, E * N * K, CLIME_BF16, 0.1),
                    x = both_random(t, R * K, CLIME_BF16, 1), dy = both_random(t, R * N, CLIME_BF16, 1),
                    y = both_room(t, R * N, CLIME_BF16), dx = both_room(t, R * K, CLIME_BF16),
                    dw = both_random(t, E * N * K, CLIME_F32, 1);
        printf("grouped products against the CPU's, N %d K %d\n", c->N, c->K);
        BOTH(t, permute, T, &c->r, AT(ids), AT(start), AT(from), AT(at));
        for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
            struct side *s = on_gpu ? &t->gpu : &t->cpu;
            struct clime_matrix m = {.N = c->N, .K = c->K, .data = AT(w), .n_experts = c->r.E};
            s->ops->grouped_gemm(s->dev, (int)R, AT(start), AT(x), &m, AT(y));
            s->ops->grouped_dx(s->dev, (int)R, AT(start), AT(dy), &m, AT(dx));
            s->ops->grouped_dw(s->dev, (int)R, AT(start), &m, AT(dy), AT(x), true, AT(dw));
        }
        near_norm(t, "grouped_gemm", &y, BF16_NEAR);
        near_norm(t, "grouped_dx", &dx, BF16_NEAR);
        near_norm(t, "grouped_dw", &dw, F32_NEAR);
        free(h);
        struct both *all[] = {&ids, &start, &from, &at, &w, &x, &dy, &y, &dx, &dw};
        for (size_t k = 0; k < CLIME_COUNT(all); k++) both_free(t, all[k]);
    }
}

/* ---- a recorded layer ---- */

struct layer {
    struct clime_router r;
    int D, F;
    void *res, *delta, *x, *scores, *ids, *w, *start, *from, *at, *in, *gu, *h, *out, *shared_gu, *shared_h, *shared,
        *y, *next;
    void *norm, *fold;
    struct clime_matrix router, gate_up, down, shared_gate_up, shared_down, after;
};

/* From the sum before a layer's MLP to the product after the next one, as model/forward.c queues it, over res. */
static void queue_experts(struct gpu_test *t, const struct layer *l, int T) {
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    int R = T * l->r.k;
    ops->add_rmsnorm(d, T, l->D, 1e-6f, l->res, l->delta, l->norm, l->res, l->x, NULL);
    ops->gemm(d, CLIME_F32, T, l->x, &l->router, l->scores);
    ops->gemm_swiglu(d, T, l->x, &l->shared_gate_up, l->shared_gu, l->shared_h);
    ops->gemm(d, CLIME_BF16, T, l->shared_h, &l->shared_down, l->shared);
    ops->route(d, T, &l->r, l->scores, NULL, NULL, l->scores, l->ids, l->w, l->fold);
    ops->permute(d, T, &l->r, l->ids, l->start, l->from, l->at);
    ops->grouped_swiglu(d, R, l->start, l->from, l->x, &l->gate_up, l->in, l->gu, l->h);
    ops->grouped_gemm(d, R, l->start, l->h, &l->down, l->out);
    ops->combine(d, T, l->D, l->r.k, l->at, l->w, l->out, l->shared, NULL, l->y);
    ops->add_rmsnorm(d, T, l->D, 1e-6f, l->res, l->y, l->norm, l->res, l->x, NULL);
    ops->gemm(d, CLIME_BF16, T, l->x, &l->after, l->next);
}

/* Rows queued one at a time, together, and by replaying what was recorded with other rows: the same bits. */
static void test_recorded(struct gpu_test *t) {
    static const int ROWS[] = {1, 2, 4, 5, 8, 16, 64, 256};
    static const int WIDTHS[][2] = {{2048, 768}, {2048, 1408}, {256, 96}};
    enum { T = 256, E = 64, k = 6 };
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    for (size_t c = 0; c < CLIME_COUNT(WIDTHS); c++) {
        struct layer l = {.r = {.E = E, .k = k, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1},
                          .D = WIDTHS[c][0],
                          .F = WIDTHS[c][1]};
        size_t D = (size_t)l.D, F = (size_t)l.F, R = T * k;
        struct {
            void **at;
            size_t bytes;
        } rooms[] = {{&l.res, T * D * 2},      {&l.delta, T * D * 2},
                     {&l.x, T * D * 2},        {&l.scores, T * E * 4},
                     {&l.ids, R * 4},          {&l.w, R * 4},
                     {&l.start, 4 * (E + 1)},  {&l.from, R * 4},
                     {&l.at, R * 4},           {&l.in, R * D * 2},
                     {&l.gu, R * 2 * F * 2},   {&l.h, R * F * 2},
                     {&l.out, R * D * 2},      {&l.shared_gu, T * 2 * F * 2},
                     {&l.shared_h, T * F * 2}, {&l.shared, T * D * 2},
                     {&l.y, T * D * 2},        {&l.next, T * F * 2},
                     {&l.fold, T * 4}};
        struct {
            const char *name;
            void **at;
            size_t row; /* bytes */
            char *want;
        } seen[] = {{"scores", &l.scores, E * 4, NULL}, {"ids", &l.ids, k * 4, NULL}, {"weights", &l.w, k * 4, NULL},
                    {"y", &l.y, D * 2, NULL},           {"sum", &l.res, D * 2, NULL}, {"norm", &l.x, D * 2, NULL},
                    {"next", &l.next, F * 2, NULL},     {"fold", &l.fold, 4, NULL}};
        for (size_t i = 0; i < CLIME_COUNT(rooms); i++) *rooms[i].at = side_alloc(&t->gpu, rooms[i].bytes);
        void *w_router = noise(t, E * D, 0.05), *w_gu = noise(t, E * 2 * F * D, 0.03),
             *w_down = noise(t, E * D * F, 0.05), *x = noise(t, T * D, 1), *delta = noise(t, T * D, 1);
        l.norm = noise(t, D, 1);
        l.router = (struct clime_matrix){.N = E, .K = l.D, .data = w_router};
        l.gate_up = (struct clime_matrix){.N = 2 * l.F, .K = l.D, .data = w_gu, .n_experts = E};
        l.down = (struct clime_matrix){.N = l.D, .K = l.F, .data = w_down, .n_experts = E};
        l.shared_gate_up = (struct clime_matrix){.N = 2 * l.F, .K = l.D, .data = w_gu}; /* as the first expert */
        l.shared_down = (struct clime_matrix){.N = l.D, .K = l.F, .data = w_down};
        l.after = (struct clime_matrix){.N = l.F, .K = l.D, .data = w_gu};
        printf("a layer of experts, D %d F %d\n", l.D, l.F);
        ops->copy(d, l.res, x, T * D * 2);
        ops->copy(d, l.delta, delta, T * D * 2);
        ops->zero(d, l.fold, T * 4);
        queue_experts(t, &l, T);
        for (size_t s = 0; s < CLIME_COUNT(seen); s++) {
            seen[s].want = side_alloc(&t->gpu, T * seen[s].row);
            ops->copy(d, seen[s].want, *seen[s].at, T * seen[s].row);
        }
        for (size_t i = 0; i < CLIME_COUNT(ROWS); i++) {
            int n = ROWS[i];
            struct clime_graph *graph = NULL;
            struct clime_error e;
            for (int first = 0, way = 0; first + n <= T; first += way++ == 0 ? 0 : n > 32 ? n : 32) {
                /* queued, which recording needs to have run; then replayed with other rows */
                if (way == 1) {
                    ops->graph_begin(d);
                    queue_experts(t, &l, n);
                    if (ops->graph_end(d, &graph, &e)) {
                        check(t, false, "recording", e.msg);
                        break;
                    }
                }
                ops->copy(d, l.res, (char *)x + (size_t)first * D * 2, (size_t)n * D * 2);
                ops->copy(d, l.delta, (char *)delta + (size_t)first * D * 2, (size_t)n * D * 2);
                for (size_t s = 0; s < CLIME_COUNT(seen); s++)
                    if (*seen[s].at != l.res) ops->zero(d, *seen[s].at, (size_t)n * seen[s].row);
                if (graph)
                    ops->graph_launch(d, graph);
                else
                    queue_experts(t, &l, n);
                for (size_t s = 0; s < CLIME_COUNT(seen); s++) {
                    char what[64];
                    snprintf(what, sizeof what, "%s, %d rows %s:", seen[s].name, n, graph ? "replayed" : "queued");
                    same_bits(t, what, seen[s].want + (size_t)first * seen[s].row, *seen[s].at,
                              (size_t)n * seen[s].row);
                }
            }
            ops->graph_free(d, graph);
        }
        for (size_t i = 0; i < CLIME_COUNT(rooms); i++) ops->free(d, *rooms[i].at);
        for (size_t s = 0; s < CLIME_COUNT(seen); s++) ops->free(d, seen[s].want);
        void *all[] = {w_router, w_gu, w_down, x, delta, l.norm};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) ops->free(d, all[i]);
    }
}

/* As test_bits: the name of one test runs that alone. */
int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(struct gpu_test *t);
    } TESTS[] = {{"route", test_route},     {"given", test_given}, {"ties", test_ties},
                 {"permute", test_permute}, {"sums", test_sums},   {"cpu", test_grouped_cpu},
                 {"grouped", test_grouped}, {"gated", test_gated}, {"recorded", test_recorded}};
    struct gpu_test t;
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_test_open(&t);
    for (size_t i = 0; i < CLIME_COUNT(TESTS); i++)
        if (argc < 2 || strcmp(argv[1], TESTS[i].name) == 0) TESTS[i].run(&t);
    return gpu_test_close(&t);
}
