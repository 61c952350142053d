/* The memory plan: what it says is what is taken, level by level; a plan that does not fit is refused with its
 * arithmetic before anything is allocated; states on the host give the same bits. On the CPU table, told to have memory
 * of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log.h"
#include "common/rng.h"
#include "trainer/folder.h"
#include "trainer/learner_int.h"
#include "trainer/memory.h"

static size_t taken, offered; /* bytes allocated so far, free ones that the device claims to have */

static enum clime_err counting_alloc(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                     struct clime_error *e) {
    taken += bytes;
    return clime_cpu_ops.alloc(d, bytes, what, out, e);
}

static void claimed_memory(struct clime_dev *d, size_t *free_bytes, size_t *total_bytes) {
    (void)d;
    *free_bytes = offered;
    *total_bytes = 2 * offered;
}

/* Prepared on a device that counts allocations and has `offered` bytes. */
static struct clime_learner *prepare(const char *name, const char *dtype, enum clime_recompute recompute, bool kl,
                                     bool offload) {
    static struct clime_ops own;
    static char *kept[64];
    static int n_kept;
    struct clime_learner *l;
    struct clime_error e;
    char *dir = xasprintf("%s/%s", getenv("CLIME_GOLDEN") ? getenv("CLIME_GOLDEN") : "tests/golden", name);
    struct clime_learner_options o = {.hf_checkpoint = dir,
                                      .model = {.device = "cpu", .dtype = dtype, .dev = {.n_threads = 1}},
                                      .max_tokens_per_gpu = 300,
                                      .max_seq_len = 20,
                                      .use_kl_loss = kl,
                                      .kl_loss_coef = kl ? 0.1 : 0,
                                      .recompute = recompute,
                                      .optimizer_cpu_offload = offload,
                                      .sft = !kl,
                                      .lr = 1e-2,
                                      .adam_beta1 = 0.9,
                                      .adam_beta2 = 0.95,
                                      .adam_eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .clip_grad = 0.5};
    if (clime_learner_prepare(&o, &l, &e)) fail_msg("%s", e.msg);
    own = clime_cpu_ops;
    own.own_memory = true;
    own.alloc = own.alloc_shared = counting_alloc;
    own.memory = claimed_memory;
    l->model->ops = &own;
    ((struct clime_dev_head *)(void *)l->model->dev)->ops = &own;
    taken = 0;
    CHECK(n_kept < (int)CLIME_COUNT(kept));
    kept[n_kept++] = dir; /* lives as long as the program */
    return l;
}

static void start(struct clime_learner *l) {
    struct clime_error e;
    if (clime_learner_start(l, &e)) fail_msg("%s", e.msg);
}

static void make(struct clime_learner *l, struct clime_memory_plan *p) {
    struct clime_memory_users u = {.policy = {.max_rows = 300, .max_seqs = 300, .recompute = l->opts.recompute},
                                   .offload = l->opts.optimizer_cpu_offload};
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

/* ---- states on the host ---- */

enum { N_SAMPLES = 6, SAMPLE_LEN = 20, STEPS = 4 };

static void steps(struct clime_learner *l, int from, int to) {
    struct clime_sample *s[N_SAMPLES];
    int32_t lengths[N_SAMPLES];
    struct clime_pack_options po = {.max_tokens = 50, .dynamic = true};
    struct clime_packing packing;
    struct clime_step_stats stats;
    struct clime_error e;
    struct clime_rng rng;
    for (int step = from; step < to; step++) {
        clime_rng_init(&rng, (uint64_t)step);
        for (int i = 0; i < N_SAMPLES; i++) {
            s[i] = clime_sample_new();
            s[i]->n_prompt = 1 + i;
            s[i]->n_response = SAMPLE_LEN - s[i]->n_prompt;
            s[i]->temperature = 1;
            s[i]->ids = xcalloc(SAMPLE_LEN, sizeof *s[i]->ids);
            s[i]->mask = xcalloc(SAMPLE_LEN, sizeof *s[i]->mask);
            memset(s[i]->mask, 1, SAMPLE_LEN);
            lengths[i] = SAMPLE_LEN;
            for (int k = 0; k < SAMPLE_LEN; k++)
                s[i]->ids[k] = (int32_t)clime_rng_below(&rng, (uint64_t)l->model->cfg.V);
        }
        clime_pack_make(lengths, N_SAMPLES, &po, &packing);
        const struct clime_step_input in = {.samples = (const struct clime_sample *const *)s,
                                            .n = N_SAMPLES,
                                            .packing = &packing,
                                            .version = -1,
                                            .global_batch = N_SAMPLES};
        if (clime_learner_step(l, &in, &stats, &e)) fail_msg("%s", e.msg);
        assert_false(stats.skipped);
        clime_pack_free(&packing);
        for (int i = 0; i < N_SAMPLES; i++) clime_sample_free(s[i]);
    }
}

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
        assert_int_equal(clime_folder_remove(path, &e), CLIME_OK);
        assert_int_equal(rmdir(dir), 0);
        free(path);
    }
}

int main(void) {
    clime_log_open("test", CLIME_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_what_is_taken), cmocka_unit_test(refuses),
                                       cmocka_unit_test(counts_the_reference),
                                       cmocka_unit_test(offload_has_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
