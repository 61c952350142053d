/* Several ranks train: the weights after some steps are the same bits on 1, 2 and 4 of them, for every dense family,
 * and a checkpoint of one number goes on with another. */
#include <unistd.h>

#include "common/os/dirs.h"
#include "tests/unit/trainer/copies_test.h"
#include "trainer/learn/follower.h"

static struct clime_learner_options ranks_of(const char *name, const char *dtype, int n_ranks, int lanes) {
    struct clime_learner_options o = options_of(name, dtype);
    o.n_ranks = n_ranks;
    o.gradient_lanes = lanes;
    o.rank_limit_us = 120000000;
    return o;
}

static void sha_of(struct clime_learner *l, char hex[65]) {
    struct clime_error e;
    if (clime_learner_sha256(l, hex, &e)) fail_msg("%s", e.msg);
}

/* Each rank's memory has a server's share where that server looks for it (clime_model_open_share). */
static void check_shares(struct clime_learner *l) {
    const struct clime_model *m = l->model;
    struct clime_model_card cards[CLIME_GROUP_MAX];
    struct clime_error e;
    struct clime_shard s;
    int n;
    if (clime_learner_show(l, cards, &n, &e) || clime_learner_whole(l, &e)) fail_msg("%s", e.msg);
    assert_int_equal(n, l->opts.n_ranks);
    for (int r = 0; r < n; r++) {
        bool same_unit;
        void *theirs;
        if (clime_layout_shard(&m->layout, r, n, &s, &e)) fail_msg("%s", e.msg);
        size_t bytes = (size_t)clime_shares_in_ring(&m->layout, &s);
        if (m->ops->share_open(m->dev, cards[r].handle, bytes, &same_unit, &theirs, &e)) fail_msg("%s", e.msg);
        for (int i = 0; i < s.n_parts; i++) {
            const struct clime_shard_part *p = &s.parts[i];
            if (memcmp((char *)theirs + p->local, (char *)m->ring->whole + p->global, (size_t)p->bytes) != 0)
                fail_msg("%s of rank %d of %d is not what it was trained to", m->layout.slices[p->slice].name, r, n);
        }
        m->ops->share_close(m->dev, theirs);
        clime_shard_free(&s);
    }
}

/* The weights' SHA-256 after the steps [0, STEPS). */
static void train_packs(const struct clime_learner_options *o, int tokens, char hex[65]) {
    struct clime_learner *l = open_learner(o);
    pack_tokens = tokens;
    if (o->n_ranks > 1) assert_true(l->lanes.between.n_pieces > CLIME_BETWEEN_PLACES); /* places are used again */
    steps(l, 0, STEPS);
    sha_of(l, hex);
    if (l->model->ring && l->model->cfg.router.E && !o->server_devices) /* of shares none need be whole */
        assert_true(l->model->ring->n_direct > 0);
    if (o->server_devices) check_shares(l);
    if (o->model.shared) check_copies(l);
    clime_learner_close(l);
}

/* Of packs that fill a round of four lanes and a half. */
static void train(const struct clime_learner_options *o, char hex[65]) {
    train_packs(o, 25, hex);
}

static void same_weights_on_any_number_of_ranks(void **state) {
    static const char *const names[] = {"qwen3", "qwen2", "llama", "glm4", "qwen3_moe", "deepseek_v3", "glm4_moe"};
    (void)state;
    for (size_t i = 0; i < 2 * CLIME_COUNT(names); i++) {
        const char *dtype = i % 2 ? "f32" : "bf16";
        char alone[65], one_lane[65], hex[65];
        struct clime_learner_options o = ranks_of(names[i / 2], dtype, 1, 4);
        train(&o, alone);
        o.gradient_lanes = 1;
        train(&o, one_lane);
        if (i % 2) assert_string_not_equal(alone, one_lane); /* another order of sums; bf16 may round it away */
        for (int k = 0; k < 4; k++) {
            o = ranks_of(names[i / 2], dtype, k % 2 ? 4 : 2, 4);
            o.shard_weights = k / 2 ? CLIME_SHARD_ON : CLIME_SHARD_OFF;
            /* parts that are a server's shares, and others; three heads cannot be cut */
            o.model.shared = k / 2;
            if (k / 2 && (i / 2 + (size_t)k) % 2 && strcmp(names[i / 2], "qwen2") != 0) o.server_devices = o.n_ranks;
            train(&o, hex);
            if (strcmp(hex, alone) != 0)
                fail_msg("%s %s on %d ranks, %s", names[i / 2], dtype, o.n_ranks,
                         o.server_devices ? "in shares"
                         : k / 2          ? "sharded"
                                          : "replicated");
        }
    }
}

