/* Background rollout thread (see ahead.h). Main thread, except make and its callees, which run on the thread. Owns the
 * thread's ledger connection and the rollouts until they are taken. Both threads share only `control` and, under its
 * lock, `ready`. */
#include "trainer/rollout/ahead.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/os/waits.h"

static void add_effort(struct clime_rollout *to, const struct clime_rollout *more) {
    to->n_stale += more->n_stale;
    clime_turn_counts_add(&to->turns, &more->turns);
    to->n_tries += more->n_tries;
    to->n_tokens += more->n_tokens;
    to->n_reset += more->n_reset;
    to->n_rewards += more->n_rewards;
    to->reward_us += more->reward_us;
    if (more->reward_max_us > to->reward_max_us) to->reward_max_us = more->reward_max_us;
    to->n_unrewarded += more->n_unrewarded;
    to->n_ungenerated += more->n_ungenerated;
    to->time_us += more->time_us;
}

static void put(struct clime_ahead *a, struct clime_rollout *r) {
    add_effort(r, &a->before);
    a->before = (struct clime_rollout){0};
    pthread_mutex_lock(&a->control.lock);
    a->ready = xrealloc(a->ready, (size_t)(a->n_ready + 1) * sizeof *a->ready);
    a->ready[a->n_ready++] = *r;
    pthread_cond_broadcast(&a->control.changed);
    pthread_mutex_unlock(&a->control.lock);
}

/* Makes the next rollout; before the thread's last one is queued, everything in flight is stopped. */
static enum clime_err make_one(struct clime_ahead *a, struct clime_rollouts *rs, int64_t id, bool *paused) {
    struct clime_rollout r;
    enum clime_err rc = clime_rollouts_fill(rs, id, paused, &a->error);
    if (!rc && (*paused || id + 1 == a->end)) rc = clime_rollouts_stop(rs, &a->error);
    if (!rc) rc = clime_rollouts_give(rs, &r, &a->error);
    if (!rc && *paused)
        add_effort(&a->before, &r);
    else if (!rc)
        put(a, &r);
    return rc;
}

static void *make(void *arg) {
    struct clime_ahead *a = arg;
    struct clime_rollouts *rs;
    bool paused = false;
    a->rc = clime_rollouts_open(&a->context, a->id, a->version, a->held, a->n_held, &rs, &a->error);
    for (int64_t id = a->id; id < a->end && !a->rc && !paused; id++) a->rc = make_one(a, rs, id, &paused);
    clime_rollouts_close(rs);
    clime_rollout_control_end(&a->control);
    return NULL;
}

/* Notes the groups of ready rollouts: still open in the ledger, but not to be reused. */
static void note_held(struct clime_ahead *a) {
    int n = 0;
    for (int i = 0; i < a->n_ready; i++) n += a->ready[i].n;
    a->held = xrealloc(a->held, (size_t)(n + 1) * sizeof *a->held);
    a->n_held = 0;
    for (int i = 0; i < a->n_ready; i++)
        for (int k = 0; k < a->ready[i].n; k++)
            if (k == 0 || a->ready[i].samples[k]->group != a->held[a->n_held - 1])
                a->held[a->n_held++] = a->ready[i].samples[k]->group;
}

enum clime_err clime_ahead_start(struct clime_ahead *a, const struct clime_rollout_context *c, const char *path,
                                 struct clime_ahead_range range, int64_t version, struct clime_error *e) {
    CHECK(!a->running && (a->n_ready == 0 || range.id == a->ready[a->n_ready - 1].id + 1));
    bool first = !a->db;
    enum clime_err rc = first ? clime_db_open(path, CLIME_DB_READ, &a->db, e) : CLIME_OK;
    if (rc) return rc;
    if (first) clime_rollout_control_init(&a->control);
    a->progress = (struct clime_progress){.quiet = true};
    clime_rollout_control_begin(&a->control, version, range.last);
    a->context = *c;
    a->context.db = a->db;
    a->context.progress = &a->progress;
    a->context.control = &a->control;
    a->id = range.id;
    a->end = range.end;
    a->version = version;
    note_held(a);
    if (pthread_create(&a->thread, NULL, make, a))
        return clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the thread of rollout %lld", (long long)range.id);
    a->running = true;
    return CLIME_OK;
}

void clime_ahead_want(struct clime_ahead *a, int64_t last) {
    if (a->running) atomic_store(&a->control.last, last);
}

static enum clime_err join(struct clime_ahead *a, struct clime_error *e) {
    if (!a->running) return CLIME_OK;
    pthread_join(a->thread, NULL);
    a->running = false;
    if (a->rc) *e = a->error;
    return a->rc;
}

enum clime_err clime_ahead_pause(struct clime_ahead *a, struct clime_error *e) {
    if (a->running) clime_rollout_control_order(&a->control, CLIME_ROLLOUT_PAUSE);
    return join(a, e);
}

bool clime_ahead_hold(struct clime_ahead *a, int64_t version) {
    return a->running && clime_rollout_control_hold(&a->control, version);
}

void clime_ahead_release(struct clime_ahead *a) {
    clime_rollout_control_release(&a->control);
}

enum clime_err clime_ahead_take(struct clime_ahead *a, struct clime_rollout *r, struct clime_error *e) {
    CHECK(a->running || a->n_ready > 0);
    pthread_mutex_lock(&a->control.lock);
    int n_ready = a->n_ready;
    struct clime_wait wait = {0};
    clime_wait_begin(&wait, "a rollout that is made ahead", 0, "the thread that makes rollouts");
    while (a->n_ready == 0 && !a->control.ended) pthread_cond_wait(&a->control.changed, &a->control.lock);
    clime_wait_end(&wait);
    bool there = a->n_ready > 0;
    if (there) {
        *r = a->ready[0];
        r->n_ready = n_ready;
        a->n_ready--;
        memmove(a->ready, a->ready + 1, (size_t)a->n_ready * sizeof *a->ready);
    }
    pthread_mutex_unlock(&a->control.lock);
    enum clime_err rc = there && r->id + 1 < a->end ? CLIME_OK : join(a, e);
    CHECK(rc || there); /* the thread ended with an error, by order, or with its last rollout */
    if (rc && there) clime_rollout_free(r);
    return rc;
}

void clime_ahead_close(struct clime_ahead *a) {
    struct clime_error e;
    if (a->running) clime_rollout_control_order(&a->control, CLIME_ROLLOUT_CANCEL);
    join(a, &e);
    for (int i = 0; i < a->n_ready; i++) clime_rollout_free(&a->ready[i]);
    free(a->ready);
    free(a->held);
    if (a->db) clime_rollout_control_free(&a->control);
    clime_db_close(a->db);
    *a = (struct clime_ahead){0};
}
