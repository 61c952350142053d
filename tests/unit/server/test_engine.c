/* The engine without HTTP: a small random policy, jobs straight into the inbox, replies from the emitters.
 *
 * The same requests run through engines with different limits, together and one by one, with pauses, retractions and a
 * weight update between them; ids and log-probabilities must be the same bits throughout, and the bits of the training
 * forward are what they must equal in the end (tests/unit/model/test_bits.c ties those two together).
 */
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
    clime_layout_make(&c, &l);
    void *flat = xcalloc((size_t)l.n, clime_dtype_bytes(c.dtype));
    clime_weights_init(&l, c.dtype, flat, 0.3f, 11); /* wide, so that the distributions are not flat */
    struct clime_weights_source from = clime_weights_in_host(c.dtype, flat);
    enum clime_err err = clime_weights_export(dir, &c, &l, &from, 0, &e);
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
    r->params.temperature = i % 3 == 0 ? 0 : 0.5 + clime_rng_double(&rng);
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
        clime_parse_begin(&o->parse, r->job->parser, clime_str_of(""));
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

static void run_together(struct clime_engine *g, bool disturb) {
    struct request *r = xcalloc(N_JOBS, sizeof *r);
    struct clime_error e = {0};
    for (int i = 0; i < N_JOBS; i++) {
        make_request(&r[i], i);
        submit(g, &r[i]);
    }
    for (int k = 0; k < 10 && disturb; k++) {
        clime_engine_pause(g, k % 2 ? CLIME_PAUSE_RETRACT : CLIME_PAUSE_IN_PLACE);
        if (k % 2) assert_int_equal(clime_engine_flush(g, &e), CLIME_OK);
        clime_engine_resume(g);
        clime_sleep_us(1000);
    }
    for (int i = 0; i < N_JOBS; i++) {
        finish(g, &r[i]);
        check_same(r[i].job, reference[i].job);
        clime_job_free(r[i].job);
    }
    assert_int_equal(clime_engine_in_flight(g), 0);
    free(r);
}

/* No token counts that nobody got. */
static void check_token_count(struct clime_engine *g, int n_rounds) {
    struct clime_loads l;
    int64_t n = 0;
    clime_engine_sweep_wait(g); /* the last step's loads are out */
    clime_engine_loads(g, &l);
    for (int r = 0; r < N_JOBS; r++)
        for (int k = 0; k < reference[r].job->n_outs; k++) n += (int64_t)reference[r].job->outs[k].out.len;
    assert_int_equal(l.n_generated, n * n_rounds);
}

static void test_together(void **state) {
    (void)state;
    static const struct {
        int max_running, chunk, n_pages;
        bool cache, disturb;
    } rows[] = {
        {32, 512, 128, true, false}, {32, 512, 128, false, false}, {2, 13, 128, true, false},
        {32, 64, 6, true, false}, /* preemption */
        {1, 1, 4, false, false},     {32, 512, 128, true, true},   {32, 100, 8, true, true},
    };
    int most[2] = {0, 0};
    for (size_t i = 0; i < 2 * CLIME_COUNT(rows); i++) {
        bool overlap = i >= CLIME_COUNT(rows);
        size_t k = i % CLIME_COUNT(rows);
        watch(NULL);
        struct clime_engine *g =
            open_engine(rows[k].max_running, rows[k].chunk, rows[k].n_pages, rows[k].cache, overlap);
        run_together(g, rows[k].disturb);
        if (rows[k].cache) run_together(g, false); /* now with a filled cache */
        check_token_count(g, rows[k].cache ? 2 : 1);
        clime_engine_close(g);
        assert_int_equal(atomic_load(&n_drawn), atomic_load(&n_waited));
        if (atomic_load(&most_in_flight) > most[overlap]) most[overlap] = atomic_load(&most_in_flight);
    }
    assert_true(most[0] == 1 && most[1] == 2);
}

/* ---- what comes while a step is in flight ---- */

static struct clime_engine *engine;
static struct request running[3]; /* they go on to the limit, but for stop tokens */
static const int32_t *stop_ids;   /* [3] one for each, or NULL */
static atomic_int met;            /* steps in flight when it came */

