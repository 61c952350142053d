/* /abort_request (SGLang's) and /abort_requests (vLLM's): those that wait in the queue are ended here, the others by
 * their workers. Runs on HTTP threads; owns nothing.
 *
 * Those that wait are meant first: one that gets its turn meanwhile is found by its worker.
 */
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "router/fanout.h"
#include "router/policy/request.h"
#include "router/queue.h"

#define ANSWER_CAP ((size_t)512 << 20) /* of all workers together */

struct meant { /* what the body says; a body that the workers refuse means nobody */
    bool all;
    struct clime_str prefix; /* empty = none */
    struct clime_str *ids;   /* [n] whole ones */
    int n;
};

static bool means(const void *arg, struct clime_str rid) {
    const struct meant *m = arg;
    bool is = m->all || (m->prefix.len && rid.len >= m->prefix.len && !memcmp(rid.ptr, m->prefix.ptr, m->prefix.len));
    for (int i = 0; i < m->n && !is; i++) is = rid.len > 0 && clime_str_eq(rid, m->ids[i]);
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

/* null, or no such member, means all. */
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

static void handle(struct clime_http_request *rq, struct clime_router *r,
                   void (*read)(struct clime_json *j, struct meant *m), bool all_without_body) {
    struct clime_str body = clime_http_body(rq);
    struct meant m = {.all = all_without_body};
    struct clime_fanout f;
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_buf out;
    struct clime_jw w;
    int n_waited = 0;
    clime_arena_init(&arena, body.len + 4096);
    clime_json_init(&j, body.ptr, body.len, &arena, &e);
    bool said = body.len == 0;
    if (!said) {
        read(&j, &m);
        said = clime_json_end(&j);
    }
    if (said && r->queue) n_waited = clime_router_queue_abort(r->queue, means, &m);
    free(m.ids);
    clime_arena_free(&arena);
    if (!clime_fanout_run(&f, r, rq)) return;
    clime_buf_init(&out, ANSWER_CAP);
    clime_jw_init(&w, &out);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "num_waiting_aborted", n_waited);
    clime_fanout_write(&f, &w);
    clime_jw_close(&w);
    clime_http_reply_json(rq, clime_fanout_status(&f), clime_buf_str(&out));
    clime_buf_free(&out);
    clime_fanout_free(&f);
}

void clime_router_abort(struct clime_http_request *rq, void *context) {
    handle(rq, context, read_prefix, false);
}

void clime_router_abort_requests(struct clime_http_request *rq, void *context) {
    handle(rq, context, read_list, true);
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
    clime_jw_put_str(&w, "id", request->rid);
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
