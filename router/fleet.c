/* Fleet-wide calls: control calls to all workers, their loads and versions in the format of one server, and the fleet's
 * version. Runs on HTTP threads; owns nothing. */
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/json/scan.h"
#include "common/version.h"
#include "router/fanout.h"
#include "router/queue.h"

#define ANSWER_CAP ((size_t)512 << 20) /* all workers together */

static void begin(struct clime_jw *w, struct clime_buf *out) {
    clime_buf_init(out, ANSWER_CAP);
    clime_jw_init(w, out);
    clime_jw_object(w);
}

static void answer(struct clime_http_request *rq, struct clime_fanout *f, struct clime_jw *w) {
    clime_fanout_write(f, rq, w);
    clime_jw_close(w);
    if (w->out->full)
        clime_http_reply_error(rq, 502, "the answers of the workers are larger than 512 MiB together; ask one by one");
    else
        clime_http_reply_json(rq, clime_fanout_status(f), clime_buf_str(w->out));
    clime_buf_free(w->out);
    clime_fanout_free(f);
}

void clime_router_fanout(struct clime_http_request *rq, void *context) {
    struct clime_fanout f;
    struct clime_buf out;
    struct clime_jw w;
    if (!clime_fanout_run(&f, context, rq)) return;
    begin(&w, &out);
    answer(rq, &f, &w);
}

/* ---- loads ---- */

/* Writes one load of a worker's list, with its rank in the fleet and its worker's name. */
static void write_load(struct clime_json *j, struct clime_jw *w, int rank, const char *worker) {
    struct clime_str key, raw;
    clime_jw_object(w);
    clime_jw_put_int(w, "dp_rank", rank);
    clime_jw_put_strz(w, "worker", worker);
    for (clime_json_object(j); clime_json_key(j, &key);) {
        bool replaced = clime_str_is(key, "dp_rank") || clime_str_is(key, "worker");
        if (!clime_json_skip(j, &raw) || replaced) continue;
        clime_jw_key_str(w, key);
        clime_jw_raw(w, raw);
    }
    clime_jw_close(w);
}

/* Writes a list of loads at j; w NULL: only checks. Returns the next rank. */
static int write_list(struct clime_json *j, struct clime_jw *w, int rank, const char *worker) {
    if (clime_json_peek(j) != CLIME_JSON_ARRAY) {
        clime_json_skip(j, NULL);
        return rank;
    }
    for (clime_json_array(j); clime_json_item(j);) {
        if (!w || clime_json_peek(j) != CLIME_JSON_OBJECT)
            clime_json_skip(j, NULL);
        else
            write_load(j, w, rank++, worker);
    }
    return rank;
}

/* Appends an answer's loads to the open array if it is valid; returns the next rank. They are its member "loads", or in
 * the older format the whole answer. */
static int write_loads(struct clime_jw *w, const struct clime_fanout_result *result, int rank) {
    struct clime_str body = clime_buf_str(&result->body), key;
    for (int pass = 0; pass < 2; pass++) { /* the first only checks, so no partial list is written */
        struct clime_arena arena;
        struct clime_error e;
        struct clime_json j;
        clime_arena_init(&arena, body.len + 1024);
        clime_json_init(&j, body.ptr, body.len, &arena, &e);
        if (clime_json_peek(&j) == CLIME_JSON_ARRAY)
            rank = write_list(&j, pass ? w : NULL, rank, result->name);
        else
            for (clime_json_object(&j); clime_json_key(&j, &key);) {
                if (clime_str_is(key, "loads"))
                    rank = write_list(&j, pass ? w : NULL, rank, result->name);
                else
                    clime_json_skip(&j, NULL);
            }
        bool ok = clime_json_end(&j);
        clime_arena_free(&arena);
        if (!ok) break;
    }
    return rank;
}

void clime_router_loads(struct clime_http_request *rq, void *context) {
    struct clime_fanout f;
    struct clime_buf out;
    struct clime_jw w;
    char now[32];
    int n = 0;
    if (!clime_fanout_run(&f, context, rq)) return;
    clime_wall_format(clime_wall_us(), now);
    begin(&w, &out);
    clime_jw_put_strz(&w, "timestamp", now);
    clime_jw_put_strz(&w, "version", CLIME_VERSION);
    clime_jw_key(&w, "loads");
    clime_jw_array(&w);
    for (int i = 0; i < f.n; i++)
        if (clime_router_told(f.results[i].status)) n = write_loads(&w, &f.results[i], n);
    clime_jw_close(&w);
    clime_jw_put_int(&w, "dp_rank_count", n);
    const struct clime_router *r = context; /* requests waiting here belong to no worker */
    clime_jw_put_int(&w, "num_waiting_reqs", clime_router_queue_waiting(r->queue));
    answer(rq, &f, &w);
}

/* The format is a list without room for errors: workers that did not answer are left out. */
void clime_router_get_load(struct clime_http_request *rq, void *context) {
    struct clime_fanout f;
    struct clime_buf out;
    struct clime_jw w;
    int n = 0;
    if (!clime_fanout_run(&f, context, rq)) return;
    clime_buf_init(&out, ANSWER_CAP);
    clime_jw_init(&w, &out);
    clime_jw_array(&w);
    for (int i = 0; i < f.n; i++)
        if (clime_router_told(f.results[i].status)) n = write_loads(&w, &f.results[i], n);
    clime_jw_close(&w);
    clime_http_reply_json(rq, clime_fanout_status(&f), clime_buf_str(&out));
    clime_buf_free(&out);
    clime_fanout_free(&f);
}