static void run_three(void (*hook)(int n)) {
    watch(hook);
    engine = open_engine(16, 512, 64, true, true);
    for (int i = 0; i < 3; i++) {
        make_request(&running[i], 7); /* 3 outputs, no edits, no lists */
        running[i].logp.top = 0;
        running[i].params.ignore_eos = !stop_ids;
        if (stop_ids) running[i].params.stop_ids[0] = stop_ids[i];
        running[i].params.n_stop_ids = stop_ids ? 1 : 0;
        for (int k = 0; k < 3; k++) running[i].job->outs[k].seed = (uint64_t)(700 + 10 * i + k);
    }
    clime_engine_pause(engine, CLIME_PAUSE_IN_PLACE); /* all begin in one step */
    for (int i = 0; i < 3; i++) submit(engine, &running[i]);
    clime_engine_resume(engine);
}

/* Sequences end by a token that was drawn while their next row was queued already: the row leaves no trace. */
static void test_end_in_flight(void **state) {
    (void)state;
    struct request whole[3];
    struct clime_loads l;
    int32_t stop[3];
    int n_stopped = 0;
    int64_t n_tokens = 0;
    run_three(NULL);
    for (int i = 0; i < 3; i++) finish(engine, &running[i]);
    clime_engine_close(engine);
    memcpy(whole, running, sizeof whole);
    for (int i = 0; i < 3; i++) stop[i] = whole[i].job->outs[i].out.data[10 + 15 * i];
    stop_ids = stop;
    run_three(NULL);
    stop_ids = NULL;
    for (int i = 0; i < 3; i++) finish(engine, &running[i]);
    clime_engine_sweep_wait(engine);
    clime_engine_loads(engine, &l);
    clime_engine_close(engine);
    assert_int_equal(atomic_load(&most_in_flight), 2);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) {
            const struct clime_output *o = &running[i].job->outs[k], *w = &whole[i].job->outs[k];
            size_t len = 0;
            while (len < w->out.len && w->out.data[len] != stop[i] && w->out.data[len] != 256) len++;
            bool stops = len + 1 < w->out.len; /* at the limit the limit is the reason */
            if (len < w->out.len) len++;
            assert_int_equal(o->out.len, len);
            assert_int_equal(o->finish.type, stops ? CLIME_FINISH_STOP : CLIME_FINISH_LENGTH);
            assert_memory_equal(o->out.data, w->out.data, len * sizeof *o->out.data);
            assert_memory_equal(o->out_logp, w->out_logp, len * sizeof *o->out_logp);
            n_stopped += stops;
            n_tokens += (int64_t)len;
        }
        clime_job_free(running[i].job);
        clime_job_free(whole[i].job);
    }
    assert_true(n_stopped >= 3);
    assert_int_equal(l.n_generated, n_tokens);
}

static void abort_one(int n) {
    if (n != 20) return;
    atomic_store(&met, atomic_load(&n_drawn) - atomic_load(&n_waited));
    for (int k = 0; k < 3; k++) atomic_store(&running[1].job->outs[k].unwanted, true);
    clime_engine_sweep(engine);
}

/* The aborted outputs have what they had; the others get what they would have got. */
static void test_abort_in_flight(void **state) {
    (void)state;
    struct request whole[3];
    run_three(NULL);
    for (int i = 0; i < 3; i++) finish(engine, &running[i]);
    clime_engine_close(engine);
    memcpy(whole, running, sizeof whole);
    run_three(abort_one);
    for (int i = 0; i < 3; i++) finish(engine, &running[i]);
    clime_engine_close(engine);
    assert_int_equal(atomic_load(&met), 2);
    for (int k = 0; k < 3; k++) {
        const struct clime_output *o = &running[1].job->outs[k], *w = &whole[1].job->outs[k];
        assert_int_equal(o->finish.type, CLIME_FINISH_ABORT);
        assert_true(o->out.len >= 20 && o->out.len <= 22 && o->out.len < w->out.len);
        assert_memory_equal(o->out.data, w->out.data, o->out.len * sizeof *o->out.data);
        assert_memory_equal(o->out_logp, w->out_logp, o->out.len * sizeof *o->out_logp);
    }
    check_same(running[0].job, whole[0].job);
    check_same(running[2].job, whole[2].job);
    for (int i = 0; i < 3; i++) {
        clime_job_free(running[i].job);
        clime_job_free(whole[i].job);
    }
}

