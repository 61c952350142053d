/* Registry of workers over HTTP: /workers (POST, GET, PUT, PATCH, DELETE), the older /add_worker, /remove_worker,
 * /list_workers, and the router's own /health and /metrics. Runs on HTTP threads. Formats as in SGLang's gateway, so
 * its clients work unchanged. */
#include <stdio.h>
#include <stdlib.h>

#include "common/http/openapi.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/log.h"
#include "router/address.h"
#include "router/queue.h"
#include "router/router.h"
#include "router/worker_body.h"

#define LIST_CAP ((size_t)CLIME_WORKERS_MAX << 13) /* a worker's labels and version take less than 6 KiB as JSON */

static const char *state_name(enum clime_worker_state s) {
    switch (s) {
    case CLIME_WORKER_READY:
        return "ready";
    case CLIME_WORKER_DOWN:
        return "down";
    case CLIME_WORKER_STALE:
        return "stale";
    case CLIME_WORKER_DRAINING:
        return "draining";
    case CLIME_WORKER_FREE:
        break;
    }
    return "free";
}

static void write_labels(struct clime_jw *w, const char *labels) {
    clime_jw_object(w);
    for (const char *at = labels + (*labels == '\n'); *at; at += strcspn(at, "\n") + 1) {
        size_t name = strcspn(at, "="), all = strcspn(at, "\n");
        clime_jw_key_str(w, (struct clime_str){at, name});
        clime_jw_str(w, (struct clime_str){at + name + 1, all - name - 1});
    }
    clime_jw_close(w);
}

static void write_worker(struct clime_jw *w, const struct clime_http_request *rq, const struct clime_worker_view *v) {
    clime_jw_object(w);
    clime_address_write(rq, v->id, v->url, w);
    clime_jw_put_strz(w, "worker_type", "regular");
    clime_jw_put_bool(w, "is_healthy", v->state == CLIME_WORKER_READY);
    clime_jw_put_strz(w, "status", state_name(v->state));
    clime_jw_key(w, "weight_version"); /* null: unknown, since the fleet has no version */
    clime_jw_strz(w, v->version[0] ? v->version : NULL);
    clime_jw_key(w, "labels");
    write_labels(w, v->labels);
    clime_jw_key(w, "has_api_key"); /* whether it has its own key, never the key */
    clime_jw_bool(w, v->key[0] != 0);
    clime_jw_key(w, "capacity"); /* null: unknown */
    if (v->capacity > 0)
        clime_jw_int(w, v->capacity);
    else
        clime_jw_null(w);
    clime_jw_put_bool(w, "on_trial", v->trial);
    clime_jw_put_int(w, "load", v->requests);
    clime_jw_put_int(w, "tokens", v->tokens);
    clime_jw_put_int(w, "served", v->served);
    clime_jw_put_int(w, "failed", v->failed);
    clime_jw_close(w);
}

static void reply(struct clime_http_request *rq, int status, struct clime_buf *out) {
    clime_http_reply_json(rq, status, clime_buf_str(out));
    clime_buf_free(out);
}

/* Writes {"urls": [...]} of all workers, or an object for the one with this id (0 = all). */
static bool write_list(struct clime_router *r, struct clime_http_request *rq, struct clime_buf *out, int64_t id,
                       bool urls_only) {
    struct clime_worker_view *views = xcalloc(CLIME_WORKERS_MAX, sizeof *views);
    int n = clime_workers_list(r->workers, views, CLIME_WORKERS_MAX);
    bool found = false;
    struct clime_jw w;
    clime_buf_init(out, LIST_CAP);
    clime_jw_init(&w, out);
    if (!id) {
        clime_jw_object(&w);
        clime_jw_key(&w, urls_only ? "urls" : "workers");
        clime_jw_array(&w);
    }
    for (int i = 0; i < n; i++) {
        if (id && views[i].id != id) continue;
        found = true;
        if (urls_only)
            clime_jw_strz(&w, views[i].url);
        else
            write_worker(&w, rq, &views[i]);
    }
    if (!id) {
        clime_jw_close(&w);
        if (!urls_only) clime_jw_put_int(&w, "total", n);
        clime_jw_close(&w);
    }
    free(views);
    return found;
}

