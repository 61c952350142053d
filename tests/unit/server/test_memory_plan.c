/* The server's memory plan on a device that says what it has and what its operations take: all that a running server
 * allocates must be in the sum, and the runner must take beforehand what the plan counted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/engine/memory_plan.h"
#include "server/engine/step.h"
#include "server/server_options.h"

#define GIB ((size_t)1 << 30)
#define SCRATCH (2 * GIB)
#define TRIAL_PER_COLUMN ((size_t)1 << 16)

static size_t free_bytes, reserved;
static struct clime_scratch_shape asked;

static void memory(struct clime_dev *d, size_t *free_out, size_t *total) {
    (void)d;
    *free_out = free_bytes;
    *total = 80 * GIB;
}

static size_t scratch(const struct clime_scratch_shape *s) {
    asked = *s;
    return SCRATCH;
}

static size_t trial(struct clime_dev *d, enum clime_trial kind, int T, int N, int K) {
    (void)d, (void)kind, (void)T;
    assert_true(N > 0 && K > 0);
    return (size_t)N * TRIAL_PER_COLUMN;
}

static enum clime_err reserve(struct clime_dev *d, size_t bytes, struct clime_error *e) {
    (void)d;
    reserved = bytes;
    return bytes > SCRATCH ? clime_fail(e, CLIME_ERR_LIMIT, "more than was planned") : CLIME_OK;
}

static int chosen[2][2]; /* products of layers, of the head: how many, of how many rows */

static void choose(struct clime_dev *d, enum clime_trial kind, int T, int N, int K) {
    (void)d;
    const bool head = kind == CLIME_TRIAL_FORWARD_F32;
    assert_true(N > 0 && K > 0 && (!head || N == 16384));
    chosen[head][0]++;
    chosen[head][1] = T;
}

static struct clime_ops ops;
static struct clime_model *model;

/* Rank 0 of n_ranks; NULL when it cannot be. */
static struct clime_model *prepare(int n_ranks) {
    static const char config[] =
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 64,"
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16,"
        "\"intermediate_size\": 96, \"vocab_size\": 16384, \"max_position_embeddings\": 4096,"
        "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}";
    struct clime_error e = {0};
    struct clime_model *m = NULL;
    char dir[] = "/tmp/clime-plan-XXXXXX", path[64];
    if (!mkdtemp(dir)) return NULL;
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    if (!f) return NULL;
    fputs(config, f);
    fclose(f);
    struct clime_model_options o = {.device = "cpu", .dtype = "auto", .dev = {.n_threads = 1}, .n_ranks = n_ranks};
    if (clime_model_prepare(dir, &o, &m, &e)) fprintf(stderr, "%s\n", e.msg);
    unlink(path);
    rmdir(dir);
    return m;
}

static int open_model(void **state) {
    (void)state;
    model = prepare(1);
    if (!model) return -1;
    ops = clime_cpu_ops;
    ops.own_memory = true;
    ops.code_bytes = GIB / 2;
    ops.memory = memory;
    ops.scratch_bytes = scratch;
    ops.trial_bytes = trial;
    ops.choose = choose;
    ops.reserve_scratch = reserve;
    model->ops = &ops;
    return 0;
}

static int close_model(void **state) {
    (void)state;
    clime_model_close(model);
    return 0;
}

static void test_sum(void **state) {
    (void)state;
    const struct clime_sched_options sched = {.max_running = 64, .chunk = 512, .n_pages = 16, .cache = true};
    struct clime_memory_want want = {.fraction = 0.98, .context = 4096, .own_weights = true};
    struct clime_server_memory p;
    struct clime_error e;
    size_t n_trial = 16384 * TRIAL_PER_COLUMN; /* the head is the widest */
    for (free_bytes = 5 * GIB; free_bytes < 8 * GIB; free_bytes += GIB / 3) {
        assert_int_equal(clime_server_memory_make(model, &sched, &want, &p, &e), CLIME_OK);
        size_t own = clime_runner_bytes(model, &sched, want.context);
        assert_true(p.scratch >= SCRATCH && p.scratch == own);
        assert_int_equal(p.trial, n_trial);
        size_t sum = p.weights + p.kv + p.scratch + p.code + p.staging + p.trial;
        assert_true(p.n_pages > 0 && sum <= free_bytes + clime_kv_page_bytes(model));
    }
    assert_true(asked.n_seq == 64 && asked.max_len == 4096 && asked.R == 64 && asked.V == 16384 && asked.T == 576);
    free_bytes = 2 * GIB; /* of which the operations' scratch is all */
    assert_int_equal(clime_server_memory_make(model, &sched, &want, &p, &e), CLIME_ERR_LIMIT);
    assert_non_null(strstr(e.msg, "does not fit"));
}

/* Whole weights need not have room a second time on each of several devices, as an update may come to each by its
 * share; nor at all, where a model would not be served for it. */
