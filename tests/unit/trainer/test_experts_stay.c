/* Experts that stay with their rank, rows travel: the weights after some steps are the bits of one rank, for every
 * family with experts, whatever their routers choose; and a checkpoint goes on with any number of ranks. */
#include <unistd.h>

#include "common/os/dirs.h"
#include "model/backward_int.h"
#include "tests/unit/trainer/copies_test.h"
#include "trainer/learn/follower.h"

struct way {
    int ranks, over;
};

/* over: neighbours that have all experts between them; 1 = no expert stays. */
static struct clime_learner_options ranks_of(const char *name, const char *dtype, int n_ranks, int over) {
    struct clime_learner_options o = options_of(name, dtype);
    o.n_ranks = n_ranks;
    o.gradient_lanes = 4;
    o.rank_limit_us = 120000000;
    o.expert_parallel = over;
    return o;
}

static void train(const struct clime_learner_options *o, char hex[65]) {
    struct clime_error e;
    struct clime_learner *l = open_learner(o);
    assert_true((l->train->travel != NULL) == (o->expert_parallel > 1));
    steps(l, 0, STEPS);
    if (clime_learner_sha256(l, hex, &e)) fail_msg("%s", e.msg);
    if (o->model.shared) check_copies(l);
    clime_learner_close(l);
}

/* Packs that fill a round of four lanes and a half: in some turns ranks have none. All levels of recomputing. */
static void same_weights_wherever_experts_are(void **state) {
    static const char *const names[] = {"qwen3_moe", "glm4_moe", "deepseek_v3", "qwen2_moe"};
    static const struct way ways[] = {{2, 2}, {4, 4}, {4, 2}};
    (void)state;
    pack_tokens = 25;
    for (int i = 0; i < 2 * (int)CLIME_COUNT(names); i++) {
        const char *name = names[i / 2], *dtype = i % 2 ? "f32" : "bf16";
        char alone[65], hex[65];
        struct clime_learner_options o = ranks_of(name, dtype, 1, 1);
        train(&o, alone);
        for (size_t k = 0; k < CLIME_COUNT(ways); k++) {
            o = ranks_of(name, dtype, ways[k].ranks, ways[k].over);
            o.model.shared = true;
            o.recompute = (enum clime_recompute)(((size_t)i + k) % 3);
            train(&o, hex);
            if (strcmp(hex, alone) != 0)
                fail_msg("%s %s over %d of %d ranks, recompute %d", name, dtype, ways[k].over, o.n_ranks, o.recompute);
        }
    }
}

/* Packs whose rows are cut, and experts that stay: what is a pack's above is a cut's, of which ranks have one or
 * several, of a pack that they share or of their own. The cuts decide the weights, and not which ranks have what. Packs
 * of five sequences and of one; turns in which ranks have none; rounds of several turns. */
static void same_weights_wherever_experts_and_cuts_are(void **state) {
    static const char *const names[] = {"qwen3_moe", "glm4_moe", "deepseek_v3", "moonlight"};
    static const struct {
        int cuts, lanes, tokens;
        struct way ways[4];
    } cases[] = {{4, 4, 100, {{2, 2}, {4, 2}, {4, 4}, {4, 1}}}, {2, 8, 25, {{2, 2}, {4, 4}, {8, 2}, {8, 4}}}};
    (void)state;
    for (int i = 0; i < 4 * (int)CLIME_COUNT(names); i++) {
        const char *name = names[i / 4], *dtype = i % 2 ? "f32" : "bf16";
        const int n = i / 2 % 2;
        char alone[65], uncut[65], hex[65];
        struct clime_learner_options o = ranks_of(name, dtype, 1, 1);
        o.gradient_lanes = cases[n].lanes;
        pack_tokens = cases[n].tokens;
        train(&o, uncut);
        o.context_parallel = cases[n].cuts;
        train(&o, alone);
        if (i % 2) assert_string_not_equal(alone, uncut); /* another order of sums; bf16 may round it away */
        for (size_t k = 0; k < CLIME_COUNT(cases[n].ways); k++) {
            o.n_ranks = cases[n].ways[k].ranks;
            o.expert_parallel = cases[n].ways[k].over;
            o.recompute = (enum clime_recompute)(((size_t)i + k) % 3);
            train(&o, hex);
            if (strcmp(hex, alone) != 0)
                fail_msg("%s %s, %d cuts, over %d of %d ranks, recompute %d", name, dtype, o.context_parallel,
                         o.expert_parallel, o.n_ranks, o.recompute);
        }
    }
    pack_tokens = 25;
}

