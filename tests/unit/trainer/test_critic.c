/* A critic beside its policy on several ranks that share packs: values, figures, heads and the weights of both are the
 * same bits on 1, 2 and 4 of them, also where a checkpoint goes on with another number; and what cuts change is the
 * order of sums of gradients alone. Critic and reference compute as the policy does, in the memory that was planned. */
#include <math.h>
#include <unistd.h>

#include "common/os/dirs.h"
#include "trainer/algorithm/estimator.h"
#include "trainer/learn/follower.h"

#define LEARNERS_ONLY
#include "tests/unit/trainer/learner_test.h"

enum { N = 6, LEN = 20, STEPS = 3, MOST_D = 128 };

/* Packs of five sequences and of one, whose rows the cuts do not divide; of four lanes two rounds or one. */
static struct clime_learner_options critic_of(const char *name, const char *dtype, int cuts) {
    struct clime_learner_options o = options_of(name, dtype);
    struct clime_error e;
    o.objective = (struct clime_objective){.estimator = clime_estimator_find("ppo", &e),
                                           .gamma = 0.99,
                                           .lambd = 0.9,
                                           .eps_clip = 0.2,
                                           .eps_clip_high = 0.2,
                                           .normalize_advantages = true};
    o.critic_lr = 1e-2;
    o.value_clip = 0.2;
    o.gradient_lanes = 4;
    o.context_parallel = cuts;
    o.rank_limit_us = 120000000;
    return o;
}

static struct clime_sample *sample(int V, int step, int i) {
    struct clime_sample *s = clime_sample_new();
    struct clime_rng rng;
    clime_rng_init(&rng, (uint64_t)(step * N + i));
    s->member = i;
    s->n_prompt = 1 + 3 * i;
    s->n_response = LEN - s->n_prompt;
    s->temperature = 1;
    s->reward = i % 3;
    s->has_reward = true;
    s->ids = xcalloc(LEN, sizeof *s->ids);
    s->mask = xcalloc(LEN, sizeof *s->mask);
    s->logp = xcalloc(LEN, sizeof *s->logp);
    s->versions = xcalloc(2, sizeof *s->versions);
    s->versions[0] = (struct clime_version_run){step, s->n_response};
    s->n_versions = 1;
    memset(s->mask, 1, LEN);
    for (int k = 0; k < LEN; k++) s->ids[k] = (int32_t)clime_rng_below(&rng, (uint64_t)V);
    for (int k = 0; k < LEN; k++) s->logp[k] = -2;
    return s;
}

struct said { /* of a step */
    float value[N][LEN], ret[N][LEN];
    double loss, kl, grad_norm, value_loss, critic_norm, clipfrac;
};

static void steps(struct clime_learner *l, int from, int to, struct said *out) {
    const struct clime_pack_options po = {.max_tokens = 100, .dynamic = true};
    const int32_t lengths[N] = {LEN, LEN, LEN, LEN, LEN, LEN};
    for (int step = from; step < to; step++) {
        struct clime_sample *s[N];
        struct clime_estimate *estimate;
        struct clime_estimate_stats stats;
        struct clime_step_stats done;
        struct clime_packing packing;
        struct clime_error e;
        for (int i = 0; i < N; i++) s[i] = sample(l->model->cfg.V, step, i);
        const struct clime_sample *const *samples = (const struct clime_sample *const *)s;
        clime_pack_make(lengths, N, &po, &packing);
        assert_int_equal(packing.n_micro, 2);
        if (clime_learner_estimate(l, s, N, &packing, step, &estimate, &stats, &e)) fail_msg("%s", e.msg);
        const struct clime_step_input in = {.samples = samples,
                                            .estimate = estimate,
                                            .n = N,
                                            .packing = &packing,
                                            .version = step,
                                            .rollout_version = step,
                                            .global_batch = N};
        if (clime_learner_step(l, &in, &done, &e)) fail_msg("%s", e.msg);
        assert_false(done.skipped || done.critic_skipped);
        struct said *of = &out[step];
        for (int i = 0; i < N; i++) {
            memcpy(of->value[i], estimate[i].value, (size_t)s[i]->n_response * sizeof(float));
            memcpy(of->ret[i], estimate[i].ret, (size_t)s[i]->n_response * sizeof(float));
            clime_sample_free(s[i]);
        }
        of->loss = done.loss;
        of->kl = done.kl_loss;
        of->grad_norm = done.grad_norm;
        of->value_loss = done.value_loss;
        of->critic_norm = done.critic_norm;
        of->clipfrac = done.value_clipfrac;
        clime_estimates_free(estimate, N);
        clime_pack_free(&packing);
    }
}

struct result {
    struct said step[STEPS];
    char policy[65], critic[65];
    float head[3 * MOST_D]; /* and its moments */
};

