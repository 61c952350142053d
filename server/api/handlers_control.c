/* Abort, pause, continue, flush, and releasing and resuming device memory. HTTP workers; each waits until the engine
 * has run it (server/engine/engine.h). Replies have SGLang's texts, since its clients compare them.
 */
#include <stddef.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/job/fields.h"
#include "server/update/weight_update.h"

#define ARENA_BYTES ((size_t)1 << 20)

static const struct clime_field none[] = {{NULL, NULL}};

/* Body {} or empty: clients send both. */
static enum clime_err read_body(struct clime_server *s, struct clime_http_request *rq, const struct clime_fields *f,
                                struct clime_arena *a, void *out, struct clime_error *e) {
    clime_arena_init(a, ARENA_BYTES);
    return clime_fields_read(f, s->field_watch, clime_http_body(rq), a, out, e);
}

struct abort_ask {
    struct clime_str rid;
    bool all;
};

void clime_handle_abort(struct clime_http_request *rq, void *context) {
    static const struct clime_member rows[] = {{"rid", CLIME_MEMBER_STRING, offsetof(struct abort_ask, rid)},
                                               {"abort_all", CLIME_MEMBER_BOOL, offsetof(struct abort_ask, all)}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_field others[] = {
        {"abort_message", CLIME_FIELD_INERT}, {"finished_reason", CLIME_FIELD_INERT}, {NULL, NULL}};
    static const struct clime_fields fields = {.where = "/abort_request", .rows = {others}, .read = {&members}};
    struct clime_server *s = context;
    struct abort_ask ask = {{"", 0}, false};
    struct clime_arena a;
    struct clime_error e = {0};
    int n = 0;
    if (read_body(s, rq, &fields, &a, &ask, &e)) {
        clime_http_reply_err(rq, &e);
    } else {
        if (ask.all || ask.rid.len > 0) { /* an empty rid alone matches nothing, as in SGLang */
            n = clime_job_table_mark(&s->jobs, ask.all ? NULL : &ask.rid);
            if (n > 0) clime_engine_sweep_wait(s->engine); /* a step of a thousand sequences may take long */
        }
        struct clime_buf body;
        clime_buf_init(&body, 256);
        clime_buf_printf(&body, "{\"success\":true,\"num_aborted\":%d}", n);
        clime_reply_buf(rq, 200, &body);
    }
    clime_arena_free(&a);
}

static void reply_status(struct clime_http_request *rq, const char *message) {
    struct clime_buf body;
    clime_buf_init(&body, 256);
    clime_buf_printf(&body, "{\"message\":\"%s\",\"status\":\"ok\"}", message);
    clime_reply_buf(rq, 200, &body);
}

bool clime_control_is_awaited(struct clime_http_request *rq, struct clime_error *e) {
    if (!clime_http_peer_gone(rq)) return true;
    clime_fail(e, CLIME_ERR_ABORTED, "its client had left before it began, so it was not done");
    LOG_WARN(CLIME_STR_FMT ": %s", CLIME_STR_ARG(clime_http_path(rq)), e->msg);
    return false;
}

void clime_handle_pause(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    static const char *const modes[] = {
        [CLIME_PAUSE_ABORT] = "abort", [CLIME_PAUSE_RETRACT] = "retract", [CLIME_PAUSE_IN_PLACE] = "in_place"};
    static const struct clime_member rows[] = {{"mode", CLIME_MEMBER_STRING, 0}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_fields fields = {.where = "/pause_generation", .rows = {none}, .read = {&members}};
    struct clime_arena a;
    struct clime_error e = {0};
    struct clime_str mode = {"abort", 5};
    read_body(s, rq, &fields, &a, &mode, &e);
    int i = 0;
    while (!e.code && i < (int)CLIME_COUNT(modes) && !clime_str_is(mode, modes[i])) i++;
    if (!e.code && i == (int)CLIME_COUNT(modes))
        clime_fail(&e, CLIME_ERR_INPUT, "mode must be abort, retract or in_place");
    if (e.code) {
        clime_http_reply_err(rq, &e);
    } else if (!clime_control_is_awaited(rq, &e)) {
        clime_http_reply_err(rq, &e);
    } else {
        if (i == CLIME_PAUSE_ABORT) clime_job_table_mark(&s->jobs, NULL); /* also those not admitted yet */
        clime_engine_pause(s->engine, (enum clime_pause)i);
        reply_status(rq, "Generation paused successfully.");
    }
    clime_arena_free(&a);
}

void clime_handle_continue(struct clime_http_request *rq, void *context) {
    static const struct clime_members members = {NULL, 0};
    static const struct clime_field others[] = {{"torch_empty_cache", CLIME_FIELD_INERT}, {NULL, NULL}};
    static const struct clime_fields fields = {.where = "/continue_generation", .rows = {others}, .read = {&members}};
    struct clime_server *s = context;
    struct clime_arena a;
    struct clime_error e = {0};
    read_body(s, rq, &fields, &a, NULL, &e);
    clime_arena_free(&a);
    if (e.code || clime_update_resume(s, rq, &e))
        clime_http_reply_err(rq, &e);
    else
        reply_status(rq, "Generation continued successfully.");
}

/* ?timeout=SECONDS: wait for running requests; default 0. */
void clime_handle_flush(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    double timeout = 0;
    if (clime_http_query_seconds(rq, "timeout", 3600, &timeout, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    int64_t deadline = clime_now_us() + (int64_t)(timeout * 1e6);
    enum clime_err err;
    while ((err = clime_engine_flush(s->engine, false, &e)) == CLIME_ERR_BUSY && clime_now_us() < deadline &&
           !clime_http_peer_gone(rq))
        clime_sleep_us(20000);
    if (err)
        clime_http_reply(rq, 400, "text/plain", NULL, clime_str_of(e.msg));
    else
        clime_http_reply(rq, 200, "text/plain", NULL, clime_str_of("Cache flushed."));
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

/* null, [] or [names]: empty means all, as in SGLang. Recorded graphs stay valid, so their tag has no effect. */
static bool read_names(struct clime_json *j, void *object) {
    unsigned *tags = object;
    struct clime_str name;
    bool named = false;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    *tags = 0;
    for (clime_json_array(j); clime_json_item(j) && clime_json_string(j, &name); named = true) {
        if (clime_str_is(name, "kv_cache"))
            *tags |= CLIME_MEMORY_KV;
        else if (clime_str_is(name, "weights"))
            *tags |= CLIME_MEMORY_WEIGHTS;
        else if (!clime_str_is(name, "cuda_graph"))
            clime_json_bad(j, "tags are kv_cache, weights and cuda_graph");
    }
    if (!named) *tags = CLIME_MEMORY_KV | CLIME_MEMORY_WEIGHTS;
    return !j->failed;
}

static enum clime_err read_tags(struct clime_server *s, struct clime_http_request *rq, unsigned *tags,
                                struct clime_error *e) {
    static const struct clime_member rows[] = {{"tags", CLIME_MEMBER_CALL, .read = read_names}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_fields fields = {.where = "memory occupation", .rows = {none}, .read = {&members}};
    struct clime_arena a;
    *tags = CLIME_MEMORY_KV | CLIME_MEMORY_WEIGHTS;
    read_body(s, rq, &fields, &a, tags, e);
    clime_arena_free(&a);
    return e->code;
}

static void reply_memory(struct clime_http_request *rq, const struct clime_memory_change *c, const char *done) {
    struct clime_buf body;
    LOG_INFO("%s: KV %.2f GiB, weights %.2f GiB; %.2f GiB are free, %.2f were", done, (double)c->kv / (1 << 30),
             (double)c->weights / (1 << 30), (double)c->free_after / (1 << 30), (double)c->free_before / (1 << 30));
    clime_buf_init(&body, 512);
    clime_buf_printf(&body,
                     "{\"success\":true,\"message\":\"%s\",\"kv_cache_bytes\":%zu,\"weights_bytes\":%zu,"
                     "\"free_bytes_before\":%zu,\"free_bytes_after\":%zu}",
                     done, c->kv, c->weights, c->free_before, c->free_after);
    clime_reply_buf(rq, 200, &body);
}

void clime_handle_release_memory(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_memory_change c;
    struct clime_error e = {0};
    unsigned tags;
    if (read_tags(s, rq, &tags, &e) || !clime_control_is_awaited(rq, &e) ||
        clime_engine_give_back(s->engine, tags, &c, &e))
        clime_http_reply_err(rq, &e);
    else
        reply_memory(rq, &c, "Memory released");
}

void clime_handle_resume_memory(struct clime_http_request *rq, void *context) {
    struct clime_memory_change c;
    struct clime_error e = {0};
    unsigned tags;
    if (read_tags(context, rq, &tags, &e) || clime_update_take_back(context, rq, tags, &c, &e))
        clime_http_reply_err(rq, &e);
    else
        reply_memory(rq, &c, "Memory taken back");
}
