/* The engine thread: admits jobs, runs steps, turns results into events (results.c).
 *
 * Owns scheduler, runner, sequences. Between two steps it runs the control calls of control.c.
 *
 * One loop, with or without overlap: plan a step, start it, finish it, emit its results as events. Where the device
 * runs asynchronously and the next step can be planned from counts alone (clime_sched_plan_ahead), the next one starts
 * before this one finishes and is in flight when the loop comes round. Its rows read their tokens from where this
 * step's draws left them on the device; draws that depend on those tokens (penalties) are queued behind its rows once
 * this step's results are read (clime_runner_draw). A sequence found to have ended is removed from the step in flight:
 * its row is wasted, and nothing of it is emitted, counted as KV or cached. Its pages are free at once, since their
 * next owner's rows are queued behind that row. Control calls, sweeps and shutdown need a whole number of steps and
 * finish the one in flight first. Hence an event's version is that of the weights that computed it, and a token past
 * the last one exists only in a row of the device's arrays.
 *
 * With drafting a step may have rows of guessed tokens. How many are right is known only with its results, so no step
 * starts ahead of them.
 */
#include <limits.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/thread.h"
#include "server/engine/engine_int.h"
#include "server/engine/step_graphs.h"

#define LOOK_US ((int64_t)100000) /* how often an idle engine checks its followers */
#define INTAKE 64                 /* outputs admitted between two steps */

/* ---- admission ------------------------------------------------------------------------------------------- */

static void take_output(struct clime_engine *g, struct clime_output *o) {
    static const struct clime_finish dead = {
        .type = CLIME_FINISH_ABORT, .message = "the engine is dead: the device failed", .status = 503};
    bool is_dead = atomic_load(&g->dead);
    struct clime_seq *q = o->seq;
    bool has_ended = o->finish.type != CLIME_FINISH_NONE && q->prompt_logp_next == q->n_prompt; /* when resumed */
    if (is_dead || has_ended || atomic_load(&o->unwanted)) {
        clime_engine_close_output(g, o, is_dead ? dead : clime_aborted_waiting);
        clime_seq_free(q);
        return;
    }
    q->id = q->arrival = g->next_id++;
    clime_sched_add(&g->sched, q);
}

/* Admits at most n outputs: each searches for others with its prompt, and a large job must not stall running ones. */
static void take_jobs(struct clime_engine *g, int n) {
    for (struct clime_job *j; (j = g->incoming) && n > 0; n--) {
        struct clime_output *o = &j->outs[g->incoming_at++];
        if (g->incoming_at == j->n_outs) { /* j may be freed once its last output ends */
            g->incoming = j->next_submitted;
            g->incoming_at = 0;
        }
        take_output(g, o);
    }
}

static void add_incoming(struct clime_engine *g, struct clime_job *jobs) {
    struct clime_job **end = &g->incoming;
    while (*end) end = &(*end)->next_submitted;
    *end = jobs;
}

/* ---- timeouts -------------------------------------------------------------------------------------------- */

/* When the oldest sequence that never ran expires; INT64_MAX: none does. The list is in order of arrival, so it is the
 * first one after the preempted ones. */
static int64_t queue_deadline(const struct clime_engine *g) {
    const struct clime_seq *q = g->opts.queue_limit_us > 0 ? g->sched.first : NULL;
    while (q && q->admitted) q = q->next;
    return q ? q->queued_us + g->opts.queue_limit_us : INT64_MAX;
}

static void expire_queued(struct clime_engine *g) {
    static const struct clime_finish expired = {.type = CLIME_FINISH_ABORT,
                                                .message = "the request waited in the queue for longer than "
                                                           "--max-queue-seconds: the server is overloaded or paused",
                                                .status = 503};
    struct clime_seq *next;
    int64_t now = clime_now_us();
    for (struct clime_seq *q = g->sched.first; q && now >= queue_deadline(g); q = next) {
        next = q->next;
        if (!q->admitted && now >= q->queued_us + g->opts.queue_limit_us) clime_engine_end(g, q, expired);
    }
}

static bool has_work(const struct clime_engine *g) {
    return !g->paused && atomic_load(&g->weights) == CLIME_WEIGHTS_READY && !atomic_load(&g->no_kv) &&
           clime_sched_has_work(&g->sched);
}

/* Bounds the wait for an owner of the weights that may have died. */
static bool owner_is_late(const struct clime_engine *g) {
    int64_t until_us = atomic_load(&g->writing_until_us);
    return until_us && clime_now_us() >= until_us;
}

static void end_held(struct clime_engine *g) {
    LOG_ERROR("the owner of the weights did not finish in time: the server waits for a full update");
    clime_engine_end_all(g, (struct clime_finish){.type = CLIME_FINISH_ABORT,
                                                  .message = "the weights were not completed in time",
                                                  .status = 503});
    atomic_store(&g->writing_until_us, 0);
}