static atomic_bool pause_now;

static void call_for_pause(int n) {
    if (n != 20) return;
    atomic_store(&met, atomic_load(&n_drawn) - atomic_load(&n_waited));
    atomic_store(&pause_now, true);
    clime_sleep_us(50000); /* until the other thread has asked for it */
}

/* When the pause is there no step is in flight, and none is started before it ends; a weight update then changes all
 * tokens from there on, and the versions say so. */
static void test_pause_in_flight(void **state) {
    (void)state;
    struct clime_error e = {0};
    size_t bytes = (size_t)model->layout.n * clime_dtype_bytes(CLIME_BF16);
    char *same = xmalloc(bytes);
    struct clime_weight_source from = {.kind = CLIME_FROM_HOST, .flat = same};
    int in_flight = 0;
    clime_model_get(model, same);
    atomic_store(&pause_now, false);
    run_three(call_for_pause);
    while (!atomic_load(&pause_now)) clime_sleep_us(100);
    clime_engine_pause(engine, CLIME_PAUSE_IN_PLACE);
    int drawn = atomic_load(&n_drawn);
    assert_int_equal(drawn, atomic_load(&n_waited));
    assert_int_equal(atomic_load(&met), 2);
    clime_sleep_us(20000);
    assert_int_equal(drawn, atomic_load(&n_drawn));
    assert_int_equal(clime_engine_update(engine, &from, "v1", CLIME_INFLIGHT_KEEP, &in_flight, &e), CLIME_OK);
    assert_int_equal(in_flight, 9);
    clime_engine_resume(engine);
    for (int i = 0; i < 3; i++) {
        finish(engine, &running[i]);
        for (int k = 0; k < 3; k++) { /* every output was drawn for in every step so far */
            const struct clime_output *o = &running[i].job->outs[k];
            assert_int_equal(o->n_runs, 2);
            assert_string_equal(o->runs[0].label->name, "v0");
            assert_string_equal(o->runs[1].label->name, "v1");
            assert_true(o->runs[1].kept_kv && !o->runs[0].kept_kv);
            assert_in_range(o->runs[0].count, drawn - 2, drawn);
            assert_int_equal(o->runs[0].count + o->runs[1].count, o->max_new);
        }
        clime_job_free(running[i].job);
    }
    clime_engine_close(engine);
    free(same);
}

static void test_update_and_back(void **state) {
    (void)state;
    struct clime_engine *g = open_engine(32, 512, 128, true, true);
    struct clime_error e = {0};
    const struct clime_layout *l = &model->layout;
    size_t bytes = (size_t)l->n * clime_dtype_bytes(CLIME_BF16);
    char *old = xmalloc(bytes), *other = xcalloc(1, bytes);
    struct clime_weight_source from_old = {.kind = CLIME_FROM_HOST, .flat = old};
    struct clime_weight_source from_other = {.kind = CLIME_FROM_DEVICE, .flat = other};
    int n_met;
    clime_model_get(model, old);
    clime_weights_init(l, CLIME_BF16, other, 0.3f, 12);
    run_together(g, false);
    assert_int_equal(clime_engine_update(g, &from_other, "v1", CLIME_INFLIGHT_RECOMPUTE, &n_met, &e), CLIME_OK);
    assert_int_equal(n_met, 0);
    assert_string_equal(clime_engine_version(g)->name, "v1");
    struct request r;
    make_request(&r, 1);
    submit(g, &r);
    finish(g, &r);
    assert_int_equal(r.job->outs[0].cached_tokens, 0); /* nothing of v0 is hit */
    assert_string_equal(r.job->outs[0].runs[0].label->name, "v1");
    assert_true(r.job->outs[0].out_logp[0] != reference[1].job->outs[0].out_logp[0]);
    clime_job_free(r.job);
    assert_int_equal(clime_engine_update(g, &from_old, "v0", CLIME_INFLIGHT_RECOMPUTE, &n_met, &e), CLIME_OK);
    run_together(g, false);
    clime_engine_close(g);
    free(old);
    free(other);
}

