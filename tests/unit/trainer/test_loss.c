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
#include "trainer/algorithm/correction.h"
#include "trainer/algorithm/estimator.h"
#include "trainer/algorithm/kl.h"
#include "trainer/algorithm/loss.h"
#include "trainer/algorithm/opd.h"
#include "trainer/learn/learner.h"
#include "trainer/learn/optimizer.h"

static struct cJSON *golden;

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

/* ---- the samples of the goldens ---- */

enum { MAX_TOKENS = 64, MAX_SAMPLES = 16, MAX_LEN = 8, PROMPT = 2 };

static struct fixture {
    int n;
    struct clime_sample sample[MAX_SAMPLES];
    const struct clime_sample *p[MAX_SAMPLES];
    struct clime_estimate estimate[MAX_SAMPLES], server[MAX_SAMPLES]; /* server: without old */
    double reward[MAX_SAMPLES];
    uint8_t mask[MAX_SAMPLES][MAX_LEN];
    struct clime_version_run runs[MAX_SAMPLES][MAX_LEN];
    float behave[MAX_SAMPLES][MAX_LEN], old[MAX_SAMPLES][MAX_LEN], adv[MAX_SAMPLES][MAX_LEN];
    float value[MAX_SAMPLES][MAX_LEN], new_value[MAX_SAMPLES][MAX_LEN], ret[MAX_SAMPLES][MAX_LEN];
    float logp[MAX_SAMPLES][MAX_LEN], ref[MAX_SAMPLES][MAX_LEN], entropy[MAX_SAMPLES][MAX_LEN];
    float teacher[MAX_SAMPLES][MAX_LEN];
} f;

static double num(const struct cJSON *c, const char *key) {
    double v = clime_tree_num(clime_tree_get(c, key), NAN);
    if (isnan(v)) fail_msg("no number %s", key);
    return v;
}

static bool flag(const struct cJSON *c, const char *key) {
    return clime_tree_bool(clime_tree_get(c, key), false);
}

static int choice(const struct cJSON *c, const char *key, const char *const *names, int n) {
    const char *name = clime_tree_str(clime_tree_get(c, key), "");
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return i;
    fail_msg("%s: %s", key, name);
    return 0;
}

static enum clime_kl_type kl_type_of(const struct cJSON *c) {
    static const char *const names[] = {"k1", "k2", "k3", "low_var_kl"};
    return (enum clime_kl_type)choice(c, "kl_type", names, 4);
}

static void read_sample(const struct cJSON *c, int i) {
    float mask[MAX_LEN], versions[MAX_LEN];
    struct clime_sample *s = &f.sample[i];
    *s = (struct clime_sample){.n_prompt = PROMPT,
                               .group = (int64_t)num(c, "group"),
                               .member = (int32_t)num(c, "member"),
                               .n_response = (int32_t)num(c, "n"),
                               .mask = f.mask[i],
                               .logp = f.behave[i],
                               .teacher_logp = f.teacher[i],
                               .versions = f.runs[i]};
    f.reward[i] = num(c, "reward");
    assert_int_equal(read_floats(clime_tree_get(c, "mask"), mask, MAX_LEN), s->n_response);
    read_floats(clime_tree_get(c, "versions"), versions, MAX_LEN);
    for (int k = 0; k < s->n_response; k++) {
        f.mask[i][k] = mask[k] != 0;
        f.runs[i][s->n_versions++] = (struct clime_version_run){(int64_t)versions[k], 1};
    }
    const struct {
        const char *key;
        float *out;
    } arrays[] = {{"behave", f.behave[i]},       {"old", f.old[i]},        {"adv", f.adv[i]},   {"value", f.value[i]},
                  {"new_value", f.new_value[i]}, {"ret", f.ret[i]},        {"logp", f.logp[i]}, {"ref", f.ref[i]},
                  {"entropy", f.entropy[i]},     {"teacher", f.teacher[i]}};
    for (size_t a = 0; a < CLIME_COUNT(arrays); a++)
        assert_int_equal(read_floats(clime_tree_get(c, arrays[a].key), arrays[a].out, MAX_LEN), s->n_response);
    f.estimate[i] = (struct clime_estimate){.adv = f.adv[i], .old = f.old[i]};
    f.server[i] = (struct clime_estimate){.adv = f.adv[i]};
    f.p[i] = s;
}