/* A lost follower ends an idle engine too. */
static bool lost_a_rank(struct clime_engine *g, struct clime_error *e) {
    return g->opts.followers && !atomic_load(&g->dead) && clime_followers_check(g->opts.followers, e);
}

static void wait_for_work(struct clime_engine *g) {
    int64_t until_us = queue_deadline(g), writing_us = atomic_load(&g->writing_until_us);
    int64_t look_us = g->opts.followers && !atomic_load(&g->dead) ? clime_now_us() + LOOK_US : INT64_MAX;
    if (look_us < until_us) until_us = look_us;
    if (writing_us && writing_us < until_us) until_us = writing_us;
    if (until_us == INT64_MAX) {
        pthread_cond_wait(&g->wake, &g->lock);
        return;
    }
    clime_cond_wait_until(&g->wake, &g->lock, until_us);
}

static void step(struct clime_engine *g, bool may_overlap);

/* Sleeps until there is work, then empties the inbox. False when the engine must stop. Anything but jobs is run with no
 * step in flight. */
static bool take_inbox(struct clime_engine *g) {
    struct clime_error e;
    bool lost = false;
    pthread_mutex_lock(&g->lock);
    while (!g->first_job && !g->incoming && !g->first_command && !g->sweep && !g->stop && !g->started && !has_work(g) &&
           !owner_is_late(g) && clime_now_us() < queue_deadline(g) && !(lost = lost_a_rank(g, &e)))
        wait_for_work(g);
    struct clime_job *jobs = g->first_job;
    struct clime_command *command = g->first_command;
    bool sweep = g->sweep, stop = g->stop;
    g->first_job = g->last_job = NULL;
    g->first_command = g->last_command = NULL;
    g->sweep = false;
    pthread_mutex_unlock(&g->lock);

    if (lost) clime_engine_is_dead(g, e.code, &e);
    if (g->started && (command || sweep || stop || owner_is_late(g))) step(g, false);
    add_incoming(g, jobs);
    take_jobs(g, command || stop ? INT_MAX : INTAKE);
    if (sweep) clime_engine_do_sweep(g);
    expire_queued(g);
    if (owner_is_late(g)) end_held(g);
    for (struct clime_command *next; command; command = next) {
        next = command->next;
        int64_t begin_us = clime_now_us();
        command->run(g, command);
        if (g->trace) clime_trace_control(g->trace, begin_us, clime_now_us());
        clime_engine_post_events(g);
        clime_engine_publish_loads(g); /* before the caller's next query */
        g->step_from_us = 0;
        pthread_mutex_lock(&g->lock);
        command->done = true; /* on the caller's stack: do not touch it again */
        pthread_cond_broadcast(&g->done);
        pthread_mutex_unlock(&g->lock);
    }
    clime_engine_post_events(g);
    return !stop;
}

/* ---- a step ------------------------------------------------------------------------------------------------ */

/* A step's time runs from when the previous step's results were read, if it followed at once, to when its own are. With
 * overlap on, a plain step that did not overlap is not measured. */
static void measure(struct clime_engine *g, const struct clime_step_plan *plan) {
    int64_t now = clime_now_us(), us = g->step_from_us ? now - g->step_from_us : 0;
    bool plain = plan->T == plan->n_items;
    if (!g->drafting) return;
    clime_drafting_done(g->drafting, plan, plain && g->opts.overlap && !plan->ahead ? 0 : us);
    g->step_from_us = now;
}

static bool may_start_ahead(const struct clime_engine *g, const struct clime_step_plan *now) {
    return g->opts.overlap && now->mark >= 0 && !(g->drafting && clime_drafting_looks(g->drafting));
}

static void trace_step(struct clime_engine *g, const struct clime_step_plan *plan, int64_t t0, int64_t t1, int64_t t2) {
    if (!g->trace) return;
    const struct clime_trace_step s = {.number = g->loads.n_steps,
                                       .plan_us = t0,
                                       .wait_us = t1,
                                       .result_us = t2,
                                       .end_us = clime_now_us(),
                                       .n_seqs = plan->n_items,
                                       .n_rows = plan->T,
                                       .n_waiting = g->sched.n_waiting,
                                       .overlapped = g->started};
    clime_trace_step(g->trace, &s);
}

