/* Samples that are trained with the experts that their servers chose. Given what the routers choose themselves: the
 * same bits, however rows are packed, cut over ranks, sent to experts, computed again. Given others: what a router does
 * whose bias, which plays no part in weights, makes it choose those, forward and backward. Beside samples that choose
 * themselves, which are compared with their servers as ever. And what servers say that no router chooses. */
#define LEARNERS_ONLY
#include "common/base64.h"
#include "tests/unit/trainer/three_test.h"
#include "trainer/learn/follower.h"
#include "trainer/sample/experts.h"

struct way {
    int ranks, context, over;
    enum clime_recompute recompute;
};

static struct clime_learner *learner_of(const char *golden, const char *dtype, struct way w, bool replays) {
    struct clime_learner_options o = options_of(golden, dtype);
    o.recompute = w.recompute;
    o.n_ranks = w.ranks;
    o.context_parallel = w.context;
    o.expert_parallel = w.over;
    o.gradient_lanes = 2;
    o.rank_limit_us = 120000000;
    o.replays_experts = replays;
    offered = (size_t)1 << 30;
    return open_learner(&o);
}

static const struct way alone = {1, 1, 1, CLIME_RECOMPUTE_SELECTIVE};

/* As a server with the learner's weights says them. */
static void say(struct clime_learner *l, struct clime_sample *s, bool experts) {
    const struct clime_config *c = &l->model->cfg;
    const size_t k = (size_t)c->router.k;
    struct alone p;
    run_alone(l, s, NULL, true, &p);
    s->routing = xcalloc(RESPONSE, sizeof *s->routing);
    clime_train_routing(l->train, &p.b, s->routing);
    if (!experts) return;
    int32_t *chosen = clime_train_choices(l->train, &p.b), *said = xcalloc((size_t)c->L * LEN * k, sizeof *said);
    struct clime_buf text;
    struct clime_error e;
    for (int layer = 0, n = 0; layer < c->L; layer++) {
        if (!clime_config_has_experts(c, layer)) continue;
        for (size_t t = 0; t < LEN - 1; t++)
            memcpy(said + (t * (size_t)c->L + (size_t)layer) * k, chosen + ((size_t)n * LEN + t) * k, k * sizeof *said);
        n++;
    }
    clime_buf_init(&text, 1 << 20);
    clime_base64_encode(said, (LEN - 1) * (size_t)c->L * k * sizeof *said, &text);
    s->expert_bytes = clime_experts_bytes(c);
    s->experts = xcalloc(LEN - 1, (size_t)s->expert_bytes);
    if (clime_experts_read(c, clime_buf_str(&text), LEN - 1, s->experts, &e)) fail_msg("%s", e.msg);
    clime_buf_free(&text);
    free(chosen);
    free(said);
}

static void weights_after(const char *golden, const char *dtype, struct way w, bool replays,
                          struct clime_sample *const *s, struct clime_step_stats *stats, char hex[65]) {
    struct clime_error e;
    struct clime_learner *l = learner_of(golden, dtype, w, replays);
    *stats = step(l, s);
    if (clime_learner_sha256(l, hex, &e)) fail_msg("%s", e.msg);
    clime_learner_close(l);
}

static const char *const goldens[] = {"qwen3_moe", "glm4_moe", "deepseek_v3", "qwen2_moe"};

/* Two of three samples, one of each pack among them, are given what the routers choose. */
static void test_own_choice_is_the_same_bits(void **state) {
    static const struct way ways[] = {{1, 1, 1, CLIME_RECOMPUTE_NONE},      {1, 1, 1, CLIME_RECOMPUTE_FULL},
                                      {1, 2, 1, CLIME_RECOMPUTE_SELECTIVE}, {2, 2, 1, CLIME_RECOMPUTE_FULL},
                                      {2, 1, 2, CLIME_RECOMPUTE_NONE},      {2, 1, 2, CLIME_RECOMPUTE_FULL},
                                      {2, 2, 2, CLIME_RECOMPUTE_SELECTIVE}};
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(goldens) * CLIME_COUNT(ways); i++) {
        const char *golden = goldens[i / CLIME_COUNT(ways)], *dtype = i % 2 ? "bf16" : "f32";
        const struct way w = ways[i % CLIME_COUNT(ways)];
        struct clime_learner *l = learner_of(golden, dtype, alone, false);
        struct clime_sample *s[N];
        struct clime_step_stats own, given;
        char hex[2][65];
        for (int k = 0; k < N; k++) say(l, s[k] = sample(l, 100 + k), false);
        weights_after(golden, dtype, w, false, s, &own, hex[0]);
        assert_true(own.routing_tokens == N * RESPONSE && own.routing_wrong == 0 && own.replayed_tokens == 0);
        for (int k = 1; k < N; k++) {
            free(s[k]->routing);
            say(l, s[k], true);
            s[k]->mixed_kv = 1;
        }
        weights_after(golden, dtype, w, true, s, &given, hex[1]);
        assert_true(given.replayed_tokens == (N - 1) * RESPONSE && given.replayed_otherwise == 0);
        assert_true(given.routing_tokens == RESPONSE && given.routing_wrong == 0);
        assert_true(given.loss == own.loss && given.grad_norm == own.grad_norm);
        if (strcmp(hex[0], hex[1])) fail_msg("%s %s over %d ranks", golden, dtype, w.ranks);
        for (int k = 0; k < N; k++) clime_sample_free(s[k]);
        clime_learner_close(l);
    }
}

