/* Proxy: sends one generation request to a worker and returns its answer. Runs on HTTP threads.
 *
 * Another worker is tried until a byte was sent to the client, and afterwards where the stream can resume (replay.h),
 * but never one that just failed this request. BUSY and unreachable workers are retried --max-retries times. After a
 * 404 or similar one more worker is asked: the first may be another program, and its quick answers would make it the
 * least loaded one for ever. A request that failed on MOST_SUSPECT workers that received it, without a token from them,
 * is taken as the cause: it must not take down the fleet one by one. A worker that answers 500 to a request that
 * another one then serves is blamed. A request stays with a worker that is only suspected once MOST_SUSPECT workers
 * fell silent under it, or when it may not be tried elsewhere. */
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"
#include "router/forward.h"
#include "router/policy/request.h"
#include "router/queue.h"
#include "router/relay.h"

#define MOST_SUSPECT 2
#define WAIT_LOOK_US 50000
#define TRY_AGAIN_US 1000000

/* The session from the path or a header, and the path without it. */
static struct clime_str session_of(struct clime_http_request *rq, struct clime_str *path) {
    static const char in_path[] = "/sessions/";
    *path = clime_http_path(rq);
    if (clime_str_starts(*path, in_path)) {
        struct clime_str id = clime_http_param(rq);
        size_t n = sizeof in_path - 1 + id.len;
        *path = (struct clime_str){path->ptr + n, path->len - n};
        return id;
    }
    const char *v = clime_http_header(rq, "X-SMG-Routing-Key");
    if (!v) v = clime_http_header(rq, "X-Session-ID");
    return clime_str_of(v);
}

/* The workers that a request was tried on, and how long it may wait for others. */
struct trials {
    uint64_t tried[CLIME_WORKERS_MAX / 64], seen_failing[CLIME_WORKERS_MAX / 64]; /* by slot */
    int64_t until_us;
    int n_suspect;
    int n_lacking;                  /* workers that lack what it asks for */
    char lacking[CLIME_WORKER_URL]; /* the last of them */
    int lacking_status;             /* and its status */
    int n_silent;                   /* workers suspected before they sent a token */
    int64_t suspect;                /* the worker that answered 500 */
};

/* True for a status where another worker may succeed: wrong path, model, method, or a redirect. Our workers never
 * redirect, so that is another program or a proxy in front. */
static bool lacks(int status) {
    return status == 403 || status == 404 || status == 405 || status == 501 || status / 100 == 3;
}

static bool may_try_again(const struct clime_relay *y, const struct trials *t) {
    if (t->n_suspect >= MOST_SUSPECT || atomic_load(&y->router->phase) == CLIME_ROUTER_CUTTING) return false;
    switch (y->outcome) {
    case CLIME_OUTCOME_SERVED:
        return false;
    case CLIME_OUTCOME_CLIENT:
        return !y->e.code && lacks(y->status) && t->n_lacking == 1;
    case CLIME_OUTCOME_BUSY:
        return !y->e.code; /* else it is the router's own failure */
    case CLIME_OUTCOME_WORKER:
    case CLIME_OUTCOME_SILENT:
        return true;
    case CLIME_OUTCOME_UNKNOWN:
        return !y->e.code && y->status == 500;
    }
    return false;
}

struct asking {
    struct clime_relay *y;
    const struct clime_route_request *request;
    struct trials t;
    struct clime_lease lease;
    struct clime_router_queue_call call;
};

/* ---- callbacks of the queue, on this thread ---- */

static enum clime_err take(void *arg, struct clime_error *e) {
    struct asking *a = arg;
    return clime_workers_pick(a->y->router->workers, a->request, a->t.tried, &a->lease, e);
}

static bool is_over(void *arg) {
    const struct asking *a = arg;
    return atomic_load(&a->y->router->phase) == CLIME_ROUTER_CUTTING || clime_http_peer_gone(a->y->rq);
}

static void waits(void *arg) {
    const struct asking *a = arg;
    clime_http_waits(a->y->rq);
}

/* ---- trying workers ---- */

/* A request without a slot is on a thread that must not wait. */
static enum clime_err take_in_turn(struct asking *a, struct clime_error *e) {
    return clime_http_holds_slot(a->y->rq) ? clime_router_queue_take(a->y->router->queue, &a->call, e) : take(a, e);
}

/* A stream that lost its worker may wait for another, since its client cannot retry without losing data. So may a
 * request taken from a silent worker. In time all workers are tried again: the lost one may be back. */
static bool pick(struct asking *a, struct clime_error *e) {
    int64_t again_us = clime_now_us() + TRY_AGAIN_US;
    a->call.until_us = a->t.until_us;
    while (take_in_turn(a, e)) {
        int64_t now = clime_now_us();
        if (atomic_load(&a->y->router->phase) == CLIME_ROUTER_CUTTING)
            clime_fail(e, CLIME_ERR_UNAVAILABLE, "the router is stopping; ask again");
        if (now >= a->t.until_us || is_over(a) || e->code == CLIME_ERR_ABORTED) return false;
        if (now >= again_us) memset(a->t.tried, 0, sizeof a->t.tried);
        clime_sleep_us(WAIT_LOOK_US);
    }
    return true;
}

