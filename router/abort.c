/* Calls that end requests: /abort_request (SGLang's), /abort_requests (vLLM's), pauses with mode abort, and updates
 * with abort_all_requests. Waiting requests are ended here, and so are those that lose their worker later; the rest by
 * their workers. Runs on HTTP threads; owns nothing.
 *
 * The queue is searched first: a request that gets its turn meanwhile is found by its worker. */
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "router/fanout.h"
#include "router/policy/request.h"
#include "router/queue.h"

#define ANSWER_CAP ((size_t)512 << 20) /* all workers together */

struct meant { /* parsed body; one that the workers refuse matches nothing */
    bool all;
    struct clime_str prefix; /* empty = none */
    struct clime_str *ids;   /* [n] complete ids */
    int n;
};

static bool means_one(const struct meant *m, struct clime_str rid) {
    bool is = m->prefix.len && rid.len >= m->prefix.len && !memcmp(rid.ptr, m->prefix.ptr, m->prefix.len);
    for (int i = 0; i < m->n && !is; i++) is = rid.len > 0 && clime_str_eq(rid, m->ids[i]);
    return is;
}

/* True for a JSON string without escapes. Nearly every id is one, and every abort compares all running ids. */
static bool is_plain(struct clime_str json, struct clime_str *out) {
    if (json.len < 2 || json.ptr[0] != '"' || memchr(json.ptr, '\\', json.len)) return false;
    *out = (struct clime_str){json.ptr + 1, json.len - 2};
    return true;
}

/* True when aborts have named all of a request's prompts, at once or over several aborts; else it waits on for the
 * answers of the others. */
static bool means(const void *arg, struct clime_router_queue_call *call) {
    const struct meant *m = arg;
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_str rid;
    if (m->all || !call->rids.len) return m->all;
    if (is_plain(call->rids, &rid)) return means_one(m, rid);
    int n = 0, n_meant = 0;
    clime_arena_init(&arena, call->rids.len + 4096);
    clime_json_init(&j, call->rids.ptr, call->rids.len, &arena, &e);
    bool listed = clime_json_peek(&j) == CLIME_JSON_ARRAY;
    if (listed) clime_json_array(&j);
    if (!call->meant) call->meant = xcalloc(call->rids.len, sizeof *call->meant); /* more than the list can hold */
    for (; (listed ? clime_json_item(&j) : n == 0) && clime_json_string(&j, &rid); n++) {
        call->meant[n] = call->meant[n] || means_one(m, rid);
        n_meant += call->meant[n];
    }
    bool is = clime_json_end(&j) && n > 0 && n_meant == n;
    clime_arena_free(&arena);
    return is;
}

static void read_prefix(struct clime_json *j, struct meant *m) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        enum clime_json_kind kind = clime_json_peek(j);
        if (clime_str_is(key, "rid") && kind == CLIME_JSON_STRING)
            clime_json_string(j, &m->prefix);
        else if (clime_str_is(key, "abort_all") && kind == CLIME_JSON_BOOL)
            clime_json_bool(j, &m->all);
        else
            clime_json_skip(j, NULL);
    }
}

static void read_ids(struct clime_json *j, struct meant *m) {
    int size = 0;
    for (clime_json_array(j); clime_json_item(j); m->n++) {
        if (m->n == size) {
            size = size ? 2 * size : 64;
            m->ids = xrealloc(m->ids, (size_t)size * sizeof *m->ids);
        }
        if (!clime_json_string(j, &m->ids[m->n])) return;
    }
}

/* null or an absent member means all. */
static void read_list(struct clime_json *j, struct meant *m) {
    struct clime_str key;
    m->all = true;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (!clime_str_is(key, "request_ids") || clime_json_peek(j) == CLIME_JSON_NULL) {
            clime_json_skip(j, NULL);
            continue;
        }
        m->all = false;
        m->n = 0;
        read_ids(j, m);
    }
}

/* SGLang's pause: the default mode is abort. */
static void read_pause(struct clime_json *j, struct meant *m) {
    struct clime_str key, mode = {"abort", 5};
    for (clime_json_object(j); clime_json_key(j, &key);) {
        enum clime_json_kind kind = clime_json_peek(j);
        if (clime_str_is(key, "mode") && kind != CLIME_JSON_NULL) mode.len = 0;
        if (clime_str_is(key, "mode") && kind == CLIME_JSON_STRING)
            clime_json_string(j, &mode);
        else
            clime_json_skip(j, NULL);
    }
    m->all = clime_str_is(mode, "abort");
}

static void read_update(struct clime_json *j, struct meant *m) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (clime_str_is(key, "abort_all_requests") && clime_json_peek(j) == CLIME_JSON_BOOL)
            clime_json_bool(j, &m->all);
        else
            clime_json_skip(j, NULL);
}