static int read_golden(void **state) {
    (void)state;
    struct clime_error e;
    if (clime_tree_read_file("tests/golden/loss.json", 1 << 22, &golden, &e)) {
        print_error("%s\n", e.msg);
        return -1;
    }
    const struct cJSON *c = clime_tree_first(clime_tree_get(golden, "samples"));
    for (; c; c = clime_tree_next(c)) read_sample(c, f.n++);
    return 0;
}

static int free_golden(void **state) {
    (void)state;
    clime_tree_free(golden);
    return 0;
}

/* x[sample][place] of the stream's tokens. */
static void gather(const struct clime_stream *s, float (*x)[MAX_LEN], float *out) {
    for (int i = 0; i < s->n_samples; i++)
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) out[k] = x[i][s->row[k] + 1 - PROMPT];
}

/* ---- advantages ---- */

static void check_advantages(const struct cJSON *c) {
    struct clime_error e = {0};
    const char *name = clime_tree_str(clime_tree_get(c, "estimator"), "");
    struct clime_objective o = {.estimator = clime_estimator_find(name, &e),
                                .gamma = num(c, "gamma"),
                                .lambd = num(c, "lambd"),
                                .kl_coef = num(c, "kl_coef"),
                                .kl_loss_type = kl_type_of(c),
                                .disable_grpo_std_normalization = flag(c, "no_std"),
                                .disable_rewards_normalization = flag(c, "raw")};
    struct clime_stream s;
    float want[MAX_TOKENS], old[MAX_TOKENS], ref[MAX_TOKENS], kl[MAX_TOKENS];
    assert_non_null(o.estimator);
    clime_stream_init(&s, f.p, NULL, f.n, INT64_MIN);
    assert_int_equal(read_floats(clime_tree_get(c, "adv"), want, MAX_TOKENS), s.n);
    gather(&s, f.old, old);
    gather(&s, f.ref, ref);
    gather(&s, f.value, s.value);
    for (int64_t k = 0; k < s.n; k++) {
        double unused;
        kl[k] = (float)clime_kl_value(o.kl_loss_type, (double)old[k], (double)ref[k], &unused);
    }
    assert_int_equal(clime_estimate_advantages(&o, f.p, f.reward, o.kl_coef != 0 ? kl : NULL, &s, &e), CLIME_OK);
    memcpy(s.old, old, (size_t)s.n * sizeof *old);
    double reverse_kl;
    if (num(c, "opd_coef") != 0)
        assert_int_equal(clime_opd_advantages(&s, num(c, "opd_coef"), &reverse_kl, &e), CLIME_OK);
    if (flag(c, "whiten")) clime_whiten(s.adv, s.n);
    for (int64_t k = 0; k < s.n; k++) assert_close((double)s.adv[k], (double)want[k], 1e-5);
    f.reward[2] = INFINITY; /* a failure is no reward */
    assert_int_equal(clime_estimate_advantages(&o, f.p, f.reward, NULL, &s, &e), CLIME_ERR_INTERNAL);
    f.reward[2] = 0;
    clime_stream_free(&s);
}

static void test_advantages(void **state) {
    (void)state;
    int n = 0;
    const struct cJSON *c = clime_tree_first(clime_tree_get(golden, "advantages"));
    for (; c; c = clime_tree_next(c), n++) check_advantages(c);
    assert_int_equal(n, 20);
}

static void test_no_teacher(void **state) {
    struct clime_error e = {0};
    struct clime_stream s;
    double reverse_kl;
    (void)state;
    clime_stream_init(&s, f.p, NULL, f.n, INT64_MIN);
    f.sample[1].teacher_logp = NULL; /* is no advantage of 0 */
    assert_int_equal(clime_opd_advantages(&s, 1, &reverse_kl, &e), CLIME_ERR_INTERNAL);
    assert_non_null(strstr(e.msg, "teacher"));
    f.sample[1].teacher_logp = f.teacher[1];
    clime_stream_free(&s);
}

