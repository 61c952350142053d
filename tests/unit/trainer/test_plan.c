/* The model of clime-train plan against the runs that were made (docs/lab/cuda.md, one H200 and two, 2026-11-22 to
 * 24): each figure within a quarter of what was measured, memory within a twentieth. And what must follow from it
 * without any figure: more devices are not slower, what does not fit is said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/os/dirs.h"
#include "common/os/files.h"
#include "trainer/plan/plan.h"

#define TIME_ERROR 0.25
#define MEMORY_ERROR 0.05

#define QWEN3_4B                                                                                                       \
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":2560,"                         \
    "\"intermediate_size\":9728,\"num_hidden_layers\":36,\"num_attention_heads\":32,\"num_key_value_heads\":8,"        \
    "\"head_dim\":128,\"vocab_size\":151936,\"tie_word_embeddings\":true,\"max_position_embeddings\":40960,"           \
    "\"rms_norm_eps\":1e-6,\"torch_dtype\":\"bfloat16\"}"
#define GLM4_9B                                                                                                        \
    "{\"model_type\":\"glm4\",\"architectures\":[\"Glm4ForCausalLM\"],\"hidden_size\":4096,"                           \
    "\"intermediate_size\":13696,\"num_hidden_layers\":40,\"num_attention_heads\":32,\"num_key_value_heads\":2,"       \
    "\"head_dim\":128,\"vocab_size\":151552,\"tie_word_embeddings\":false,\"max_position_embeddings\":32768,"          \
    "\"rms_norm_eps\":1e-5,\"attention_bias\":true,\"partial_rotary_factor\":0.5,\"torch_dtype\":\"bfloat16\"}"
#define QWEN3_30B                                                                                                      \
    "{\"model_type\":\"qwen3_moe\",\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":2048,"                  \
    "\"intermediate_size\":6144,\"num_hidden_layers\":48,\"num_attention_heads\":32,\"num_key_value_heads\":4,"        \
    "\"head_dim\":128,\"vocab_size\":151936,\"num_experts\":128,\"num_experts_per_tok\":8,"                            \
    "\"moe_intermediate_size\":768,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"          \
    "\"tie_word_embeddings\":false,\"max_position_embeddings\":40960,\"rms_norm_eps\":1e-6,"                           \
    "\"torch_dtype\":\"bfloat16\"}"
#define MOONLIGHT                                                                                                      \
    "{\"model_type\":\"deepseek_v3\",\"architectures\":[\"DeepseekV3ForCausalLM\"],\"hidden_size\":2048,"              \
    "\"intermediate_size\":11264,\"num_hidden_layers\":27,\"num_attention_heads\":16,\"num_key_value_heads\":16,"      \
    "\"vocab_size\":163840,\"n_routed_experts\":64,\"num_experts_per_tok\":6,\"moe_intermediate_size\":1408,"          \
    "\"n_shared_experts\":2,\"first_k_dense_replace\":1,\"norm_topk_prob\":true,\"scoring_func\":\"sigmoid\","         \
    "\"topk_method\":\"noaux_tc\",\"routed_scaling_factor\":2.446,\"n_group\":1,\"topk_group\":1,"                     \
    "\"q_lora_rank\":null,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"                      \
    "\"v_head_dim\":128,\"rope_theta\":50000,\"tie_word_embeddings\":false,\"max_position_embeddings\":8192,"          \
    "\"rms_norm_eps\":1e-5,\"torch_dtype\":\"bfloat16\"}"

/* layers: 0 = as many as it has */
static struct clime_model *cut_model(const char *config, int layers) {
    static const struct clime_model_options o = {.device = "cpu", .dtype = "bf16", .dev = {.n_threads = 1}};
    char dir[] = "/tmp/clime_plan_XXXXXX", path[64];
    struct clime_model *m;
    struct clime_error e;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    const char *said = strstr(config, "\"num_hidden_layers\":");
    size_t before = said ? (size_t)(strchr(said, ':') + 1 - config) : 0;
    if (layers)
        fprintf(f, "%.*s%d%s", (int)before, config, layers, strchr(config + before, ','));
    else
        fputs(config, f);
    fclose(f);
    if (clime_model_prepare(dir, &o, &m, &e)) fail_msg("%s", e.msg);
    assert_int_equal(clime_dir_remove(dir, NULL), CLIME_OK);
    return m;
}

