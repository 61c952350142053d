/* Choice of a worker: the session's worker, or the policy's choice among those allowed. Called by handlers (any HTTP
 * thread) under the table's mutex. Copies only what the lease needs: a fleet may have 1,024 workers, and picks are the
 * only thing that requests serialise on. */
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "router/policy/policy.h"
#include "router/policy/request.h"
#include "router/workers_int.h"

#define FREE_TOKENS 4096 /* load below which a session never leaves its worker */
#define TRIAL_US ((int64_t)5000000)

/* ---- allowed workers ---- */

static bool has_label(const struct clime_worker_view *v, struct clime_str label) {
    for (const char *at = v->labels; label.len && (at = strchr(at, '\n')); at++)
        if (strncmp(at + 1, label.ptr, label.len) == 0 && at[1 + label.len] == '\n') return true;
    return label.len == 0;
}

/* The target is the worker's URL, or as in SGLang's gateway its index, from 0, among all. */
static bool is_target(const struct clime_worker_view *v, int place, struct clime_str target) {
    char number[16];
    if (!target.len || clime_str_is(clime_workers_trim_url(target), v->url)) return true;
    snprintf(number, sizeof number, "%d", place);
    return clime_str_is(target, number);
}

static bool is_full(const struct clime_workers *w, const struct clime_worker_view *v) {
    return w->opts.max_load > 0 && v->capacity > 0 && (double)v->tokens >= w->opts.max_load * (double)v->capacity;
}

struct census { /* workers left out, for the message */
    int n_known, n_full;
    int64_t tokens, capacity; /* totals of the full ones */
};

/* A worker on trial gets one request, until it ended or has run for TRIAL_US. */
static bool waits_for_trial(const struct worker *k, int64_t now) {
    return k->v.trial && k->v.requests > 0 && now - k->trial_us < TRIAL_US;
}

/* Fills w->ready. all: include workers that wait for a trial, when there are no others. */
static int find_ready(struct clime_workers *w, const struct clime_route_request *rq, const uint64_t *tried, bool all,
                      int64_t now, struct census *c) {
    int n = 0;
    *c = (struct census){0};
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) {
        struct clime_worker_view *v = &w->w[i].v;
        w->at_of_slot[i] = -1;
        int place = c->n_known;
        c->n_known += v->state != CLIME_WORKER_FREE;
        if (v->state != CLIME_WORKER_READY || tried[i / 64] >> (i % 64) & 1) continue;
        if (!has_label(v, rq->label) || !is_target(v, place, rq->target)) continue;
        if (is_full(w, v)) {
            c->n_full++;
            c->tokens += v->tokens;
            c->capacity += v->capacity;
        } else if (all || !waits_for_trial(&w->w[i], now)) {
            w->at_of_slot[i] = (int16_t)n;
            w->ready[n++] = v;
        }
    }
    return n;
}

static enum clime_err nobody(const struct clime_workers *w, const struct clime_route_request *rq,
                             const struct census *c, struct clime_error *e) {
    if (c->n_full)
        return clime_fail(e, CLIME_ERR_BUSY,
                          "all %d ready workers are full: they have %lld tokens to do, and hold %lld at a time "
                          "(--max-worker-load %g)",
                          c->n_full, (long long)c->tokens, (long long)c->capacity, w->opts.max_load);
    if (rq->target.len && c->n_known)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "none of the %d workers is ready and is number or URL " CLIME_STR_FMT
                          " (X-SMG-Target-Worker)",
                          c->n_known, rq->target.len > 80 ? 80 : (int)rq->target.len, rq->target.ptr);
    if (rq->label.len && c->n_known)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "none of the %d workers is ready and has the label " CLIME_STR_FMT,
                          c->n_known, rq->label.len > 80 ? 80 : (int)rq->label.len, rq->label.ptr);
    return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                      c->n_known ? "none of the %d workers is ready" : "no worker is registered", c->n_known);
}

/* ---- loads ---- */

