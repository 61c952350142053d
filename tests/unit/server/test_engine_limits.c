/* What one request may do to others and to the engine: limits, aborts wherever an output is, the queue's end of
 * patience, large jobs, and what a step costs.
 */
#include "tests/unit/server/engine_test.h"

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
                         const struct clime_sampling *p, struct clime_drawn *out, int32_t *kept) {
    for (int r = 0; r < R; r++)
        if (p[r].n_edits > most_edits) most_edits = p[r].n_edits;
    clime_cpu_ops.sample(d, R, V, logits, lse, p, out, kept);
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
        clime_parse_begin(&o->parse, &j->format, clime_str_of(""));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
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