void clime_router_workers_get(struct clime_http_request *rq, void *context) {
    struct clime_buf out;
    write_list(context, rq, &out, 0, false);
    reply(rq, 200, &out);
}

void clime_router_list_workers(struct clime_http_request *rq, void *context) {
    struct clime_buf out;
    write_list(context, rq, &out, 0, true);
    reply(rq, 200, &out);
}

/* Adds the worker and probes it at once, so the reply's state is true. */
static void accept_worker(struct clime_http_request *rq, struct clime_router *r, const struct clime_worker_body *b,
                          int status) {
    struct clime_error e;
    struct clime_str url = b->url;
    int64_t id;
    if (clime_workers_add(r->workers, url, b->settings.health_port < 0 ? 0 : b->settings.health_port, &id, &e) ||
        clime_workers_set(r->workers, id, &b->settings, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    struct clime_worker_view view = {0};
    if (clime_workers_get(r->workers, id, &view)) clime_router_probe(r, &view);
    clime_workers_get(r->workers, id, &view);
    char location[64], text[24], extra[96];
    snprintf(text, sizeof text, "%lld", (long long)id);
    snprintf(location, sizeof location, "/workers/%lld", (long long)id);
    snprintf(extra, sizeof extra, "Location: %s\r\n", location);
    struct clime_buf out;
    struct clime_jw w;
    clime_buf_init(&out, 4096);
    clime_jw_init(&w, &out);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "status", "accepted");
    clime_jw_put_strz(&w, "worker_id", text);
    clime_jw_put_str(&w, "url", url);
    clime_jw_put_strz(&w, "location", location);
    clime_jw_put_strz(&w, "message",
                      view.state == CLIME_WORKER_READY ? "the worker takes requests now"
                      : view.state == CLIME_WORKER_STALE
                          ? "the worker will take requests when it has the fleet's weights"
                          : "the worker will take requests when it answers");
    clime_jw_close(&w);
    clime_http_reply(rq, status, "application/json", extra, clime_buf_str(&out));
    clime_buf_free(&out);
}

void clime_router_workers_post(struct clime_http_request *rq, void *context) {
    struct clime_arena arena;
    struct clime_error e = {0};
    struct clime_worker_body b;
    clime_arena_init(&arena, clime_http_body(rq).len + 4096);
    if (clime_worker_body_read(clime_http_body(rq), &arena, &b, &e))
        clime_http_reply_err(rq, &e);
    else if (!b.url.len)
        clime_http_reply_error(rq, 400, "the body needs a member \"url\"");
    else
        accept_worker(rq, context, &b, 202);
    clime_arena_free(&arena);
}

/* PUT replaces all settings, absent ones included; PATCH changes those present. */
static void change_worker(struct clime_http_request *rq, struct clime_router *r, int64_t id) {
    struct clime_arena arena;
    struct clime_error e = {0};
    struct clime_worker_body b;
    struct clime_buf out;
    clime_arena_init(&arena, clime_http_body(rq).len + 4096);
    enum clime_err err = clime_worker_body_read(clime_http_body(rq), &arena, &b, &e);
    if (!err && b.url.len)
        err = clime_fail(&e, CLIME_ERR_INPUT, "a worker's url is what it is known by: add another one instead");
    if (!err && clime_str_is(clime_http_method(rq), "PUT")) {
        if (!b.settings.key) b.settings.key = "";
        if (!b.settings.labels) b.settings.labels = "";
        if (b.settings.health_port < 0) b.settings.health_port = 0;
    }
    if (!err) err = clime_workers_set(r->workers, id, &b.settings, &e);
    if (err) {
        clime_http_reply_err(rq, &e);
    } else {
        write_list(r, rq, &out, id, false);
        reply(rq, 200, &out);
    }
    clime_arena_free(&arena);
}

void clime_router_worker_one(struct clime_http_request *rq, void *context) {
    struct clime_router *r = context;
    struct clime_str param = clime_http_param(rq), method = clime_http_method(rq);
    struct clime_error e;
    struct clime_buf out;
    char text[24] = "", *end = text;
    if (param.len < sizeof text) memcpy(text, param.ptr, param.len);
    long long id = strtoll(text, &end, 10);
    if (id <= 0 || end == text || *end) {
        clime_http_reply_error(rq, 404, "no such worker");
    } else if (clime_str_is(method, "PUT") || clime_str_is(method, "PATCH")) {
        change_worker(rq, r, id);
    } else if (clime_str_is(method, "DELETE")) {
        struct clime_str none = {0};
        if (clime_workers_remove(r->workers, id, none, &e))
            clime_http_reply_err(rq, &e);
        else
            clime_http_reply_json(rq, 202, clime_str_of("{\"status\":\"accepted\",\"message\":\"draining\"}"));
    } else if (write_list(r, rq, &out, id, false)) {
        reply(rq, 200, &out);
    } else {
        clime_buf_free(&out);
        clime_http_reply_error(rq, 404, "no such worker");
    }
}

void clime_router_finish_session(struct clime_http_request *rq, void *context) {
    struct clime_router *r = context;
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_str body = clime_http_body(rq), key, session = {"", 0};
    char id[4096];
    bool given;
    if (clime_http_query(rq, "session_id", id, sizeof id, &given, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    clime_arena_init(&arena, body.len + 1024);
    if (given) {
        session = clime_str_of(id);
    } else if (body.len) {
        clime_json_init(&j, body.ptr, body.len, &arena, &e);
        for (clime_json_object(&j); clime_json_key(&j, &key);)
            if (!clime_str_is(key, "session_id") || !clime_json_string(&j, &session)) clime_json_skip(&j, NULL);
        if (!clime_json_end(&j)) session.len = 0;
    }
    if (!session.len)
        clime_http_reply_error(rq, 400, "the query or the body needs a session_id");
    else if (clime_workers_finish_session(r->workers, session))
        clime_http_reply_json(rq, 200, clime_str_of("{\"finished\":true}"));
    else
        clime_http_reply_json(rq, 200, clime_str_of("{\"finished\":false,\"message\":\"it had no worker\"}"));
    clime_arena_free(&arena);
}

void clime_router_add_worker(struct clime_http_request *rq, void *context) {
    char url[CLIME_WORKER_URL], key[CLIME_WORKER_KEY];
    struct clime_worker_body b = {.settings = {.health_port = -1}};
    struct clime_error e;
    bool given, has_key;
    enum clime_err err = clime_http_query(rq, "url", url, sizeof url, &given, &e);
    if (!err) err = clime_http_query(rq, "api_key", key, sizeof key, &has_key, &e);
    if (!err && has_key) err = clime_worker_key_check(b.settings.key = key, &e);
    if (!err && has_key)
        LOG_WARN("a worker's key came in a query, which logs of addresses keep: POST /workers has a body");
    b.url = clime_str_of(url);
    if (err)
        clime_http_reply_err(rq, &e);
    else if (given)
        accept_worker(rq, context, &b, 200);
    else
        clime_http_reply_error(rq, 400, "the query needs url=http://host:port");
}

void clime_router_remove_worker(struct clime_http_request *rq, void *context) {
    struct clime_router *r = context;
    struct clime_error e;
    char url[CLIME_WORKER_URL];
    bool given, evict = false;
    if (clime_http_query(rq, "url", url, sizeof url, &given, &e) || clime_http_query_bool(rq, "evict", &evict, &e)) {
        clime_http_reply_err(rq, &e);
    } else if (!given) {
        clime_http_reply_error(rq, 400, "the query needs url=http://host:port");
    } else if (evict) {
        clime_workers_give_up(r->workers, clime_str_of(url));
        clime_http_reply_json(rq, 200, clime_str_of("{\"status\":\"accepted\",\"message\":\"evicted\"}"));
    } else if (clime_workers_remove(r->workers, 0, clime_str_of(url), &e)) {
        clime_http_reply_err(rq, &e);
    } else {
        clime_http_reply_json(rq, 200, clime_str_of("{\"status\":\"accepted\",\"message\":\"draining\"}"));
    }
}

/* ?worker=URL: the caller is that worker and learns whether it was evicted. */
void clime_router_health(struct clime_http_request *rq, void *context) {
    const struct clime_router *r = context;
    struct clime_error e;
    char body[96], url[CLIME_WORKER_URL];
    bool given;
    if (clime_http_query(rq, "worker", url, sizeof url, &given, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    bool evicted = given && clime_workers_is_evicted(r->workers, clime_str_of(url));
    snprintf(body, sizeof body, "{\"status\":\"ok\",\"instance\":\"%s\"%s}", r->instance,
             evicted ? ",\"evicted\":true" : "");
    clime_http_reply_json(rq, 200, clime_str_of(body));
}

void clime_router_openapi(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_openapi_router);
}

void clime_router_liveness(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_str_of("{\"status\":\"alive\"}"));
}

void clime_router_readiness(struct clime_http_request *rq, void *context) {
    struct clime_router *r = context;
    struct clime_worker_view *views = xcalloc(CLIME_WORKERS_MAX, sizeof *views);
    int n = clime_workers_list(r->workers, views, CLIME_WORKERS_MAX), n_ready = 0;
    for (int i = 0; i < n; i++) n_ready += views[i].state == CLIME_WORKER_READY;
    free(views);
    bool ready = n_ready > 0 && atomic_load(&r->phase) == CLIME_ROUTER_SERVING;
    char body[128];
    snprintf(body, sizeof body, "{\"status\":\"%s\",\"healthy_workers\":%d,\"total_workers\":%d}",
             ready ? "ready" : "not ready", n_ready, n);
    clime_http_reply_json(rq, ready ? 200 : 503, clime_str_of(body));
}

void clime_router_metrics(struct clime_http_request *rq, void *context) {
    struct clime_router *r = context;
    struct clime_worker_view *views = xcalloc(CLIME_WORKERS_MAX, sizeof *views);
    int n = clime_workers_list(r->workers, views, CLIME_WORKERS_MAX);
    struct clime_buf out;
    char name[CLIME_WORKER_URL];
    clime_buf_init(&out, (size_t)4 << 20);
    clime_metric_set(r->m_waiting, clime_router_queue_waiting(r->queue));
    clime_metrics_write(&out);
    clime_http_metrics(rq, &out);
    static const struct {
        const char *name, *help;
    } series[] = {
        {"clime_router_worker_ready", "1 when the worker takes requests"},
        {"clime_router_worker_tokens", "outstanding tokens"},
        {"clime_router_worker_requests", "outstanding requests"},
        {"clime_router_worker_served", "requests served"},
        {"clime_router_worker_failed", "requests failed"},
    };
    for (size_t s = 0; s < CLIME_COUNT(series) && clime_http_is_known(rq); s++) {
        clime_buf_printf(&out, "# HELP %s %s\n# TYPE %s gauge\n", series[s].name, series[s].help, series[s].name);
        for (int i = 0; i < n; i++) {
            int64_t values[] = {views[i].state == CLIME_WORKER_READY, views[i].tokens, views[i].requests,
                                views[i].served, views[i].failed};
            clime_address_name(rq, views[i].id, views[i].url, name);
            clime_buf_printf(&out, "%s{worker=\"%s\"} %lld\n", series[s].name, name, (long long)values[s]);
        }
    }
    clime_http_reply(rq, 200, "text/plain; version=0.0.4", NULL, clime_buf_str(&out));
    clime_buf_free(&out);
    free(views);
}
