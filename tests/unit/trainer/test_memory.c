/* The memory plan: what it says is what is taken, level by level; a plan that does not fit is refused with its
 * arithmetic before anything is allocated; logits are kept where there is room, to the same bits; states on the host
 * give the same bits. On the CPU table, told to have memory of its own. */
#include <unistd.h>

#include "common/log.h"
#include "common/os/dirs.h"
#include "tests/unit/trainer/learner_test.h"

static struct clime_learner *prepare(const char *name, const char *dtype, enum clime_recompute recompute, bool kl,
                                     bool offload) {
    struct clime_learner_options o = options_of(name, dtype);
    o.objective.use_kl_loss = kl;
    o.objective.kl_loss_coef = kl ? 0.1 : 0;
    o.recompute = recompute;
    o.optimizer_cpu_offload = offload;
    o.objective.sft = !kl;
    return prepare_with(&o);
}

static void make(struct clime_learner *l, struct clime_memory_plan *p) {
    struct clime_memory_users u = {.policy = {.max_rows = 300, .max_seqs = 300, .recompute = l->opts.recompute},
                                   .offload = l->opts.optimizer_cpu_offload,
                                   .servers = !l->opts.objective.sft,
                                   .part = {.world = 1},
                                   .lanes = 1};
    clime_memory_fit(l->model, &u);
    clime_memory_plan_make(l->model, &u, p);
}

static void says_what_is_taken(void **state) {
    (void)state;
    static const char *const names[] = {"qwen3", "qwen2", "glm4"};
    for (size_t i = 0; i < 2 * CLIME_COUNT(names); i++) {
        size_t before = SIZE_MAX;
        for (int level = CLIME_RECOMPUTE_NONE; level <= CLIME_RECOMPUTE_FULL; level++) {
            struct clime_learner *l =
                prepare(names[i / 2], i % 2 ? "f32" : "bf16", (enum clime_recompute)level, false, false);
            struct clime_memory_plan p;
            offered = (size_t)1 << 30;
            make(l, &p);
            assert_int_equal(taken, 0);
            start(l);
            assert_int_equal(p.need, taken);
            assert_true(p.part[CLIME_MEM_ACTIVATIONS] < before); /* each level takes less */
            before = p.part[CLIME_MEM_ACTIVATIONS];
            clime_learner_close(l);
        }
    }
}

static size_t trial(struct clime_dev *d, enum clime_trial kind, int T, int N, int K) {
    (void)d, (void)K;
    assert_true(T > 0 && N > 0 && K > 0);
    return (size_t)N * (kind == CLIME_TRIAL_DW ? 1000 : 10);
}

/* What a product's choice of an algorithm takes at its first use must be free at any step, or a slow way computes it:
 * it is in the plan, by the product and the gradient that take most, though it is not taken at the start. */
static void counts_the_trials(void **state) {
    (void)state;
    struct clime_learner *l = prepare("qwen3", "bf16", CLIME_RECOMPUTE_NONE, false, false);
    struct clime_ops with;
    struct clime_memory_plan p, q;
    offered = (size_t)1 << 30;
    make(l, &p);
    with = *l->model->ops;
    with.trial_bytes = trial;
    l->model->ops = &with;
    make(l, &q);
    assert_int_equal(p.part[CLIME_MEM_TRIAL], 0);
    const struct clime_config *c = &l->model->cfg;
    const int widths[] = {c->V, 2 * c->F, (c->H + 2 * c->HK) * c->Dh};
    int most = 0;
    for (size_t i = 0; i < CLIME_COUNT(widths); i++) most = widths[i] > most ? widths[i] : most;
    assert_int_equal(q.part[CLIME_MEM_TRIAL], (size_t)most * 1000); /* the widest product's gradient to its weights */
    assert_int_equal(q.need, p.need + q.part[CLIME_MEM_TRIAL]);
    offered = q.need - 1;
    make(l, &q);
    assert_false(clime_memory_plan_fits(&q));
    clime_learner_close(l);
}

