/* Sends one control call (abort, pause, continue, flush, weights from disk, ...) to every worker at the same time and
 * answers with a result for each: {"success", "workers": [{"url","status","body"}]}. 200 when all did it, 207 when some
 * did, 502 when none did, 503 without workers. Runs on an HTTP thread; one short-lived thread a worker. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/http/client.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "router/router.h"

struct one {
    struct clime_router *r;
    struct clime_http_request *rq; /* read only, while the handler waits in join */
    struct clime_worker_view view;
    pthread_t thread;
    bool started;
    enum clime_err err;
    struct clime_error e;
    int status;
    struct clime_buf body;
};

static void *call_one(void *arg) {
    struct one *o = arg;
    char *url = clime_router_url(o->view.url, o->rq);
    char *method = xstrndup(clime_http_method(o->rq).ptr, clime_http_method(o->rq).len);
    const char *auth = clime_http_header(o->rq, "Authorization");
    char *auth_line = auth && !o->r->worker_key ? xasprintf("Authorization: %s", auth) : NULL;
    const char *headers[] = {auth_line, NULL};
    struct clime_http_call call = {
        .method = method,
        .url = url,
        .body = clime_http_body(o->rq),
        .headers = headers,
        .bearer = o->r->worker_key,
        .timeout_us = o->r->control_timeout_us,
        .max_reply = (size_t)1 << 20,
    };
    struct clime_http_result res = {0};
    struct clime_http_client *client = clime_http_client_new();
    o->err = clime_http_client_call(client, &call, &res, &o->e);
    o->status = res.status;
    o->body = res.reply;
    clime_http_client_free(client);
    free(auth_line);
    free(method);
    free(url);
    return NULL;
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

static void write_one(struct clime_jw *w, const struct one *o) {
    clime_jw_object(w);
    clime_jw_key(w, "url");
    clime_jw_strz(w, o->view.url);
    clime_jw_key(w, "status");
    clime_jw_int(w, o->err ? 0 : o->status);
    clime_jw_key(w, "body");
    if (o->err)
        clime_jw_strz(w, o->e.msg);
    else if (is_json(clime_buf_str(&o->body)))
        clime_jw_raw(w, clime_buf_str(&o->body));
    else
        clime_jw_str(w, clime_buf_str(&o->body));
    clime_jw_close(w);
}

void clime_router_fanout(struct clime_http_request *rq, void *context) {
    struct clime_router *r = context;
    struct clime_worker_view *views = xcalloc(CLIME_WORKERS_MAX, sizeof *views);
    int n = clime_workers_list(r->workers, views, CLIME_WORKERS_MAX), n_ok = 0;
    struct one *all = xcalloc((size_t)n + 1, sizeof *all);
    for (int i = 0; i < n; i++) {
        all[i] = (struct one){.r = r, .rq = rq, .view = views[i]};
        all[i].started = pthread_create(&all[i].thread, NULL, call_one, &all[i]) == 0;
        if (!all[i].started) all[i].err = clime_fail(&all[i].e, CLIME_ERR_LIMIT, "no thread for this call");
    }
    for (int i = 0; i < n; i++) {
        if (all[i].started) pthread_join(all[i].thread, NULL);
        n_ok += !all[i].err && all[i].status >= 200 && all[i].status < 300;
    }
    struct clime_buf out;
    struct clime_jw w;
    clime_buf_init(&out, (size_t)300 << 20);
    clime_jw_init(&w, &out);
    clime_jw_object(&w);
    clime_jw_key(&w, "success");
    clime_jw_bool(&w, n > 0 && n_ok == n);
    clime_jw_key(&w, "workers");
    clime_jw_array(&w);
    for (int i = 0; i < n; i++) write_one(&w, &all[i]);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_http_reply_json(rq, n == 0 ? 503 : n_ok == n ? 200 : n_ok ? 207 : 502, clime_buf_str(&out));
    clime_buf_free(&out);
    for (int i = 0; i < n; i++) clime_buf_free(&all[i].body);
    free(all);
    free(views);
}
