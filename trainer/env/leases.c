/* Task table, environments' side: leases, calls and results by lease id (threads: environments.h). Called by handlers
 * and hooks, all under the table's lock.
 *
 * Invariant: one call per task at a time; later ones wait in order. */
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "trainer/env/environments_int.h"

#define MAX_QUEUED 64 /* waiting calls per session */

/* Frees the task for the next waiter and wakes only that one. */
void clime_env_let_next(struct clime_task *t) {
    struct clime_env_turn_wait *w = t->waiting;
    t->taken = w != NULL;
    if (!w) return;
    t->waiting = w->next;
    if (!t->waiting) t->last_waiting = &t->waiting;
    t->n_queued--;
    w->is_next = true;
    pthread_cond_signal(&w->woken);
}

static struct clime_task **place_of(struct clime_environments *v, struct clime_str id) {
    return &v->leased[clime_hash_bytes(id.ptr, id.len, 0) & (CLIME_ENV_PLACES - 1)];
}

void clime_env_give_lease(struct clime_environments *v, struct clime_task *t) {
    clime_random_id(t->id); /* the id is a capability: it allows turns and the reward */
    struct clime_task **place = place_of(v, clime_str_of(t->id));
    t->next_leased = *place;
    *place = t;
    t->state = CLIME_TASK_LEASED;
    t->attempts++;
    t->lease_until_us = clime_now_us() + v->o.lease_us;
}

/* Ends the lease: all waiters find no task. */
void clime_env_end_lease(struct clime_environments *v, struct clime_task *t) {
    struct clime_task **at = place_of(v, clime_str_of(t->id));
    while (*at && *at != t) at = &(*at)->next_leased;
    if (*at) *at = t->next_leased;
    while (t->waiting) clime_env_let_next(t);
    t->taken = false;
    t->id[0] = 0;
}

const char *clime_env_who(const struct clime_environments *v) {
    return v->o.hook ? "generate hook: " : "environment: ";
}

void clime_env_result_free(struct clime_env_result *r) {
    for (int i = 0; i < r->n_parts; i++) {
        clime_reward_free(&r->parts[i].reward);
        free(r->parts[i].metadata);
    }
    free(r->parts);
    free(r->error);
    *r = (struct clime_env_result){0};
}

struct clime_env_part *clime_env_result_add(struct clime_env_result *r, int turn) {
    r->parts = xrealloc(r->parts, (size_t)(r->n_parts + 1) * sizeof *r->parts);
    r->parts[r->n_parts] = (struct clime_env_part){.turn = turn};
    return &r->parts[r->n_parts++];
}

/* Checks the turns a result names. The task is idle, so its session may be read. */
static enum clime_err check_turns(const struct clime_task *t, const struct clime_env_result *r, struct clime_error *e) {
    int n = clime_session_turns(t->session);
    for (int i = 0; i < r->n_parts; i++) {
        int turn = r->parts[i].turn;
        if (turn >= n) return clime_fail(e, CLIME_ERR_INPUT, "turn %d: the session has had %d turns", turn, n);
        for (int k = 0; k < i; k++)
            if (r->parts[k].turn == turn) return clime_fail(e, CLIME_ERR_INPUT, "turn %d is named twice", turn);
    }
    return CLIME_OK;
}

void clime_env_call_free(struct clime_env_call *c) {
    clime_sample_free(c->answer);
    clime_env_reading_free(&c->said);
    clime_ids_free(&c->context);
    *c = (struct clime_env_call){0};
}

enum clime_lease_answer clime_env_lease(struct clime_environments *v, int64_t until_us, struct clime_http_request *rq,
                                        void (*write)(const struct clime_environments *v, const struct clime_task *t,
                                                      struct clime_buf *out),
                                        struct clime_buf *out) {
    enum clime_lease_answer given = CLIME_LEASE_NONE;
    pthread_mutex_lock(&v->lock);
    v->n_waiting++;
    for (;;) {
        struct clime_task *t = v->tasks;
        while (t && t->state != CLIME_TASK_WAITING) t = t->next;
        if (t && !clime_http_peer_gone(rq)) {
            clime_env_give_lease(v, t);
            write(v, t, out);
            given = CLIME_LEASE_GIVEN;
            break;
        }
        int64_t now = clime_now_us();
        if (now >= until_us || clime_http_stopping(rq) || clime_http_peer_gone(rq)) break;
        if (v->n_waiting > v->n_slots / 2) { /* the rest is for requests that have a task */
            given = CLIME_LEASE_BUSY;
            break;
        }
        clime_cond_wait_until(&v->offered, &v->lock,
                              now + CLIME_ENV_CHECK_US < until_us ? now + CLIME_ENV_CHECK_US : until_us);
    }
    v->n_waiting--;
    if (given != CLIME_LEASE_GIVEN) pthread_cond_signal(&v->offered); /* pass on a wake-up for a task */
    pthread_mutex_unlock(&v->lock);
    return given;
}

