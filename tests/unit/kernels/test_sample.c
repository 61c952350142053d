/* Drawing tokens: the exact rule on small rows against a sorted reference, the distribution on many draws, edges. */
#include "tests/unit/kernels/kernel_test.h"

enum { MAX_V = 5000 };

static struct clime_sampling plain(void) {
    return (struct clime_sampling){.seed = 7, .position = 3, .inv_temp = 1, .top_p = 1};
}

static int32_t ids_kept[MAX_V + 1]; /* of the last draw that wanted them, and a place behind */

static struct clime_drawn draw(struct kt *k, int V, const float *x, const struct clime_sampling *p) {
    float lse;
    struct clime_drawn out;
    struct clime_error e;
    ids_kept[p->kept_room] = -1;
    k->ops->head_stats(k->dev, 1, V, x, &p->inv_temp, NULL, &lse, NULL, NULL);
    k->ops->sample(k->dev, 1, V, x, &lse, p, &out, p->kept_room ? ids_kept : NULL);
    assert_int_equal(ids_kept[p->kept_room], -1);
    assert_int_equal(k->ops->sync(k->dev, &e), CLIME_OK);
    return out;
}

/* ---- reference: sort by (value descending, id ascending), keep prefixes, walk the ids -------------------- */
static const double *ref_z;
static int ref_order(const void *a, const void *b) {
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (ref_z[i] != ref_z[j]) return ref_z[i] > ref_z[j] ? -1 : 1;
    return i - j;
}

/* Fills w with the weights of the kept ids (0 = cut), normalised. */
static void ref_weights(int V, const float *x, const struct clime_sampling *p, double *w) {
    static double z[MAX_V];
    static int32_t order[MAX_V];
    double max = -1e300, total = 0, before = 0;
    for (int v = 0; v < V; v++) z[v] = (double)x[v];
    for (int32_t v = 0; v < V && p->seen; v++)
        if (clime_id_in(p->seen, v)) z[v] = z[v] > 0 ? z[v] / (double)p->repetition : z[v] * (double)p->repetition;
    for (int i = 0; i < p->n_edits; i++) z[p->edits[i].id] += (double)p->edits[i].add;
    for (int32_t v = 0; v < V && p->allowed; v++)
        if (!clime_id_in(p->allowed, v)) z[v] = -INFINITY;
    for (int v = 0; v < V; v++) {
        z[v] *= (double)p->inv_temp;
        max = fmax(max, z[v]);
        order[v] = v;
    }
    ref_z = z;
    qsort(order, (size_t)V, sizeof *order, ref_order);
    for (int v = 0; v < V; v++) w[v] = exp(z[v] - max);
    int kept = p->top_k > 0 && p->top_k < V ? p->top_k : V;
    for (int i = kept; i < V; i++) w[order[i]] = 0;
    for (int v = 0; v < V; v++) total += w[v];
    if (p->top_p < 1) {
        for (int i = 0; i < V; i++) {
            double own = w[order[i]];
            if (i > 0 && before >= (double)p->top_p * total) w[order[i]] = 0;
            before += own;
        }
    }
    for (int v = 0; v < V; v++) {
        if (p->min_p > 0 && w[v] < (double)p->min_p) w[v] = 0;
    }
    total = 0;
    for (int v = 0; v < V; v++) total += w[v];
    for (int v = 0; v < V; v++) w[v] /= total;
}

static int32_t ref_draw(int V, const double *w, const struct clime_sampling *p) {
    double u = (double)clime_rng_uniform(p->seed, (uint64_t)p->position, 0), run = 0;
    int32_t last = 0;
    for (int v = 0; v < V; v++) {
        if (w[v] <= 0) continue;
        last = v;
        run += w[v];
        if (run > u) return v;
    }
    return last;
}

/* The list has the ids that weigh anything, as far as there is room. */
static void check_kept(int round, int V, const double *w, const struct clime_sampling *p, const struct clime_drawn *d) {
    int n = 0;
    for (int32_t v = 0; v < V && p->kept_room; v++) {
        if (w[v] <= 0) continue;
        if (n < p->kept_room && ids_kept[n] != v)
            fail_msg("round %d: place %d has %d, want %d", round, n, ids_kept[n], v);
        n++;
    }
    if (d->n_kept != n) fail_msg("round %d: %d kept, want %d", round, d->n_kept, n);
}