/* Reads a body with `read`; without one, or if it is not JSON, m stays unchanged. */
static void read_body(const struct clime_http_request *rq, void (*read)(struct clime_json *j, struct meant *m),
                      struct clime_arena *arena, struct meant *m) {
    struct clime_str body = clime_http_body(rq);
    struct clime_json j;
    struct clime_error e;
    struct meant said = {0};
    if (!body.len) return;
    clime_json_init(&j, body.ptr, body.len, arena, &e);
    read(&j, &said);
    if (!clime_json_end(&j)) {
        free(said.ids);
        said = (struct meant){0};
    }
    *m = said;
}

/* Ends waiting requests, then asks all workers. */
static void run(struct clime_http_request *rq, struct clime_router *r, const struct meant *m) {
    struct clime_fanout f;
    struct clime_buf out;
    struct clime_jw w;
    int n_waited = clime_router_queue_abort(r->queue, means, m);
    if (!clime_fanout_run(&f, r, rq)) return;
    clime_buf_init(&out, ANSWER_CAP);
    clime_jw_init(&w, &out);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "num_waiting_aborted", n_waited);
    clime_fanout_write(&f, rq, &w);
    clime_jw_close(&w);
    clime_http_reply_json(rq, clime_fanout_status(&f), clime_buf_str(&out));
    clime_buf_free(&out);
    clime_fanout_free(&f);
}

static void run_as_body_says(struct clime_http_request *rq, struct clime_router *r,
                             void (*read)(struct clime_json *j, struct meant *m), bool all_without_body) {
    struct meant m = {.all = all_without_body};
    struct clime_arena arena;
    clime_arena_init(&arena, clime_http_body(rq).len + 4096);
    read_body(rq, read, &arena, &m);
    run(rq, r, &m);
    free(m.ids);
    clime_arena_free(&arena);
}

void clime_router_abort(struct clime_http_request *rq, void *context) {
    run_as_body_says(rq, context, read_prefix, false);
}

void clime_router_abort_requests(struct clime_http_request *rq, void *context) {
    run_as_body_says(rq, context, read_list, true);
}

void clime_router_pause(struct clime_http_request *rq, void *context) {
    run_as_body_says(rq, context, read_pause, true);
}

int clime_router_update_aborts(const struct clime_http_request *rq, struct clime_router *r) {
    struct meant m = {0};
    struct clime_arena arena;
    clime_arena_init(&arena, clime_http_body(rq).len + 4096);
    read_body(rq, read_update, &arena, &m);
    clime_arena_free(&arena);
    return clime_router_queue_abort(r->queue, means, &m);
}

/* vLLM's pause, by query: the default mode is abort, unless the older wait_for_inflight_requests is set. */
void clime_router_pause_by_query(struct clime_http_request *rq, void *context) {
    struct meant m = {0};
    struct clime_error e;
    char mode[32];
    bool given, waits = false;
    if (!clime_http_query_bool(rq, "wait_for_inflight_requests", &waits, &e) &&
        !clime_http_query(rq, "mode", mode, sizeof mode, &given, &e))
        m.all = given ? !strcmp(mode, "abort") : !waits;
    run(rq, context, &m);
}

void clime_router_reply_aborted(struct clime_http_request *rq, const struct clime_route_request *request) {
    struct clime_buf out;
    struct clime_jw w;
    clime_buf_init(&out, (size_t)1 << 20);
    if (request->stream) clime_buf_adds(&out, "data: ");
    clime_jw_init(&w, &out);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "text", "");
    clime_jw_key(&w, "output_ids");
    clime_jw_array(&w);
    clime_jw_close(&w);
    clime_jw_key(&w, "meta_info");
    clime_jw_object(&w);
    clime_jw_key(&w, "id");
    if (request->rids.len && request->rids.ptr[0] == '"')
        clime_jw_raw(&w, request->rids);
    else
        clime_jw_strz(&w, "");
    clime_jw_key(&w, "finish_reason");
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "type", "abort");
    clime_jw_put_strz(&w, "message", "aborted while it waited for a worker");
    clime_jw_close(&w);
    clime_jw_put_int(&w, "prompt_tokens", request->prompt);
    clime_jw_put_int(&w, "completion_tokens", 0);
    clime_jw_put_int(&w, "cached_tokens", 0);
    clime_jw_close(&w);
    clime_jw_close(&w);
    if (request->stream) clime_buf_adds(&out, "\n\ndata: [DONE]\n\n");
    clime_http_reply(rq, 200, request->stream ? "text/event-stream" : "application/json", NULL, clime_buf_str(&out));
    clime_buf_free(&out);
}