static void test_limits_and_aborts(void **state) {
    (void)state;
    struct clime_engine *g = open_engine(2, 512, 64, true, true);
    struct clime_error e = {0};
    struct request r;
    assert_int_equal(clime_engine_reserve(g, 202, &e), CLIME_OK); /* max_queued + max_running */
    assert_int_equal(clime_engine_reserve(g, 1, &e), CLIME_ERR_BUSY);
    clime_engine_release(g, 202);

    clime_engine_pause(g, CLIME_PAUSE_ABORT);
    make_request(&r, 1);
    submit(g, &r);
    assert_false(clime_job_wait(r.job, clime_now_us() + 20000)); /* held */
    atomic_store(&r.job->outs[0].unwanted, true);
    clime_engine_sweep_wait(g);
    finish(g, &r);
    assert_int_equal(r.job->outs[0].finish.type, CLIME_FINISH_ABORT);
    assert_int_equal(r.job->outs[0].out.len, 0);
    clime_job_free(r.job);

    make_request(&r, 2);
    submit(g, &r);
    clime_engine_drain(g);
    assert_int_equal(clime_engine_reserve(g, 1, &e), CLIME_ERR_UNAVAILABLE);
    clime_engine_close(g); /* still paused: what is left ends as aborted */
    assert_true(clime_job_wait(r.job, clime_now_us()));
    assert_int_equal(r.job->outs[0].finish.status, 503);
    clime_job_free(r.job);
}

/* ---- what one request may cost the step of all ---- */

static int most_edits, n_copied_out;

static void watch_sample(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                         const struct clime_sampling *p, struct clime_drawn *out) {
    for (int r = 0; r < R; r++)
        if (p[r].n_edits > most_edits) most_edits = p[r].n_edits;
    clime_cpu_ops.sample(d, R, V, logits, lse, p, out);
}

static void watch_copy_out(struct clime_dev *d, void *h_dst, const void *src, size_t bytes) {
    n_copied_out++;
    clime_cpu_ops.copy_out(d, h_dst, src, bytes);
}

/* A long prompt under a repetition penalty is no list that every step goes through: what is listed is what was sampled.
 * And log-probabilities of many chosen ids come in the step's one transfer. */
static void test_a_step_is_bounded(void **state) {
    (void)state;
    enum { N_PROMPT = 200, N_NEW = 20, N_CHOSEN = 100 };
    struct request r;
    int32_t chosen[N_CHOSEN];
    struct clime_loads l;
    watch(NULL);
    watching.sample = watch_sample;
    watching.copy_out = watch_copy_out;
    most_edits = n_copied_out = 0;
    struct clime_engine *g = open_engine(4, 512, 64, true, true);
    make_request(&r, 2);
    for (int i = 0; i < N_PROMPT; i++) r.prompt[i] = i;
    for (int i = 0; i < N_CHOSEN; i++) chosen[i] = 2 * i;
    r.params.repetition_penalty = 1.3;
    r.params.frequency_penalty = 0.5;
    r.params.ignore_eos = true;
    r.logp.top = 3;
    r.logp.n_ids = N_CHOSEN;
    r.logp.ids = chosen;
    r.job->outs[0].n_prompt = N_PROMPT;
    r.job->outs[0].max_new = N_NEW;
    submit(g, &r);
    finish(g, &r);
    clime_engine_sweep_wait(g);
    clime_engine_loads(g, &l);
    clime_engine_close(g);
    const struct clime_output *o = &r.job->outs[0];
    assert_int_equal(o->out.len, N_NEW);
    assert_in_range(most_edits, 1, N_NEW);
    assert_int_equal(n_copied_out, 0);
    for (int i = 0; i < N_NEW; i++) { /* a chosen id's number is that of the token where it is the token */
        assert_int_equal(o->extra[i]->n_ids, N_CHOSEN);
        for (int k = 0; k < N_CHOSEN; k++) {
            assert_int_equal(o->extra[i]->at[3 + k].id, chosen[k]);
            if (chosen[k] == o->out.data[i]) assert_memory_equal(&o->extra[i]->at[3 + k].logp, &o->out_logp[i], 4);
        }
    }
    clime_job_free(r.job);
}

/* One sequence with penalties and lists among others: the next step is in flight all the same, and all bits are those
 * that each gets alone. */
