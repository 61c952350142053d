/* The experts that drew a token, as a server says them, against those that a step's forward pass chooses: alike with
 * the same weights however rows are packed and layers computed again, told with their place where one router is
 * another, and compared only where there is something to compare. */
#define LEARNERS_ONLY
#include "tests/unit/trainer/learner_test.h"

enum { N = 3, PROMPT = 4, LEN = 18, RESPONSE = LEN - PROMPT, VERSION = 7 };

static struct clime_learner *learner(const char *golden, enum clime_recompute recompute) {
    struct clime_learner_options o = options_of(golden, "f32");
    o.recompute = recompute;
    o.lr = 0;
    offered = (size_t)1 << 30;
    struct clime_learner *l = prepare_with(&o);
    start(l);
    return l;
}

static void turn_router(struct clime_learner *l, int layer) {
    const int row = l->model->layout.layer[layer].w[CLIME_W_ROUTER];
    const struct clime_matrix *w = &l->model->matrix[row];
    float *x = clime_model_at(l->model, l->model->place[row]);
    for (int i = 0; i < w->N * w->K; i++) x[i] = -x[i];
    clime_model_repack(l->model);
}

static struct clime_sample *sample(const struct clime_learner *l, int i) {
    struct clime_sample *s = clime_sample_new();
    struct clime_rng rng;
    clime_rng_init(&rng, (uint64_t)i);
    s->n_prompt = PROMPT;
    s->n_response = RESPONSE;
    s->temperature = 1;
    s->ids = xcalloc(LEN, sizeof *s->ids);
    s->mask = xcalloc(RESPONSE, 1);
    s->versions = xcalloc(2, sizeof *s->versions);
    s->versions[0] = (struct clime_version_run){VERSION, RESPONSE};
    s->n_versions = 1;
    memset(s->mask, 1, RESPONSE);
    for (int k = 0; k < LEN; k++) s->ids[k] = (int32_t)clime_rng_below(&rng, (uint64_t)l->model->cfg.V);
    return s;
}

/* As a server with the learner's weights says them: every sequence alone. */
static void say_routing(struct clime_learner *l, struct clime_sample *s) {
    int32_t rows[RESPONSE], starts[2] = {0, LEN};
    float inv_temp[RESPONSE], logp[RESPONSE];
    struct clime_error e;
    for (int k = 0; k < RESPONSE; k++) rows[k] = PROMPT - 1 + k;
    for (int k = 0; k < RESPONSE; k++) inv_temp[k] = 1;
    const struct clime_packed_batch b = {.T = LEN,
                                         .n_seq = 1,
                                         .ids = s->ids,
                                         .start = starts,
                                         .n_loss = RESPONSE,
                                         .row = rows,
                                         .target = s->ids + PROMPT,
                                         .inv_temp = inv_temp};
    if (clime_train_forward(l->train, &b, false, logp, NULL, &e)) fail_msg("%s", e.msg);
    s->routing = xcalloc(RESPONSE, sizeof *s->routing);
    clime_train_routing(l->train, &b, s->routing);
}

static struct clime_step_stats step(struct clime_learner *l, struct clime_sample *const *s) {
    const int32_t lengths[N] = {LEN, LEN, LEN};
    const struct clime_pack_options po = {.max_tokens = 2 * LEN, .dynamic = true}; /* two packs */
    struct clime_packing packing;
    struct clime_step_stats stats;
    struct clime_error e;
    clime_pack_make(lengths, N, &po, &packing);
    assert_int_equal(packing.n_micro, 2);
    const struct clime_step_input in = {.samples = (const struct clime_sample *const *)s,
                                        .n = N,
                                        .packing = &packing,
                                        .version = VERSION,
                                        .global_batch = N};
    if (clime_learner_step(l, &in, &stats, &e)) fail_msg("%s", e.msg);
    clime_pack_free(&packing);
    return stats;
}

static void test_alike(void **state) {
    (void)state;
    static const char *const golden[] = {"qwen3_moe", "glm4_moe", "deepseek_v3"};
    for (size_t g = 0; g < CLIME_COUNT(golden); g++) {
        for (int again = 0; again < 2; again++) {
            struct clime_learner *l = learner(golden[g], again ? CLIME_RECOMPUTE_FULL : CLIME_RECOMPUTE_NONE);
            struct clime_sample *s[N];
            for (int i = 0; i < N; i++) say_routing(l, s[i] = sample(l, i));
            struct clime_step_stats stats = step(l, s);
            assert_int_equal(stats.routing_tokens, N * RESPONSE);
            assert_int_equal(stats.routing_wrong, 0);
            for (int i = 0; i < N; i++) clime_sample_free(s[i]);
            clime_learner_close(l);
        }
    }
}

static void test_another_router(void **state) {
    (void)state;
    struct clime_learner *l = learner("qwen3_moe", CLIME_RECOMPUTE_NONE), *other = learner("qwen3_moe", 0);
    struct clime_sample *s[N];
    turn_router(other, l->model->cfg.L - 1);
    for (int i = 0; i < N; i++) say_routing(i == 1 ? other : l, s[i] = sample(l, i));
    struct clime_step_stats stats = step(l, s);
    assert_int_equal(stats.routing_tokens, N * RESPONSE);
    assert_true(stats.routing_wrong > 0 && stats.routing_wrong <= RESPONSE);
    assert_int_equal(stats.routing_at.sample, 1);
    int first = stats.routing_at.token;
    assert_in_range(first, 0, RESPONSE - 1);

    /* a server that does not know them, KV of other weights, tokens of other weights: nothing to compare */
    s[1]->routing[first] = 0;
    int64_t wrong = stats.routing_wrong;
    stats = step(l, s);
    assert_int_equal(stats.routing_tokens, N * RESPONSE - 1);
    assert_int_equal(stats.routing_wrong, wrong - 1);
    s[1]->mixed_kv = 3;
    stats = step(l, s);
    assert_int_equal(stats.routing_tokens, (N - 1) * RESPONSE);
    assert_int_equal(stats.routing_wrong, 0);
    s[1]->mixed_kv = 0;
    s[1]->versions[0] = (struct clime_version_run){VERSION - 1, RESPONSE};
    stats = step(l, s);
    assert_int_equal(stats.routing_tokens, (N - 1) * RESPONSE);
    assert_int_equal(stats.routing_wrong, 0);
    free(s[0]->routing);
    s[0]->routing = NULL; /* nobody said anything */
    stats = step(l, s);
    assert_int_equal(stats.routing_tokens, RESPONSE);
    for (int i = 0; i < N; i++) clime_sample_free(s[i]);
    clime_learner_close(l);
    clime_learner_close(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alike), cmocka_unit_test(test_another_router)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