/* ---- routers that choose as they should ---- */

/* The model's folder with routers' biases, [E] in fp32, made over: those of `high` are beyond all others. */
static void biased_folder(const char *name, const char *to, int from_high, int n_high) {
    static char data[1 << 20];
    char path[512], *at;
    const char *files[] = {"config.json", "model.safetensors"};
    struct clime_learner_options o = options_of(name, "auto");
    struct clime_error e;
    float bias[8];
    int changed = 0;
    for (int k = 0; k < 8; k++) bias[k] = k >= from_high && k < from_high + n_high ? 10 : 0;
    assert_int_equal(clime_make_dirs(to, &e), CLIME_OK);
    for (int f = 0; f < 2; f++) {
        snprintf(path, sizeof path, "%s/%s", o.hf_checkpoint, files[f]);
        FILE *in = fopen(path, "rb");
        assert_non_null(in);
        const size_t n = fread(data, 1, sizeof data - 1, in);
        fclose(in);
        assert_true(n < sizeof data - 1);
        data[n] = 0;
        uint64_t header;
        memcpy(&header, data, sizeof header);
        for (at = data + 8;
             f == 1 && (at = memmem(at, 8 + header - (size_t)(at - data), "e_score_correction_bias", 23)); at++) {
            const char *offsets = strstr(at, "\"data_offsets\":[");
            assert_non_null(offsets);
            memcpy(data + 8 + header + strtoull(offsets + 16, NULL, 10), bias, sizeof bias);
            changed++;
        }
        snprintf(path, sizeof path, "%s/%s", to, files[f]);
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(data, 1, n, out), n);
        assert_int_equal(fclose(out), 0);
    }
    assert_true(changed > 0);
}
/* Experts 0, 1 and 2, or 5, 6 and 7, are chosen for all rows: every row of every pack travels to one of two ranks, or
 * to two of four, and the others have none; experts without a row are there too. Of packs, and of packs' cuts. */
static void same_weights_where_routers_choose_a_few(void **state) {
    char root[] = "/tmp/clime-experts-XXXXXX", dir[64];
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < 4; i++) {
        const int cuts = i / 2 ? 4 : 1;
        const bool last = i % 2;
        char alone[65], hex[65];
        snprintf(dir, sizeof dir, "%s/%d", root, i);
        biased_folder("glm4_moe", dir, last ? 5 : 0, 3);
        struct clime_learner_options o = ranks_of("glm4_moe", "bf16", 1, 1);
        o.hf_checkpoint = dir;
        o.context_parallel = cuts;
        train(&o, alone);
        for (int k = 0; k < 3; k++) {
            o = ranks_of("glm4_moe", "bf16", k ? 4 : 2, k == 1 ? 4 : 2);
            o.hf_checkpoint = dir;
            o.context_parallel = cuts;
            struct clime_learner *l = open_learner(&o);
            steps(l, 0, STEPS);
            if (clime_learner_sha256(l, hex, &e)) fail_msg("%s", e.msg);
            assert_string_equal(hex, alone);
            /* of the last pack of rank 0, or the first cut there, in the last layer */
            const struct clime_travel *t = l->train->travel;
            const int32_t *start = t->starts + (size_t)(2 * t->cuts * t->n) * 9;
            assert_int_equal(start[8], start[last ? 8 : 3]);
            assert_int_equal(start[last ? 5 : 0], 0);
            assert_true(start[8] > 0);
            clime_learner_close(l);
        }
        assert_int_equal(clime_dir_remove(dir, &e), CLIME_OK);
    }
    assert_int_equal(rmdir(root), 0);
}

/* ---- checkpoints ---- */