static void test_edits_and_overlap(void **state) {
    (void)state;
    struct clime_loads l;
    struct request r[3];
    watch(NULL);
    struct clime_engine *g = open_engine(16, 512, 64, true, true);
    clime_engine_pause(g, CLIME_PAUSE_IN_PLACE);
    for (int i = 0; i < 3; i++) {
        make_request(&r[i], 5 * i); /* 0, 5, 10: repetition penalties; 5 and 10 with lists as well */
        submit(g, &r[i]);
    }
    clime_engine_resume(g);
    for (int i = 0; i < 3; i++) finish(g, &r[i]);
    clime_engine_sweep_wait(g);
    clime_engine_loads(g, &l);
    clime_engine_close(g);
    for (int i = 0; i < 3; i++) {
        check_same(r[i].job, reference[5 * i].job);
        clime_job_free(r[i].job);
    }
    assert_true(l.n_overlapped > l.n_steps / 2);
}

/* A set of allowed ids: nothing else is drawn, and the numbers are those of the whole vocabulary. Ids to stop at that
 * the vocabulary does not have are banned from nothing. */
static void test_allowed_ids(void **state) {
    (void)state;
    static const int32_t allowed[] = {3, 70, 200, 271};
    watch(NULL);
    struct clime_engine *g = open_engine(4, 512, 64, true, true);
    struct request r[2];
    for (int i = 0; i < 2; i++) {
        make_request(&r[i], 1);
        r[i].params.ignore_eos = true;
        r[i].params.temperature = i ? 2 : 0;
        r[i].params.allowed = allowed;
        r[i].params.n_allowed = 4;
        r[i].params.min_new_tokens = 5;
        r[i].params.stop_ids[0] = 272;
        r[i].params.stop_ids[1] = INT32_MAX;
        r[i].params.n_stop_ids = 2;
        r[i].job->outs[0].max_new = 60;
        submit(g, &r[i]);
    }
    for (int i = 0; i < 2; i++) {
        finish(g, &r[i]);
        const struct clime_output *o = &r[i].job->outs[0];
        assert_int_equal(o->out.len, 60);
        double mass = 0;
        for (size_t k = 0; k < 60; k++) {
            int32_t id = o->out.data[k];
            assert_true(id == 3 || id == 70 || id == 200 || id == 271);
            mass += exp((double)o->out_logp[k]) / 60;
        }
        assert_true(mass < 0.9); /* of four ids among 272 */
        clime_job_free(r[i].job);
    }
    clime_engine_close(g);
}

/* Outputs that nobody wants any more leave wherever they are: in the queue, running but paused, preempted, held while
 * the weights' owner writes or the memory is lent. */
static void test_unwanted_everywhere(void **state) {
    (void)state;
    watch(NULL);
    struct clime_engine *g = open_engine(2, 16, 5, true, true); /* room for one long sequence */
    struct request r[6];
    clime_engine_pause(g, CLIME_PAUSE_IN_PLACE);
    for (int i = 0; i < 6; i++) {
        make_request(&r[i], 1);
        r[i].params.ignore_eos = true;
        r[i].job->outs[0].max_new = 250 - r[i].job->outs[0].n_prompt;
        r[i].job->outs[0].seed = (uint64_t)i;
        submit(g, &r[i]);
    }
    clime_engine_resume(g);
    struct clime_loads l;
    do { /* until one was preempted by another */
        clime_engine_loads(g, &l);
        clime_sleep_us(100);
    } while (l.n_retracted == 0);
    clime_engine_pause(g, CLIME_PAUSE_IN_PLACE);
    clime_engine_sweep_wait(g);
    clime_engine_loads(g, &l);
    for (int i = 0; i < 6; i++) {
        atomic_store(&r[i].job->outs[0].unwanted, true);
        if (i % 2)
            clime_engine_sweep(g);
        else
            clime_engine_sweep_wait(g);
        finish(g, &r[i]); /* still paused */
        clime_job_free(r[i].job);
    }
    assert_int_equal(clime_engine_in_flight(g), 0);
    clime_engine_close(g);
}

