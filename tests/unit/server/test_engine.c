/* The engine without HTTP: a small random policy, jobs straight into the inbox, replies from the emitters.
 *
 * The same requests run through engines with different limits, together and one by one, with pauses, retractions and a
 * weight update between them; ids and log-probabilities must be the same bits throughout, and the bits of the training
 * forward are what they must equal in the end (tests/unit/model/test_bits.c ties those two together).
 */
#include "tests/unit/server/engine_test.h"

#include "server/engine/engine_int.h"

static void run_together(struct clime_engine *g, bool disturb) {
    struct request *r = xcalloc(N_JOBS, sizeof *r);
    struct clime_error e = {0};
    for (int i = 0; i < N_JOBS; i++) {
        make_request(&r[i], i);
        submit(g, &r[i]);
    }
    for (int k = 0; k < 10 && disturb; k++) {
        clime_engine_pause(g, k % 2 ? CLIME_PAUSE_RETRACT : CLIME_PAUSE_IN_PLACE);
        if (k % 2) assert_int_equal(clime_engine_flush(g, false, &e), CLIME_OK);
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

/* With guesses: every way to batch, with and without room for them, gives the same bits, and some guesses are right. */
static void test_together_with_guesses(void **state) {
    (void)state;
    static const struct {
        int max_running, chunk, n_pages, draft_rows;
        bool cache, disturb;
    } rows[] = {
        {32, 512, 128, 8, true, false}, {32, 512, 128, 4, false, false},
        {2, 13, 128, 2, true, false},   {32, 64, 6, 16, true, false}, /* preemption */
        {32, 512, 128, 3, true, true},  {32, 100, 8, 100, true, true},
    };
    for (size_t i = 0; i < 2 * CLIME_COUNT(rows); i++) {
        size_t k = i % CLIME_COUNT(rows);
        struct clime_loads l;
        watch(NULL);
        draft_rows = rows[k].draft_rows;
        struct clime_engine *g =
            open_engine(rows[k].max_running, rows[k].chunk, rows[k].n_pages, rows[k].cache, i >= CLIME_COUNT(rows));
        draft_rows = 0;
        run_together(g, rows[k].disturb);
        if (rows[k].cache) run_together(g, false); /* now with siblings' text, and a filled cache */
        check_token_count(g, rows[k].cache ? 2 : 1);
        clime_engine_loads(g, &l);
        clime_engine_close(g);
        assert_true(l.n_guesses > l.n_right && l.n_right > 0);
        assert_int_equal(l.n_draw_steps + l.n_right, l.n_generated);
        assert_int_equal(atomic_load(&n_drawn), atomic_load(&n_waited));
    }
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
    for (bool asked = false; !asked;) { /* by the other thread, however late it comes */
        clime_sleep_us(100);
        pthread_mutex_lock(&engine->lock);
        asked = engine->first_command;
        pthread_mutex_unlock(&engine->lock);
    }
}

/* When the pause is there no step is in flight, and none is started before it ends; a weight update then changes all
 * tokens from there on, and the versions say so. */
static void test_pause_in_flight(void **state) {
    (void)state;
    struct clime_error e = {0};
    size_t bytes = clime_model_bytes(model);
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
    size_t bytes = (size_t)l->bytes;
    char *old = xmalloc(bytes), *other = xcalloc(1, bytes);
    struct clime_weight_source from_old = {.kind = CLIME_FROM_HOST, .flat = old};
    struct clime_weight_source from_other = {.kind = CLIME_FROM_DEVICE, .flat = other};
    int n_met;
    clime_model_get(model, old);
    clime_weights_init(l, other, 0.3f, 12);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_together_with_guesses),
        cmocka_unit_test(test_end_in_flight),
        cmocka_unit_test(test_abort_in_flight),
        cmocka_unit_test(test_pause_in_flight),
        cmocka_unit_test(test_update_and_back),
        cmocka_unit_test(test_end),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