/* The leased task of this id; NULL with *e set if there is none. */
static struct clime_task *find_locked(struct clime_environments *v, struct clime_str id, struct clime_error *e) {
    for (struct clime_task *t = *place_of(v, id); t; t = t->next_leased)
        if (clime_str_is(id, t->id)) return t;
    clime_fail(e, CLIME_ERR_NOT_FOUND, "no such lease: it has expired, its task is over, or it was never given");
    return NULL;
}

/* The leased task of this id, once earlier calls are done; the caller passes it a call or frees it for the next waiter.
 * NULL with *e set: it is over, or too many wait. Releases the lock meanwhile. */
static struct clime_task *find_idle(struct clime_environments *v, struct clime_str id, struct clime_error *e) {
    struct clime_task *t = find_locked(v, id, e);
    if (!t) return NULL;
    if (t->n_queued >= MAX_QUEUED) {
        clime_fail(e, CLIME_ERR_BUSY, "the session has %d calls waiting for one another", MAX_QUEUED);
        return NULL;
    }
    if (t->taken) {
        struct clime_env_turn_wait w = {0};
        clime_cond_init(&w.woken);
        *t->last_waiting = &w;
        t->last_waiting = &w.next;
        t->n_queued++;
        while (!w.is_next) pthread_cond_wait(&w.woken, &v->lock);
        pthread_cond_destroy(&w.woken);
        if (!(t = find_locked(v, id, e))) return NULL;
    }
    t->taken = true;
    if (!t->has_result) return t;
    clime_env_let_next(t);
    clime_fail(e, CLIME_ERR_NOT_FOUND, "the task has its result already");
    return NULL;
}

enum clime_err clime_env_call(struct clime_environments *v, struct clime_str id, struct clime_env_call *call,
                              struct clime_error *e) {
    pthread_mutex_lock(&v->lock);
    struct clime_task *t = find_idle(v, id, e);
    if (t && call->rq && clime_http_peer_gone(call->rq)) {
        clime_session_abandon(t->session);
        clime_env_let_next(t);
        clime_fail(e, CLIME_ERR_ABORTED, "the client has left");
    } else if (t) {
        clime_cond_init(&call->ended);
        t->call = call;
        pthread_cond_signal(&t->changed);
        while (!call->done) {
            if (!call->stream) {
                pthread_cond_wait(&call->ended, &v->lock);
                continue;
            }
            pthread_mutex_unlock(&v->lock);
            clime_env_stream_serve(call->stream, CLIME_ENV_CHECK_US, v->o.heartbeat_us);
            pthread_mutex_lock(&v->lock);
        }
        pthread_cond_destroy(&call->ended);
        *e = call->error;
    }
    pthread_mutex_unlock(&v->lock);
    return e->code;
}

enum clime_err clime_env_result_locked(struct clime_environments *v, struct clime_str id, struct clime_env_result *r,
                                       struct clime_error *e) {
    /* A result that names turns is checked against the session, which belongs to its owner during a turn. Any other is
     * taken at once: a result must not hold a thread for a whole turn. */
    bool names = false;
    for (int i = 0; i < r->n_parts; i++) names = names || r->parts[i].turn >= 0;
    struct clime_task *t = names ? find_idle(v, id, e) : find_locked(v, id, e), *idle = names ? t : NULL;
    if (t && t->has_result) { /* find_locked does not wait for a turn */
        clime_fail(e, CLIME_ERR_NOT_FOUND, "the task has its result already");
        t = NULL;
    }
    if (t && (!names || !check_turns(t, r, e))) {
        t->has_result = true;
        t->result = *r;
        *r = (struct clime_env_result){0};
        pthread_cond_signal(&t->changed);
    }
    if (idle) clime_env_let_next(idle);
    return e->code;
}

enum clime_err clime_env_result(struct clime_environments *v, struct clime_str id, struct clime_env_result *r,
                                struct clime_error *e) {
    pthread_mutex_lock(&v->lock);
    clime_env_result_locked(v, id, r, e);
    pthread_mutex_unlock(&v->lock);
    return e->code;
}

void clime_env_refuse(struct clime_environments *v, struct clime_str id, const struct clime_error *why) {
    struct clime_error over;
    pthread_mutex_lock(&v->lock);
    struct clime_task *t = find_locked(v, id, &over);
    if (t) snprintf(t->refused, sizeof t->refused, "%.199s", why->msg);
    if (t && !v->said_refused)
        LOG_WARN("%sits result of %s is refused, and others may be: %s", clime_env_who(v), t->r->rid, why->msg);
    v->said_refused = v->said_refused || t;
    pthread_mutex_unlock(&v->lock);
}

enum clime_err clime_env_renew(struct clime_environments *v, struct clime_str id, struct clime_error *e) {
    pthread_mutex_lock(&v->lock);
    struct clime_task *t = find_locked(v, id, e);
    if (t) t->lease_until_us = clime_now_us() + v->o.lease_us;
    pthread_mutex_unlock(&v->lock);
    return e->code;
}
