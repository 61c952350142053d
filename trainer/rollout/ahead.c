/* The thread of rollouts in the background. Main thread, but for make and what it calls, which are the thread.
 * Owns the thread's ledger connection and the rollouts until they are taken. `control` and, under its lock, `ready` are
 * the only things that both sides touch while it runs. */
#include "trainer/rollout/ahead.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void add_effort(struct clime_rollout *to, const struct clime_rollout *more) {
    to->n_stale += more->n_stale;
    to->n_tries += more->n_tries;
    to->n_tokens += more->n_tokens;
    to->n_reset += more->n_reset;
    to->time_us += more->time_us;
}

static void put(struct clime_generation *g, struct clime_rollout *r) {
    add_effort(r, &g->before);
    g->before = (struct clime_rollout){0};
    pthread_mutex_lock(&g->control.lock);
    g->ready = xrealloc(g->ready, (size_t)(g->n_ready + 1) * sizeof *g->ready);
    g->ready[g->n_ready++] = *r;
    pthread_cond_broadcast(&g->control.changed);
    pthread_mutex_unlock(&g->control.lock);
}

/* The next rollout; the last one of the thread comes when nothing is in flight any more. */
static enum clime_err make_one(struct clime_generation *g, struct clime_rollouts *rs, int64_t id, bool *paused) {
    struct clime_rollout r;
    enum clime_err rc = clime_rollouts_fill(rs, id, paused, &g->error);
    if (!rc && (*paused || id + 1 == g->end)) rc = clime_rollouts_stop(rs, &g->error);
    if (!rc) rc = clime_rollouts_give(rs, &r, &g->error);
    if (!rc && *paused)
        add_effort(&g->before, &r);
    else if (!rc)
        put(g, &r);
    return rc;
}

static void *make(void *arg) {
    struct clime_generation *g = arg;
    struct clime_rollouts *rs;
    bool paused = false;
    g->rc = clime_rollouts_open(&g->context, g->id, g->version, g->held, g->n_held, &rs, &g->error);
    for (int64_t id = g->id; id < g->end && !g->rc && !paused; id++) g->rc = make_one(g, rs, id, &paused);
    clime_rollouts_close(rs);
    clime_rollout_control_end(&g->control);
    return NULL;
}

/* The groups of the rollouts that are ready are open in the ledger, but not to be used again. */
static void note_held(struct clime_generation *g) {
    int n = 0;
    for (int i = 0; i < g->n_ready; i++) n += g->ready[i].n;
    g->held = xrealloc(g->held, (size_t)(n + 1) * sizeof *g->held);
    g->n_held = 0;
    for (int i = 0; i < g->n_ready; i++)
        for (int k = 0; k < g->ready[i].n; k++)
            if (k == 0 || g->ready[i].samples[k]->group != g->held[g->n_held - 1])
                g->held[g->n_held++] = g->ready[i].samples[k]->group;
}

enum clime_err clime_generation_start(struct clime_generation *g, const struct clime_rollout_context *c,
                                      const char *path, struct clime_generation_range range, int64_t version,
                                      struct clime_error *e) {
    CHECK(!g->running && (g->n_ready == 0 || range.id == g->ready[g->n_ready - 1].id + 1));
    bool first = !g->db;
    enum clime_err rc = first ? clime_db_open(path, CLIME_DB_READ, &g->db, e) : CLIME_OK;
    if (rc) return rc;
    if (first) clime_rollout_control_init(&g->control);
    g->progress = (struct clime_progress){.quiet = true};
    clime_rollout_control_begin(&g->control, version, range.last);
    g->context = *c;
    g->context.db = g->db;
    g->context.progress = &g->progress;
    g->context.control = &g->control;
    g->id = range.id;
    g->end = range.end;
    g->version = version;
    note_held(g);
    if (pthread_create(&g->thread, NULL, make, g))
        return clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the thread of rollout %lld", (long long)range.id);
    g->running = true;
    return CLIME_OK;
}

void clime_generation_want(struct clime_generation *g, int64_t last) {
    if (g->running) atomic_store(&g->control.last, last);
}

static enum clime_err join(struct clime_generation *g, struct clime_error *e) {
    if (!g->running) return CLIME_OK;
    pthread_join(g->thread, NULL);
    g->running = false;
    if (g->rc) *e = g->error;
    return g->rc;
}

enum clime_err clime_generation_pause(struct clime_generation *g, struct clime_error *e) {
    if (g->running) clime_rollout_control_order(&g->control, CLIME_ROLLOUT_PAUSE);
    return join(g, e);
}

bool clime_generation_hold(struct clime_generation *g, int64_t version) {
    return g->running && clime_rollout_control_hold(&g->control, version);
}

void clime_generation_release(struct clime_generation *g) {
    clime_rollout_control_release(&g->control);
}

enum clime_err clime_generation_take(struct clime_generation *g, struct clime_rollout *r, struct clime_error *e) {
    CHECK(g->running || g->n_ready > 0);
    pthread_mutex_lock(&g->control.lock);
    int n_ready = g->n_ready;
    while (g->n_ready == 0 && !g->control.ended) pthread_cond_wait(&g->control.changed, &g->control.lock);
    bool there = g->n_ready > 0;
    if (there) {
        *r = g->ready[0];
        r->n_ready = n_ready;
        g->n_ready--;
        memmove(g->ready, g->ready + 1, (size_t)g->n_ready * sizeof *g->ready);
    }
    pthread_mutex_unlock(&g->control.lock);
    enum clime_err rc = there && r->id + 1 < g->end ? CLIME_OK : join(g, e);
    CHECK(rc || there); /* a thread ends with an error, by order, or with its last rollout */
    if (rc && there) clime_rollout_free(r);
    return rc;
}

void clime_generation_close(struct clime_generation *g) {
    struct clime_error e;
    if (g->running) clime_rollout_control_order(&g->control, CLIME_ROLLOUT_CANCEL);
    join(g, &e);
    for (int i = 0; i < g->n_ready; i++) clime_rollout_free(&g->ready[i]);
    free(g->ready);
    free(g->held);
    if (g->db) clime_rollout_control_free(&g->control);
    clime_db_close(g->db);
    *g = (struct clime_generation){0};
}
