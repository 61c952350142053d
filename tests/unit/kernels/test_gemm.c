/* Matrix products against float64, and their bits: rows alone and in batches, packed or not, threads, runs. */
#include "tests/unit/kernels/kernel_test.h"

struct shape {
    int T, N, K;
};
static const struct shape SHAPES[] = {{1, 1, 1},    {1, 16, 16},  {3, 5, 7},     {2, 172, 64},   {7, 64, 172},
                                      {13, 33, 95}, {12, 32, 64}, {70, 272, 65}, {130, 96, 515}, {1, 600, 1030}};

static double tolerance(struct kt *k, int K, bool rounded) {
    return (rounded ? kt_eps(k->dt) : 0) + 1e-6 * sqrt((double)K);
}

static void test_values(struct kt *k) {
    for (size_t c = 0; c < CLIME_COUNT(SHAPES); c++) {
        size_t T = (size_t)SHAPES[c].T, N = (size_t)SHAPES[c].N, K = (size_t)SHAPES[c].K;
        int t = (int)T, n = (int)N, kk = (int)K;
        void *x = kt_random(k, T * K, 1), *w = kt_random(k, N * K, 1), *dy = kt_random(k, T * N, 1);
        void *packed = kt_alloc(k, k->ops->pack_bytes(k->dev, n, kk) + 64);
        void *y = kt_room(k, T * N), *dx = kt_room(k, T * K);
        float *y32 = kt_alloc(k, T * N * 4), *dw = kt_random_f32(k, N * K, 1);
        double *want = malloc((T * N + T * K + N * K) * sizeof *want), *want_dx = want + T * N,
               *want_dw = want_dx + T * K;
        for (size_t r = 0; r < T; r++) {
            for (size_t o = 0; o < N; o++) {
                want[r * N + o] = 0;
                for (size_t i = 0; i < K; i++)
                    want[r * N + o] += kt_get(x, r * K + i, k->dt) * kt_get(w, o * K + i, k->dt);
            }
            for (size_t i = 0; i < K; i++) {
                want_dx[r * K + i] = 0;
                for (size_t o = 0; o < N; o++) {
                    want_dx[r * K + i] += kt_get(dy, r * N + o, k->dt) * kt_get(w, o * K + i, k->dt);
                }
            }
        }
        for (size_t o = 0; o < N; o++) {
            for (size_t i = 0; i < K; i++) {
                want_dw[o * K + i] = (double)dw[o * K + i];
                for (size_t r = 0; r < T; r++) {
                    want_dw[o * K + i] += kt_get(dy, r * N + o, k->dt) * kt_get(x, r * K + i, k->dt);
                }
            }
        }
        const struct clime_matrix m = {n, kk, w, packed};
        k->ops->pack(k->dev, &m);
        k->ops->gemm(k->dev, k->dt, t, x, &m, y);
        kt_close_norm(k, "y", y, k->dt, want, T * N, tolerance(k, kk, true));
        k->ops->gemm(k->dev, CLIME_F32, t, x, &m, y32);
        kt_close_norm(k, "y fp32", y32, CLIME_F32, want, T * N, tolerance(k, kk, false));
        k->ops->gemm_dx(k->dev, t, dy, &m, dx);
        kt_close_norm(k, "dx", dx, k->dt, want_dx, T * K, tolerance(k, n, true));
        k->ops->gemm_dw(k->dev, t, n, kk, dy, x, true, dw);
        kt_close_norm(k, "dw", dw, CLIME_F32, want_dw, N * K, tolerance(k, t, false));
        float *anew = kt_random_f32(k, N * K, 1); /* what is there does not count */
        k->ops->zero(k->dev, dw, N * K * sizeof *dw);
        k->ops->gemm_dw(k->dev, t, n, kk, dy, x, true, dw);
        k->ops->gemm_dw(k->dev, t, n, kk, dy, x, false, anew);
        for (size_t i = 0; i < N * K; i++) assert_true(anew[i] == dw[i]);
        kt_free(k, anew);
        void *all[] = {x, w, dy, packed, y, dx, y32, dw};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
        free(want);
    }
}

static void values(void **state) {
    (void)state;
    kt_each(test_values);
}