/* A server with other routers drew samples 1 and 2; replayed, their rows have its experts wherever they are computed,
 * and the weights are the same. Sample 0 chooses itself. */
static void test_experts_of_other_weights(void **state) {
    static const struct way ways[] = {
        {2, 1, 1, CLIME_RECOMPUTE_FULL}, {2, 1, 2, CLIME_RECOMPUTE_NONE}, {2, 1, 2, CLIME_RECOMPUTE_FULL}};
    (void)state;
    for (size_t g = 0; g < CLIME_COUNT(goldens); g++) {
        struct clime_learner *l = learner_of(goldens[g], "f32", (struct way){1, 1, 1, CLIME_RECOMPUTE_NONE}, true);
        struct clime_learner *other = learner_of(goldens[g], "f32", alone, false);
        struct clime_sample *s[N];
        struct clime_step_stats stats;
        char hex[2][65];
        const int row = other->model->layout.layer[other->model->cfg.L - 1].w[CLIME_W_ROUTER];
        const struct clime_matrix *w = &other->model->matrix[row];
        float *x = clime_model_at(other->model, other->model->place[row]);
        for (int i = 0; i < w->N * w->K; i++) x[i] = -x[i];
        clime_model_repack(other->model);
        for (int k = 0; k < N; k++) say(k ? other : l, s[k] = sample(l, 100 + k), k > 0);
        s[1]->mixed_kv = s[2]->mixed_kv = 3;
        int differ = 0;
        struct alone p;
        uint32_t own[RESPONSE];
        run_alone(l, s[1], NULL, true, &p); /* as without the option */
        clime_train_routing(l->train, &p.b, own);
        for (int k = 0; k < RESPONSE; k++) differ += own[k] != s[1]->routing[k];
        assert_true(differ > 0);
        clime_learner_close(l);
        clime_learner_close(other);

        weights_after(goldens[g], "f32", (struct way){1, 1, 1, CLIME_RECOMPUTE_NONE}, true, s, &stats, hex[0]);
        assert_true(stats.replayed_tokens == 2 * RESPONSE && stats.replayed_otherwise == 0);
        assert_true(stats.routing_tokens == RESPONSE && stats.routing_wrong == 0);
        for (size_t i = 0; i < CLIME_COUNT(ways); i++) {
            weights_after(goldens[g], "f32", ways[i], true, s, &stats, hex[1]);
            assert_true(stats.replayed_tokens == 2 * RESPONSE && stats.replayed_otherwise == 0);
            assert_string_equal(hex[1], hex[0]);
        }

        /* one choice of one row is another's: that token is not what drew it any more, and the others are */
        uint8_t *choice = s[1]->experts + (size_t)(PROMPT - 1 + 5 + 1) * (size_t)s[1]->expert_bytes - 1;
        const int k = s[1]->expert_bytes > 1 ? choice[-1] : -1;
        *choice = (uint8_t)(*choice - 1 > k ? *choice - 1 : *choice + 1);
        l = learner_of(goldens[g], "f32", alone, true);
        bool is_one = *choice < l->model->cfg.router.E;
        if (is_one) stats = step(l, s);
        if (is_one) assert_true(stats.replayed_otherwise == 1 && stats.replayed_tokens == 2 * RESPONSE);
        *choice = 255; /* what no router chooses ends in an error */
        struct clime_error e;
        assert_int_equal(try_step(l, s, &stats, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "the experts given to row"));
        for (int i = 0; i < N; i++) clime_sample_free(s[i]);
        clime_learner_close(l);
    }
}