/* Packs whose rows are cut: the cuts decide the weights, and not how many ranks have them. Packs of five sequences, of
 * one, of two, whose rows the cuts do not divide; cuts without loss rows; rounds that leave ranks without a pack; key
 * and value heads that ranks have two of, one or none; biases, norms of both kinds, frozen ones among them; heads that
 * are the embedding and others; experts, shared ones and frozen ones; latent attention with groups of one head, and
 * with one that has none; all levels of recomputing. */
static void same_weights_on_any_number_of_ranks_that_share_a_pack(void **state) {
    static const char *const names[] = {"qwen3",     "qwen2",    "llama",       "glm4",
                                        "qwen3_moe", "glm4_moe", "deepseek_v3", "moonlight"};
    static const char *frozen[] = {"k_proj", "embed_tokens", "layers.0.mlp", "q_norm"};
    enum { FAMILIES = CLIME_COUNT(names), LATENT = 6 };
    (void)state;
    for (int i = 0; i < 2 * FAMILIES + 3; i++) { /* the last with frozen tensors: qwen3 twice, qwen3_moe */
        const int name = i < 2 * FAMILIES ? i / 2 : (i - 2 * FAMILIES) / 2 * 4,
                  cuts = i % 4 < 2 || name >= LATENT ? 4 : 2, tokens = cuts == 4 ? 100 : 45;
        char alone[65], uncut[65], hex[65];
        struct clime_learner_options o = ranks_of(names[name], i % 2 ? "f32" : "bf16", 1, 4);
        o.recompute = (enum clime_recompute)(i % 3);
        if (i >= 2 * FAMILIES) o.freeze = (struct clime_opt_list){frozen, 4};
        train_packs(&o, tokens, uncut);
        o.context_parallel = cuts;
        train_packs(&o, tokens, alone);
        if (i % 2) assert_string_not_equal(alone, uncut); /* another order of sums; bf16 may round it away */
        for (int k = 0; k < 4; k++) {
            o.n_ranks = k % 2 ? 4 : 2;
            o.shard_weights = k / 2 ? CLIME_SHARD_ON : CLIME_SHARD_OFF;
            o.model.shared = k / 2 && i >= 2 * FAMILIES;
            train_packs(&o, tokens, hex);
            if (strcmp(hex, alone) != 0)
                fail_msg("%s %s, %d cuts on %d ranks, %s", names[name], o.model.dtype, cuts, o.n_ranks,
                         k / 2 ? "sharded" : "replicated");
        }
    }
}

/* Bytes of a file of the checkpoint. */
static struct clime_buf read_file(const char *dir, const char *name) {
    struct clime_buf b;
    struct clime_error e;
    char *path = xasprintf("%s/%s", dir, name);
    clime_buf_init(&b, (size_t)1 << 30);
    if (clime_buf_read_file(&b, path, &e)) fail_msg("%s", e.msg);
    free(path);
    return b;
}

/* Two steps on `before` ranks, a checkpoint at dir, the others on `after` ranks. */
static void interrupted(struct clime_learner_options o, int before, int after, const char *dir, char hex[65]) {
    struct clime_error e;
    o.n_ranks = before;
    struct clime_learner *l = open_learner(&o);
    steps(l, 0, STEPS / 2);
    if (clime_learner_save(l, dir, &e)) fail_msg("%s", e.msg);
    clime_learner_close(l);
    o.n_ranks = after;
    if (before == 2) o.shard_weights = CLIME_SHARD_ON;
    l = open_learner(&o);
    if (clime_learner_load(l, dir, &e)) fail_msg("%s", e.msg);
    steps(l, STEPS / 2, STEPS);
    sha_of(l, hex);
    clime_learner_close(l);
}

/* The folder does not know how many made it, byte by byte, nor whether they had whole weights or parts, and any number
 * goes on with it either way. Also where tensors are
 * frozen, parts of a joined one among them. */
