/* Advantages, loss, derivatives and denominators against PyTorch (tests/golden/loss.json), packing by its rules, the
 * learning-rate schedules by their definitions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/json/tree.h"
#include "trainer/algorithm/loss.h"
#include "trainer/learner.h"
#include "trainer/optimizer.h"

static struct cJSON *golden;

static int read_golden(void **state) {
    (void)state;
    struct clime_error e;
    if (!clime_tree_read_file("tests/golden/loss.json", 1 << 22, &golden, &e)) return 0;
    print_error("%s\n", e.msg);
    return -1;
}

static int free_golden(void **state) {
    (void)state;
    clime_tree_free(golden);
    return 0;
}

static int read_floats(const struct cJSON *array, float *out, int max) {
    int n = 0;
    for (const struct cJSON *c = clime_tree_first(array); c && n < max; c = clime_tree_next(c))
        out[n++] = (float)clime_tree_num(c, NAN);
    return n;
}

static void assert_close(double got, double want, double tolerance) {
    if (fabs(got - want) <= tolerance * (1 + fabs(want))) return;
    fail_msg("got %.9g, want %.9g", got, want);
}

/* ---- advantages ---- */

static void check_advantages(const char *key, bool no_std) {
    enum { MAX = 16 };
    float group[MAX], reward[MAX], want[MAX], got[MAX];
    int n = read_floats(clime_tree_get(golden, "groups"), group, MAX);
    assert_int_equal(read_floats(clime_tree_get(golden, "rewards"), reward, MAX), n);
    assert_int_equal(read_floats(clime_tree_get(golden, key), want, MAX), n);
    struct clime_sample s[MAX] = {0};
    const struct clime_sample *p[MAX];
    for (int i = 0; i < n; i++) {
        s[i].group = (int64_t)group[i];
        s[i].reward = reward[i];
        s[i].has_reward = true;
        p[i] = &s[i];
    }
    struct clime_learner_options o = {.disable_grpo_std_normalization = no_std};
    struct clime_error e;
    assert_int_equal(clime_advantages(&o, p, n, got, &e), CLIME_OK);
    for (int i = 0; i < n; i++) assert_close(got[i], want[i], 1e-5);
    s[2].has_reward = false; /* a failure is no reward 0 */
    assert_int_equal(clime_advantages(&o, p, n, got, &e), CLIME_ERR_INTERNAL);
}

static void test_grpo(void **state) {
    (void)state;
    check_advantages("grpo", false);
}

static void test_grpo_without_deviation(void **state) {
    (void)state;
    check_advantages("centred", true);
}

/* ---- loss ---- */

enum { MAX_TOKENS = 32, MAX_SAMPLES = 8 };

static enum clime_kl_type kl_type_of(const char *name) {
    static const char *const names[] = {"k1", "k2", "k3", "low_var_kl"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(names[i], name)) return (enum clime_kl_type)i;
    fail_msg("kl type %s", name);
    return CLIME_KL_K1;
}

static void check_case(const struct cJSON *c, int split) {
    float len[MAX_SAMPLES], adv[MAX_SAMPLES], behave[MAX_TOKENS], logp[MAX_TOKENS], ref[MAX_TOKENS];
    float entropy[MAX_TOKENS], want_logp[MAX_TOKENS], want_ent[MAX_TOKENS], got_logp[MAX_TOKENS], got_ent[MAX_TOKENS];
    int n_samples = read_floats(clime_tree_get(c, "lengths"), len, MAX_SAMPLES);
    read_floats(clime_tree_get(c, "adv"), adv, MAX_SAMPLES);
    int n = read_floats(clime_tree_get(c, "behave"), behave, MAX_TOKENS);
    read_floats(clime_tree_get(c, "logp"), logp, MAX_TOKENS);
    read_floats(clime_tree_get(c, "ref"), ref, MAX_TOKENS);
    read_floats(clime_tree_get(c, "entropy"), entropy, MAX_TOKENS);
    read_floats(clime_tree_get(c, "g_logp"), want_logp, MAX_TOKENS);
    read_floats(clime_tree_get(c, "g_entropy"), want_ent, MAX_TOKENS);

    struct clime_learner_options o = {
        .eps_clip = clime_tree_num(clime_tree_get(c, "eps_clip"), 0),
        .eps_clip_high = clime_tree_num(clime_tree_get(c, "eps_clip_high"), 0),
        .kl_loss_coef = clime_tree_num(clime_tree_get(c, "kl_coef"), 0),
        .entropy_coef = clime_tree_num(clime_tree_get(c, "ent_coef"), 0),
        .kl_loss_type = kl_type_of(clime_tree_str(clime_tree_get(c, "kl_type"), "")),
        .calculate_per_token_loss = clime_tree_bool(clime_tree_get(c, "per_token"), false),
        .use_kl_loss = true,
    };
    /* The samples: a prompt of 2 tokens; between the trained tokens stands one with mask 0. */
    struct clime_sample samples[MAX_SAMPLES] = {0};
    const struct clime_sample *p[MAX_SAMPLES];
    uint8_t mask[MAX_SAMPLES][2 * MAX_TOKENS] = {{0}};
    float sample_logp[MAX_SAMPLES][2 * MAX_TOKENS] = {{0}};
    int at = 0;
    for (int i = 0; i < n_samples; i++) {
        samples[i] = (struct clime_sample){.n_prompt = 2, .n_response = 2 * (int)len[i] + 1};
        for (int k = 0; k < (int)len[i]; k++) {
            mask[i][2 * k + 1] = 1;
            sample_logp[i][2 * k + 1] = behave[at++];
        }
        samples[i].mask = mask[i];
        samples[i].logp = sample_logp[i];
        p[i] = &samples[i];
    }
    struct clime_stream s;
    clime_stream_init(&s, p, n_samples);
    assert_int_equal(s.n, n);
    assert_int_equal(s.row[0], 2 - 1 + 1); /* the token at response place 1 is predicted by the row before it */
    clime_loss_weights(&o, adv, (int64_t)clime_tree_num(clime_tree_get(c, "global_batch"), 0), &s);
    memcpy(s.ref, ref, (size_t)n * sizeof *ref);

    struct clime_loss_sums sums = {0};
    int64_t index[MAX_TOKENS];
    for (int i = 0; i < n; i++) index[i] = i;
    for (int first = 0; first < n; first += split) { /* micro-batches add up */
        int m = n - first < split ? n - first : split;
        clime_loss_tokens(&o, &s, index + first, m, logp + first, entropy + first, -1, got_logp + first,
                          got_ent + first, &sums);
    }
    assert_close(sums.loss, clime_tree_num(clime_tree_get(c, "loss"), NAN), 1e-5);
    for (int i = 0; i < n; i++) {
        assert_close(got_logp[i], want_logp[i], 1e-5);
        assert_close(got_ent[i], want_ent[i], 1e-5);
    }
    assert_int_equal(sums.gap_tokens, 0);
    clime_stream_free(&s);
}

