/* A model over 1, 2 and 4 ranks: the same logits, bit for bit, in prefill by pieces and in decode, of every
 * family; with the weights of its folder and with weights that rank 0 hands out; with rows of each expert on every rank
 * and with whole experts, evenly chosen and all rows the same ones. What cannot be shared is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/log.h"
#include "tests/unit/model/shared_model.h"

struct shared { /* what rank 0 has said */
    float logits[MAX_LOGITS];
    int n;
};

static struct shared *run_ranks(const char *dir, const char *dtype, int world, bool whole_experts) {
    struct shared *said = xcalloc(1, sizeof *said);
    struct run r = {dir, "cpu", dtype, 1, whole_experts, CLIME_LINKS_AUTO, said->logits, &said->n};
    struct ranks all;
    ranks_fork(&all, world, shared_model, &r);
    assert_int_equal(shared_model(&all.place, &r), 0);
    for (int i = 1; i < world; i++) assert_int_equal(ranks_end(&all, i), 0);
    return said;
}

static void check_same(const struct shared *alone, const char *dir, const char *dtype, int world, bool whole_experts) {
    struct shared *of = run_ranks(dir, dtype, world, whole_experts);
    assert_int_equal(of->n, alone->n);
    for (int j = 0; j < alone->n; j++)
        if (memcmp(&of->logits[j], &alone->logits[j], sizeof(float)) != 0)
            fail_msg("%s %s over %d ranks%s: logit %d of %d is %a, alone %a", dir, dtype, world,
                     whole_experts ? " with whole experts" : "", j, alone->n, (double)of->logits[j],
                     (double)alone->logits[j]);
    free(of);
}

static void the_same_bits(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        int most;               /* ranks */
        int whole;              /* ranks with whole experts */
    } models[] = {{"qwen3", 4}, /* tied; 2 key/value heads, which 4 ranks share */
                  {"glm4", 4},  /* gate and up in one tensor, norms after both parts */
                  {"llama", 4}, /* head of its own */
                  {"llama_bias", 2},   {"qwen3_head64", 2},
                  {"qwen3_moe", 4, 4}, {"qwen3_moe_dense", 2}, /* not all layers have experts */
                  {"glm4_moe", 4, 4},                          /* a shared expert */
                  {"glm4_moe_air", 2}, {"deepseek_v3", 4, 4},  /* latent attention, groups of experts */
                  {"glm4_moe_lite", 2}};
    for (size_t i = 0; i < CLIME_COUNT(models); i++) {
        for (int k = 0; k < 2; k++) {
            const char *dtype = k ? "f32" : "bf16";
            struct shared *alone = run_ranks(models[i].dir, dtype, 1, false);
            assert_true(alone->n > 0 && alone->logits[0] != alone->logits[1]);
            for (int world = 2; world <= models[i].most; world *= 2)
                check_same(alone, models[i].dir, dtype, world, false);
            for (int world = 2; world <= models[i].whole; world *= 2)
                check_same(alone, models[i].dir, dtype, world, true);
            free(alone);
        }
    }
}

static void check_refused(const char *dir, int n_ranks, bool whole_experts, const char *words) {
    struct clime_model *m;
    struct clime_error e;
    char *path = xasprintf("%s/%s", getenv("CLIME_GOLDEN") ? getenv("CLIME_GOLDEN") : "tests/golden", dir);
    const struct clime_model_options o = {
        .device = "cpu", .dev = {.n_threads = 1}, .rank = 1, .n_ranks = n_ranks, .whole_experts = whole_experts};
    assert_true(clime_model_prepare(path, &o, &m, &e) != CLIME_OK);
    if (!strstr(e.msg, words)) fail_msg("%s", e.msg);
    free(path);
}

static void what_cannot_be_shared_is_refused(void **state) {
    (void)state;
    check_refused("qwen3", 3, false,
                  "3 devices cannot share the 4 heads of model.layers.0.self_attn.q_proj.weight; these "
                  "numbers can: 1, 2, 4");
    check_refused("qwen3", 8, false, "8 devices cannot share the 5 parts of the vocabulary");
    check_refused("qwen3", 2, true, "has no experts that could lie whole on a device each");
    check_refused(
        "qwen3_moe_dense", 2, true,
        "2 devices cannot share the 5 experts of model.layers.3.mlp.experts.0.gate_proj.weight; these numbers can: 1");
    check_refused("moonlight", 2, false,
                  "2 devices cannot share the 3 heads of model.layers.0.self_attn.q_proj.weight");
}

int main(void) {
    clime_log_open("test", CLIME_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits),
                                       cmocka_unit_test(what_cannot_be_shared_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