static void checkpoints_do_not_know_the_ranks(void **state) {
    static const char *const files[] = {"master.f32", "moment1.f32", "moment2.f32", "state.json"};
    static const char *frozen[] = {"k_proj", "embed_tokens", "layers.0.mlp"};
    static const int numbers[][2] = {{1, 4}, {4, 1}, {2, 4}, {4, 2}};
    char root[] = "/tmp/clime-ranks-XXXXXX", first[64], dir[64], alone[65], hex[65];
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(first, sizeof first, "%s/first", root);
    snprintf(dir, sizeof dir, "%s/other", root);
    for (int i = 0; i < 4; i++) {
        struct clime_learner_options o = ranks_of(i / 2 ? "qwen2" : "glm4", i % 2 ? "f32" : "bf16", 1, 4);
        if (i / 2) o.freeze = (struct clime_opt_list){frozen, 3};
        train(&o, alone);
        interrupted(o, 1, 1, first, hex);
        assert_string_equal(hex, alone);
        for (size_t k = 0; k < CLIME_COUNT(numbers); k++) {
            o.shard_weights = k < 2 ? CLIME_SHARD_ON : CLIME_SHARD_OFF;
            interrupted(o, numbers[k][0], numbers[k][1], dir, hex);
            assert_string_equal(hex, alone);
            for (size_t f = 0; f < CLIME_COUNT(files); f++) {
                struct clime_buf a = read_file(first, files[f]), b = read_file(dir, files[f]);
                assert_int_equal(a.len, b.len);
                assert_memory_equal(a.data, b.data, a.len);
                clime_buf_free(&a);
                clime_buf_free(&b);
            }
        }
    }
    assert_int_equal(clime_dir_remove(first, &e), CLIME_OK);
    assert_int_equal(clime_dir_remove(dir, &e), CLIME_OK);
    assert_int_equal(rmdir(root), 0);
}