/* Each row alone gives the bits that it has in any batch; without packed weights too. */
static void test_rows(struct kt *k) {
    enum { N = 83, K = 171, T = 70 };
    void *x = kt_random(k, T * K, 1), *w = kt_random(k, N * K, 1), *y = kt_room(k, T * N), *ref = kt_room(k, T * N);
    void *packed = kt_alloc(k, k->ops->pack_bytes(k->dev, N, K));
    size_t size = clime_dtype_bytes(k->dt);
    const struct clime_matrix both[] = {{N, K, w, NULL}, {N, K, w, packed}};
    k->ops->pack(k->dev, &both[1]);
    for (size_t t = 0; t < T; t++) {
        k->ops->gemm(k->dev, k->dt, 1, (char *)x + t * K * size, &both[1], (char *)ref + t * N * size);
    }
    for (int batch = 1; batch <= T; batch++) {
        memset(y, 0xff, T * N * size);
        for (int t = 0; t < T; t += batch) {
            int n = T - t < batch ? T - t : batch;
            k->ops->gemm(k->dev, k->dt, n, (char *)x + (size_t)t * K * size, &both[batch % 2],
                         (char *)y + (size_t)t * N * size);
        }
        assert_memory_equal(y, ref, T * N * size);
    }
    void *all[] = {x, w, y, ref, packed};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
}

static void rows(void **state) {
    (void)state;
    kt_each(test_rows);
}

/* Thread counts, and the backward products run to run. Large enough to be spread over threads. */
static void threads(void **state) {
    (void)state;
    enum { T = 300, N = 384, K = 515 };
    for (size_t i = 0; i < CLIME_COUNT(KT_ISAS); i++) {
        for (int dt = 0; dt < 2; dt++) {
            size_t size = clime_dtype_bytes((enum clime_dtype)dt);
            void *first[3] = {NULL, NULL, NULL};
            for (int n = 1; n <= 3; n++) {
                struct kt k;
                if (!kt_open(&k, KT_ISAS[i], (enum clime_dtype)dt, n)) continue;
                void *x = kt_random(&k, T * K, 1), *w = kt_random(&k, N * K, 1), *dy = kt_random(&k, T * N, 1);
                void *out[3] = {kt_room(&k, T * N), kt_room(&k, T * K), kt_random_f32(&k, N * K, 1)};
                size_t bytes[3] = {T * N * size, T * K * size, (size_t)N * K * 4};
                const struct clime_matrix m = {N, K, w, NULL};
                k.ops->gemm(k.dev, k.dt, T, x, &m, out[0]);
                k.ops->gemm_dx(k.dev, T, dy, &m, out[1]);
                k.ops->gemm_dw(k.dev, T, N, K, dy, x, true, out[2]);
                for (int o = 0; o < 3; o++) {
                    if (n == 1) {
                        first[o] = malloc(bytes[o]);
                        memcpy(first[o], out[o], bytes[o]);
                    }
                    assert_memory_equal(out[o], first[o], bytes[o]);
                    kt_free(&k, out[o]);
                }
                kt_free(&k, x);
                kt_free(&k, w);
                kt_free(&k, dy);
                kt_close(&k);
            }
            for (int o = 0; o < 3; o++) free(first[o]);
        }
    }
}

static void test_bias(struct kt *k) {
    enum { T = 37, N = 75 };
    void *y = kt_random(k, T * N, 1), *b = kt_random(k, N, 1);
    float *db = kt_random_f32(k, N, 1);
    double want[T * N], want_db[N];
    for (size_t i = 0; i < N; i++) want_db[i] = (double)db[i];
    for (size_t i = 0; i < T * N; i++) {
        want[i] = kt_get(y, i, k->dt) + kt_get(b, i % N, k->dt);
        want_db[i % N] += kt_get(y, i, k->dt);
    }
    k->ops->bias_bwd(k->dev, T, N, y, db);
    k->ops->bias(k->dev, T, N, y, b);
    for (size_t i = 0; i < T * N; i++) kt_near(k, "bias", i, kt_get(y, i, k->dt), want[i], kt_eps(k->dt), 1e-6);
    kt_close_norm(k, "db", db, CLIME_F32, want_db, N, 1e-6);
    kt_free(k, y);
    kt_free(k, b);
    kt_free(k, db);
}

static void bias(void **state) {
    (void)state;
    kt_each(test_bias);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(rows), cmocka_unit_test(threads),
                                       cmocka_unit_test(bias)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