static void end(struct clime_learner *l, struct result *out) {
    struct clime_model *m = l->critic->model;
    struct clime_model_pieces p;
    struct clime_error e;
    assert_true(m->cfg.D <= MOST_D);
    if (clime_learner_sha256(l, out->policy, &e)) fail_msg("%s", e.msg);
    if (clime_learner_gather(l, CLIME_TEAM_CRITIC, &e)) fail_msg("%s", e.msg);
    clime_model_pieces_open(&p, m, m->dev);
    if (clime_weights_sha256(&m->layout, &p.from, 1, out->critic, &e)) fail_msg("%s", e.msg);
    clime_model_pieces_close(&p);
    memcpy(out->head, l->critic->head, 3 * (size_t)m->cfg.D * sizeof *out->head);
    clime_learner_close(l);
}

static struct result train(const struct clime_learner_options *o) {
    struct result out = {0};
    struct clime_learner *l = open_learner(o);
    steps(l, 0, STEPS, out.step);
    end(l, &out);
    return out;
}

/* Heads that are the embedding and others, experts, also those that stay with a rank, latent attention; frozen tensors;
 * all levels of recomputing. */
static void same_critic_on_any_number_of_ranks(void **state) {
    static const char *const names[] = {"qwen3", "llama", "qwen3_moe", "deepseek_v3"};
    static const char *frozen[] = {"k_proj", "layers.0.mlp"};
    enum { EXPERTS = 2 };
    (void)state;
    for (int i = 0; i < 2 * (int)CLIME_COUNT(names); i++) {
        const int cuts = i / 2 % 2 == i % 2 ? 4 : 2;
        struct clime_learner_options o = critic_of(names[i / 2], i % 2 ? "f32" : "bf16", 1);
        o.recompute = (enum clime_recompute)(i % 3);
        if (i == 3) o.freeze = (struct clime_opt_list){frozen, 2};
        const struct result uncut = train(&o);
        o.context_parallel = cuts;
        const struct result alone = train(&o);
        assert_true(alone.step[1].value[0][0] != 0 && alone.step[1].value_loss > 0);
        if (i % 2) assert_string_not_equal(alone.critic, uncut.critic); /* another order of sums */
        for (int k = 0; k < 4; k++) {
            o.n_ranks = k % 2 ? 4 : 2;
            o.shard_weights = k / 2 ? CLIME_SHARD_ON : CLIME_SHARD_OFF;
            o.expert_parallel = k == 3 && i / 2 >= EXPERTS ? 2 : 1;
            const struct result of = train(&o);
            if (memcmp(&of, &alone, sizeof of) != 0)
                fail_msg("%s %s, %d cuts on %d ranks, %s: policy %s, critic %s", names[i / 2], o.model.dtype, cuts,
                         o.n_ranks, k / 2 ? "sharded" : "replicated",
                         strcmp(of.policy, alone.policy) ? "another" : "the same",
                         strcmp(of.critic, alone.critic) ? "another" : "the same");
        }
    }
}

static void save(struct clime_learner *l, const char *dir) {
    struct clime_error e;
    if (clime_learner_save(l, dir, &e)) fail_msg("%s", e.msg);
    clime_learner_close(l);
}

static struct clime_learner *loaded(const struct clime_learner_options *o, const char *dir) {
    struct clime_learner *l = open_learner(o);
    struct clime_error e;
    if (clime_learner_load(l, dir, &e)) fail_msg("%s", e.msg);
    return l;
}

/* A run goes on with another number of ranks, and whoever loads weights of a run without cuts computes its values and
 * its losses, to the bit; a gradient's norm but for the order of sums. */
static void checkpoints_do_not_know_the_ranks(void **state) {
    static const struct { int before, after; } numbers[] = {{1, 4}, {4, 1}, {4, 2}};
    char root[] = "/tmp/clime-critic-XXXXXX", dir[64];
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(dir, sizeof dir, "%s/checkpoint", root);
    for (int i = 0; i < 2; i++) {
        struct clime_learner_options o = critic_of(i ? "qwen3" : "glm4", "f32", 4);
        const struct result alone = train(&o);
        struct result of, uncut = {0};
        for (size_t k = 0; k < CLIME_COUNT(numbers); k++) {
            of = (struct result){0};
            o.n_ranks = numbers[k].before;
            o.shard_weights = CLIME_SHARD_OFF;
            struct clime_learner *l = open_learner(&o);
            steps(l, 0, 2, of.step);
            save(l, dir);
            o.n_ranks = numbers[k].after;
            o.shard_weights = CLIME_SHARD_ON;
            l = loaded(&o, dir);
            steps(l, 2, STEPS, of.step);
            end(l, &of);
            assert_memory_equal(&of, &alone, sizeof of);
        }
        struct clime_learner_options whole = critic_of(i ? "qwen3" : "glm4", "f32", 1);
        struct clime_learner *l = open_learner(&whole);
        steps(l, 0, 2, uncut.step);
        save(l, dir);
        l = loaded(&whole, dir);
        steps(l, 2, STEPS, uncut.step);
        end(l, &uncut);
        for (o.n_ranks = 1; o.n_ranks <= 4; o.n_ranks *= 4) {
            of = (struct result){0};
            l = loaded(&o, dir);
            steps(l, 2, STEPS, of.step);
            end(l, &of);
            const struct said *a = &of.step[2], *b = &uncut.step[2];
            assert_memory_equal(a->value, b->value, sizeof a->value);
            assert_memory_equal(a->ret, b->ret, sizeof a->ret);
            assert_true(a->value_loss > 0 && a->value_loss <= b->value_loss && a->value_loss >= b->value_loss);
            assert_true(fabs(a->critic_norm / b->critic_norm - 1) < 1e-5);
            assert_true(fabs(a->grad_norm / b->grad_norm - 1) < 1e-5);
        }
    }
    assert_int_equal(clime_dir_remove(dir, &e), CLIME_OK);
    assert_int_equal(rmdir(root), 0);
}