/* Sets loads: tokens to do, scaled by relative capacity where all workers report theirs. */
static void weigh(struct clime_workers *w, int n) {
    double sum = 0, capacities = 0;
    bool known = true;
    for (int i = 0; i < n; i++) {
        known = known && w->ready[i]->capacity > 0;
        capacities += (double)w->ready[i]->capacity;
    }
    for (int i = 0; i < n; i++) {
        struct clime_worker_view *v = w->ready[i];
        v->load = (double)v->todo * (known ? capacities / n / (double)v->capacity : 1);
        sum += v->load;
    }
    double most = w->opts.slack * sum / n + FREE_TOKENS;
    for (int i = 0; i < n; i++) w->ready[i]->overloaded = w->ready[i]->load > most;
}

/* ---- the session ---- */

static uint64_t session_hash(struct clime_str session) {
    return clime_hash_bytes(session.ptr, session.len, 0x73657373);
}

bool clime_workers_finish_session(struct clime_workers *w, struct clime_str session) {
    pthread_mutex_lock(&w->lock);
    bool was = clime_placements_get(w->sessions, session_hash(session), clime_now_us()) >= 0;
    clime_placements_remove(w->sessions, session_hash(session));
    pthread_mutex_unlock(&w->lock);
    return was;
}

/* ---- the choice ---- */

static int choose(struct clime_workers *w, const struct clime_route_request *rq, int n, int64_t now) {
    weigh(w, n);
    if (w->opts.policy->wants_pages) clime_prefixes_find(w, rq, n, now);
    if (rq->session.len && !w->opts.policy->is_sticky) {
        int at = clime_workers_ready_at(w, clime_placements_get(w->sessions, session_hash(rq->session), now));
        if (at >= 0 && !w->ready[at]->overloaded) return at;
    }
    int at = w->opts.policy->pick(rq, w->ready, n, w->turn);
    CHECK(at >= 0 && at < n);
    return at;
}

static void take(struct clime_workers *w, const struct clime_route_request *rq, struct clime_worker_view *v,
                 struct clime_lease *out, int64_t now) {
    w->turn++;
    if (rq->session.len) clime_placements_set(w->sessions, session_hash(rq->session), clime_workers_place(v), 0, now);
    if (w->opts.policy->wants_pages) clime_prefixes_note(w, rq, v, now);
    if (v->requests == 0) w->w[v->slot].trial_us = now;
    int64_t todo = v->matched < rq->cost - rq->output ? rq->cost - v->matched : rq->output;
    v->tokens += rq->cost;
    v->todo += todo;
    v->requests++;
    v->picked++;
    *out = (struct clime_lease){.slot = v->slot, .id = v->id, .cost = rq->cost, .todo = todo, .output = rq->output};
    memcpy(out->url, v->url, sizeof out->url);
    memcpy(out->key, v->key, sizeof out->key);
    out->named = v->named;
}

void clime_workers_began(struct clime_workers *w, struct clime_lease *l) {
    pthread_mutex_lock(&w->lock);
    struct worker *k = &w->w[l->slot];
    CHECK(k->v.id == l->id && k->v.todo >= l->todo);
    if (l->todo > l->output) {
        k->v.todo -= l->todo - l->output;
        l->todo = l->output;
    }
    pthread_mutex_unlock(&w->lock);
}

enum clime_err clime_workers_pick(struct clime_workers *w, const struct clime_route_request *rq,
                                  const uint64_t tried[CLIME_WORKERS_MAX / 64], struct clime_lease *out,
                                  struct clime_error *e) {
    struct census c;
    enum clime_err err = CLIME_OK;
    int64_t now = clime_now_us();
    pthread_mutex_lock(&w->lock);
    int n = find_ready(w, rq, tried, false, now, &c);
    if (n == 0) n = find_ready(w, rq, tried, true, now, &c);
    if (n == 0)
        err = nobody(w, rq, &c, e);
    else
        take(w, rq, w->ready[choose(w, rq, n, now)], out, now);
    pthread_mutex_unlock(&w->lock);
    return err;
}