static void test_unknown_estimators(void **state) {
    (void)state;
    struct clime_error e = {0};
    assert_null(clime_estimator_find("grop", &e));
    assert_non_null(strstr(e.msg, "reinforce_plus_plus_baseline|rloo"));
}

/* ---- loss ---- */

static void test_value_loss(void **state) {
    (void)state;
    struct clime_objective o = {0};
    const struct cJSON *c = clime_tree_first(clime_tree_get(golden, "values"));
    int n = 0;
    for (; c; c = clime_tree_next(c), n++) {
        struct clime_stream s;
        float v[MAX_TOKENS], want[MAX_TOKENS], g[MAX_TOKENS];
        double loss = 0, clipped = 0;
        clime_stream_init(&s, f.p, NULL, f.n, INT64_MIN);
        clime_loss_weights(&o, (int64_t)num(c, "global_batch"), &s);
        gather(&s, f.new_value, v);
        gather(&s, f.value, s.value);
        gather(&s, f.ret, s.ret);
        assert_int_equal(read_floats(clime_tree_get(c, "g"), want, MAX_TOKENS), s.n);
        clime_value_loss(num(c, "value_clip"), (int)s.n, v, s.value, s.ret, s.w_pg, g, &loss, &clipped);
        assert_close(loss, num(c, "loss"), 1e-5);
        assert_true(clipped == num(c, "clipped"));
        for (int64_t k = 0; k < s.n; k++) assert_close((double)g[k], (double)want[k], 1e-5);
        clime_stream_free(&s);
    }
    assert_int_equal(n, 3);
}

static struct clime_objective loss_options(const struct cJSON *c) {
    static const char *const modes[] = {"truncate", "icepop", "mask"};
    static const char *const levels[] = {"token", "sequence", "geometric"};
    static const char *const reductions[] = {"member", "token", "constant"};
    struct clime_error e = {0};
    struct clime_objective o = {
        .estimator = clime_estimator_find(clime_tree_str(clime_tree_get(c, "estimator"), ""), &e),
        .eps_clip = num(c, "eps_clip"),
        .eps_clip_high = num(c, "eps_clip_high"),
        .eps_clip_c = num(c, "eps_clip_c"),
        .use_kl_loss = true,
        .kl_loss_coef = num(c, "kl_coef"),
        .kl_loss_type = kl_type_of(c),
        .use_unbiased_kl = flag(c, "unbiased"),
        .entropy_coef = num(c, "ent_coef"),
        .use_opsm = flag(c, "opsm"),
        .opsm_delta = num(c, "opsm_delta"),
        .mask_offpolicy = flag(c, "mask_offpolicy"),
        .correction = {.use_tis = flag(c, "tis"),
                       .tis_mode = (enum clime_is_mode)choice(c, "tis_mode", modes, 3),
                       .tis_level = (enum clime_is_level)choice(c, "tis_level", levels, 3),
                       .tis_low = num(c, "tis_low"),
                       .tis_high = num(c, "tis_high"),
                       .tis_batch_normalize = flag(c, "tis_normalize"),
                       .use_rs = flag(c, "rs"),
                       .rs_level = (enum clime_is_level)choice(c, "rs_level", levels, 3),
                       .rs_low = num(c, "rs_low"),
                       .rs_high = num(c, "rs_high"),
                       .veto = num(c, "veto")},
    };
    int reduction = choice(c, "reduction", reductions, 3);
    o.calculate_per_token_loss = reduction == 1;
    if (reduction == 2) o.loss_token_divisor = (int64_t)num(c, "divisor");
    assert_non_null(o.estimator);
    assert_true(clime_loss_needs_old(&o) == flag(c, "corrected"));
    return o;
}

