/* The head's log-softmax and its gradient: values, edges and bits. */
#include "tests/unit/kernels/kernel_test.h"

static const int VOCABULARIES[] = {1, 7, 272, 1024, 1025, 20000};

struct truth {
    double lse, entropy;
};

static struct truth truth_of(const float *x, int V, float inv_temp) {
    double max = -1e300, sum = 0, mean = 0;
    for (int v = 0; v < V; v++) max = fmax(max, (double)x[v] * (double)inv_temp);
    for (int v = 0; v < V; v++) {
        double z = (double)x[v] * (double)inv_temp - max;
        sum += exp(z);
        mean += exp(z) * z;
    }
    return (struct truth){max + log(sum), log(sum) - mean / sum};
}

static void test_stats(struct kt *k) {
    for (size_t c = 0; c < CLIME_COUNT(VOCABULARIES); c++) {
        enum { R = 9 };
        size_t V = (size_t)VOCABULARIES[c];
        int n = VOCABULARIES[c];
        float *x = kt_random_f32(k, R * V, 4), inv_temp[R], lse[R], logp[R], entropy[R];
        int32_t target[R];
        for (int r = 0; r < R; r++) {
            inv_temp[r] = 0.25f * (float)(r + 1);
            target[r] = (int32_t)clime_rng_below(&k->rng, V);
        }
        k->ops->head_stats(k->dev, R, n, x, inv_temp, target, lse, logp, entropy);
        for (size_t r = 0; r < R; r++) {
            struct truth t = truth_of(x + r * V, n, inv_temp[r]);
            kt_near(k, "lse", r, (double)lse[r], t.lse, 3e-7, 3e-6);
            kt_near(k, "entropy", r, (double)entropy[r], t.entropy, 1e-5, 1e-5);
            kt_near(k, "logp", r, (double)logp[r], (double)x[r * V + (size_t)target[r]] * (double)inv_temp[r] - t.lse,
                    1e-6, 1e-5);
            /* alone, without the optional results: the same bits */
            float one_lse, one_logp;
            k->ops->head_stats(k->dev, 1, n, x + r * V, inv_temp + r, target + r, &one_lse, &one_logp, NULL);
            assert_memory_equal(&one_lse, &lse[r], 4);
            assert_memory_equal(&one_logp, &logp[r], 4);
            k->ops->head_stats(k->dev, 1, n, x + r * V, inv_temp + r, NULL, &one_lse, NULL, NULL);
            assert_memory_equal(&one_lse, &lse[r], 4);
        }
        kt_free(k, x);
    }
}

/* -inf is a probability of 0; a NaN shows in the result; large logits do not overflow. */
static void test_edges(struct kt *k) {
    enum { V = 3000 };
    float *x = kt_random_f32(k, V, 0), one = 1, lse, entropy;
    for (int v = 0; v < V; v++) x[v] = v < 2048 ? -INFINITY : 0;
    k->ops->head_stats(k->dev, 1, V, x, &one, NULL, &lse, NULL, &entropy);
    kt_near(k, "lse", 0, (double)lse, log(952), 1e-6, 0);
    kt_near(k, "entropy", 0, (double)entropy, log(952), 1e-6, 0);
    for (int v = 0; v < V; v++) x[v] = 3e30f;
    k->ops->head_stats(k->dev, 1, V, x, &one, NULL, &lse, NULL, NULL);
    kt_near(k, "lse", 0, (double)lse, 3e30, 1e-6, 0);
    x[1500] = NAN;
    k->ops->head_stats(k->dev, 1, V, x, &one, NULL, &lse, NULL, NULL);
    assert_true(isnan(lse));
    kt_free(k, x);
}

static void test_grad(struct kt *k) {
    for (size_t c = 0; c < CLIME_COUNT(VOCABULARIES) - 1; c++) {
        enum { R = 6 };
        size_t V = (size_t)VOCABULARIES[c], stride = k->dt == CLIME_BF16 ? 2 * V : V;
        int n = VOCABULARIES[c];
        float *x = kt_random_f32(k, R * V, 2), inv_temp[R], lse[R], logp[R], entropy[R], gl[R], ge[R];
        int32_t target[R];
        for (int r = 0; r < R; r++) {
            inv_temp[r] = 0.5f + 0.3f * (float)r;
            target[r] = (int32_t)clime_rng_below(&k->rng, V);
            gl[r] = (float)clime_rng_normal(&k->rng);
            ge[r] = (float)clime_rng_normal(&k->rng);
        }
        double *want = malloc(2 * R * V * sizeof *want), *plain = want + R * V;
        for (size_t r = 0; r < R; r++) {
            struct truth t = truth_of(x + r * V, n, inv_temp[r]);
            for (size_t v = 0; v < V; v++) {
                double lp = (double)x[r * V + v] * (double)inv_temp[r] - t.lse, p = exp(lp);
                double hit = (int32_t)v == target[r];
                plain[r * V + v] = (double)inv_temp[r] * (double)gl[r] * (hit - p);
                want[r * V + v] = plain[r * V + v] - (double)inv_temp[r] * (double)ge[r] * p * (lp + t.entropy);
            }
        }
        k->ops->head_stats(k->dev, R, n, x, inv_temp, target, lse, logp, entropy);
        void *out = kt_room(k, R * V);
        k->ops->head_grad(k->dev, R, n, x, inv_temp, target, lse, entropy, gl, NULL, out, n);
        kt_close_norm(k, "dlogits without entropy", out, k->dt, plain, R * V, kt_eps(k->dt) + 1e-5 + (V == 1));
        k->ops->head_grad(k->dev, R, n, x, inv_temp, target, lse, entropy, gl, ge, out, n);
        kt_close_norm(k, "dlogits", out, k->dt, want, R * V, kt_eps(k->dt) + 1e-5 + (V == 1));
        k->ops->head_grad(k->dev, R, n, x, inv_temp, target, lse, entropy, gl, ge, x, (int64_t)stride);
        size_t size = clime_dtype_bytes(k->dt); /* over the logits: the same bits */
        for (size_t r = 0; r < R; r++) {
            assert_memory_equal((char *)x + r * stride * size, (char *)out + r * V * size, V * size);
        }
        free(want);
        kt_free(k, x);
        kt_free(k, out);
    }
}