/* What rank 0 takes is what the plan said: policy, reference and critic, alone and with parts of packs. */
static void the_plan_says_what_is_taken(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct clime_learner_options o = critic_of(i & 1 ? "qwen3_moe" : "qwen3", i & 2 ? "f32" : "bf16", i ? 4 : 1);
        o.objective.use_kl_loss = true;
        o.objective.kl_loss_coef = 0.1;
        o.n_ranks = i ? 2 : 1;
        o.shard_weights = i & 1 ? CLIME_SHARD_ON : CLIME_SHARD_OFF;
        own_memory = true;
        offered = (size_t)1 << 30;
        struct clime_learner *l = prepare_with(&o);
        start(l);
        assert_int_equal(clime_learner_memory(l, NULL)->need, taken + (i ? clime_cpu_ops.links_bytes(2) : 0));
        clime_learner_close(l);
    }
}

/* Folders of another type than the policy's are read into that: a reference of the same weights is 0 away from it, and
 * so it is when it has become the policy. */
static void folders_of_another_type(void **state) {
    char root[] = "/tmp/clime-critic-XXXXXX", dir[64];
    struct said said[2];
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(dir, sizeof dir, "%s/fp32", root);
    struct clime_learner_options o = critic_of("qwen3", "f32", 1);
    struct clime_learner *l = open_learner(&o);
    if (clime_learner_export(l, dir, &e)) fail_msg("%s", e.msg);
    clime_learner_close(l);
    o = critic_of("qwen3", "auto", 1);
    o.ref_load = o.critic_load = dir;
    o.objective.use_kl_loss = true;
    o.objective.kl_loss_coef = 0.1;
    l = open_learner(&o);
    assert_int_equal(clime_model_dt(l->model), CLIME_BF16);
    for (int step = 0; step < 2; step++) {
        steps(l, step, step + 1, said);
        assert_true(fabs(said[step].kl) <= 0);
        if (clime_learner_refresh_reference(l, &e)) fail_msg("%s", e.msg);
    }
    clime_learner_close(l);
    assert_int_equal(clime_dir_remove(dir, &e), CLIME_OK);
    assert_int_equal(rmdir(root), 0);
}

/* One norm clips body and head, as Megatron's: in the second step, where both have gradients, the head's first moment
 * grows by its gradient times bound / norm of all. */
static void one_norm_clips_body_and_head(void **state) {
    static struct said said[2];
    double grown[2][MOST_D] = {{0}}, norm = 0;
    (void)state;
    for (int clipped = 0; clipped < 2; clipped++) {
        const struct clime_learner_options o = critic_of("qwen3", "f32", 1);
        struct clime_learner *l = open_learner(&o);
        struct clime_critic *c = l->critic;
        float before[MOST_D];
        steps(l, 0, 1, said);
        memcpy(before, c->head_m, (size_t)c->model->cfg.D * sizeof *before);
        c->opts.clip_grad = clipped ? 1e-3 : 0;
        steps(l, 1, 2, said);
        for (int d = 0; d < c->model->cfg.D; d++) grown[clipped][d] = (double)c->head_m[d] - 0.9 * (double)before[d];
        norm = said[1].critic_norm;
        clime_learner_close(l);
    }
    double own = 0, dot = 0;
    for (int d = 0; d < MOST_D; d++) own += grown[0][d] * grown[0][d];
    for (int d = 0; d < MOST_D; d++) dot += grown[0][d] * grown[1][d];
    assert_true(sqrt(own) / 0.1 < 0.999 * norm); /* the body has a part in it */
    assert_true(fabs(dot / own / (1e-3 / norm) - 1) < 1e-3);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_critic_on_any_number_of_ranks), cmocka_unit_test(checkpoints_do_not_know_the_ranks),
        cmocka_unit_test(the_plan_says_what_is_taken), cmocka_unit_test(folders_of_another_type),
        cmocka_unit_test(one_norm_clips_body_and_head)};
    if (argc == 2 && !strcmp(argv[1], "rank")) return clime_follower_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
