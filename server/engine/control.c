/* The engine's control calls from other threads: jobs, sweeps, pause, flush, trace, loads. Weights: weights.c.
 *
 * The functions of engine.h run on the caller's thread and post to the inbox; the static `do_` functions run on the
 * engine thread between two steps. A command lives on its caller's stack; the caller sleeps until the engine marks it
 * done. Invariant: a command runs at a step boundary and is complete when its caller returns.
 */
#include "common/clock.h"
#include "server/engine/engine_int.h"

#define ASK_AGAIN_US 20000          /* each poll interrupts the overlap of steps */
#define STALE_US ((int64_t)2000000) /* without a step for this long, the last throughput is stale */

static void post_command(struct clime_engine *g, struct clime_command *c) {
    c->next = NULL;
    if (g->last_command)
        g->last_command->next = c;
    else
        g->first_command = c;
    g->last_command = c;
    pthread_cond_signal(&g->wake);
}

void clime_engine_run(struct clime_engine *g, struct clime_command *c) {
    pthread_mutex_lock(&g->lock);
    post_command(g, c);
    while (!c->done) pthread_cond_wait(&g->done, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* ---- jobs -------------------------------------------------------------------------------------------------- */

enum clime_err clime_engine_reserve(struct clime_engine *g, int n, struct clime_error *e) {
    if (atomic_load(&g->dead)) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the engine is dead: the device failed");
    if (atomic_load(&g->draining)) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the server is shutting down");
    if (clime_engine_complete(g, e)) return e ? e->code : CLIME_ERR_UNAVAILABLE;
    long long was = atomic_fetch_add(&g->in_flight, n);
    if (g->opts.max_queued >= 0 && was + n > g->opts.max_queued + g->opts.sched.max_running) {
        atomic_fetch_sub(&g->in_flight, n);
        return clime_fail(e, CLIME_ERR_BUSY, "the queue is full: %lld requests in flight, at most %lld", was,
                          (long long)g->opts.max_queued + g->opts.sched.max_running);
    }
    return CLIME_OK;
}

void clime_engine_release(struct clime_engine *g, int n) {
    atomic_fetch_sub(&g->in_flight, n);
}

int64_t clime_engine_in_flight(struct clime_engine *g) {
    return atomic_load(&g->in_flight);
}

void clime_engine_submit(struct clime_engine *g, struct clime_job *j) {
    const struct clime_seq_options o = {
        .V = g->model->cfg.V, .eos = g->opts.eos, .n_eos = g->opts.n_eos, .cache = g->opts.sched.cache};
    for (int i = 0; i < j->n_outs; i++) j->outs[i].seq = clime_seq_new(&j->outs[i], &o, i ? j->outs[i - 1].seq : NULL);
    j->shard = clime_emitters_shard(g->emitters);
    j->next_submitted = NULL;
    pthread_mutex_lock(&g->lock);
    if (g->last_job)
        g->last_job->next_submitted = j;
    else
        g->first_job = j;
    g->last_job = j;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

void clime_engine_sweep(struct clime_engine *g) {
    pthread_mutex_lock(&g->lock);
    g->sweep = true;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

void clime_engine_drain(struct clime_engine *g) {
    atomic_store(&g->draining, true);
}

/* ---- control ----------------------------------------------------------------------------------------------- */

static void do_sweep(struct clime_engine *g, struct clime_command *c) {
    (void)c;
    clime_engine_do_sweep(g);
}

void clime_engine_sweep_wait(struct clime_engine *g) {
    struct clime_command c = {.run = do_sweep};
    clime_engine_run(g, &c);
}

static void open_door(struct clime_engine *g) {
    atomic_store(&g->closing, false);
    g->sched.closed_from = INT64_MAX;
    g->sched.held = false;
    g->door++;
    g->n_at_door = 0;
}

static void do_pause(struct clime_engine *g, struct clime_command *c) {
    if (c->pause == CLIME_PAUSE_ABORT) clime_engine_end_all(g, clime_aborted_running);
    if (c->pause == CLIME_PAUSE_RETRACT) clime_sched_retract_all(&g->sched);
    open_door(g);
    g->paused = true;
}

void clime_engine_pause(struct clime_engine *g, enum clime_pause mode) {
    struct clime_command c = {.run = do_pause, .pause = mode};
    clime_engine_run(g, &c);
}

static void do_close(struct clime_engine *g, struct clime_command *c) {
    c->door = g->door;
    if (g->paused) return;
    g->n_at_door++;
    if (atomic_load(&g->closing)) return;
    g->sched.closed_from = g->next_id;
    atomic_store(&g->closing, true);
}

static void do_pause_if_done(struct clime_engine *g, struct clime_command *c) {
    if (g->paused) return;
    if (c->door != g->door) {
        c->err = clime_fail(c->error, CLIME_ERR_UNAVAILABLE, "generation was resumed before the requests had ended");
    } else if (clime_sched_has_work(&g->sched)) {
        c->err = clime_fail(c->error, CLIME_ERR_TIMEOUT, "%d requests did not end within the time limit",
                            clime_sched_n_let_in(&g->sched));
    } else {
        g->paused = true;
        open_door(g);
    }
}

/* Another call may still need admission shut, or have shut it again. */
static void do_open(struct clime_engine *g, struct clime_command *c) {
    if (c->door == g->door && --g->n_at_door == 0) open_door(g);
}

enum clime_err clime_engine_pause_when_done(struct clime_engine *g, int64_t limit_us, bool (*given_up)(void *arg),
                                            void *arg, struct clime_error *e) {
    int64_t until_us = clime_now_us() + limit_us;
    enum clime_err err = CLIME_ERR_TIMEOUT;
    struct clime_command shut = {.run = do_close};
    clime_engine_run(g, &shut);
    for (;;) {
        struct clime_command c = {.run = do_pause_if_done, .error = e, .door = shut.door};
        clime_engine_run(g, &c);
        if (c.err != CLIME_ERR_TIMEOUT) return c.err;
        if (clime_now_us() >= until_us) break;
        if (given_up(arg)) {
            err = clime_fail(e, CLIME_ERR_ABORTED, "nobody waits for the pause any more");
            break;
        }
        clime_sleep_us(ASK_AGAIN_US);
    }
    struct clime_command c = {.run = do_open, .door = shut.door};
    clime_engine_run(g, &c);
    return err;
}

static void do_resume(struct clime_engine *g, struct clime_command *c) {
    (void)c;
    g->paused = false;
    open_door(g);
}

/* Returns at once when neither paused nor about to be: a step of a thousand sequences may take long. */
void clime_engine_resume(struct clime_engine *g) {
    pthread_mutex_lock(&g->lock);
    bool idle = !g->first_command && !atomic_load(&g->paused) && !atomic_load(&g->closing);
    pthread_mutex_unlock(&g->lock);
    struct clime_command c = {.run = do_resume};
    if (!idle) clime_engine_run(g, &c);
}

static void do_flush(struct clime_engine *g, struct clime_command *c) {
    if (c->running) {
        clime_sched_retract_all(&g->sched);
    } else if (g->sched.n_running > 0 || (g->sched.n_waiting > 0 && !g->paused)) {
        c->err = clime_fail(c->error, CLIME_ERR_BUSY, "cannot flush: %d requests are running and %d waiting",
                            g->sched.n_running, g->sched.n_waiting);
        return;
    }
    clime_sched_flush(&g->sched);
}

enum clime_err clime_engine_flush(struct clime_engine *g, bool running, struct clime_error *e) {
    struct clime_command c = {.run = do_flush, .error = e, .running = running};
    clime_engine_run(g, &c);
    return c.err;
}

/* ---- trace ------------------------------------------------------------------------------------------------- */

static void do_trace(struct clime_engine *g, struct clime_command *c) {
    struct clime_trace *had = g->trace;
    g->trace = c->trace;
    c->trace = had;
}

void clime_engine_trace(struct clime_engine *g, struct clime_trace *give, struct clime_trace **out) {
    struct clime_command c = {.run = do_trace, .trace = give};
    clime_engine_run(g, &c);
    *out = c.trace;
}

/* ---- queries --------------------------------------------------------------------------------------------- */

bool clime_engine_held(struct clime_engine *g) {
    return atomic_load(&g->weights) == CLIME_WEIGHTS_WRITING && clime_now_us() < atomic_load(&g->writing_until_us);
}

enum clime_err clime_engine_complete(struct clime_engine *g, struct clime_error *e) {
    int state = atomic_load(&g->weights);
    if (state == CLIME_WEIGHTS_ABSENT)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the server has no weights; it waits for a full update");
    if (state == CLIME_WEIGHTS_WRITING)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "the weights are being rewritten; the server waits for their "
                          "owner, or for another full update");
    if (atomic_load(&g->no_kv))
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "the KV memory is released; /resume_memory_occupation brings it back");
    return CLIME_OK;
}

bool clime_engine_alive(struct clime_engine *g, int64_t timeout_us) {
    int64_t start = clime_now_us();
    while (!atomic_load(&g->dead)) {
        /* an idle engine sleeps on purpose; a busy one must finish a step */
        pthread_mutex_lock(&g->lock);
        bool idle = g->loads.n_running + g->loads.n_waiting == 0 || g->loads.paused || clime_engine_held(g);
        pthread_mutex_unlock(&g->lock);
        if (idle || atomic_load(&g->last_step_us) >= start - timeout_us) return true;
        if (clime_now_us() - start > timeout_us) return false;
        clime_sleep_us(50000);
    }
    return false;
}

bool clime_engine_dead(struct clime_engine *g) {
    return atomic_load(&g->dead);
}

const struct clime_weight_label *clime_engine_version(struct clime_engine *g) {
    return atomic_load(&g->version);
}

void clime_engine_loads(struct clime_engine *g, struct clime_loads *out) {
    pthread_mutex_lock(&g->lock);
    *out = g->loads;
    pthread_mutex_unlock(&g->lock);
    if (clime_now_us() - atomic_load(&g->last_step_us) > STALE_US) out->gen_throughput = 0;
    /* Requests not yet admitted, or whose reply is still being written, count too: a trainer that waits for 0 must have
     * received every reply. */
    int64_t outside = clime_engine_in_flight(g) - out->n_running - out->n_waiting;
    if (outside > 0) out->n_waiting += (int)outside;
}