static void test_rule(struct kt *k) {
    static const struct clime_logit_edit edits[] = {{2, -INFINITY}, {3, -0.5f}, {17, 4}};
    static uint32_t seen[MAX_V / 32 + 1], allowed[MAX_V / 32 + 1];
    static float x[MAX_V];
    for (int32_t v = 0; v < MAX_V; v++) {
        if (v % 3 == 0 || v == MAX_V - 1) clime_id_add(seen, v);
        if (v % 2 == 0 || v == MAX_V - 1) clime_id_add(allowed, v);
    }
    static double w[MAX_V];
    for (int round = 0; round < 500; round++) {
        const int V = round % 5 == 4 ? MAX_V : 100; /* several splits; candidates found by their floor */
        struct clime_sampling p = plain();
        p.seed = (uint64_t)round * 1000003;
        p.position = round;
        p.inv_temp = 0.5f + 0.1f * (float)(round % 13);
        for (int v = 0; v < V; v++) {
            x[v] = (float)(clime_rng_normal(&k->rng) * (round % 2 ? 2 : 4));
            if (round % 3 == 0) x[v] = (float)(int)(2 * x[v]) / 2; /* many ties */
        }
        if (round % 2) p.top_k = 1 + round % 40;
        if (round % 5 < 3) p.top_p = 0.1f + 0.2f * (float)(round % 5);
        if (round % 7 == 0) p.min_p = 0.05f;
        if (round % 4 == 0) {
            p.edits = edits;
            p.n_edits = (int32_t)CLIME_COUNT(edits);
        }
        if (round % 6 == 1) {
            p.seen = seen;
            p.repetition = 1.3f;
        }
        if (round % 11 == 2) p.allowed = allowed;
        p.kept_room = round % 3 == 2 ? 0 : round % 9 == 4 ? 7 : V;
        ref_weights(V, x, &p, w);
        struct clime_drawn d = draw(k, V, x, &p);
        assert_false(d.bad);
        check_kept(round, V, w, &p, &d);
        if (d.id != ref_draw(V, w, &p)) fail_msg("round %d: got %d, want %d", round, d.id, ref_draw(V, w, &p));
        kt_near(k, "logp_cut", (size_t)round, (double)d.logp_cut, log(w[d.id]), 1e-5, 1e-5);
        float lse, logp;
        k->ops->head_stats(k->dev, 1, V, x, &p.inv_temp, &d.id, &lse, &logp, NULL);
        assert_memory_equal(&logp, &d.logp, 4); /* the head's own number, bit for bit */
        if (!clime_sampling_edits(&p) && p.top_k <= 0 && p.top_p >= 1 && p.min_p <= 0)
            assert_memory_equal(&d.logp, &d.logp_cut, 4);
    }
}

/* top-k among equals keeps the lowest ids; greedy takes the lowest; -0 equals 0. */
static void test_ties(struct kt *k) {
    enum { V = 3000 };
    float *x = kt_random_f32(k, V, 0);
    int seen[V] = {0};
    x[1] = -0.0f;
    struct clime_sampling p = plain();
    p.top_k = 3;
    p.kept_room = 3;
    for (int i = 0; i < 200; i++) {
        p.position = i;
        struct clime_drawn d = draw(k, V, x, &p);
        assert_true(d.n_kept == 3 && ids_kept[0] == 0 && ids_kept[1] == 1 && ids_kept[2] == 2);
        assert_in_range(d.id, 0, 2);
        seen[d.id]++;
        kt_near(k, "logp_cut", 0, (double)d.logp_cut, log(1.0 / 3), 1e-6, 0);
    }
    assert_true(seen[0] && seen[1] && seen[2]);
    p.top_k = 0;
    p.top_p = 2.5f / V; /* the third id begins below it */
    for (int i = 0; i < 50; i++) {
        p.position = i;
        assert_in_range(draw(k, V, x, &p).id, 0, 2);
    }
    p.greedy = true;
    assert_int_equal(draw(k, V, x, &p).id, 0);
    assert_int_equal(draw(k, V, x, &p).n_kept, 1);
    assert_int_equal(ids_kept[0], 0);
    x[2500] = x[2700] = 1;
    struct clime_drawn d = draw(k, V, x, &p);
    assert_int_equal(d.id, 2500);
    assert_true(d.logp_cut == 0);
    struct clime_logit_edit ban = {2500, -INFINITY};
    p.edits = &ban;
    p.n_edits = 1;
    assert_int_equal(draw(k, V, x, &p).id, 2700);
    kt_free(k, x);
}