static struct clime_model *model(const char *config) {
    return cut_model(config, 0);
}

static void near(const char *what, double planned, double least, double most, double error) {
    print_message("%-44s planned %10.4g, measured %.4g to %.4g\n", what, planned, least, most);
    if (!(planned >= least * (1 - error) && planned <= most * (1 + error))) fail_msg("%s is off", what);
}

static const struct clime_device_rates *h200(void) {
    return &clime_device_rates[0];
}

/* The whole loop on one GPU: 32 x 8 answers of 1,023 tokens. */
static void test_loops(void **state) {
    (void)state;
    const struct {
        const char *name, *config;
        int layers, rows;
        enum clime_recompute recompute;
        bool offload;
        double generate[2], train[2], gib;
    } runs[] = {
        {"Qwen3-4B, full", QWEN3_4B, 0, 9216, CLIME_RECOMPUTE_FULL, false, {11.0, 11.1}, {16.5, 16.8}, 73.1},
        {"Qwen3-4B, selective", QWEN3_4B, 0, 8192, CLIME_RECOMPUTE_SELECTIVE, false, {11.4, 11.7}, {13.6, 14.0}, 89.96},
        {"GLM-4-9B, full", GLM4_9B, 0, 4608, CLIME_RECOMPUTE_FULL, true, {12.3, 13.0}, {37.6, 41.2}, 57.2},
        {"Qwen3-30B-A3B, 12 layers", QWEN3_30B, 12, 8192, CLIME_RECOMPUTE_FULL, true, {5.8, 6.0}, {6.7, 6.9}, 51.56},
    };
    for (size_t i = 0; i < CLIME_COUNT(runs); i++) {
        struct clime_model *m = cut_model(runs[i].config, runs[i].layers);
        struct clime_run_plan p;
        const struct clime_plan_wish wish = {.device = h200(),
                                             .devices = 1,
                                             .hosts = 1,
                                             .prompts = 32,
                                             .samples = 8,
                                             .prompt_len = 64,
                                             .answer_len = 1020,
                                             .rows = runs[i].rows,
                                             .recompute = runs[i].recompute,
                                             .offload = runs[i].offload};
        char what[64];
        clime_run_plan(m, &wish, &p);
        assert_int_equal(p.way, CLIME_PLAN_REPLICATED);
        snprintf(what, sizeof what, "%s: generation, s", runs[i].name);
        near(what, p.generate_s, runs[i].generate[0], runs[i].generate[1], TIME_ERROR);
        snprintf(what, sizeof what, "%s: training, s", runs[i].name);
        near(what, p.training[p.way].step_s, runs[i].train[0], runs[i].train[1], TIME_ERROR);
        snprintf(what, sizeof what, "%s: trainer, GiB", runs[i].name);
        near(what, p.training[p.way].gib, runs[i].gib, runs[i].gib, MEMORY_ERROR);
        clime_model_close(m);
    }
}