/* Layer by layer the first experts or the last: by a bias, and given. */
static void test_as_a_bias_would_choose(void **state) {
    static const char *const biased[] = {"glm4_moe", "deepseek_v3", "moonlight"};
    (void)state;
    for (size_t g = 0; g < 2 * CLIME_COUNT(biased); g++) {
        const enum clime_recompute level = g % 2 ? CLIME_RECOMPUTE_FULL : CLIME_RECOMPUTE_NONE;
        struct clime_learner *l[2];
        struct alone p[2];
        float *grads[2];
        int64_t n = 0;
        for (int i = 0; i < 2; i++) l[i] = learner_of(biased[g / 2], "f32", (struct way){1, 1, 1, level}, true);
        const struct clime_config *c = &l[0]->model->cfg;
        const int k = c->router.k, E = c->router.E;
        int16_t *given = xcalloc((size_t)(c->L * LEN * k), sizeof *given);
        for (int layer = 0; layer < c->L; layer++) {
            const int from = layer % 2 ? E - k : 0, row = l[0]->model->layout.layer[layer].w[CLIME_W_ROUTER_BIAS];
            for (int i = 0; i < LEN * k; i++) given[layer * LEN * k + i] = (int16_t)(from + i % k);
            if (!clime_config_has_experts(c, layer)) continue;
            float *bias = clime_model_at(l[0]->model, l[0]->model->place[row]);
            for (int i = from; i < from + k; i++) bias[i] += 100;
        }
        struct clime_sample *s = sample(l[0], 101);
        float g_logp[RESPONSE];
        struct clime_error e;
        for (int i = 0; i < RESPONSE; i++) g_logp[i] = (float)(i % 5) - 1.5f;
        for (int i = 0; i < 2; i++) {
            run_alone(l[i], s, i ? given : NULL, true, &p[i]);
            if (clime_train_backward(l[i]->train, &p[i].b, g_logp, NULL, &e)) fail_msg("%s", e.msg);
            grads[i] = clime_train_grads(l[i]->train);
            n = l[i]->model->layout.n_grads;
        }
        assert_memory_equal(p[0].logp, p[1].logp, sizeof p[0].logp);
        assert_memory_equal(grads[0], grads[1], (size_t)n * sizeof(float));
        run_alone(l[1], s, NULL, true, &p[1]); /* it would choose others */
        assert_true(memcmp(p[0].logp, p[1].logp, sizeof p[0].logp) != 0);
        clime_sample_free(s);
        free(given);
        for (int i = 0; i < 2; i++) clime_learner_close(l[i]);
    }
}

static void refused(struct clime_learner *l, struct clime_sample *const *s, const char *why) {
    struct clime_step_stats stats;
    struct clime_error e;
    assert_int_equal(try_step(l, s, &stats, &e), CLIME_ERR_INPUT);
    if (!strstr(e.msg, why)) fail_msg("%s", e.msg);
}

static void test_what_does_not_fit(void **state) {
    (void)state;
    struct clime_learner *l = learner_of("qwen3_moe", "f32", alone, true);
    struct clime_learner *without = learner_of("qwen3_moe", "f32", alone, false);
    struct clime_learner *dense = learner_of("qwen3", "f32", alone, true);
    struct clime_sample *s[N];
    for (int k = 0; k < N; k++) say(l, s[k] = sample(l, 100 + k), k == 1);
    s[1]->mixed_kv = s[2]->mixed_kv = 1;
    refused(l, s, "sample 0/0/0 kept its KV over an update");
    refused(without, s, "recorded to be trained with its servers' experts");
    s[2]->mixed_kv = 0;
    s[1]->expert_bytes--;
    refused(l, s, "holds experts of another model");
    s[1]->expert_bytes++;
    step(l, s);
    free(s[1]->experts);
    s[1]->experts = NULL;
    step(without, s);
    for (int k = 0; k < N; k++) free(s[k]->routing);
    for (int k = 0; k < N; k++) s[k]->routing = NULL;
    step(dense, s); /* there are no experts to replay */
    for (int k = 0; k < N; k++) clime_sample_free(s[k]);
    clime_learner_close(l);
    clime_learner_close(without);
    clime_learner_close(dense);
}

/* ---- what servers say ---- */

static enum clime_err read_said(const struct clime_config *c, const int32_t *said, size_t bytes, int n, uint8_t *out,
                                struct clime_error *e) {
    struct clime_buf text;
    clime_buf_init(&text, 1 << 20);
    clime_base64_encode(said, bytes, &text);
    enum clime_err rc = clime_experts_read(c, clime_buf_str(&text), n, out, e);
    clime_buf_free(&text);
    return rc;
}