/* Statistics and gradient over a set of ids, against the formula over these alone; a row without a set stays. */
static void test_keep(struct kt *k) {
    enum { V = 3000, R = 6 };
    const int32_t ids[] = {-1, 0, 1, 1023, 1024, 2048, 2999, 2047, 5, 0, 2999};
    const int64_t from[R + 1] = {1, 7, 7, 8, 9, 10, 11}; /* ids of other rows may lie before */
    float *x = kt_random_f32(k, R * V, 2), *was = kt_random_f32(k, R * V, 0), inv_temp[R], lse[R], logp[R], entropy[R],
          gl[R], ge[R];
    int32_t target[R];
    double *want = calloc(R * V, sizeof *want);
    memcpy(was, x, (size_t)R * V * sizeof *x);
    for (int r = 0; r < R; r++) {
        inv_temp[r] = 0.5f + 0.3f * (float)r;
        target[r] = from[r] < from[r + 1] ? ids[from[r + 1] - 1] : 17;
        gl[r] = (float)clime_rng_normal(&k->rng);
        ge[r] = (float)clime_rng_normal(&k->rng);
    }
    k->ops->head_keep(k->dev, R, V, x, from, ids);
    k->ops->head_stats(k->dev, R, V, x, inv_temp, target, lse, logp, entropy);
    for (size_t r = 0; r < R; r++) {
        const float *row = was + r * V;
        const int n = from[r] < from[r + 1] ? (int)(from[r + 1] - from[r]) : V;
        float kept[V];
        for (int i = 0; i < n; i++) kept[i] = n < V ? row[ids[from[r] + i]] : row[i];
        struct truth t = truth_of(kept, n, inv_temp[r]);
        kt_near(k, "lse", r, (double)lse[r], t.lse, 3e-7, 3e-6);
        kt_near(k, "entropy", r, (double)entropy[r], t.entropy, 1e-5, 1e-5);
        kt_near(k, "logp", r, (double)logp[r], (double)row[target[r]] * (double)inv_temp[r] - t.lse, 1e-6, 1e-5);
        for (int i = 0; i < n; i++) {
            const int32_t v = n < V ? ids[from[r] + i] : i;
            const double lp = (double)row[v] * (double)inv_temp[r] - t.lse, p = exp(lp);
            assert_true(x[r * V + (size_t)v] == row[v]);
            want[r * V + (size_t)v] =
                (double)inv_temp[r] * ((double)gl[r] * ((v == target[r]) - p) - (double)ge[r] * p * (lp + t.entropy));
        }
    }
    void *out = kt_room(k, R * V);
    k->ops->head_grad(k->dev, R, V, x, inv_temp, target, lse, entropy, gl, ge, out, V);
    kt_close_norm(k, "dlogits", out, k->dt, want, R * V, kt_eps(k->dt) + 1e-5);
    free(want);
    kt_free(k, x);
    kt_free(k, was);
    kt_free(k, out);
}

/* Threads change nothing, in shapes large enough to be spread. */
static void threads(void **state) {
    (void)state;
    enum { R = 3, V = 60000 };
    for (size_t i = 0; i < CLIME_COUNT(KT_ISAS); i++) {
        float first[3 * R] = {0};
        for (int n = 1; n <= 3; n++) {
            struct kt k;
            if (!kt_open(&k, KT_ISAS[i], CLIME_BF16, n)) continue;
            float *x = kt_random_f32(&k, R * V, 4), inv_temp[R] = {1, 0.5f, 2}, out[3 * R];
            int32_t target[R] = {5, 0, V - 1};
            k.ops->head_stats(k.dev, R, V, x, inv_temp, target, out, out + R, out + 2 * R);
            if (n == 1) memcpy(first, out, sizeof first);
            assert_memory_equal(out, first, sizeof first);
            kt_free(&k, x);
            kt_close(&k);
        }
    }
}

#define EACH(name)                                                                                                     \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        kt_each(test_##name);                                                                                          \
    }
EACH(stats)
EACH(edges)
EACH(grad)
EACH(keep)

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(stats), cmocka_unit_test(edges), cmocka_unit_test(grad),
                                       cmocka_unit_test(keep), cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