/* The case with its samples in micro-batches of `split`, taken from the front or from the back. */
static void check_loss(const struct cJSON *c, int split, bool backwards) {
    struct clime_objective o = loss_options(c);
    struct clime_stream s;
    struct clime_correction_stats corrected = {0};
    struct clime_loss_sums sums = {0};
    float logp[MAX_TOKENS], entropy[MAX_TOKENS], want[MAX_TOKENS], want_ent[MAX_TOKENS];
    clime_stream_init(&s, f.p, clime_loss_needs_old(&o) ? f.estimate : f.server, f.n,
                      o.mask_offpolicy ? (int64_t)num(golden, "version") : INT64_MIN);
    gather(&s, f.logp, logp);
    gather(&s, f.ref, s.ref);
    gather(&s, f.entropy, entropy);
    assert_int_equal(read_floats(clime_tree_get(c, "g_logp"), want, MAX_TOKENS), s.n);
    assert_int_equal(read_floats(clime_tree_get(c, "g_entropy"), want_ent, MAX_TOKENS), s.n);
    clime_loss_weights(&o, (int64_t)num(c, "global_batch"), &s);
    if (clime_loss_needs_old(&o)) clime_correct(&o, &s, &corrected);
    assert_true(corrected.rejected == num(c, "rejected"));

    for (int first = 0; first < f.n; first += split) { /* micro-batches add up */
        int32_t which[MAX_SAMPLES];
        float lp[MAX_TOKENS], en[MAX_TOKENS], g[MAX_TOKENS], g_en[MAX_TOKENS];
        int n = f.n - first < split ? f.n - first : split, m = 0;
        for (int i = 0; i < n; i++) {
            which[i] = backwards ? f.n - 1 - first - i : first + i;
            for (int64_t k = s.first[which[i]]; k < s.first[which[i] + 1]; k++, m++) {
                lp[m] = logp[k];
                en[m] = entropy[k];
            }
        }
        assert_int_equal(clime_loss_samples(&o, &s, which, n, lp, NULL, en, -1, g, g_en, &sums, NULL), CLIME_OK);
        m = 0;
        for (int i = 0; i < n; i++)
            for (int64_t k = s.first[which[i]]; k < s.first[which[i] + 1]; k++, m++) {
                assert_close((double)g[m], (double)want[k], 1e-5);
                assert_close((double)g_en[m], (double)want_ent[k], 1e-5);
            }
    }
    assert_close(sums.loss, num(c, "loss"), 1e-5);
    assert_true(sums.n == (double)s.n);
    assert_int_equal(sums.gap_tokens, 0);
    clime_stream_free(&s);
}

static void test_loss(void **state) {
    (void)state;
    int n = 0;
    const struct cJSON *c = clime_tree_first(clime_tree_get(golden, "losses"));
    for (; c; c = clime_tree_next(c), n++)
        for (int split = 1; split <= MAX_SAMPLES; split = split == 1 ? 3 : split + 13) {
            check_loss(c, split, false);
            check_loss(c, split, true);
        }
    assert_int_equal(n, 36);
}

/* Where trainer and server agree on every bit, a correction changes no bit. */
static void test_corrections_without_a_gap(void **state) {
    (void)state;
    struct clime_objective o = {
        .use_kl_loss = true,
        .kl_loss_coef = 0.1,
        .entropy_coef = 0.1,
        .correction = {.use_tis = true, .tis_high = 2, .use_rs = true, .rs_low = 0.5, .rs_high = 2, .veto = 0.5}};
    struct clime_stream a, b;
    struct clime_correction_stats stats = {0};
    clime_stream_init(&a, f.p, f.server, f.n, INT64_MIN);
    clime_stream_init(&b, f.p, f.server, f.n, INT64_MIN);
    clime_loss_weights(&o, 8, &a);
    clime_loss_weights(&o, 8, &b);
    clime_correct(&o, &b, &stats);
    size_t bytes = (size_t)a.n * sizeof(float);
    assert_memory_equal(a.w_pg, b.w_pg, bytes);
    assert_memory_equal(a.w_kl, b.w_kl, bytes);
    assert_memory_equal(a.w_ent, b.w_ent, bytes);
    assert_true(stats.rho == (double)a.n && stats.rho_abs == 0 && stats.changed + stats.rejected + stats.veto == 0);
    clime_stream_free(&a);
    clime_stream_free(&b);
}