static void test_serving(void **state) {
    (void)state;
    const struct {
        const char *name, *config;
        double alone, prefill; /* tok/s: decode at batch 1 with 1,024 of context; a prompt of 8,192 */
    } runs[] = {{"Qwen3-4B", QWEN3_4B, 413, 64644},
                {"Qwen3-30B-A3B", QWEN3_30B, 364, 58334},
                {"Moonlight-16B-A3B", MOONLIGHT, 449, 60521}};
    for (size_t i = 0; i < CLIME_COUNT(runs); i++) {
        struct clime_model *m = model(runs[i].config);
        struct clime_model_work w;
        char what[64];
        clime_model_work(&m->cfg, &m->layout, &w);
        snprintf(what, sizeof what, "%s: decode of one, tok/s", runs[i].name);
        near(what, 1 / clime_plan_decode_s(&w, h200(), 1, 1024, 1), runs[i].alone, runs[i].alone, TIME_ERROR);
        snprintf(what, sizeof what, "%s: prefill, tok/s", runs[i].name);
        near(what, 8192 / clime_plan_prefill_s(&w, h200(), 8192, 8192, 1), runs[i].prefill, runs[i].prefill,
             TIME_ERROR);
        clime_model_close(m);
    }
    struct clime_model *m = model(QWEN3_4B);
    struct clime_model_work w;
    clime_model_work(&m->cfg, &m->layout, &w);
    near("Qwen3-4B: decode of 64, tok/s", 64 / clime_plan_decode_s(&w, h200(), 64, 1024, 1), 10832, 10947, TIME_ERROR);
    near("Qwen3-4B: decode of 256, tok/s", 256 / clime_plan_decode_s(&w, h200(), 256, 1024, 1), 17762, 17904,
         TIME_ERROR);
    clime_model_close(m);
}

/* Two GPUs, 64 packs of 8 x 1,000 tokens: 40,954 tok/s, one alone 21,346. */
static void test_ranks(void **state) {
    (void)state;
    struct clime_model *m = model(QWEN3_4B);
    double tok_s[2];
    for (int n = 1; n <= 2; n++) {
        const struct clime_plan_wish wish = {.device = h200(),
                                             .devices = n,
                                             .hosts = 1,
                                             .prompts = 8,
                                             .samples = 64,
                                             .prompt_len = 1,
                                             .answer_len = 999,
                                             .rows = 8000,
                                             .recompute = CLIME_RECOMPUTE_SELECTIVE};
        struct clime_run_plan p;
        clime_run_plan(m, &wish, &p);
        tok_s[n - 1] = 512000 / p.training[CLIME_PLAN_REPLICATED].step_s;
        assert_true(p.training[CLIME_PLAN_REPLICATED].exchange_s < p.training[CLIME_PLAN_REPLICATED].compute_s);
    }
    near("Qwen3-4B: training on one, tok/s", tok_s[0], 21346, 21346, TIME_ERROR);
    near("Qwen3-4B: training on two, tok/s", tok_s[1], 40954, 40954, TIME_ERROR);
    clime_model_close(m);
}

/* Two GPUs, 16 packs of 8,192 tokens a step; and the whole loop, whose servers compute with the ranks' parts. */
static void test_experts_on_two(void **state) {
    (void)state;
    struct clime_model *m = cut_model(QWEN3_30B, 18);
    struct clime_run_plan p;
    struct clime_plan_wish wish = {.device = h200(),
                                   .devices = 2,
                                   .hosts = 1,
                                   .prompts = 1,
                                   .samples = 16,
                                   .prompt_len = 1,
                                   .answer_len = 8191,
                                   .rows = 8192,
                                   .recompute = CLIME_RECOMPUTE_NONE};
    clime_run_plan(m, &wish, &p);
    near("18 layers of 30B-A3B: gathered, tok/s", 131072 / p.training[CLIME_PLAN_SHARDED].step_s, 58067, 58083,
         TIME_ERROR);
    near("18 layers of 30B-A3B: experts stay, tok/s", 131072 / p.training[CLIME_PLAN_EXPERTS].step_s, 54071, 54262,
         TIME_ERROR);
    clime_model_close(m);
    m = cut_model(QWEN3_30B, 20);
    wish = (struct clime_plan_wish){.device = h200(),
                                    .devices = 2,
                                    .hosts = 1,
                                    .prompts = 32,
                                    .samples = 8,
                                    .prompt_len = 64,
                                    .answer_len = 1020,
                                    .rows = 8192,
                                    .recompute = CLIME_RECOMPUTE_FULL,
                                    .offload = true};
    clime_run_plan(m, &wish, &p);
    near("20 layers of 30B-A3B: generation, s", p.generate_s, 6.6, 7.0, TIME_ERROR);
    near("20 layers of 30B-A3B: training, s", p.training[CLIME_PLAN_SHARDED].step_s, 7.6, 8.0, TIME_ERROR);
    near("20 layers of 30B-A3B: trainer, GiB", p.training[CLIME_PLAN_SHARDED].gib, 54.8, 54.8, MEMORY_ERROR);
    clime_model_close(m);
}

