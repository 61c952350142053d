/* Passes one generation request to a worker and its answer back. Runs on HTTP threads.
 *
 * Streams go through chunk by chunk, unread; other answers are passed when whole, so that until the first byte is sent
 * to the client another worker may be tried. A retry never goes to a worker that this request has failed on, and never
 * happens after the first byte: the client sees a stream that breaks, as it would without a router.
 * Retried: no connection, a broken or silent one, and the statuses 429, 500, 502, 503, 504. */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/log.h"
#include "router/request.h"
#include "router/router.h"

#define MAX_PASSED_HEADERS 1024

struct passage { /* one attempt */
    struct clime_http_request *rq;
    struct clime_http_stream *stream; /* set once the client has been sent the head of a stream */
    struct clime_buf body;            /* an answer that is no stream */
    int status;
    bool is_stream;
    bool client_gone;
    char content_type[128];
    char retry_after[32];
    int64_t next_look_us; /* when to ask again whether the client is still there */
};

static bool is_retried(int status) {
    return status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

static void on_header(void *arg, int status, const char *name, const char *value) {
    struct passage *p = arg;
    p->status = status;
    if (!strcasecmp(name, "content-type")) {
        snprintf(p->content_type, sizeof p->content_type, "%s", value);
        p->is_stream = status == 200 && !strncasecmp(value, "text/event-stream", 17);
    }
    if (!strcasecmp(name, "retry-after")) snprintf(p->retry_after, sizeof p->retry_after, "%s", value);
}

static bool on_data(void *arg, const char *data, size_t len) {
    struct passage *p = arg;
    if (!p->is_stream) {
        clime_buf_add(&p->body, data, len);
        return !p->body.full;
    }
    if (!p->stream) p->stream = clime_http_stream_begin(p->rq, 200, p->content_type, "Cache-Control: no-cache\r\n");
    if (clime_http_stream_write(p->stream, data, len)) return true;
    p->client_gone = true;
    return false;
}

static bool cancelled(void *arg) {
    struct passage *p = arg;
    int64_t now = clime_now_us();
    if (clime_http_stopping(p->rq)) return true;
    if (now >= p->next_look_us) {
        p->next_look_us = now + 250000;
        p->client_gone = p->client_gone || clime_http_peer_gone(p->rq);
    }
    return p->client_gone;
}

/* The client's headers that a worker may care for. */
static int pass_headers(struct clime_http_request *rq, const struct clime_router *r, char store[][MAX_PASSED_HEADERS],
                        const char **out, int max) {
    static const char *const names[] = {"X-Request-ID", "X-Session-ID", "X-SMG-Routing-Key", "Authorization"};
    int n = 0;
    for (size_t i = 0; i < CLIME_COUNT(names) && n < max; i++) {
        const char *v = clime_http_header(rq, names[i]);
        if (!v || (r->worker_key && !strcmp(names[i], "Authorization"))) continue;
        snprintf(store[n], MAX_PASSED_HEADERS, "%s: %s", names[i], v);
        out[n] = store[n];
        n++;
    }
    out[n] = NULL;
    return n;
}

/* One attempt on the leased worker. Returns the transport's error; p->status is the worker's answer. */
static enum clime_err attempt(struct clime_router *r, struct clime_http_request *rq, const struct clime_lease *lease,
                              struct passage *p, struct clime_error *e) {
    char headers[4][MAX_PASSED_HEADERS];
    const char *header_list[5];
    char *url = clime_router_url(lease->url, rq);
    char *method = xstrndup(clime_http_method(rq).ptr, clime_http_method(rq).len);
    pass_headers(rq, r, headers, header_list, 4);
    struct clime_http_call call = {
        .method = method,
        .url = url,
        .body = clime_http_body(rq),
        .headers = header_list,
        .bearer = r->worker_key,
        .timeout_us = r->request_timeout_us,
        .max_reply = r->max_reply,
        .on_data = on_data,
        .on_header = on_header,
        .cancel = cancelled,
        .arg = p,
    };
    struct clime_http_result res = {0};
    enum clime_err err = clime_http_client_call(clime_router_client(), &call, &res, e);
    if (!err) p->status = res.status;
    clime_buf_free(&res.reply);
    free(url);
    free(method);
    return err;
}

/* Ends the exchange with the client. Returns whether the answer was passed whole. */
static void finish(struct passage *p, enum clime_err err, const struct clime_error *e) {
    if (p->stream) {
        clime_http_stream_end(p->stream, err == CLIME_OK);
    } else if (err) {
        clime_http_reply_err(p->rq, e);
    } else {
        char extra[64] = "";
        if (p->retry_after[0]) snprintf(extra, sizeof extra, "Retry-After: %s\r\n", p->retry_after);
        clime_http_reply(p->rq, p->status, p->content_type[0] ? p->content_type : "application/json",
                         extra[0] ? extra : NULL, clime_buf_str(&p->body));
    }
}

static struct clime_str session_of(struct clime_http_request *rq) {
    const char *v = clime_http_header(rq, "X-SMG-Routing-Key");
    if (!v) v = clime_http_header(rq, "X-Session-ID");
    return clime_str_of(v);
}

static void serve(struct clime_router *r, struct clime_http_request *rq) {
    uint64_t tried[CLIME_WORKERS_MAX / 64] = {0};
    int64_t cost = clime_request_cost(clime_http_body(rq));
    struct clime_error e = {0};
    struct passage p = {.rq = rq};
    enum clime_err err = CLIME_OK;
    clime_buf_init(&p.body, r->max_reply);
    for (int turn = 0;; turn++) {
        struct clime_lease lease;
        struct clime_error none = {0};
        enum clime_err pick_err = clime_workers_pick(r->workers, session_of(rq), cost, tried, &lease, &none);
        if (pick_err) { /* the last worker's own answer says more than "none is left" */
            if (turn == 0) {
                err = pick_err;
                e = none;
            }
            break;
        }
        clime_buf_clear(&p.body);
        p = (struct passage){.rq = rq, .body = p.body, .next_look_us = clime_now_us() + 250000};
        err = attempt(r, rq, &lease, &p, &e);
        bool failed = err ? !p.client_gone && err != CLIME_ERR_LIMIT : p.status >= 500;
        bool busy = !err && p.status == 429;
        clime_workers_release(r->workers, &lease,
                              failed        ? CLIME_LEASE_FAILED
                              : busy || err ? CLIME_LEASE_NEUTRAL
                                            : CLIME_LEASE_OK);
        tried[lease.slot / 64] |= (uint64_t)1 << (lease.slot % 64);
        bool again = (failed || busy) && (err || is_retried(p.status)) && !p.stream && turn < r->max_retries &&
                     !clime_http_stopping(rq);
        if (!again) break;
        LOG_WARN("request on %s failed (%s), trying another worker", lease.url, err ? e.msg : "its status");
        clime_metric_add(r->m_retries, 1);
    }
    finish(&p, err, &e);
    clime_buf_free(&p.body);
}

void clime_router_proxy(struct clime_http_request *rq, void *context) {
    struct clime_router *r = context;
    int64_t t0 = clime_now_us();
    int n = atomic_fetch_add(&r->in_flight, 1) + 1;
    clime_metric_set(r->m_in_flight, n);
    serve(r, rq);
    clime_metric_set(r->m_in_flight, atomic_fetch_sub(&r->in_flight, 1) - 1);
    clime_metric_add(r->m_requests, 1);
    clime_metric_observe(r->m_seconds, (double)(clime_now_us() - t0) / 1e6);
}