static void refuses(void **state) {
    (void)state;
    struct clime_error e;
    struct clime_memory_plan none, selective, full;
    struct clime_learner *l;
    offered = (size_t)1 << 30;
    l = prepare("qwen3", "bf16", CLIME_RECOMPUTE_FULL, false, false);
    make(l, &full);
    clime_learner_close(l);
    l = prepare("qwen3", "bf16", CLIME_RECOMPUTE_SELECTIVE, false, false);
    make(l, &selective);
    clime_learner_close(l);

    l = prepare("qwen3", "bf16", CLIME_RECOMPUTE_NONE, false, false);
    make(l, &none);
    offered = none.need - 1;
    assert_int_equal(clime_learner_start(l, &e), CLIME_ERR_LIMIT);
    assert_int_equal(taken, 0);
    assert_non_null(strstr(e.msg, "weights "));
    assert_non_null(strstr(e.msg, " + moments "));
    assert_non_null(strstr(e.msg, "It fits with --recompute-granularity selective"));
    offered = selective.need - 1;
    assert_int_equal(clime_learner_start(l, &e), CLIME_ERR_LIMIT);
    assert_non_null(strstr(e.msg, "It fits with --recompute-granularity full"));
    offered = full.need - 1;
    assert_int_equal(clime_learner_start(l, &e), CLIME_ERR_LIMIT);
    assert_non_null(strstr(e.msg, "It fits with --optimizer-cpu-offload"));
    offered = 1000;
    assert_int_equal(clime_learner_start(l, &e), CLIME_ERR_LIMIT);
    assert_non_null(strstr(e.msg, "Neither recomputing nor --optimizer-cpu-offload is enough"));
    assert_int_equal(taken, 0);
    offered = none.need; /* to the byte */
    start(l);
    clime_learner_close(l);
}

static void counts_the_reference(void **state) {
    (void)state;
    struct clime_error e;
    struct clime_memory_plan p;
    offered = (size_t)1 << 30;
    struct clime_learner *l = prepare("qwen3", "bf16", CLIME_RECOMPUTE_NONE, true, false);
    struct clime_buf text;
    make(l, &p); /* without it */
    offered = p.need;
    assert_int_equal(clime_learner_start(l, &e), CLIME_ERR_LIMIT);
    assert_non_null(strstr(e.msg, "reference model"));
    offered = (size_t)1 << 30;
    clime_buf_init(&text, 1 << 16);
    clime_learner_describe(l, &text);
    assert_non_null(strstr(text.data, "  activations "));
    assert_non_null(strstr(text.data, "  reference model "));
    assert_non_null(strstr(text.data, "recompute none"));
    clime_buf_free(&text);
    clime_learner_close(l);
}

/* ---- kept logits ---- */

enum { VOCABULARY = 72, MAX_ROWS = 300, ROW = VOCABULARY * 4 };

/* The plan of a learner that has `free_bytes`, which says the same in the log and in --explain. */
static struct clime_memory_plan plan_of(enum clime_recompute recompute, bool servers, size_t free_bytes) {
    struct clime_learner *l = prepare("qwen3", "bf16", recompute, false, false);
    struct clime_memory_plan p;
    struct clime_buf text;
    l->opts.objective.sft = !servers;
    offered = free_bytes;
    make(l, &p);
    clime_buf_init(&text, 1 << 16);
    clime_memory_plan_line(&p, &text);
    assert_int_equal(p.keep_logits, strstr(text.data, "(logits kept) + ") != NULL);
    clime_learner_describe(l, &text);
    assert_int_equal(p.keep_logits, strstr(text.data, "GiB (logits kept)\n") != NULL);
    clime_buf_free(&text);
    clime_learner_close(l);
    return p;
}

static bool keeps(enum clime_recompute recompute, bool servers, size_t free_bytes) {
    return plan_of(recompute, servers, free_bytes).keep_logits;
}