/* A sequence of 65,536 tokens over two GPUs, everything computed again: 7.94 s, 69.6 GiB. */
static void test_long_sequences(void **state) {
    (void)state;
    struct clime_model *m = model(QWEN3_4B);
    struct clime_run_plan p;
    struct clime_plan_wish wish = {.device = h200(),
                                   .devices = 2,
                                   .hosts = 1,
                                   .prompts = 1,
                                   .samples = 1,
                                   .prompt_len = 1,
                                   .answer_len = 65471,
                                   .rows = 32768,
                                   .cp = 2,
                                   .recompute = CLIME_RECOMPUTE_FULL};
    clime_run_plan(m, &wish, &p);
    const struct clime_plan_training *t = &p.training[CLIME_PLAN_REPLICATED];
    near("Qwen3-4B: 65,536 tokens on two, s", t->step_s, 7.94, 7.95, TIME_ERROR);
    near("Qwen3-4B: 65,536 tokens on two, GiB", t->gib, 69.6, 69.6, MEMORY_ERROR);
    assert_true(p.micro_batches == 1);
    /* q, out, k and v there and back, twice forward and once, as much again, backward: half of it leaves a GPU */
    const double numbers = 36 * (2 * (2 * 32 + 2 * 8) + 2 * (2 * 32 + 2 * 8)) * 128.0;
    assert_true(fabs(t->rows_s - numbers * 32768 * 2 / 2 / (h200()->peers_gbs * 1e9)) < 1e-9);
    clime_model_close(m);
    m = model(GLM4_9B); /* two key/value heads: of four ranks two have all of attention to do */
    struct clime_plan_training of[2];
    for (int i = 0; i < 2; i++) {
        wish.devices = wish.cp = 2 << i;
        wish.rows = 32768 >> i;
        clime_run_plan(m, &wish, &p);
        of[i] = p.training[CLIME_PLAN_SHARDED];
    }
    struct clime_model_work w;
    clime_model_work(&m->cfg, &m->layout, &w);
    w.active = w.head = 0;
    const double attention = clime_plan_train_s(&w, h200(), 65472 / 4, 65472, 1, CLIME_RECOMPUTE_FULL);
    assert_true(fabs(of[1].compute_s - of[0].compute_s / 2 - attention) < 1e-6);
    clime_model_close(m);
}

/* By hand: 48 layers of attention, router and 128 experts of 3 x 2048 x 768, embedding and head. */
static void test_work(void **state) {
    (void)state;
    struct clime_model *m = model(QWEN3_30B);
    struct clime_model_work w;
    clime_model_work(&m->cfg, &m->layout, &w);
    double expert = 3.0 * 2048 * 768, attention = 2048.0 * (2 * 4096 + 2 * 512), router = 128.0 * 2048;
    assert_true(w.experts == 48 * 128 * expert);
    assert_true(w.active == 48 * (8 * expert + attention + router));
    assert_true(w.head == 151936.0 * 2048 && w.kv_bytes == 2 * 48 * 2 * 512.0);
    assert_true(w.pair_flops == 48 * 32 * 4 * 128.0 && w.expert_layers == 48);
    assert_true(fabs(clime_weights_hit(&w, 1) - (w.weights - w.experts * 120 / 128)) < 1);
    assert_true(clime_weights_hit(&w, 1000) > 0.999 * w.weights);
    clime_model_close(m);
    m = model(MOONLIGHT);
    clime_model_work(&m->cfg, &m->layout, &w);
    assert_true(w.kind == CLIME_WORK_LATENT && w.expert_layers == 26 && w.kv_bytes == 27 * 576 * 2.0);
    assert_true(w.experts == 26 * 64 * 3.0 * 2048 * 1408);
    clime_model_close(m);
}