static void interrupted(struct clime_learner_options o, struct way before, struct way after, const char *dir,
                        char hex[65]) {
    struct clime_error e;
    o.n_ranks = before.ranks;
    o.expert_parallel = before.over;
    struct clime_learner *l = open_learner(&o);
    steps(l, 0, STEPS / 2);
    if (clime_learner_save(l, dir, &e)) fail_msg("%s", e.msg);
    clime_learner_close(l);
    o.n_ranks = after.ranks;
    o.expert_parallel = after.over;
    l = open_learner(&o);
    if (clime_learner_load(l, dir, &e)) fail_msg("%s", e.msg);
    steps(l, STEPS / 2, STEPS);
    if (clime_learner_sha256(l, hex, &e)) fail_msg("%s", e.msg);
    clime_learner_close(l);
}

static void same_file(const char *a, const char *b, const char *name) {
    struct clime_buf x[2];
    struct clime_error e;
    const char *const dirs[] = {a, b};
    for (int i = 0; i < 2; i++) {
        char *path = xasprintf("%s/%s", dirs[i], name);
        clime_buf_init(&x[i], (size_t)1 << 30);
        if (clime_buf_read_file(&x[i], path, &e)) fail_msg("%s", e.msg);
        free(path);
    }
    assert_int_equal(x[0].len, x[1].len);
    assert_memory_equal(x[0].data, x[1].data, x[0].len);
    for (int i = 0; i < 2; i++) clime_buf_free(&x[i]);
}

/* The folder does not know with how many ranks experts stayed, nor how many shared a pack. Also where they are frozen,
 * in whole or in part, and where the routers are. */
static void checkpoints_do_not_know_where_experts_are(void **state) {
    static const char *const files[] = {"master.f32", "moment1.f32", "moment2.f32", "state.json"};
    static const char *whole[] = {"layers.1.mlp.experts", "mlp.gate.weight"}, *parts[] = {"up_proj", "experts.3.down"};
    static const struct {
        const char *name, *dtype;
        const char **frozen;
        struct way before, after;
        int cuts;
    } cases[] = {{"qwen3_moe", "bf16", NULL, {4, 4}, {4, 2}},     {"qwen3_moe", "f32", NULL, {2, 2}, {4, 4}, 4},
                 {"deepseek_v3", "f32", NULL, {4, 2}, {1, 1}, 2}, {"glm4_moe", "bf16", whole, {4, 2}, {2, 1}, 2},
                 {"glm4_moe", "f32", whole, {2, 2}, {4, 4}},      {"qwen3_moe", "bf16", parts, {4, 2}, {2, 2}, 4},
                 {"qwen3_moe", "f32", parts, {1, 1}, {4, 4}},     {"deepseek_v3", "bf16", whole, {2, 2}, {4, 2}}};
    char root[] = "/tmp/clime-experts-XXXXXX", first[64], dir[64];
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(first, sizeof first, "%s/first", root);
    snprintf(dir, sizeof dir, "%s/other", root);
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_learner_options o = ranks_of(cases[i].name, cases[i].dtype, 1, 1);
        char alone[65], hex[65];
        o.context_parallel = cases[i].cuts;
        if (cases[i].frozen) o.freeze = (struct clime_opt_list){cases[i].frozen, 2};
        interrupted(o, (struct way){1, 1}, (struct way){1, 1}, first, alone);
        interrupted(o, cases[i].before, cases[i].after, dir, hex);
        if (strcmp(hex, alone) != 0) fail_msg("case %zu", i);
        for (size_t f = 0; f < CLIME_COUNT(files); f++) same_file(first, dir, files[f]);
    }
    assert_int_equal(clime_dir_remove(first, &e), CLIME_OK);
    assert_int_equal(clime_dir_remove(dir, &e), CLIME_OK);
    assert_int_equal(rmdir(root), 0);
}

/* Frozen experts go to the other ranks that have them once. */
static void what_no_step_changes_does_not_go_out_after_it(void **state) {
    static const char *frozen[] = {"mlp.experts"};
    struct clime_learner_options o = ranks_of("qwen3_moe", "bf16", 4, 2);
    uint64_t sent[2];
    (void)state;
    o.freeze = (struct clime_opt_list){frozen, 1};
    struct clime_learner *l = open_learner(&o);
    for (int i = 0; i < 2; i++) {
        steps(l, i, i + 1);
        sent[i] = l->team->links->moved.sent_bytes;
    }
    const struct clime_config *c = &l->model->cfg;
    const uint64_t experts =
        (uint64_t)c->L * (uint64_t)(c->router.E / 2) * 3 * (uint64_t)c->D * (uint64_t)c->F_expert * 2;
    assert_true(sent[0] >= sent[1] + experts);
    clime_learner_close(l);
}