static void test_bad(struct kt *k) {
    enum { V = 1500 };
    float *x = kt_random_f32(k, V, 1);
    struct clime_sampling p = plain();
    for (int greedy = 0; greedy < 2; greedy++) {
        p.greedy = greedy;
        x[1200] = NAN;
        p.kept_room = 4;
        struct clime_drawn d = draw(k, V, x, &p);
        assert_true(d.bad && d.id == 0 && d.n_kept == 0);
        for (int v = 0; v < V; v++) x[v] = -INFINITY;
        assert_true(draw(k, V, x, &p).bad);
        x[77] = 0; /* one is enough */
        d = draw(k, V, x, &p);
        assert_true(!d.bad && d.id == 77 && d.logp == 0);
        struct clime_logit_edit ban = {77, -INFINITY};
        p.edits = &ban;
        p.n_edits = 1;
        assert_true(draw(k, V, x, &p).bad);
        p.n_edits = 0;
    }
    kt_free(k, x);
}

/* A batch of rows gives each row's own draw; threads change nothing. */
static void batch(void **state) {
    (void)state;
    enum { R = 37, V = 5000 };
    for (size_t i = 0; i < CLIME_COUNT(KT_ISAS); i++) {
        for (int n = 1; n <= 3; n++) {
            struct kt k;
            if (!kt_open(&k, KT_ISAS[i], CLIME_BF16, n)) continue;
            float *x = kt_random_f32(&k, R * V, 3), inv_temp[R], lse[R];
            struct clime_sampling p[R];
            struct clime_drawn out[R];
            for (int r = 0; r < R; r++) {
                p[r] = plain();
                p[r].seed = (uint64_t)r;
                p[r].inv_temp = inv_temp[r] = 1 + 0.1f * (float)(r % 3);
                p[r].greedy = r % 5 == 0;
                if (r % 4 == 0) p[r].top_k = 50;
                if (r % 3 == 0) p[r].top_p = 0.9f;
                p[r].kept_room = r % 7 == 6 ? 0 : 1 + 30 * (r % 7);
            }
            int32_t lists[R * 151], *list = lists;
            k.ops->head_stats(k.dev, R, V, x, inv_temp, NULL, lse, NULL, NULL);
            k.ops->sample(k.dev, R, V, x, lse, p, out, lists);
            for (int r = 0; r < R; r++) {
                struct clime_drawn d = draw(&k, V, x + r * V, &p[r]);
                assert_int_equal(d.id, out[r].id);
                assert_memory_equal(&d.logp, &out[r].logp, 4);
                assert_memory_equal(&d.logp_cut, &out[r].logp_cut, 4);
                assert_int_equal(d.n_kept, out[r].n_kept);
                int n_listed = d.n_kept < p[r].kept_room ? d.n_kept : p[r].kept_room;
                assert_memory_equal(ids_kept, list, (size_t)n_listed * sizeof *list);
                list += p[r].kept_room;
            }
            kt_free(&k, x);
            kt_close(&k);
        }
    }
}

/* 20,000 draws from 50 classes spread over several splits: chi-square with 49 degrees of freedom; 85.4 is its 0.999
 * quantile. The seed is fixed, so this passes always or never. */
static void distribution(void **state) {
    (void)state;
    enum { CLASSES = 50, STEP = 61, V = CLASSES * STEP, DRAWS = 20000 };
    struct kt k;
    assert_true(kt_open(&k, NULL, CLIME_BF16, 1));
    float *x = kt_random_f32(&k, V, 0);
    double p[CLASSES], total = 0, chi = 0;
    int count[CLASSES] = {0};
    for (int v = 0; v < V; v++) x[v] = -INFINITY;
    for (int c = 0; c < CLASSES; c++) {
        x[c * STEP] = (float)clime_rng_normal(&k.rng);
        total += p[c] = exp((double)x[c * STEP]);
    }
    struct clime_sampling s = plain();
    for (int i = 0; i < DRAWS; i++) {
        s.position = i;
        struct clime_drawn d = draw(&k, V, x, &s);
        assert_int_equal(d.id % STEP, 0);
        count[d.id / STEP]++;
    }
    for (int c = 0; c < CLASSES; c++) {
        double expected = DRAWS * p[c] / total;
        chi += (count[c] - expected) * (count[c] - expected) / expected;
    }
    assert_true(chi < 85.4);
    kt_free(&k, x);
    kt_close(&k);
}