static void test_loss(void **state) {
    (void)state;
    int n = 0;
    const struct cJSON *c = clime_tree_first(clime_tree_get(golden, "cases"));
    for (; c; c = clime_tree_next(c), n++) {
        check_case(c, MAX_TOKENS);
        check_case(c, 3);
        check_case(c, 1);
    }
    assert_int_equal(n, 5);
}

static void test_gap_counts_the_current_version_only(void **state) {
    (void)state;
    float logp[4] = {-1, -2, -3, -4}, now[4] = {-1, -2.5f, -9, -4}, g[4];
    uint8_t mask[4] = {1, 1, 1, 1};
    struct clime_version_run runs[2] = {{6, 2}, {5, 2}};
    struct clime_sample a = {
        .n_prompt = 1, .n_response = 4, .mask = mask, .logp = logp, .versions = runs, .n_versions = 2};
    struct clime_sample b = a;
    b.mixed_kv = true;
    const struct clime_sample *p[2] = {&a, &b};
    struct clime_stream s;
    clime_stream_init(&s, p, 2);
    float adv[2] = {1, 1};
    struct clime_learner_options o = {.eps_clip = 0.2, .eps_clip_high = 0.2};
    clime_loss_weights(&o, adv, 2, &s);
    struct clime_loss_sums sums = {0};
    int64_t first[4] = {0, 1, 2, 3}, second[4] = {4, 5, 6, 7};
    clime_loss_tokens(&o, &s, first, 4, now, NULL, 6, g, NULL, &sums);
    clime_loss_tokens(&o, &s, second, 4, now, NULL, 6, g, NULL, &sums);
    assert_int_equal(sums.gap_tokens, 2);
    assert_true(sums.gap_max == 0.5);
    clime_stream_free(&s);
}

/* ---- packing and schedule ---- */

static void test_first_fit(void **state) {
    (void)state;
    const int32_t lengths[] = {60, 50, 40, 120, 30, 10};
    struct clime_pack_options o = {.max_tokens = 100, .dynamic = true};
    struct clime_packing p;
    clime_pack_make(lengths, 6, &o, &p);
    const int32_t want_first[] = {0, 2, 5, 6}, want[] = {0, 2, 1, 4, 5, 3};
    assert_int_equal(p.n_micro, 3);
    assert_memory_equal(p.first, want_first, sizeof want_first);
    assert_memory_equal(p.sample, want, sizeof want);
    clime_pack_free(&p);
    o = (struct clime_pack_options){.micro_batch_size = 4};
    clime_pack_make(lengths, 6, &o, &p);
    assert_int_equal(p.n_micro, 2);
    assert_int_equal(p.first[1], 4);
    clime_pack_free(&p);
    clime_pack_make(lengths, 0, &o, &p);
    assert_int_equal(p.n_micro, 0);
    clime_pack_free(&p);
}

static void test_schedules(void **state) {
    (void)state;
    struct clime_learner_options o = {.lr = 1, .min_lr = 0.1, .lr_warmup_iters = 4, .lr_decay_iters = 14};
    assert_close(clime_lr_at(&o, 0), 0.25, 1e-12);
    assert_close(clime_lr_at(&o, 3), 1, 1e-12);
    assert_close(clime_lr_at(&o, 1000), 1, 1e-12);
    o.schedule = CLIME_LR_LINEAR;
    assert_close(clime_lr_at(&o, 4), 1, 1e-12);
    assert_close(clime_lr_at(&o, 9), 0.55, 1e-12);
    assert_close(clime_lr_at(&o, 14), 0.1, 1e-12);
    o.schedule = CLIME_LR_COSINE;
    assert_close(clime_lr_at(&o, 9), 0.55, 1e-12);
    assert_close(clime_lr_at(&o, 20), 0.1, 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grpo),      cmocka_unit_test(test_grpo_without_deviation),
        cmocka_unit_test(test_loss),      cmocka_unit_test(test_gap_counts_the_current_version_only),
        cmocka_unit_test(test_first_fit), cmocka_unit_test(test_schedules),
    };
    return cmocka_run_group_tests(tests, read_golden, free_golden);
}