/* What a rank must hold decides what fits: 30B-A3B whole is beyond a GPU in weights and gradients alone. */
static void test_what_fits(void **state) {
    (void)state;
    struct clime_model *m = model(QWEN3_30B);
    struct clime_run_plan p[2];
    for (int i = 0; i < 2; i++) {
        const struct clime_plan_wish wish = {.device = h200(),
                                             .devices = i ? 8 : 4,
                                             .hosts = 1,
                                             .prompts = 32,
                                             .samples = 8,
                                             .prompt_len = 256,
                                             .answer_len = 1024,
                                             .rows = 8192,
                                             .recompute = CLIME_RECOMPUTE_FULL,
                                             .offload = true};
        clime_run_plan(m, &wish, &p[i]);
        const struct clime_plan_training *t = p[i].training;
        assert_false(t[CLIME_PLAN_REPLICATED].fits);
        assert_true(t[CLIME_PLAN_REPLICATED].gib > 6 * p[i].work.weights / (1 << 30));
        assert_true(t[CLIME_PLAN_SHARDED].fits && t[CLIME_PLAN_SHARDED].gib < t[CLIME_PLAN_REPLICATED].gib / 2);
        assert_true(t[CLIME_PLAN_EXPERTS].gib < t[CLIME_PLAN_SHARDED].gib);
        assert_true(fabs(t[CLIME_PLAN_REPLICATED].host_gib - 12 * p[i].work.weights / (1 << 30)) < 2);
        assert_true(fabs(t[CLIME_PLAN_SHARDED].host_gib - 14 * p[i].work.weights / (1 << 30)) < 2);
        assert_int_equal(p[i].way, CLIME_PLAN_SHARDED);
    }
    assert_true(p[1].training[CLIME_PLAN_SHARDED].gib < p[0].training[CLIME_PLAN_SHARDED].gib);
    assert_true(p[1].training[CLIME_PLAN_SHARDED].step_s < p[0].training[CLIME_PLAN_SHARDED].step_s);
    clime_model_close(m);
}

/* Experts over all 16 devices, over the 8 of each host, over 3: rows that stay in a host are there sooner; who has the
 * same experts as others has more of them, and sums to exchange. */
static void test_experts_over_some(void **state) {
    static const int wished[] = {0, 8, 3}, over[] = {16, 8, 1};
    struct clime_model *m = model(QWEN3_30B);
    struct clime_plan_training t[CLIME_COUNT(wished)];
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(wished); i++) {
        const struct clime_plan_wish wish = {.device = h200(),
                                             .devices = 16,
                                             .hosts = 2,
                                             .prompts = 64,
                                             .samples = 8,
                                             .prompt_len = 256,
                                             .answer_len = 1024,
                                             .rows = 8192,
                                             .experts_over = wished[i],
                                             .recompute = CLIME_RECOMPUTE_FULL};
        struct clime_run_plan p;
        clime_run_plan(m, &wish, &p);
        t[i] = p.training[CLIME_PLAN_EXPERTS];
        assert_int_equal(p.experts_over, over[i]);
    }
    const double rows = 5 * 2.0 * 8192 * 8 * 2048 * 48 * 7 / 8 / (h200()->peers_gbs * 1e9);
    const double sums = 4 * 48 * 128 * 3 * 2048.0 * 768 / 8 / 2 / (h200()->network_gbs * 1e9);
    assert_true(t[0].possible && t[1].possible && !t[2].possible);
    assert_true(t[1].gib > t[0].gib && t[1].gather_s < t[0].gather_s);
    assert_true(t[1].gather_s > rows && t[1].gather_s < 3 * rows);
    assert_true(fabs(t[1].exchange_s - t[0].exchange_s - sums) < 1e-9);
    clime_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_work),
                                       cmocka_unit_test(test_loops),
                                       cmocka_unit_test(test_serving),
                                       cmocka_unit_test(test_ranks),
                                       cmocka_unit_test(test_experts_on_two),
                                       cmocka_unit_test(test_what_fits),
                                       cmocka_unit_test(test_experts_over_some),
                                       cmocka_unit_test(test_long_sequences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
