/* DPO and its kin against PyTorch (tests/golden/loss.json): values, derivatives, figures, however pairs are packed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/json/tree.h"
#include "trainer/algorithm/loss.h"
#include "trainer/algorithm/preference.h"

enum { MAX_LEN = 16, MAX_PAIRS = 8, PROMPT = 2 };

static struct cJSON *golden;

static int setup(void **state) {
    struct clime_error e;
    (void)state;
    return clime_tree_read_file("tests/golden/loss.json", 1 << 22, &golden, &e) ? 1 : 0;
}

static int teardown(void **state) {
    (void)state;
    clime_tree_free(golden);
    return 0;
}

static double num(const struct cJSON *c, const char *key) {
    return clime_tree_num(clime_tree_get(c, key), NAN);
}

static void assert_close(double got, double want) {
    if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want)))) fail_msg("got %.9g, want %.9g", got, want);
}

struct answer {
    struct clime_sample s;
    uint8_t mask[MAX_LEN];
    float logp[MAX_LEN], ref[MAX_LEN], g[MAX_LEN];
    int n;
};

/* A token that is not trained stands between the others. */
static void read_answer(const struct cJSON *c, int group, int member, struct answer *a) {
    const struct cJSON *lp = clime_tree_first(clime_tree_get(c, "logp")),
                       *rf = clime_tree_first(clime_tree_get(c, "ref"));
    const struct cJSON *g = clime_tree_first(clime_tree_get(c, "g"));
    *a = (struct answer){.s = {.group = group, .member = member, .n_prompt = PROMPT}};
    for (; lp; lp = clime_tree_next(lp), rf = clime_tree_next(rf), g = clime_tree_next(g), a->n++) {
        a->logp[a->n] = (float)clime_tree_num(lp, NAN);
        a->ref[a->n] = (float)clime_tree_num(rf, NAN);
        a->g[a->n] = (float)clime_tree_num(g, NAN);
    }
    a->s.n_response = a->n + 1;
    memset(a->mask, 1, (size_t)a->n + 1);
    a->mask[a->n / 2] = 0;
    a->s.mask = a->mask;
}

/* together: pairs in one micro-batch; backwards: in the order of the packing. */
static void check(const struct cJSON *c, int together, bool backwards) {
    static const char *const names[] = {"", "sigmoid", "dpo_norm", "ipo", "simpo"};
    static struct answer a[2 * MAX_PAIRS];
    const struct clime_sample *p[2 * MAX_PAIRS];
    struct clime_stream s;
    struct clime_loss_sums sums = {0};
    struct clime_error e;
    struct clime_objective o = {.beta = num(c, "beta"),
                                .label_smoothing = num(c, "label_smoothing"),
                                .simpo_gamma = num(c, "simpo_gamma"),
                                .use_kl_loss = true, /* no KL term goes with pairs */
                                .kl_loss_coef = 1};
    int n = 0;
    while (strcmp(names[o.preference], clime_tree_str(clime_tree_get(c, "kind"), "?"))) o.preference++;
    const struct cJSON *pair = clime_tree_first(clime_tree_get(c, "pairs"));
    for (; pair; pair = clime_tree_next(pair)) {
        const struct cJSON *chosen = clime_tree_first(pair);
        read_answer(chosen, n / 2, 0, &a[n]);
        read_answer(clime_tree_next(chosen), n / 2, 1, &a[n + 1]);
        n += 2;
    }
    for (int i = 0; i < n; i++) p[i] = &a[i].s;
    clime_stream_init(&s, p, NULL, n, INT64_MIN);
    clime_loss_weights(&o, n / 2, &s);
    assert_true(clime_loss_needs_ref(&o) == (o.preference != CLIME_PREFERENCE_SIMPO));
    for (int i = 0; i < n; i++) memcpy(s.ref + s.first[i], a[i].ref, (size_t)a[i].n * sizeof(float));
    for (int from = 0; from < n; from += 2 * together) {
        int32_t which[2 * MAX_PAIRS];
        float logp[2 * MAX_PAIRS * MAX_LEN], g[2 * MAX_PAIRS * MAX_LEN];
        int m = 0, at = 0;
        for (int i = from; i < n && i < from + 2 * together; i += 2) {
            int k = backwards ? n - 2 - i : i;
            which[m++] = k;
            which[m++] = k + 1;
        }
        for (int i = 0; i < m; at += a[which[i++]].n)
            memcpy(logp + at, a[which[i]].logp, (size_t)a[which[i]].n * sizeof(float));
        assert_int_equal(clime_loss_samples(&o, &s, which, m, logp, NULL, NULL, -1, g, NULL, &sums, &e), CLIME_OK);
        at = 0;
        for (int i = 0; i < m; i++)
            for (int k = 0; k < a[which[i]].n; k++, at++) assert_close((double)g[at], (double)a[which[i]].g[k]);
    }
    assert_close(sums.loss, num(c, "loss"));
    assert_close(sums.pairs_right / sums.pairs, num(c, "right"));
    assert_close(sums.chosen / sums.pairs, num(c, "chosen"));
    assert_close(sums.rejected / sums.pairs, num(c, "rejected"));
    clime_stream_free(&s);
}

static void test_pairs(void **state) {
    int n = 0;
    (void)state;
    const struct cJSON *c = clime_tree_first(clime_tree_get(golden, "pairs"));
    for (; c; c = clime_tree_next(c), n++) {
        check(c, 4, false);
        check(c, 1, false);
        check(c, 2, true);
    }
    assert_int_equal(n, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