/* Finishes the step in flight, or one planned now. may_overlap: may leave its successor in flight. */
static void step(struct clime_engine *g, bool may_overlap) {
    struct clime_error e = {0};
    struct clime_step_plan *now = &g->plans[g->turn], *next = &g->plans[!g->turn];
    int64_t t0 = clime_now_us();
    if (!g->started) {
        clime_sched_plan(&g->sched, now);
        CHECK(now->n_items > 0); /* the oldest sequence always gets its pages */
        if (g->drafting) clime_drafting_plan(g->drafting, &g->sched, now);
        clime_runner_start(g->runner, now);
    }
    g->started = may_overlap && may_start_ahead(g, now) && clime_sched_plan_ahead(&g->sched, now, next);
    if (g->started) clime_runner_start(g->runner, next);
    int64_t t1 = clime_now_us();
    enum clime_err err = clime_runner_finish(g->runner, now, &g->results, &e);
    int64_t t2 = clime_now_us();
    if (err) g->started = false;
    if (clime_engine_is_dead(g, err, &e)) return;
    clime_engine_take_results(g, now);
    measure(g, now);
    if (g->started) {
        clime_runner_draw(g->runner, next);
        g->turn = !g->turn;
    }
    trace_step(g, now, t0, t1, t2);
    clime_engine_count_times(g, t1 - t0, t2 - t1, clime_now_us() - t2);
}

static void *engine_main(void *arg) {
    struct clime_engine *g = arg;
    g->model->ops->bind(g->model->dev);
    while (take_inbox(g)) {
        if (g->started || has_work(g)) step(g, true);
        if (g->started || has_work(g)) continue;
        clime_engine_count_idle(g);
        clime_engine_publish_loads(g);
        g->step_from_us = 0;
    }
    clime_engine_end_all(
        g, (struct clime_finish){.type = CLIME_FINISH_ABORT, .message = "the server is shutting down", .status = 503});
    clime_engine_post_events(g);
    return NULL;
}

/* ---- opening and closing ----------------------------------------------------------------------------------- */

/* Guessed rows take the place of sequences, so that no step array grows; all draws are in one block. */
static struct clime_drafting *open_drafting(const struct clime_engine_options *o) {
    int rows = o->sched.max_running < CLIME_GRAPH_MAX_ROWS ? o->sched.max_running : CLIME_GRAPH_MAX_ROWS;
    const struct clime_drafting_options d = {
        .most_rows = rows, .most_of_one = o->draft_rows, .adaptive = o->draft_adaptive};
    return clime_drafting_open(&d);
}

static void sweep_from_emitter(void *arg) {
    clime_engine_sweep(arg);
}

enum clime_err clime_engine_open(const struct clime_engine_options *o, struct clime_model *m, struct clime_engine **out,
                                 struct clime_error *e) {
    struct clime_engine *g = xcalloc(1, sizeof *g);
    g->opts = *o;
    g->model = m;
    enum clime_err err = clime_runner_open(m, &o->sched, o->max_len, o->graph_bs, o->n_graph_bs, &g->runner, e);
    if (err) {
        free(g);
        return err;
    }
    clime_runner_lead(g->runner, o->followers);
    clime_sched_init(&g->sched, &o->sched);
    if (o->sched.choices) g->sched.retracting = clime_engine_keep_choices;
    g->sched.retracting_arg = g;
    for (int i = 0; i < 2; i++) clime_step_plan_init(&g->plans[i], o->sched.max_running);
    g->results.items = xcalloc((size_t)o->sched.max_running, sizeof *g->results.items);
    g->results.draws = xcalloc((size_t)o->sched.max_running, sizeof *g->results.draws);
    if (o->draft_rows >= 2) g->drafting = open_drafting(o);
    pthread_mutex_init(&g->lock, NULL);
    clime_cond_init(&g->wake);
    clime_cond_init(&g->done);
    clime_engine_set_label(g, o->weight_version, g->sched.version);
    atomic_init(&g->weights, m->flat ? CLIME_WEIGHTS_READY : CLIME_WEIGHTS_ABSENT);
    g->loads.n_total_tokens = o->sched.n_pages * CLIME_PAGE;
    g->loads.max_running = o->sched.max_running;
    g->window_us = clime_now_us();
    g->emitters = clime_emitters_open(o->emitter_threads, sweep_from_emitter, g);
    xthread(&g->thread, NULL, engine_main, g);
    *out = g;
    return CLIME_OK;
}

void clime_engine_close(struct clime_engine *g) {
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    g->stop = true;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    clime_emitters_close(g->emitters);
    clime_runner_close(g->runner);
    clime_sched_free(&g->sched);
    for (int i = 0; i < 2; i++) clime_step_plan_free(&g->plans[i]);
    for (const struct clime_weight_label *l = atomic_load(&g->version), *older; l; l = older) {
        older = l->older;
        free((void *)(uintptr_t)l);
    }
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->wake);
    pthread_cond_destroy(&g->done);
    clime_trace_free(g->trace);
    free(g->results.items);
    free(g->results.draws);
    clime_drafting_close(g->drafting);
    free(g->events);
    free(g);
}
