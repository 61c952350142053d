/* The experts that drew a token, as a server says them, against those that a step's forward pass chooses: alike with
 * the same weights however rows are packed, cut over ranks and layers computed again, told with their place where one
 * router is another, with the layer where one expert is, and compared only where there is something to compare. */
#define LEARNERS_ONLY
#include "kernels/checksum.h"
#include "tests/unit/trainer/three_test.h"
#include "trainer/learn/follower.h"
#include "trainer/learn/routing.h"

/* Of so many ranks, which share each pack. */
static struct clime_learner *learner_of(int n_ranks, const char *golden, enum clime_recompute recompute) {
    struct clime_learner_options o = options_of(golden, "f32");
    o.recompute = recompute;
    o.lr = 0;
    o.n_ranks = o.context_parallel = n_ranks;
    o.rank_limit_us = 120000000;
    offered = (size_t)1 << 30;
    struct clime_learner *l = prepare_with(&o);
    start(l);
    return l;
}

static struct clime_learner *learner(const char *golden, enum clime_recompute recompute) {
    return learner_of(1, golden, recompute);
}

static void turn_router(struct clime_learner *l, int layer) {
    const int row = l->model->layout.layer[layer].w[CLIME_W_ROUTER];
    const struct clime_matrix *w = &l->model->matrix[row];
    float *x = clime_model_at(l->model, l->model->place[row]);
    for (int i = 0; i < w->N * w->K; i++) x[i] = -x[i];
    clime_model_repack(l->model);
}

/* What a server folds that chose these, but for expert `is` where `was` was chosen in layer `layer`. */
static uint32_t fold_with(const struct clime_router *r, int n, const int32_t *chosen, size_t apart, int layer, int was,
                          int is) {
    uint32_t x = 0;
    for (int l = 0; l < n; l++) {
        uint32_t terms = 0;
        for (int i = 0; i < r->k; i++) {
            int e = chosen[(size_t)l * apart + (size_t)i];
            terms += clime_choice_term((uint32_t)(l == layer && e == was ? is : e));
        }
        x = clime_choice_fold(x, terms);
    }
    return x;
}

/* The lowest expert that is not among the chosen. */
static int another(const struct clime_router *r, const int32_t *chosen) {
    for (int e = 0, i = 0;; e++) {
        for (i = 0; i < r->k && chosen[i] != e; i++) continue;
        if (i == r->k) return e;
    }
}

/* As a server with the learner's weights says them. */
static void say_routing(struct clime_learner *l, struct clime_sample *s) {
    struct alone a;
    run_alone(l, s, NULL, false, &a);
    s->routing = xcalloc(RESPONSE, sizeof *s->routing);
    clime_train_routing(l->train, &a.b, s->routing);
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

/* One expert of one layer another: that layer; of two layers, or two of one: not known. */
static void test_which_layer(void **state) {
    (void)state;
    enum { L = 60, K = 8 };
    const struct clime_router r = {.E = 128, .k = K};
    struct clime_rng rng;
    int32_t chosen[L * K], other[L * K];
    clime_rng_init(&rng, 5);
    for (int n = 1; n <= L; n++) {
        for (int l = 0; l < n; l++)
            for (int i = 0; i < K; i++) chosen[l * K + i] = 16 * i + (int)clime_rng_below(&rng, 16);
        int at = (int)clime_rng_below(&rng, (uint64_t)n), was = chosen[at * K + (int)clime_rng_below(&rng, K)];
        int is = another(&r, chosen + at * K);
        assert_int_equal(clime_routing_layer(&r, n, chosen, fold_with(&r, n, chosen, K, at, was, is)), at);
        memcpy(other, chosen, sizeof other);
        other[at * K] = is;
        if (n > 1) {
            int next = (at + 1) % n;
            uint32_t two = fold_with(&r, n, other, K, next, chosen[next * K], another(&r, chosen + next * K));
            assert_int_equal(clime_routing_layer(&r, n, chosen, two), -1);
        }
        other[at * K] = chosen[at * K];
        other[at * K + 1] = is;
        uint32_t both = fold_with(&r, n, other, K, at, chosen[at * K + 2], chosen[at * K + 7] == 127 ? 126 : 127);
        assert_int_equal(clime_routing_layer(&r, n, chosen, both), -1);
    }
}

/* The step finds it, from its own choices, where they are kept; also where ranks share a pack, each with some rows. */
static void test_layer_of_a_step(void **state) {
    (void)state;
    static const char *const golden[] = {"qwen3_moe", "glm4_moe"}; /* the first layer of the second is dense */
    for (int kind = 0; kind < 4; kind++) {
        bool kept = kind / 2 == 0;
        struct clime_learner *l = learner(golden[kind % 2], kept ? CLIME_RECOMPUTE_SELECTIVE : CLIME_RECOMPUTE_FULL);
        const struct clime_config *c = &l->model->cfg;
        struct clime_sample *s[N];
        for (int i = 0; i < N; i++) say_routing(l, s[i] = sample(l, i));
        int token = 5, layer = c->L - 1, n = 0;
        for (int i = 0; i < c->L; i++) n += clime_config_has_experts(c, i);
        uint32_t said = s[1]->routing[token];
        if (kept) {
            struct alone a;
            run_alone(l, s[1], NULL, true, &a);
            int32_t *choices = clime_train_choices(l->train, &a.b);
            size_t k = (size_t)c->router.k, apart = (size_t)LEN * k;
            const int32_t *of = choices + (size_t)(PROMPT - 1 + token) * k, *last = of + (size_t)(n - 1) * apart;
            assert_int_equal(fold_with(&c->router, n, of, apart, -1, 0, 0), said);
            said = fold_with(&c->router, n, of, apart, n - 1, last[0], another(&c->router, last));
            free(choices);
        }
        s[1]->routing[token] = kept ? said : said ^ 1;
        struct clime_learner *shared = learner_of(2, golden[kind % 2], l->opts.recompute);
        for (int ranks = 1; ranks <= 2; ranks++) {
            struct clime_step_stats stats = step(ranks == 1 ? l : shared, s);
            assert_int_equal(stats.routing_tokens, N * RESPONSE);
            assert_int_equal(stats.routing_wrong, 1);
            assert_true(stats.routing_at.sample == 1 && stats.routing_at.token == token);
            assert_int_equal(stats.routing_at.layer, kept ? layer : -1);
        }
        for (int i = 0; i < N; i++) clime_sample_free(s[i]);
        clime_learner_close(shared);
        clime_learner_close(l);
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

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alike), cmocka_unit_test(test_which_layer),
                                       cmocka_unit_test(test_layer_of_a_step), cmocka_unit_test(test_another_router)};
    if (argc == 2 && !strcmp(argv[1], "rank")) return clime_follower_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