/* At sequence level a sample has one weight, and the mean of the batch is that of samples: the longest does not decide.
 */
static void test_weights_are_normalised_a_sequence_at_a_time(void **state) {
    (void)state;
    enum { SHORT = 10, LONG = 1000 };
    const int n[2] = {SHORT, LONG};
    const double rho[2] = {2, 0.5};
    struct clime_objective o = {
        .correction = {.use_tis = true, .tis_level = CLIME_IS_SEQUENCE, .tis_high = 4, .tis_batch_normalize = true}};
    struct clime_sample sample[2];
    struct clime_estimate estimate[2] = {{0}};
    const struct clime_sample *p[2] = {&sample[0], &sample[1]};
    static float behave[LONG], old[2][LONG];
    static uint8_t mask[LONG];
    memset(mask, 1, sizeof mask);
    for (int i = 0; i < 2; i++) {
        sample[i] = (struct clime_sample){.group = i, .n_response = n[i], .logp = behave, .mask = mask};
        estimate[i].old = old[i];
        for (int k = 0; k < n[i]; k++) old[i][k] = (float)(log(rho[i]) / n[i]);
    }
    for (int level = 0; level < 2; level++) {
        struct clime_stream s;
        struct clime_correction_stats stats = {0};
        o.correction.tis_level = level ? CLIME_IS_SEQUENCE : CLIME_IS_TOKEN;
        clime_stream_init(&s, p, estimate, 2, INT64_MIN);
        for (int64_t k = 0; k < s.n; k++) s.w_pg[k] = 1;
        clime_correct(&o, &s, &stats);
        double mean = level ? (2 + 0.5) / 2 : 0;
        if (!level)
            for (int i = 0; i < 2; i++) mean += n[i] * exp((double)old[i][0]) / (SHORT + LONG);
        assert_close((double)s.w_pg[0], (level ? 2 : exp((double)old[0][0])) / mean, 1e-5);
        assert_close((double)s.w_pg[s.n - 1], (level ? 0.5 : exp((double)old[1][0])) / mean, 1e-5);
        clime_stream_free(&s);
    }
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
    struct clime_estimate est[2] = {{.advantage = 1}, {.advantage = 1}};
    clime_stream_init(&s, p, est, 2, INT64_MIN);
    struct clime_error e;
    struct clime_objective o = {.eps_clip = 0.2, .eps_clip_high = 0.2, .estimator = clime_estimator_find("grpo", &e)};
    clime_loss_weights(&o, 2, &s);
    struct clime_loss_sums sums = {0};
    int32_t which[2] = {0, 1};
    for (int i = 0; i < 2; i++)
        assert_int_equal(clime_loss_samples(&o, &s, which + i, 1, now, NULL, NULL, 6, g, NULL, &sums, &e), CLIME_OK);
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
    assert_true(clime_lr_at(&o, 0) == 0); /* as Megatron: the first update of a warm-up moves nothing */
    assert_close(clime_lr_at(&o, 1), 0.25, 1e-12);
    assert_close(clime_lr_at(&o, 3), 0.75, 1e-12);
    assert_close(clime_lr_at(&o, 4), 1, 1e-12);
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
        cmocka_unit_test(test_advantages),
        cmocka_unit_test(test_no_teacher),
        cmocka_unit_test(test_unknown_estimators),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_value_loss),
        cmocka_unit_test(test_corrections_without_a_gap),
        cmocka_unit_test(test_weights_are_normalised_a_sequence_at_a_time),
        cmocka_unit_test(test_gap_counts_the_current_version_only),
        cmocka_unit_test(test_first_fit),
        cmocka_unit_test(test_schedules),
    };
    return cmocka_run_group_tests(tests, read_golden, free_golden);
}
