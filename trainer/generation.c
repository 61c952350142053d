/* The thread of a rollout in the background. Main thread, but for generate_main, which is the thread.
 * Owns the thread's ledger connection and the rollout until it is taken. `control` is the only thing that both sides
 * touch while it runs. */
#include "trainer/generation.h"

#include <string.h>

static void *generate_main(void *arg) {
    struct clime_generation *g = arg;
    g->rc = clime_rollout_generate(&g->context, g->id, g->version, &g->rollout, &g->error);
    clime_rollout_control_end(&g->control);
    return NULL;
}

enum clime_err clime_generation_start(struct clime_generation *g, const struct clime_rollout_context *c,
                                      const char *path, int64_t id, int64_t version, struct clime_error *e) {
    CHECK(!g->running && !g->complete);
    bool first = !g->db;
    enum clime_err rc = first ? clime_db_open(path, CLIME_DB_READ, &g->db, e) : CLIME_OK;
    if (rc) return rc;
    if (first) clime_rollout_control_init(&g->control);
    g->progress = (struct clime_progress){.quiet = true};
    clime_rollout_control_begin(&g->control, version);
    g->context = *c;
    g->context.db = g->db;
    g->context.progress = &g->progress;
    g->context.control = &g->control;
    g->id = id;
    g->version = version;
    if (pthread_create(&g->thread, NULL, generate_main, g))
        return clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the thread of rollout %lld", (long long)id);
    g->running = true;
    return CLIME_OK;
}

static void add_effort(struct clime_rollout *to, const struct clime_rollout *more) {
    to->n_stale += more->n_stale;
    to->n_tries += more->n_tries;
    to->n_tokens += more->n_tokens;
    to->n_reset += more->n_reset;
    to->time_us += more->time_us;
}

static enum clime_err join(struct clime_generation *g, struct clime_error *e) {
    if (!g->running) return CLIME_OK;
    pthread_join(g->thread, NULL);
    g->running = false;
    if (g->rc) {
        *e = g->error;
        return g->rc;
    }
    g->complete = !g->rollout.paused;
    if (g->rollout.paused) {
        add_effort(&g->before, &g->rollout);
        clime_rollout_free(&g->rollout);
    }
    return CLIME_OK;
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
    CHECK(g->running || g->complete);
    enum clime_err rc = join(g, e);
    if (rc) return rc;
    CHECK(g->complete);
    *r = g->rollout;
    add_effort(r, &g->before);
    g->rollout = g->before = (struct clime_rollout){0};
    g->complete = false;
    return CLIME_OK;
}

void clime_generation_close(struct clime_generation *g) {
    struct clime_error e;
    if (g->running) clime_rollout_control_order(&g->control, CLIME_ROLLOUT_CANCEL);
    if (!join(g, &e) && g->complete) clime_rollout_free(&g->rollout);
    g->complete = false;
    if (g->db) clime_rollout_control_free(&g->control);
    clime_db_close(g->db);
    g->db = NULL;
}