/* What rank 0 takes is what the plan said. */
static void the_plan_says_what_is_taken(void **state) {
    (void)state;
    for (int i = 0; i < 16; i++) {
        const char *name = (i & 12) == 8 ? "qwen2" : "qwen3_moe";
        struct clime_learner_options o =
            ranks_of(i & 1 ? (i & 8 ? "deepseek_v3" : "glm4") : name, i & 2 ? "f32" : "bf16", 2, 4);
        o.shard_weights = i & 4 ? CLIME_SHARD_ON : CLIME_SHARD_OFF;
        o.context_parallel = i & 8 ? 2 + (i & 2) : 0;
        own_memory = true;
        offered = (size_t)1 << 30;
        struct clime_learner *l = prepare_with(&o);
        start(l);
        assert_int_equal(clime_learner_memory(l, NULL)->need, taken + clime_cpu_ops.links_bytes(2));
        assert_int_equal(l->model->ring != NULL, (i & 4) != 0);
        steps(l, 0, 1);
        clime_learner_close(l);
    }
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* The description of a model of 24 layers for one of four ranks, with so much memory free. */
static void describe(const char *dir, enum clime_shard_weights how, bool shared, size_t free_bytes,
                     struct clime_buf *out) {
    struct clime_learner_options o = ranks_of("qwen3", "bf16", 4, 4);
    o.hf_checkpoint = dir;
    o.shard_weights = how;
    o.read_whole = shared;
    own_memory = true;
    offered = free_bytes;
    struct clime_learner *l = prepare_with(&o);
    clime_buf_clear(out);
    clime_learner_describe(l, out);
    assert_int_equal(l->model->ring == NULL, strstr(out->data, "4 ranks, replicated: ") != NULL);
    clime_learner_close(l);
}

static double gib_after(const char *text, const char *words) {
    const char *said = strstr(text, words);
    assert_non_null(said);
    return strtod(said + strlen(words), NULL);
}

/* Whole weights where they fit, parts where those do; both sums are said. */
static void parts_where_whole_weights_do_not_fit(void **state) {
    const size_t plenty = (size_t)1 << 40;
    char dir[] = "/tmp/clime-ranks-XXXXXX", path[64];
    struct clime_buf text;
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_file(path, "{\"architectures\": [\"Qwen3ForCausalLM\"], \"hidden_size\": 512, \"intermediate_size\": 2048, "
                     "\"num_hidden_layers\": 24, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
                     "\"head_dim\": 64, \"vocab_size\": 1024, \"max_position_embeddings\": 512, "
                     "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000, \"hidden_act\": \"silu\", "
                     "\"tie_word_embeddings\": true}");
    clime_buf_init(&text, 1 << 16);
    describe(dir, CLIME_SHARD_AUTO, false, plenty, &text);
    const double whole = gib_after(text.data, "(replicated): "), parts = gib_after(text.data, "(sharded): ");
    assert_true(parts < 0.7 * whole);
    assert_non_null(strstr(text.data, "4 ranks, replicated: "));
    describe(dir, CLIME_SHARD_ON, false, plenty, &text);
    assert_non_null(strstr(text.data, "4 ranks, sharded: "));
    assert_non_null(strstr(text.data, "GiB: rank 0's whole weights\n")); /* and the states are on the device */
    assert_null(strstr(text.data, "GiB: master weights and moments\n"));
    const size_t between = (size_t)((whole + parts) / 2 * (1 << 30));
    describe(dir, CLIME_SHARD_AUTO, false, between, &text);
    assert_non_null(strstr(text.data, "GiB, which does not fit; a part"));
    assert_non_null(strstr(text.data, "4 ranks, sharded: "));
    assert_null(strstr(text.data, "DOES NOT FIT"));
    describe(dir, CLIME_SHARD_AUTO, false, 1 << 20, &text); /* what takes less is refused */
    assert_non_null(strstr(text.data, "4 ranks, sharded: "));
    assert_non_null(strstr(text.data, "DOES NOT FIT"));
    describe(dir, CLIME_SHARD_AUTO, true, between, &text); /* others read whole weights in place */
    assert_non_null(strstr(text.data, "4 ranks, replicated: "));
    describe(dir, CLIME_SHARD_OFF, false, between, &text);
    assert_non_null(strstr(text.data, "4 ranks, replicated: "));
    clime_buf_free(&text);
    assert_int_equal(clime_dir_remove(dir, &e), CLIME_OK);
}

static void what_cannot_be_shared_is_refused(void **state) {
    static const struct {
        int n_ranks, lanes;
        bool parts, shared;
        const char *why;
        int cuts;
    } cases[] = {{2, 3, false, false, "--gradient-lanes 3: 1, 2, 4"},
                 {4, 2, false, false, "--gradient-lanes 2 cannot be shared by 4 ranks"},
                 {3, 0, false, false, "3 ranks"},
                 {1, 128, false, false, "--gradient-lanes 128"},
                 {2, 4, true, true, "--shard-weights on: --update-weight-transport nccl"},
                 {4, 4, false, false, "--context-parallel-size 3: a power of two", 3},
                 {2, 2, false, false, "--context-parallel-size 4: it must divide the 2 lanes", 4}};
    struct clime_learner *l;
    struct clime_error e;
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_learner_options o = ranks_of("qwen3", "f32", cases[i].n_ranks, cases[i].lanes);
        o.context_parallel = cases[i].cuts;
        if (cases[i].parts) o.shard_weights = CLIME_SHARD_ON;
        o.read_whole = cases[i].shared;
        assert_int_equal(clime_learner_prepare(&o, &l, &e), CLIME_ERR_INPUT);
        if (!strstr(e.msg, cases[i].why)) fail_msg("%s", e.msg);
    }
}

/* Of four devices 0 and 2 are lost: two ranks have 1 and 3, each its own. The rank that rank 0 has started got rank 0's
 * options, and its device with its place. */
static void ranks_have_the_devices_that_are_left(void **state) {
    static const struct clime_place places[] = {{0}, {.rank = 1, .world = 2, .local_rank = 3}};
    (void)state;
    for (int r = 0; r < 2; r++) {
        struct clime_learner_options o = ranks_of("qwen3", "f32", 2, 4);
        o.left_out = 1 << 0 | 1 << 2;
        o.base_gpu = 10;
        o.place = places[r];
        struct clime_learner *l = prepare_with(&o);
        assert_int_equal(clime_learner_device(l)->gpu, r == 0 ? 11 : 13);
        clime_learner_close(l);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_weights_on_any_number_of_ranks),
                                       cmocka_unit_test(same_weights_on_any_number_of_ranks_that_share_a_pack),
                                       cmocka_unit_test(checkpoints_do_not_know_the_ranks),
                                       cmocka_unit_test(the_plan_says_what_is_taken),
                                       cmocka_unit_test(parts_where_whole_weights_do_not_fit),
                                       cmocka_unit_test(what_cannot_be_shared_is_refused),
                                       cmocka_unit_test(ranks_have_the_devices_that_are_left)};
    if (argc == 2 && !strcmp(argv[1], "rank")) return clime_follower_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