/* ---- memory ---- */

static void the_plan_says_what_is_taken(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        const int ranks = i & 1 ? 4 : 2;
        struct clime_learner_options o =
            ranks_of(i & 1 ? "deepseek_v3" : "qwen3_moe", i & 2 ? "f32" : "bf16", ranks, 2);
        o.context_parallel = i & 4 ? 4 : 1;
        struct clime_buf text;
        own_memory = true;
        offered = (size_t)1 << 30;
        struct clime_learner *l = prepare_with(&o);
        clime_buf_init(&text, 1 << 16);
        clime_learner_describe(l, &text);
        assert_non_null(strstr(text.data, "each rank has 4 of the 8 experts of a layer"));
        assert_non_null(strstr(text.data, ranks == 4 ? "moments (1/2 of these two, since 2 ranks"
                                                     : "moments; rows of 2 neighbours"));
        assert_non_null(strstr(text.data, i & 4 ? "the cuts of micro-batches one after another, so there is room for "
                                                  "one whose rows all choose this rank's: 75 rows"
                                                : "the micro-batches one after another, so there is room for one whose "
                                                  "rows all choose this rank's: 300 rows"));
        assert_non_null(
            strstr(text.data, i & 4 && ranks == 2 ? "gradients of 2 more of them" : "gradients of 1 more of them"));
        clime_buf_free(&text);
        start(l);
        assert_int_equal(clime_learner_memory(l, NULL)->need, taken + clime_cpu_ops.links_bytes(ranks));
        steps(l, 0, 1);
        clime_learner_close(l);
    }
}

static void what_cannot_be_is_refused(void **state) {
    static const struct {
        const char *name;
        int n_ranks, stay;
        enum clime_shard_weights how;
        bool shared;
        const char *why;
    } cases[] = {
        {"qwen3_moe", 2, 4, CLIME_SHARD_AUTO, false,
         "size 4 must divide the trainer's 2 ranks and the 8 experts of Qwen3MoeForCausalLM: 2 would"},
        {"qwen3_moe", 1, 8, CLIME_SHARD_AUTO, false, "size 8 must divide the trainer's 1 rank and"},
        {"qwen3", 4, 4, CLIME_SHARD_AUTO, false, "size 4: Qwen3ForCausalLM has no experts"},
        {"qwen2_moe", 8, 8, CLIME_SHARD_AUTO, false,
         "size 8 must divide the trainer's 8 ranks and the 4 experts of Qwen2MoeForCausalLM: 4 would"},
        {"qwen3_moe", 2, 2, CLIME_SHARD_OFF, false, "--shard-weights off: with --expert-model-parallel-size 2"},
        {"qwen3_moe", 2, 2, CLIME_SHARD_AUTO, true, "size 2: --update-weight-transport nccl"}};
    struct clime_learner *l;
    struct clime_error e;
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_learner_options o = ranks_of(cases[i].name, "f32", cases[i].n_ranks, cases[i].stay);
        o.gradient_lanes = 8;
        o.shard_weights = cases[i].how;
        o.read_whole = cases[i].shared;
        assert_int_equal(clime_learner_prepare(&o, &l, &e), CLIME_ERR_INPUT);
        if (!strstr(e.msg, cases[i].why)) fail_msg("%s", e.msg);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_weights_wherever_experts_are),
                                       cmocka_unit_test(same_weights_wherever_experts_and_cuts_are),
                                       cmocka_unit_test(same_weights_where_routers_choose_a_few),
                                       cmocka_unit_test(checkpoints_do_not_know_where_experts_are),
                                       cmocka_unit_test(what_no_step_changes_does_not_go_out_after_it),
                                       cmocka_unit_test(the_plan_says_what_is_taken),
                                       cmocka_unit_test(what_cannot_be_is_refused)};
    if (argc == 2 && !strcmp(argv[1], "rank")) return clime_follower_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
