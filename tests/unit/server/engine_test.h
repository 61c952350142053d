/* An engine without HTTP for tests: a small random policy, jobs straight into the inbox, replies from the emitters; and
 * fixed requests, each run alone first (test_alone), whose bits all other ways must give. Included once by a test.
 */
#ifndef CLIME_TESTS_UNIT_SERVER_ENGINE_TEST_H
#define CLIME_TESTS_UNIT_SERVER_ENGINE_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/rng.h"
#include "server/engine/engine.h"
#include "tests/unit/random.h"

#define N_JOBS 12
#define MAX_LEN 256

static char dir[] = "/tmp/clime-engine-XXXXXX";
static struct clime_tokenizer *tokenizer;
static struct clime_model *model;

static int make_model(void **state) {
    (void)state;
    static const char *const specials[] = {"<end>"};
    struct clime_config c = {.family = CLIME_QWEN3,
                             .architecture = "Qwen3ForCausalLM",
                             .model_type = "qwen3",
                             .D = 64,
                             .L = 2,
                             .H = 4,
                             .HK = 2,
                             .Dh = 16,
                             .F = 96,
                             .V = 272,
                             .max_pos = MAX_LEN,
                             .eps = 1e-6f,
                             .tied = true,
                             .qk_norm = true,
                             .rope_theta = 10000,
                             .rope_rot = 16,
                             .dtype = CLIME_BF16,
                             .bos_id = -1,
                             .eos_ids = {256},
                             .n_eos = 1};
    struct clime_layout l;
    struct clime_error e = {0};
    if (!mkdtemp(dir)) return -1;
    clime_layout_make(&c, c.dtype, &l);
    void *flat = xcalloc(1, (size_t)l.bytes);
    clime_weights_init(&l, flat, 0.3f, 11); /* wide, so that the distributions are not flat */
    struct clime_weights_source from = clime_weights_in_host(flat);
    enum clime_err err = clime_weights_export(dir, &c, &l, &from, NULL, 0, &e);
    if (!err) err = clime_tokenizer_write_bytes(dir, specials, 1, "<end>", NULL, NULL, &e);
    if (!err) err = clime_tokenizer_load(dir, &tokenizer, &e);
    struct clime_model_options o = {.device = "cpu", .dtype = "auto", .dev = {.n_threads = 2}};
    if (!err) err = clime_model_open(dir, &o, &model, &e);
    if (err) fprintf(stderr, "%s\n", e.msg);
    free(flat);
    clime_layout_free(&l);
    return err ? -1 : 0;
}

