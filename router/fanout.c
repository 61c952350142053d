/* Control calls (abort, pause, continue, flush, ...) to all workers (fanout.h). Runs on an HTTP thread, with one
 * short-lived thread per worker, each with its own client, closed at the end of the call. */
#include "router/fanout.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/json/scan.h"
#include "router/address.h"
#include "router/forward.h"

#define LARGEST_REPLY ((size_t)16 << 20) /* of one worker: checksums of a hundred thousand tensors */
#define ALL_REPLIES ((size_t)512 << 20)  /* held at a time */
#define MOMENT_US 5000000                /* grace beyond a call's own limit, for its reply to arrive */

struct one {
    struct clime_router *r;
    struct clime_http_request *rq; /* read-only while the handler is in join */
    const char *target;
    int slot;
    int64_t id, began_us; /* of the worker */
    int64_t limit_us;
    size_t most_bytes;
    const char *key; /* the worker's */
    pthread_t thread;
    bool started;
    struct clime_fanout_result *result;
};

static bool given_up(void *arg) {
    const struct one *o = arg;
    if (atomic_load(&o->r->phase) == CLIME_ROUTER_CUTTING || clime_http_peer_gone(o->rq)) return true;
    bool had_its_time = clime_now_us() > o->began_us + o->r->probe_timeout_us;
    return had_its_time && clime_workers_silence(o->r->workers, o->slot, o->id).frozen_since_us != 0;
}

static void *call_one(void *arg) {
    struct one *o = arg;
    struct clime_fanout_result *out = o->result;
    char *url = xasprintf("%s%s", out->url, o->target);
    char *method = clime_forward_method(o->rq);
    struct clime_headers headers;
    clime_forward_headers(o->r, o->key, o->rq, &headers);
    struct clime_http_call call = {
        .method = method,
        .url = url,
        .body = clime_http_body(o->rq),
        .headers = (const char *const *)headers.lines,
        .bearer = o->key && o->key[0] ? o->key : NULL,
        .timeout_us = o->limit_us,
        .max_reply = o->most_bytes,
        .cancel = given_up,
        .arg = o,
    };
    struct clime_http_result res = {0};
    struct clime_error e;
    struct clime_http_client *client = clime_http_client_new();
    enum clime_err err = clime_http_client_call(client, &call, &res, &e);
    clime_http_client_free(client);
    out->body = res.reply;
    if (err) {
        char *said = clime_address_said(o->rq, out->url, e.msg, true);
        clime_buf_clear(&out->body);
        clime_buf_adds(&out->body, err != CLIME_ERR_ABORTED      ? said
                                   : clime_http_peer_gone(o->rq) ? "who asked for it is gone"
                                                                 : "it answers neither this nor its probes");
        free(said);
    } else {
        out->status = res.status;
    }
    clime_forward_headers_free(&headers);
    free(method);
    free(url);
    return NULL;
}

bool clime_fanout_run(struct clime_fanout *f, struct clime_router *r, struct clime_http_request *rq) {
    struct clime_error e;
    char *target;
    if (clime_forward_returns(r, rq)) {
        clime_http_reply_error(rq, 503, clime_forward_returned);
        return false;
    }
    if (clime_forward_target(clime_http_path(rq), clime_http_query_string(rq), &target, &e)) {
        clime_http_reply_err(rq, &e);
        return false;
    }
    clime_fanout_run_to(f, r, rq, target);
    free(target);
    return true;
}

/* A call that waits on the worker (/pause, /flush_cache) may set its limit with ?timeout=SECONDS. */
static int64_t limit_of(const struct clime_router *r, const struct clime_http_request *rq) {
    struct clime_error e;
    double asked_s = 0;
    if (clime_http_query_seconds(rq, "timeout", 3600, &asked_s, &e))
        return r->control_timeout_us; /* the worker refuses a bad value */
    int64_t asked_us = (int64_t)(asked_s * 1e6) + MOMENT_US;
    return asked_s > 0 && asked_us > r->control_timeout_us ? asked_us : r->control_timeout_us;
}