/* Several lists over two rows: the best of each, then those of chosen ids; NaN where a row has no more numbers. */
static void test_lists(struct kt *k) {
    enum { V = 2500, N = 40 };
    float *x = kt_random_f32(k, 2 * V, 3), inv_temp[2] = {0.7f, 0.7f}, lse[2];
    int32_t order[V], chosen[3] = {17, 0, V - 1};
    static double z[V];
    struct clime_id_logp out[4 * (N + 4)];
    for (int v = 0; v < V; v++) {
        x[V + v] = (float)(int)(x[V + v] * 2); /* ties */
        z[v] = (double)x[V + v];
        order[v] = v;
    }
    ref_z = z;
    qsort(order, V, sizeof *order, ref_order);
    k->ops->head_stats(k->dev, 2, V, x, inv_temp, NULL, lse, NULL, NULL);
    for (int n = 0; n <= N; n += 8) {
        const struct clime_logp_list lists[] = {
            {.row = 1, .inv_temp = 0.7f, .n_top = n},
            {.row = 0, .inv_temp = 0.7f, .n_ids = 3, .ids = chosen},
            {.row = 1, .inv_temp = 0.7f, .n_top = n, .n_ids = 2, .ids = chosen},
            {.row = 1, .inv_temp = 0.7f, .n_top = n, .ranked = true, .rank_of = order[77]},
            {.row = 1, .inv_temp = 0.7f, .ranked = true, .rank_of = order[0]}};
        k->ops->list_logp(k->dev, 5, V, x, lse, lists, out);
        for (int i = 0; i < n; i++) {
            assert_int_equal(out[i].id, order[i]);
            assert_true(out[i].logp == x[V + out[i].id] * inv_temp[1] - lse[1]);
        }
        for (int i = 0; i < 3; i++)
            assert_true(out[n + i].id == chosen[i] && out[n + i].logp == x[chosen[i]] * inv_temp[0] - lse[0]);
        assert_memory_equal(out + n + 3, out, (size_t)n * sizeof *out);
        for (int i = 0; i < 2; i++) assert_true(out[2 * n + 3 + i].logp == x[V + chosen[i]] * inv_temp[1] - lse[1]);
        const struct clime_id_logp *ranked = out + 2 * n + 5;
        assert_memory_equal(ranked, out, (size_t)n * sizeof *out);
        assert_true(ranked[n].id == 78 && ranked[n].logp == x[V + order[77]] * inv_temp[1] - lse[1]);
        assert_int_equal(ranked[n + 1].id, 1);
    }
    for (int v = 5; v < V; v++) x[v] = NAN;
    const struct clime_logp_list few = {.row = 0, .inv_temp = 1, .n_top = 8};
    lse[0] = 0;
    k->ops->list_logp(k->dev, 1, V, x, lse, &few, out);
    for (int i = 0; i < 8; i++) assert_true(i < 5 ? out[i].id < 5 : out[i].id == 0 && isnan(out[i].logp));
    kt_free(k, x);
}

#define EACH(name)                                                                                                     \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        kt_each(test_##name);                                                                                          \
    }
EACH(rule)
EACH(ties)
EACH(bad)
EACH(lists)

static void drawn_ids_become_input(void **state) {
    (void)state;
    struct kt k;
    assert_true(kt_open(&k, "generic", CLIME_F32, 1));
    const struct clime_drawn drawn[3] = {{.id = 10}, {.id = 11}, {.id = 12}};
    const int32_t rows[5] = {2, -1, 0, 2, -1}, want[5] = {12, 8, 10, 12, 6};
    int32_t ids[5] = {9, 8, 7, 7, 6};
    k.ops->take_drawn(k.dev, 5, rows, drawn, ids);
    assert_memory_equal(ids, want, sizeof want);
    kt_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rule),
                                       cmocka_unit_test(ties),
                                       cmocka_unit_test(bad),
                                       cmocka_unit_test(batch),
                                       cmocka_unit_test(distribution),
                                       cmocka_unit_test(lists),
                                       cmocka_unit_test(drawn_ids_become_input)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
