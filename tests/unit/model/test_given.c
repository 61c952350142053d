/* Rows that are given their experts, against PyTorch and transformers: log-probabilities, entropies and every gradient,
 * the routers' too, where most rows of a batch have other experts than their routers choose, one sequence and each last
 * row their own (tests/golden/make_given_goldens.py). Per tensor |x - ref| / |ref|, held as in test_golden.c. */
#include "common/log.h"
#include "tests/unit/model/golden.h"

static const char *const cases[] = {"qwen3_moe", "qwen2_moe", "glm4_moe", "deepseek_v3"};
static const char *const isas[] = {"generic", "avx2", "avx512", "amx"};

static struct clime_train *open_train(struct golden *g, enum clime_recompute level) {
    struct clime_train *t;
    struct clime_error e;
    const struct clime_train_options o = {
        .max_rows = g->b.T, .max_seqs = g->b.n_seq, .recompute = level, .gives_experts = true};
    if (clime_train_open(g->m, &o, &t, &e)) fail_msg("%s: %s", g->name, e.msg);
    return t;
}

static void run_case(struct golden *g, enum clime_recompute level) {
    const size_t R = (size_t)g->b.n_loss, N = (size_t)g->m->layout.n_grads;
    float *logp = xmalloc(R * 4), *entropy = xmalloc(R * 4), *grads = xmalloc(N * 4);
    struct clime_train *t = open_train(g, level);
    struct clime_error e;
    g->b.given = ref_data(g, "given", NULL);
    if (clime_train_forward(t, &g->b, true, logp, entropy, &e)) fail_msg("%s: %s", g->name, e.msg);
    compare(g, "logp", logp, (int64_t)R);
    compare(g, "entropy", entropy, (int64_t)R);
    if (clime_train_backward(t, &g->b, g->g_logp, g->g_ent, &e)) fail_msg("%s: %s", g->name, e.msg);
    g->m->ops->copy_out(g->m->dev, grads, clime_train_grads(t), N * 4);
    compare_slices(g, "grad", grads);
    clime_train_close(t);
    free(logp);
    free(entropy);
    free(grads);
}

static void run_all(const char *dtype) {
    for (size_t i = 0; i < CLIME_COUNT(cases) * CLIME_COUNT(isas); i++) {
        const char *isa = isas[i % CLIME_COUNT(isas)];
        struct golden g;
        if (!open_case(&g, cases[i / CLIME_COUNT(isas)], "given", dtype, isa)) continue;
        run_case(&g, CLIME_RECOMPUTE_NONE);
        run_case(&g, CLIME_RECOMPUTE_FULL);
        print_message("%-11s %s %-7s nearest to its limit: %.2f of it, %s\n", g.name, dtype, isa, g.worst,
                      g.worst_name);
        close_case(&g);
    }
}

static void test_fp32(void **state) {
    (void)state;
    run_all("f32");
}

static void test_bf16(void **state) {
    (void)state;
    run_all("bf16");
}

int main(void) {
    clime_log_open("test", CLIME_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp32), cmocka_unit_test(test_bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