/* The 4xx with which a worker refused the client's request; 0 = not the client's fault. A refused key counts where it
 * is the client's. */
static int refusal_of(const struct one *o) {
    int status = o->result->status;
    if (o->key && (status == 401 || status == 403)) return 0;
    return status >= 400 && status < 500 ? status : 0;
}

void clime_fanout_run_to(struct clime_fanout *f, struct clime_router *r, struct clime_http_request *rq,
                         const char *target) {
    *f = (struct clime_fanout){0};
    struct clime_worker_view *views = xcalloc(CLIME_WORKERS_MAX, sizeof *views);
    f->n = clime_workers_list(r->workers, views, CLIME_WORKERS_MAX);
    f->results = xcalloc((size_t)f->n + 1, sizeof *f->results);
    struct one *all = xcalloc((size_t)f->n + 1, sizeof *all);
    for (int i = 0; i < f->n; i++) {
        f->results[i].id = views[i].id;
        memcpy(f->results[i].url, views[i].url, sizeof views[i].url);
        clime_address_name(rq, views[i].id, views[i].url, f->results[i].name);
        all[i] = (struct one){.r = r, .rq = rq, .target = target, .slot = views[i].slot, .id = views[i].id};
        all[i].began_us = clime_now_us();
        all[i].limit_us = limit_of(r, rq);
        all[i].most_bytes = ALL_REPLIES / (size_t)f->n < LARGEST_REPLY ? ALL_REPLIES / (size_t)f->n : LARGEST_REPLY;
        all[i].key = clime_forward_key(r, views[i].key, views[i].named, rq);
        all[i].result = &f->results[i];
        all[i].started = pthread_create(&all[i].thread, NULL, call_one, &all[i]) == 0;
        if (!all[i].started) call_one(&all[i]); /* no thread available: call in turn */
    }
    for (int i = 0; i < f->n; i++) {
        if (all[i].started) pthread_join(all[i].thread, NULL);
        int status = f->results[i].status;
        f->n_partly += status == 207;
        f->n_ok += status >= 200 && status < 300 && status != 207;
        int refusal = refusal_of(&all[i]);
        f->refusal = i == 0 || f->refusal == refusal ? refusal : 0;
    }
    free(all);
    free(views);
}

void clime_fanout_free(struct clime_fanout *f) {
    for (int i = 0; i < f->n; i++) clime_buf_free(&f->results[i].body);
    free(f->results);
}

int clime_fanout_status(const struct clime_fanout *f) {
    if (f->n == 0) return 503;
    if (f->n_ok || f->n_partly) return f->n_ok == f->n ? 200 : 207;
    return f->refusal ? f->refusal : 502;
}

static bool is_json(struct clime_str s) {
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    clime_arena_init(&arena, s.len + 1024);
    clime_json_init(&j, s.ptr, s.len, &arena, &e);
    clime_json_skip(&j, NULL);
    bool ok = clime_json_end(&j);
    clime_arena_free(&arena);
    return ok;
}

void clime_fanout_write(const struct clime_fanout *f, const struct clime_http_request *rq, struct clime_jw *w) {
    clime_jw_put_bool(w, "success", f->n > 0 && f->n_ok == f->n);
    clime_jw_key(w, "workers");
    clime_jw_array(w);
    for (int i = 0; i < f->n; i++) {
        struct clime_str body = clime_buf_str(&f->results[i].body);
        clime_jw_object(w);
        clime_address_write(rq, f->results[i].id, f->results[i].url, w);
        clime_jw_put_int(w, "status", f->results[i].status);
        clime_jw_key(w, "body");
        if (f->results[i].status && is_json(body))
            clime_jw_raw(w, body);
        else
            clime_jw_str(w, body);
        clime_jw_close(w);
    }
    clime_jw_close(w);
}