static void test_said(void **state) {
    static struct clime_config c = {.L = 3, .router = {.E = 8, .k = 2}, .dense = {[0] = true}};
    static const int32_t good[2 * 6] = {0, 0, 1, 7, 2, 3, 0, 0, 0, 1, 6, 7};
    static const uint8_t kept[2 * 4] = {1, 7, 2, 3, 0, 1, 6, 7};
    static const struct {
        int at, id;
        const char *why;
    } bad[] = {{2, 8, "none of 8 experts"},
               {2, -1, "none of 8 experts"},
               {2, INT32_MAX, "none of 8 experts"},
               {2, 1, "distinct and ascending"},
               {2, 5, "distinct and ascending"}};
    uint8_t out[64];
    struct clime_error e;
    (void)state;
    assert_int_equal(clime_experts_bytes(&c), 4);
    assert_int_equal(read_said(&c, good, sizeof good, 2, out, &e), CLIME_OK);
    assert_memory_equal(out, kept, sizeof kept);
    for (size_t i = 0; i < CLIME_COUNT(bad); i++) {
        int32_t said[12];
        memcpy(said, good, sizeof said);
        said[6 + bad[i].at] = bad[i].id;
        assert_int_equal(read_said(&c, said, sizeof said, 2, out, &e), CLIME_ERR_INPUT);
        if (!strstr(e.msg, bad[i].why) || !strstr(e.msg, "layer 1 of position 1")) fail_msg("%s", e.msg);
    }
    assert_int_equal(read_said(&c, good, sizeof good - 4, 2, out, &e), CLIME_ERR_INPUT);
    assert_int_equal(read_said(&c, good, sizeof good, 1, out, &e), CLIME_ERR_INPUT);
    assert_int_equal(clime_experts_read(&c, clime_str_of(""), 2, out, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "routed_experts: 0 bytes of base64 instead of 64"));
    static const char junk[] = "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!";
    assert_int_equal(clime_experts_read(&c, clime_str_of(junk), 2, out, &e), CLIME_ERR_INPUT);

    c.router.E = 300; /* two bytes each */
    static const int32_t wide[6] = {0, 0, 1, 256, 255, 299};
    static const uint8_t wide_kept[8] = {1, 0, 0, 1, 255, 0, 43, 1};
    static const int16_t back[3 * 2 * 2] = {9, 9, 9, 9, 1, 256, -1, -1, 255, 299, -1, -1};
    int16_t given[3 * 2 * 2];
    assert_int_equal(clime_experts_bytes(&c), 8);
    assert_int_equal(read_said(&c, wide, sizeof wide, 1, out, &e), CLIME_OK);
    assert_memory_equal(out, wide_kept, sizeof wide_kept);
    const struct clime_sample s = {.n_prompt = 1, .n_response = 1, .experts = out, .expert_bytes = 8};
    for (size_t i = 0; i < CLIME_COUNT(given); i++) given[i] = 9;
    clime_experts_give(&c, &s, 2, 0, given);
    assert_memory_equal(given, back, sizeof back); /* of a dense layer nothing is said */
}

/* Kept while it goes on, and then if there is mixed KV. */
static void test_settled(void **state) {
    (void)state;
    for (int i = 0; i < 10; i++) {
        const enum clime_sample_status status = (enum clime_sample_status)(i / 2);
        const bool mixed = i % 2, finished = status == CLIME_SAMPLE_COMPLETED || status == CLIME_SAMPLE_TRUNCATED;
        struct clime_sample *s = clime_sample_new();
        s->status = status;
        s->mixed_kv = mixed;
        s->experts = xcalloc(4, 1);
        clime_experts_settle(s);
        assert_true((s->experts != NULL) == (status == CLIME_SAMPLE_ABORTED || (finished && mixed)));
        assert_int_equal(s->status, status);
        free(s->experts);
        s->experts = NULL;
        clime_experts_settle(s);
        assert_int_equal(s->status, finished && mixed ? CLIME_SAMPLE_FAILED : status);
        clime_sample_free(s);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_choice_is_the_same_bits),
                                       cmocka_unit_test(test_experts_of_other_weights),
                                       cmocka_unit_test(test_as_a_bias_would_choose),
                                       cmocka_unit_test(test_what_does_not_fit),
                                       cmocka_unit_test(test_said),
                                       cmocka_unit_test(test_settled)};
    if (argc == 2 && !strcmp(argv[1], "rank")) return clime_follower_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