/* Counts unanswered requests, including those waiting here. */
void clime_router_load(struct clime_http_request *rq, void *context) {
    const struct clime_router *r = context;
    struct clime_buf out;
    clime_buf_init(&out, 256);
    clime_buf_printf(&out, "{\"server_load\":%d}", atomic_load(&r->in_flight));
    clime_http_reply_json(rq, 200, clime_buf_str(&out));
    clime_buf_free(&out);
}

/* ---- the router's own endpoints, and unsupported ones ---- */

void clime_router_version(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_str_of("{\"version\":\"" CLIME_VERSION "\"}"));
}

void clime_router_one_server(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_error(
        rq, 404,
        "a router does not have this: each server has ranks of its own in a group, so ask the servers "
        "one by one (GET /workers has their addresses)");
}

/* ---- weights ---- */

void clime_router_get_version(struct clime_http_request *rq, void *context) {
    struct clime_fanout f;
    struct clime_buf out;
    struct clime_jw w;
    char common[CLIME_LABEL_SIZE] = "", label[CLIME_LABEL_SIZE];
    bool same = true;
    int n = 0;
    if (!clime_fanout_run(&f, context, rq)) return;
    for (int i = 0; i < f.n; i++) {
        if (!clime_router_told(f.results[i].status) || !clime_version_read(clime_buf_str(&f.results[i].body), label))
            continue;
        if (n++ == 0) memcpy(common, label, sizeof common);
        same = same && strcmp(common, label) == 0;
    }
    begin(&w, &out);
    clime_jw_key(&w, "weight_version"); /* the same on all that answer; null when they differ */
    clime_jw_strz(&w, same && common[0] ? common : NULL);
    answer(rq, &f, &w);
}

/* Reads a worker's checksum of all weights, 64 hex digits; "" = absent. */
static void read_checksum(struct clime_str body, char out[65]) {
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_str key, sum = {0};
    clime_arena_init(&arena, body.len + 1024);
    clime_json_init(&j, body.ptr, body.len, &arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "per_engine_checksum") && clime_json_peek(&j) == CLIME_JSON_STRING)
            clime_json_string(&j, &sum);
        else
            clime_json_skip(&j, NULL);
    }
    out[0] = '\0';
    if (clime_json_end(&j) && sum.len == 64) snprintf(out, 65, CLIME_STR_FMT, CLIME_STR_ARG(sum));
    clime_arena_free(&arena);
}

void clime_router_weights_checker(struct clime_http_request *rq, void *context) {
    struct clime_fanout f;
    struct clime_buf out;
    struct clime_jw w;
    char common[65] = "", sum[65];
    bool same = true;
    if (!clime_fanout_run(&f, context, rq)) return;
    for (int i = 0; i < f.n; i++) {
        read_checksum(f.results[i].status == 200 ? clime_buf_str(&f.results[i].body) : (struct clime_str){0}, sum);
        if (i == 0) memcpy(common, sum, sizeof common);
        same = same && sum[0] && strcmp(common, sum) == 0;
    }
    begin(&w, &out);
    clime_jw_key(&w, "per_engine_checksum"); /* of all; null when they differ or one is absent */
    clime_jw_strz(&w, f.n && same ? common : NULL);
    answer(rq, &f, &w);
}

static void set_version(struct clime_router *r, const char *label) {
    struct clime_prober *prober = r->prober;
    if (clime_workers_set_version(r->workers, label) && prober) clime_prober_ask_all(prober);
}

void clime_router_put_version(struct clime_http_request *rq, void *context) {
    struct clime_router *r = context;
    char label[CLIME_LABEL_SIZE];
    if (!clime_version_read(clime_http_body(rq), label)) {
        clime_http_reply_error(rq, 400,
                               "the body needs \"weight_version\": a label of up to 256 bytes, or null for none");
        return;
    }
    set_version(r, label);
    clime_http_reply_json(rq, 200, clime_str_of("{\"success\":true}"));
}

/* Updates weights or their label; may end running and waiting requests. label: the fleet's from then on; empty =
 * unchanged. */
static void update(struct clime_http_request *rq, struct clime_router *r, const char *label) {
    struct clime_fanout f;
    struct clime_buf out;
    struct clime_jw w;
    int n_waited = clime_router_update_aborts(rq, r);
    if (!clime_fanout_run(&f, r, rq)) return;
    /* Workers that missed the update must not serve their old weights. */
    if ((f.n_ok || f.n_partly) && label[0]) set_version(r, label);
    begin(&w, &out);
    clime_jw_put_int(&w, "num_waiting_aborted", n_waited);
    answer(rq, &f, &w);
}

void clime_router_update(struct clime_http_request *rq, void *context) {
    update(rq, context, "");
}

void clime_router_update_from_disk(struct clime_http_request *rq, void *context) {
    char label[CLIME_LABEL_SIZE];
    update(rq, context, clime_version_read(clime_http_body(rq), label) ? label : "");
}