static void test_staging_of_a_share(void **state) {
    (void)state;
    const struct clime_sched_options sched = {.max_running = 64, .chunk = 512, .n_pages = 16};
    struct clime_memory_want want = {
        .fraction = 1, .max_total_tokens = 64, .context = 64, .own_weights = true, .n_ranks = 2};
    struct clime_server_memory p;
    struct clime_error e;
    struct clime_model *share = prepare(2);
    assert_non_null(share);
    share->ops = &ops;
    const size_t own = clime_model_own_bytes(share), whole = clime_model_bytes(share),
                 page = clime_kv_page_bytes(share);
    assert_true(whole > own + 3 * page);
    free_bytes = 60 * GIB;
    assert_int_equal(clime_server_memory_make(share, &sched, &want, &p, &e), CLIME_OK);
    const size_t rest = p.weights + p.scratch + p.code + p.trial;
    want.max_total_tokens = 0;
    free_bytes = rest + whole + 3 * page;
    assert_int_equal(clime_server_memory_make(share, &sched, &want, &p, &e), CLIME_OK);
    assert_true(p.staging == whole && p.n_pages == 3);
    assert_int_equal(3 + p.n_pages_for_staging, 2 * 64); /* twice what all sequences could use is the most */
    want.max_total_tokens = (p.n_pages + p.n_pages_for_staging) * CLIME_PAGE;
    const int all = p.n_pages + p.n_pages_for_staging;
    assert_int_equal(clime_server_memory_make(share, &sched, &want, &p, &e), CLIME_OK);
    assert_true(p.n_pages == all && p.n_pages_for_staging == 0);
    want.max_total_tokens = 0;
    free_bytes = rest + own + 3 * page;
    assert_int_equal(clime_server_memory_make(share, &sched, &want, &p, &e), CLIME_OK);
    assert_true(p.staging == own && p.n_pages == 3);
    free_bytes = rest + 2 * page; /* for no staging at all: KV has what there is */
    assert_int_equal(clime_server_memory_make(share, &sched, &want, &p, &e), CLIME_OK);
    assert_int_equal(p.n_pages, 2);
    want.n_ranks = 1; /* alone: no memory for links */
    free_bytes -= ops.links_bytes(2);
    assert_int_equal(clime_server_memory_make(share, &sched, &want, &p, &e), CLIME_OK);
    assert_int_equal(p.n_pages, 2);
    free_bytes -= 2 * page;
    assert_int_equal(clime_server_memory_make(share, &sched, &want, &p, &e), CLIME_ERR_LIMIT);
    clime_model_close(share);
}

/* What experts add to the products that are tried. */
static void test_experts(void **state) {
    (void)state;
    const struct clime_sched_options sched = {.max_running = 64, .chunk = 512, .n_pages = 16};
    const struct clime_memory_want want = {.fraction = 0.5, .max_total_tokens = 64, .context = 64};
    struct clime_server_memory p;
    struct clime_error e;
    free_bytes = 8 * GIB;
    model->cfg.router = (struct clime_router){.E = 20000, .k = 1};
    assert_int_equal(clime_server_memory_make(model, &sched, &want, &p, &e), CLIME_OK);
    assert_int_equal(p.trial, 20000 * TRIAL_PER_COLUMN);
    model->cfg.F_shared = 15000;
    assert_int_equal(clime_server_memory_make(model, &sched, &want, &p, &e), CLIME_OK);
    assert_int_equal(p.trial, 30000 * TRIAL_PER_COLUMN);
    model->cfg.router = (struct clime_router){0};
    model->cfg.F_shared = 0;
}

static void test_runner_takes_it(void **state) {
    (void)state;
    const struct clime_sched_options sched = {.max_running = 4, .chunk = 32, .n_pages = 16, .cache = true};
    struct clime_runner *r;
    struct clime_error e;
    reserved = 0;
    assert_int_equal(clime_runner_open(model, &sched, 1024, NULL, 0, &r, &e), CLIME_OK);
    assert_int_equal(reserved, SCRATCH);
    assert_true(asked.n_seq == 4 && asked.max_len == 1024);
    assert_int_equal(chosen[0][0], 2 * 4); /* qkv, o, gate|up and down of each layer: no step chooses */
    assert_int_equal(chosen[0][1], 32 + 4);
    assert_int_equal(chosen[1][0], 1);
    assert_int_equal(chosen[1][1], 4);
    clime_runner_close(r);
}

/* What is not given fits the device; what is given stays. */
static void test_defaults(void **state) {
    (void)state;
    static const struct {
        bool own;
        size_t gib;
        int64_t chunk, running;
        double fraction;
    } rows[] = {{false, 2000, 512, 64, 0.5},
                {true, 139, 8192, 256, 0.85},
                {true, 79, 8192, 256, 0.85},
                {true, 47, 4096, 256, 0.85},
                {true, 23, 2048, 256, 0.85}};
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        char *words[] = {(char *)(uintptr_t) "s", (char *)(uintptr_t) "--model-path", (char *)(uintptr_t) "m",
                         (char *)(uintptr_t) "--max-running-requests", (char *)(uintptr_t) "7"};
        for (int given = 0; given < 2; given++) {
            struct clime_server_options o;
            struct clime_error e;
            assert_int_equal(clime_server_options_parse(given ? 5 : 3, words, &o, &e), CLIME_OK);
            clime_server_options_fit(&o, rows[i].own, rows[i].gib * GIB);
            assert_int_equal(o.chunked_prefill_size, rows[i].chunk);
            assert_int_equal(o.max_running_requests, given ? 7 : rows[i].running);
            assert_true(o.mem_fraction == rows[i].fraction);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sum), cmocka_unit_test(test_staging_of_a_share),
                                       cmocka_unit_test(test_experts), cmocka_unit_test(test_runner_takes_it),
                                       cmocka_unit_test(test_defaults)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}