/* What waits for longer than the limit is told so, also while the engine sleeps in a pause; what has run is not. */
static void test_queue_expires(void **state) {
    (void)state;
    watch(NULL);
    queue_limit_us = 100000;
    struct clime_engine *g = open_engine(1, 512, 64, true, true);
    queue_limit_us = 0;
    struct request r[3];
    for (int i = 0; i < 3; i++) {
        make_request(&r[i], 1);
        r[i].params.ignore_eos = true;
        r[i].job->outs[0].max_new = 250 - r[i].job->outs[0].n_prompt;
    }
    submit(g, &r[0]);
    struct clime_loads l;
    do {
        clime_engine_loads(g, &l);
        clime_sleep_us(100);
    } while (l.n_running == 0 && l.n_generated == 0);
    clime_engine_pause(g, CLIME_PAUSE_RETRACT); /* begun, and waiting again */
    submit(g, &r[1]);
    submit(g, &r[2]);
    for (int i = 1; i < 3; i++) {
        finish(g, &r[i]);
        assert_int_equal(r[i].job->outs[0].finish.type, CLIME_FINISH_ABORT);
        assert_int_equal(r[i].job->outs[0].finish.status, 503);
        assert_non_null(strstr(r[i].job->outs[0].finish.message, "--max-queue-seconds"));
    }
    clime_sleep_us(150000);
    clime_engine_resume(g);
    finish(g, &r[0]);
    assert_int_equal(r[0].job->outs[0].finish.type, CLIME_FINISH_LENGTH);
    for (int i = 0; i < 3; i++) clime_job_free(r[i].job);
    clime_engine_close(g);
}

/* More outputs than come in between two steps, all of one job, and among others. */
static void test_large_job(void **state) {
    (void)state;
    watch(NULL);
    struct clime_engine *g = open_engine(32, 512, 128, true, true);
    struct clime_sampling_params params;
    struct clime_logp_options logp = {.start = -1, .prompt_temperature = 1};
    int32_t prompt[3] = {1, 2, 3};
    struct clime_job *j = clime_job_new(1 << 16, tokenizer);
    clime_sampling_defaults(&params);
    clime_job_outputs(j, 25, 5);
    for (int i = 0; i < 125; i++) {
        struct clime_output *o = &j->outs[i];
        o->rid = clime_str_of("r");
        o->ids = prompt;
        o->n_prompt = 1 + i / 5 % 3;
        o->params = &params;
        o->logp = &logp;
        o->seed = (uint64_t)(i % 5);
        o->max_new = 8;
        atomic_init(&o->unwanted, i % 7 == 6);
        clime_stop_text_init(&o->text, tokenizer, &params, o->ids, o->n_prompt);
        clime_parse_begin(&o->parse, j->parser, clime_str_of(""));
    }
    struct clime_error e = {0};
    assert_int_equal(clime_engine_reserve(g, 125, &e), CLIME_OK);
    struct request r[4];
    for (int i = 0; i < 4; i++) {
        make_request(&r[i], i);
        submit(g, &r[i]);
        if (i == 1) clime_engine_submit(g, j);
    }
    for (int i = 0; i < 4; i++) {
        finish(g, &r[i]);
        check_same(r[i].job, reference[i].job);
        clime_job_free(r[i].job);
    }
    assert_true(clime_job_wait(j, clime_now_us() + 60000000));
    clime_engine_release(g, 125);
    for (int i = 0; i < 125; i++) {
        const struct clime_output *o = &j->outs[i], *same = &j->outs[i % 15 ? i % 15 : 0];
        assert_true((o->finish.type == CLIME_FINISH_ABORT) == (i % 7 == 6));
        if (i % 7 == 6 || i % 15 == 6 || i % 15 == 13) continue;
        assert_int_equal(o->out.len, same->out.len);
        assert_memory_equal(o->out.data, same->out.data, o->out.len * sizeof *o->out.data);
    }
    clime_job_free(j);
    clime_engine_close(g);
}

static void test_end(void **state) {
    (void)state;
    for (int i = 0; i < N_JOBS; i++) clime_job_free(reference[i].job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_end_in_flight),
        cmocka_unit_test(test_abort_in_flight),
        cmocka_unit_test(test_pause_in_flight),
        cmocka_unit_test(test_update_and_back),
        cmocka_unit_test(test_limits_and_aborts),
        cmocka_unit_test(test_a_step_is_bounded),
        cmocka_unit_test(test_edits_and_overlap),
        cmocka_unit_test(test_allowed_ids),
        cmocka_unit_test(test_unwanted_everywhere),
        cmocka_unit_test(test_queue_expires),
        cmocka_unit_test(test_large_job),
        cmocka_unit_test(test_end),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