static int remove_model(void **state) {
    (void)state;
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json"};
    char path[96];
    clime_model_close(model);
    clime_tokenizer_free(tokenizer);
    for (size_t i = 0; i < CLIME_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    return rmdir(dir);
}

/* ---- watching steps ---- */

/* The model's operations, with a look at each draw and each wait for one: how many steps are in flight. */
static struct clime_ops watching;
static atomic_int n_drawn, n_waited, most_in_flight;
static void (*at_wait)(int n); /* engine thread: the n-th wait begins, n from 1 */

static void watch_start(struct clime_dev *d, void *h_dst, const void *src, size_t bytes, int mark) {
    int in_flight = atomic_fetch_add(&n_drawn, 1) + 1 - atomic_load(&n_waited);
    if (in_flight > atomic_load(&most_in_flight)) atomic_store(&most_in_flight, in_flight);
    clime_cpu_ops.copy_out_start(d, h_dst, src, bytes, mark);
}

static enum clime_err watch_wait(struct clime_dev *d, int mark, struct clime_error *e) {
    if (at_wait) at_wait(atomic_load(&n_waited) + 1);
    atomic_fetch_add(&n_waited, 1);
    return clime_cpu_ops.copy_wait(d, mark, e);
}

static void watch(void (*hook)(int n)) { /* while no engine is open */
    watching = clime_cpu_ops;
    watching.copy_out_start = watch_start;
    watching.copy_wait = watch_wait;
    model->ops = &watching;
    at_wait = hook;
    atomic_store(&n_drawn, 0);
    atomic_store(&n_waited, 0);
    atomic_store(&most_in_flight, 0);
}

static int64_t queue_limit_us;
static int draft_rows; /* as in the options; every guess runs that there is room for */

static struct clime_engine *open_engine(int max_running, int chunk, int n_pages, bool cache, bool overlap) {
    static const int32_t eos[] = {256};
    struct clime_engine_options o = {
        .sched = {.max_running = max_running, .chunk = chunk, .n_pages = n_pages, .cache = cache},
        .max_len = MAX_LEN,
        .max_queued = 200,
        .queue_limit_us = queue_limit_us,
        .emitter_threads = 2,
        .weight_version = "v0",
        .eos = eos,
        .n_eos = 1,
        .overlap = overlap,
        .draft_rows = draft_rows,
        .debug_checks = true};
    struct clime_engine *g = NULL;
    struct clime_error e = {0};
    assert_int_equal(clime_engine_open(&o, model, &g, &e), CLIME_OK);
    return g;
}

/* One of the fixed requests: prompts with a common beginning, every kind of sampling, n of 1 or 3. */
struct request {
    struct clime_job *job;
    struct clime_sampling_params params;
    struct clime_logp_options logp;
    int32_t prompt[MAX_LEN];
};

static void make_request(struct request *r, int i) {
    struct clime_rng rng;
    clime_rng_init(&rng, (uint64_t)i);
    int n_prompt = 1 + (int)clime_rng_below(&rng, 150), n = i % 4 == 3 ? 3 : 1;
    for (int k = 0; k < n_prompt; k++) r->prompt[k] = (k * k + 7) % 251;
    r->prompt[n_prompt - 1] = (int32_t)clime_rng_below(&rng, 250);
    clime_sampling_defaults(&r->params);
    r->params.temperature = i % 3 == 0 ? 0 : 0.5 + random_double(&rng);
    r->params.top_p = i % 2 ? 0.9 : 1;
    r->params.repetition_penalty = i % 5 == 0 ? 1.2 : 1;
    r->params.ignore_eos = i % 2;
    r->logp = (struct clime_logp_options){.wanted = true, .start = -1, .prompt_temperature = 1, .top = i % 3};
    r->job = clime_job_new(1 << 16, tokenizer);
    clime_job_outputs(r->job, 1, n);
    for (int k = 0; k < n; k++) {
        struct clime_output *o = &r->job->outs[k];
        o->rid = clime_str_of("r");
        o->ids = r->prompt;
        o->n_prompt = n_prompt;
        o->params = &r->params;
        o->logp = &r->logp;
        o->seed = (uint64_t)(i * 100 + k);
        o->max_new = 1 + (int)clime_rng_below(&rng, (uint64_t)(MAX_LEN - n_prompt));
        clime_stop_text_init(&o->text, tokenizer, &r->params, o->ids, n_prompt);
        clime_parse_begin(&o->parse, &r->job->format, clime_str_of(""));
    }
}

static void submit(struct clime_engine *g, struct request *r) {
    struct clime_error e = {0};
    assert_int_equal(clime_engine_reserve(g, r->job->n_outs, &e), CLIME_OK);
    clime_engine_submit(g, r->job);
}

static void finish(struct clime_engine *g, struct request *r) {
    assert_true(clime_job_wait(r->job, clime_now_us() + 60000000));
    clime_engine_release(g, r->job->n_outs);
}

static void check_same(const struct clime_job *a, const struct clime_job *b) {
    assert_int_equal(a->n_outs, b->n_outs);
    for (int i = 0; i < a->n_outs; i++) {
        const struct clime_output *x = &a->outs[i], *y = &b->outs[i];
        assert_int_equal(x->finish.type, y->finish.type);
        assert_int_equal(x->out.len, y->out.len);
        assert_memory_equal(x->out.data, y->out.data, x->out.len * sizeof *x->out.data);
        assert_memory_equal(x->out_logp, y->out_logp, x->out.len * sizeof *x->out_logp);
        assert_true(clime_str_eq(clime_buf_str(&x->text.text), clime_buf_str(&y->text.text)));
        for (size_t k = 0; k < x->out.len && x->extra; k++)
            assert_memory_equal(x->extra[k]->at, y->extra[k]->at,
                                (size_t)x->extra[k]->n_top * sizeof x->extra[k]->at[0]);
    }
}

static struct request reference[N_JOBS];

static void test_alone(void **state) {
    (void)state;
    struct clime_engine *g = open_engine(4, 512, 64, false, false);
    for (int i = 0; i < N_JOBS; i++) {
        make_request(&reference[i], i);
        submit(g, &reference[i]);
        finish(g, &reference[i]);
        for (int k = 0; k < reference[i].job->n_outs; k++)
            assert_true(reference[i].job->outs[k].finish.type != CLIME_FINISH_ABORT);
    }
    clime_engine_close(g);
}

static void test_end(void **state) {
    (void)state;
    for (int i = 0; i < N_JOBS; i++) clime_job_free(reference[i].job);
}

#endif
