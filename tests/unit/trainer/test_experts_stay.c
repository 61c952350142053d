/* Experts that stay with their rank, rows travel: the weights after some steps are the bits of one rank, for every
 * family with experts, whatever their routers choose; and a checkpoint goes on with any number of ranks. */
#include <unistd.h>

#include "common/os/dirs.h"
#include "model/backward_int.h"
#include "tests/unit/trainer/learner_test.h"
#include "trainer/learn/follower.h"

static struct clime_learner_options ranks_of(const char *name, const char *dtype, int n_ranks, bool stay) {
    struct clime_learner_options o = options_of(name, dtype);
    o.n_ranks = n_ranks;
    o.gradient_lanes = 4;
    o.rank_limit_us = 120000000;
    o.expert_parallel = stay ? n_ranks : 1;
    return o;
}

static struct clime_learner *open_learner(const struct clime_learner_options *o) {
    own_memory = false;
    struct clime_learner *l = prepare_with(o);
    start(l);
    return l;
}

static void train(const struct clime_learner_options *o, char hex[65]) {
    struct clime_error e;
    struct clime_learner *l = open_learner(o);
    assert_true((l->train->travel != NULL) == (o->expert_parallel > 1));
    steps(l, 0, STEPS);
    if (clime_learner_sha256(l, hex, &e)) fail_msg("%s", e.msg);
    clime_learner_close(l);
}

/* Packs that fill a round of four lanes and a half: in some turns ranks have none. All levels of recomputing. */
static void same_weights_wherever_experts_are(void **state) {
    static const char *const names[] = {"qwen3_moe", "glm4_moe", "deepseek_v3", "qwen2_moe"};
    (void)state;
    pack_tokens = 25;
    for (int i = 0; i < 2 * (int)CLIME_COUNT(names); i++) {
        const char *name = names[i / 2], *dtype = i % 2 ? "f32" : "bf16";
        char alone[65], hex[65];
        struct clime_learner_options o = ranks_of(name, dtype, 1, false);
        train(&o, alone);
        for (int k = 0; k < 4; k++) {
            o = ranks_of(name, dtype, k % 2 ? 4 : 2, true);
            o.recompute = (enum clime_recompute)((i + k) % 3);
            train(&o, hex);
            if (strcmp(hex, alone) != 0)
                fail_msg("%s %s on %d ranks, recompute %d", name, dtype, o.n_ranks, o.recompute);
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_weights_wherever_experts_are)};
    if (argc == 2 && !strcmp(argv[1], "rank")) return clime_follower_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