static void count_trial(struct asking *a) {
    struct clime_relay *y = a->y;
    struct clime_workers *w = y->router->workers;
    const struct clime_lease *lease = &a->lease;
    struct trials *t = &a->t;
    clime_workers_release(w, lease, y->outcome);
    clime_router_queue_freed(y->router->queue);
    if (y->progressed) /* the stream made progress: earlier failures no longer count */
        *t = (struct trials){.until_us = clime_now_us() + y->router->replay_wait_us};
    if (y->outcome == CLIME_OUTCOME_SILENT) { /* as long as it could have waited for that worker */
        t->until_us = clime_now_us() + y->router->replay_wait_us;
        t->n_silent += !y->progressed;
    }
    t->tried[lease->slot / 64] |= (uint64_t)1 << (lease->slot % 64);
    if (y->outcome == CLIME_OUTCOME_SERVED && t->suspect) clime_workers_blame(w, t->suspect);
    if (y->outcome == CLIME_OUTCOME_UNKNOWN) t->suspect = lease->id;
    if (y->outcome == CLIME_OUTCOME_SERVED && t->n_lacking)
        LOG_WARN("%s has what %s has not (it answered %d)", lease->url, t->lacking, t->lacking_status);
    if (!y->e.code && lacks(y->status)) {
        t->n_lacking++;
        t->lacking_status = y->status;
        memcpy(t->lacking, lease->url, sizeof t->lacking);
    }
    bool lost = y->outcome == CLIME_OUTCOME_WORKER && y->connected && !y->progressed && !y->refused;
    bool new = !(t->seen_failing[lease->slot / 64] >> (lease->slot % 64) & 1); /* a worker counts once */
    if (!new || !(lost || y->outcome == CLIME_OUTCOME_UNKNOWN)) return;
    t->seen_failing[lease->slot / 64] |= (uint64_t)1 << (lease->slot % 64);
    t->n_suspect++;
}

/* Logs every error reply of the router's own, and every further worker tried. */
static void log_failure(const struct asking *a, bool again) {
    const struct clime_relay *y = a->y;
    char status[24];
    if (!again && (!y->e.code || y->client_gone || y->cut)) return;
    if (y->outcome == CLIME_OUTCOME_CLIENT && !y->e.code)
        return; /* the next worker's answer decides whose fault it is */
    snprintf(status, sizeof status, "status %d", y->status);
    LOG_WARN("a request on %s failed (%s)%s", a->lease.url, y->e.code ? y->e.msg : status,
             !again      ? ""
             : y->stream ? ", going on with its stream on another worker"
                         : ", trying another worker");
}

/* Tries workers until one answers. Sets y->e when none did. */
static void serve(struct clime_relay *y, const struct clime_route_request *request) {
    struct clime_router *r = y->router;
    struct asking a = {.y = y, .request = request};
    a.call = (struct clime_router_queue_call){.line = request->target.len ? request->target : request->label,
                                              .rids = request->rids,
                                              .take = take,
                                              .gone = is_over,
                                              .waits = waits,
                                              .arg = &a};
    for (int turn = 0; turn <= r->max_retries || y->stream; turn++) {
        struct clime_error none = {0};
        if (!pick(&a, &none)) {
            bool aborted = none.code == CLIME_ERR_ABORTED;
            if (turn == 0 || aborted) { /* else the last worker's answer is the better message */
                y->e = none;
                y->call_failed = false;
            }
            break;
        }
        y->settled = a.t.n_silent >= MOST_SUSPECT || turn >= r->max_retries;
        clime_relay_attempt(y, &a.lease);
        count_trial(&a);
        bool again = may_try_again(y, &a.t) && (!y->stream || clime_relay_go_on(y));
        log_failure(&a, again);
        if (!again) break;
        clime_metric_add(y->stream ? r->m_replays : r->m_retries, 1);
    }
    clime_router_queue_done(r->queue, &a.call);
}

static void proxy(struct clime_router *r, struct clime_http_request *rq) {
    struct clime_arena arena;
    struct clime_route_request request;
    struct clime_relay y;
    struct clime_error e;
    char *target;
    struct clime_str path, session = session_of(rq, &path);
    if (clime_forward_target(path, clime_http_query_string(rq), &target, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    struct clime_str body = clime_http_body(rq);
    clime_arena_init(&arena, body.len + 4096);
    clime_route_request_read(&request, session, body, &arena);
    request.label = clime_str_of(clime_http_header(rq, "X-Clime-Worker-Label"));
    request.target = clime_str_of(clime_http_header(rq, "X-SMG-Target-Worker"));
    clime_relay_init(&y, r, rq, target);
    serve(&y, &request);
    bool is_native = clime_str_is(path, "/generate") && request.single;
    if (y.e.code == CLIME_ERR_ABORTED && is_native && !y.stream)
        clime_router_reply_aborted(rq, &request);
    else
        clime_relay_finish(&y);
    clime_relay_free(&y);
    clime_arena_free(&arena);
    free(target);
}

void clime_router_proxy(struct clime_http_request *rq, void *context) {
    struct clime_router *r = context;
    int64_t t0 = clime_now_us();
    int n = atomic_fetch_add(&r->in_flight, 1) + 1;
    clime_metric_set(r->m_in_flight, n);
    if (atomic_load(&r->phase) != CLIME_ROUTER_SERVING)
        clime_http_reply_error(rq, 503, "the router is stopping; ask again");
    else if (clime_forward_returns(r, rq))
        clime_http_reply_error(rq, 503, clime_forward_returned);
    else
        proxy(r, rq);
    clime_metric_set(r->m_in_flight, atomic_fetch_sub(&r->in_flight, 1) - 1);
    clime_metric_add(r->m_requests, 1);
    clime_metric_observe(r->m_seconds, (double)(clime_now_us() - t0) / 1e6);
}