static size_t aligned(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static void keeps_logits_where_there_is_room(void **state) {
    (void)state;
    static const size_t chunks[] = {7, MAX_ROWS - 10}; /* most logits are more than the weights, or less */
    const size_t plenty = (size_t)1 << 30;
    struct clime_learner *l = prepare("qwen3", "bf16", CLIME_RECOMPUTE_NONE, false, false);
    size_t weights = clime_model_bytes(l->model);
    assert_int_equal(l->model->cfg.V, VOCABULARY);
    clime_learner_close(l);
    code_bytes = 3000;
    for (size_t i = 0; i < CLIME_COUNT(chunks); i++) {
        head_bytes = chunks[i] * ROW;
        size_t more = aligned(MAX_ROWS * ROW) - aligned(chunks[i] * ROW);
        struct clime_memory_plan tight = plan_of(CLIME_RECOMPUTE_NONE, false, 1000);
        struct clime_memory_plan kept = plan_of(CLIME_RECOMPUTE_NONE, false, plenty);
        assert_false(tight.keep_logits);
        assert_true(kept.keep_logits);
        assert_int_equal(kept.part[CLIME_MEM_HEAD], tight.part[CLIME_MEM_HEAD] + more);
        assert_int_equal(kept.need, tight.need + more);
        assert_false(keeps(CLIME_RECOMPUTE_SELECTIVE, false, plenty));
        assert_false(keeps(CLIME_RECOMPUTE_FULL, false, plenty));

        /* what must stay free, to the byte: alone, and beside servers */
        assert_true(keeps(CLIME_RECOMPUTE_NONE, false, kept.need + code_bytes));
        assert_false(keeps(CLIME_RECOMPUTE_NONE, false, kept.need + code_bytes - 1));
        assert_int_equal(weights + code_bytes < 7 * more, i == 0);
        size_t others = i == 0 ? 7 * more : weights + code_bytes;
        assert_true(keeps(CLIME_RECOMPUTE_NONE, true, kept.need + others));
        assert_false(keeps(CLIME_RECOMPUTE_NONE, true, kept.need + others - 1));
    }
    own_memory = false; /* the machine's is not counted */
    assert_false(keeps(CLIME_RECOMPUTE_NONE, false, plenty));
    own_memory = true;
    head_bytes = MAX_ROWS * ROW; /* one chunk holds them all: there is nothing to decide */
    assert_false(keeps(CLIME_RECOMPUTE_NONE, false, plenty));
    head_bytes = code_bytes = 0;
}

/* What is taken is what the plan says, and a run that keeps them has the weights of one that makes them again. */
static void kept_logits_have_the_same_bits(void **state) {
    (void)state;
    head_bytes = 7 * ROW;
    for (int half = 0; half < 2; half++) {
        char sha[2][65];
        size_t need = 0;
        for (int keep = 1; keep >= 0; keep--) {
            struct clime_error e;
            struct clime_memory_plan p;
            struct clime_learner *l = prepare("glm4", half ? "bf16" : "f32", CLIME_RECOMPUTE_NONE, false, false);
            offered = keep ? (size_t)1 << 30 : need - 1;
            make(l, &p);
            assert_int_equal(p.keep_logits, keep);
            start(l);
            assert_int_equal(p.need, taken);
            need = p.need;
            steps(l, 0, STEPS);
            if (clime_learner_sha256(l, sha[keep], &e)) fail_msg("%s", e.msg);
            clime_learner_close(l);
        }
        assert_string_equal(sha[0], sha[1]);
    }
    head_bytes = 0;
}

/* ---- states on the host ---- */

/* The same steps with states on the host and on the device, and a run that changes sides at a checkpoint. */
static void offload_has_the_same_bits(void **state) {
    (void)state;
    static const char *const names[] = {"qwen3", "qwen2", "glm4"};
    offered = (size_t)1 << 30;
    for (size_t i = 0; i < CLIME_COUNT(names); i++) {
        char first[65], sha[65], dir[] = "/tmp/clime-offload-XXXXXX";
        struct clime_error e;
        struct clime_memory_plan p;
        assert_non_null(mkdtemp(dir));
        char *path = xasprintf("%s/step", dir);
        for (int offload = 0; offload <= 1; offload++) {
            struct clime_learner *l = prepare(names[i], "bf16", CLIME_RECOMPUTE_NONE, false, offload);
            make(l, &p);
            start(l);
            if (clime_learner_sha256(l, first, &e)) fail_msg("%s", e.msg);
            steps(l, 0, STEPS / 2);
            if (offload && clime_learner_save(l, path, &e)) fail_msg("%s", e.msg);
            steps(l, STEPS / 2, STEPS);
            if (offload)
                assert_int_equal(p.part[CLIME_MEM_MASTER] + p.part[CLIME_MEM_MOMENTS], 0);
            else if (clime_learner_sha256(l, sha, &e))
                fail_msg("%s", e.msg);
            assert_string_not_equal(first, sha);
            if (clime_learner_sha256(l, first, &e)) fail_msg("%s", e.msg);
            assert_string_equal(first, sha);
            clime_learner_close(l);
        }
        for (int offload = 0; offload <= 1; offload++) {
            struct clime_learner *l = prepare(names[i], "bf16", CLIME_RECOMPUTE_NONE, false, offload);
            start(l);
            if (clime_learner_load(l, path, &e)) fail_msg("%s", e.msg);
            steps(l, STEPS / 2, STEPS);
            if (clime_learner_sha256(l, first, &e)) fail_msg("%s", e.msg);
            assert_string_equal(first, sha);
            clime_learner_close(l);
        }
        assert_int_equal(clime_dir_remove(path, &e), CLIME_OK);
        assert_int_equal(rmdir(dir), 0);
        free(path);
    }
}

int main(void) {
    clime_log_open("test", CLIME_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_what_is_taken),
                                       cmocka_unit_test(counts_the_trials),
                                       cmocka_unit_test(refuses),
                                       cmocka_unit_test(counts_the_reference),
                                       cmocka_unit_test(keeps_logits_where_there_is_room),
                                       cmocka_unit_test(kept_logits_have_the_same_bits),
                                       cmocka_unit_test(offload_has_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
