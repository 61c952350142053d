/* AdamW and the gradient norm against float64, over steps; what AdamW begins with; the norm's bits over thread counts.
 */
#include "tests/unit/kernels/kernel_test.h"

/* Of the whole: the sums of its blocks, in order. Each is what the block gives alone. */
static double squares(struct kt *k, size_t n, const float *x) {
    size_t block = k->ops->norm_block, n_blocks = (n + block - 1) / block;
    double *of = calloc(n_blocks + 1, sizeof *of), sum = 0;
    k->ops->sumsq(k->dev, n, x, of);
    for (size_t i = 0; i < n_blocks; i++) {
        double alone;
        k->ops->sumsq(k->dev, n - i * block < block ? n - i * block : block, x + i * block, &alone);
        assert_true(alone == of[i]);
        sum += of[i];
    }
    free(of);
    return sum;
}

static void test_adamw(struct kt *k) {
    enum { N = 40000 };
    struct clime_adamw o = {
        .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 0.5f};
    float *g = kt_random_f32(k, N, 1), *master = kt_random_f32(k, N, 1), *m = kt_random_f32(k, N, 0);
    float *v = kt_random_f32(k, N, 0);
    void *params = k->dt == CLIME_F32 ? master : kt_room(k, N);
    double *p = malloc(3 * N * sizeof *p), *wm = p + N, *wv = wm + N;
    for (size_t i = 0; i < N; i++) {
        p[i] = (double)master[i];
        wm[i] = wv[i] = 0;
    }
    for (int step = 1; step <= 5; step++) {
        o.correct1 = (float)(1 - pow(0.9, step));
        o.correct2 = (float)(1 - pow(0.95, step));
        k->ops->adamw(k->dev, N, &o, g, master, m, v, params);
        for (size_t i = 0; i < N; i++) {
            double gi = (double)g[i] * 0.5;
            p[i] *= 1 - 1e-2 * 0.1;
            wm[i] = 0.9 * wm[i] + 0.1 * gi;
            wv[i] = 0.95 * wv[i] + 0.05 * gi * gi;
            p[i] -= 1e-2 * (wm[i] / (double)o.correct1) / (sqrt(wv[i] / (double)o.correct2) + 1e-8);
        }
    }
    for (size_t i = 0; i < N; i++) {
        kt_near(k, "master", i, (double)master[i], p[i], 3e-6, 1e-6);
        assert_true(kt_get(params, i, k->dt) ==
                    (k->dt == CLIME_F32 ? (double)master[i] : (double)kt_bf16_value(kt_bf16(master[i]))));
    }
    double want = 0;
    for (size_t i = 0; i < N; i++) want += (double)g[i] * (double)g[i];
    kt_near(k, "sumsq", 0, squares(k, N, g), want, 1e-12, 0);
    kt_near(k, "sumsq", 1, squares(k, 0, g), 0, 0, 0);
    if (params != master) kt_free(k, params);
    void *all[] = {g, master, m, v};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
    free(p);
}

static void adamw(void **state) {
    (void)state;
    kt_each(test_adamw);
}

static void test_start(struct kt *k) {
    enum { N = (1 << 20) + 77 }; /* over several chunks, the last one broken */
    void *params = kt_random(k, N, 1);
    float *m = kt_random_f32(k, N, 1), *v = kt_random_f32(k, N, 1);
    float *master = k->dt == CLIME_F32 ? params : kt_random_f32(k, N, 1);
    double *want = malloc(N * sizeof *want);
    for (size_t i = 0; i < N; i++) want[i] = kt_get(params, i, k->dt);
    k->ops->adamw_start(k->dev, N, params, master, m, v);
    for (size_t i = 0; i < N; i++) assert_true((double)master[i] == want[i] && m[i] == 0 && v[i] == 0);
    if (master != params) kt_free(k, master);
    void *all[] = {params, m, v};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
    free(want);
}

static void start(void **state) {
    (void)state;
    kt_each(test_start);
}

static void threads(void **state) {
    (void)state;
    enum { N = 300001 };
    for (size_t i = 0; i < CLIME_COUNT(KT_ISAS); i++) {
        double first = 0;
        for (int n = 1; n <= 3; n++) {
            struct kt k;
            if (!kt_open(&k, KT_ISAS[i], CLIME_BF16, n)) continue;
            float *x = kt_random_f32(&k, N, 4);
            double sum = squares(&k, N, x);
            if (n == 1) first = sum;
            assert_true(sum == first);
            kt_free(&k, x);
            kt_close(&k);
        }
    }
}

/* Rows at other distances in each array: the bits of row by row. */
static void test_tree_by_rows(struct kt *k, const float *const *x, float *y) {
    enum { ROWS = 5, EACH = 1003, ALL = 70001 };
    const size_t step[] = {EACH, 2 * EACH, 7000}, y_step = 3 * EACH;
    float *want = malloc(ALL * sizeof *want);
    memcpy(want, y, ALL * sizeof *want);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < EACH; i++)
            want[r * y_step + i] += (x[0][r * step[0] + i] + x[1][r * step[1] + i]) + x[2][r * step[2] + i];
    k->ops->accumulate(k->dev, ROWS, EACH, 3, x, step, y, y_step);
    assert_memory_equal(y, want, ALL * sizeof *want);
    free(want);
}

/* y += ((0 + 1) + (2 + 3)) + ..., of any number of arrays, to the bit. */
static void test_tree(struct kt *k) {
    enum { N = 70001, MOST = 9 };
    const float *x[MOST];
    float *y = kt_random_f32(k, N, 1);
    for (int i = 0; i < MOST; i++) x[i] = kt_random_f32(k, N, 1);
    for (int n = 1; n <= MOST; n++) {
        float *want = malloc(N * sizeof *want);
        for (size_t i = 0; i < N; i++) {
            float sum[16] = {0};
            for (int j = 0; j < n; j++) sum[j] = x[j][i];
            for (int step = 1; step < 16; step *= 2)
                for (int j = 0; j + step < 16; j += 2 * step) sum[j] += sum[j + step];
            want[i] = y[i] + sum[0];
        }
        k->ops->accumulate(k->dev, 1, N, n, x, NULL, y, 0);
        assert_memory_equal(y, want, N * sizeof *want);
        free(want);
    }
    test_tree_by_rows(k, x, y);
    for (int i = 0; i < MOST; i++) kt_free(k, (void *)(uintptr_t)x[i]);
    kt_free(k, y);
}

static void tree(void **state) {
    (void)state;
    kt_each(test_tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(adamw), cmocka_unit_test(start), cmocka_unit_test(threads),
                                       cmocka_unit_test(tree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
