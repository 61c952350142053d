/* vLLM's control API for RL trainers: pause, sleep, cache, version. HTTP workers; each waits until the engine has run
 * it. SGLang's API: handlers_control.c; docs/protocol.md compares both.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "server/job/fields.h"
#include "server/update/weight_update.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define WAIT_S 600 /* default limit for requests in flight */

static const struct clime_field none[] = {{NULL, NULL}};

static void reply_text(struct clime_http_request *rq, const char *json) {
    clime_http_reply_json(rq, 200, clime_str_of(json));
}

/* ---- pause --------------------------------------------------------------------------------------------------- */

enum mode { MODE_ABORT, MODE_WAIT, MODE_KEEP };

static enum clime_err read_mode(struct clime_http_request *rq, enum mode *out, double *wait_s, struct clime_error *e) {
    static const char *const modes[] = {[MODE_ABORT] = "abort", [MODE_WAIT] = "wait", [MODE_KEEP] = "keep"};
    char text[32];
    bool wait = false, given;
    int i = 0;
    *out = MODE_ABORT;
    *wait_s = WAIT_S;
    if (clime_http_query_bool(rq, "wait_for_inflight_requests", &wait, e)) return e->code;
    if (wait) *out = MODE_WAIT; /* its old name */
    if (clime_http_query_seconds(rq, "timeout", 3600, wait_s, e) ||
        clime_http_query(rq, "mode", text, sizeof text, &given, e))
        return e->code;
    if (!given) return CLIME_OK;
    while (i < (int)CLIME_COUNT(modes) && strcmp(text, modes[i]) != 0) i++;
    if (i == (int)CLIME_COUNT(modes)) return clime_fail(e, CLIME_ERR_INPUT, "mode must be abort, wait or keep");
    *out = (enum mode)i;
    return CLIME_OK;
}

static enum clime_err pause_as(struct clime_server *s, struct clime_http_request *rq, enum mode mode, double wait_s,
                               struct clime_error *e) {
    if (!clime_control_is_awaited(rq, e)) return e->code;
    if (mode == MODE_WAIT)
        return clime_engine_pause_when_done(s->engine, (int64_t)(wait_s * 1e6), clime_update_client_left, rq, e);
    if (mode == MODE_ABORT) clime_job_table_mark(&s->jobs, NULL); /* also those not admitted yet */
    clime_engine_pause(s->engine, mode == MODE_ABORT ? CLIME_PAUSE_ABORT : CLIME_PAUSE_IN_PLACE);
    return CLIME_OK;
}

void clime_handle_vllm_pause(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e;
    enum mode mode;
    double wait_s;
    bool clear = true;
    if (read_mode(rq, &mode, &wait_s, &e) || clime_http_query_bool(rq, "clear_cache", &clear, &e) ||
        pause_as(s, rq, mode, wait_s, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    if (clear && mode != MODE_KEEP) clime_engine_flush(s->engine, false, NULL); /* nothing runs */
    reply_text(rq, "{\"status\":\"paused\"}");
}

void clime_handle_vllm_resume(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e;
    if (clime_update_resume(s, rq, &e))
        clime_http_reply_err(rq, &e);
    else
        reply_text(rq, "{\"status\":\"resumed\"}");
}

void clime_handle_is_paused(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_loads l;
    clime_engine_loads(s->engine, &l);
    reply_text(rq, l.paused ? "{\"is_paused\":true}" : "{\"is_paused\":false}");
}

/* ---- sleep --------------------------------------------------------------------------------------------------- */

static void reply_sleeping(struct clime_http_request *rq, const struct clime_server *s) {
    reply_text(rq, clime_engine_lent(s->engine) ? "{\"is_sleeping\":true}" : "{\"is_sleeping\":false}");
}

/* Level 0 pauses and frees nothing; 1 keeps the weights in host memory; 2 drops them. */
void clime_handle_sleep(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    struct clime_loads before;
    enum mode mode;
    double wait_s;
    char level[8];
    bool given = true;
    enum clime_err err = clime_http_query(rq, "level", level, sizeof level, &given, &e);
    if (!given) snprintf(level, sizeof level, "1");
    if (!err) err = read_mode(rq, &mode, &wait_s, &e);
    if (!err && (strlen(level) != 1 || !strchr("012", level[0])))
        err = clime_fail(&e, CLIME_ERR_INPUT, "level must be 0, 1 or 2");
    clime_engine_loads(s->engine, &before);
    if (!err) err = pause_as(s, rq, mode, wait_s, &e);
    if (!err && level[0] != '0' && (err = clime_update_sleep(s, rq, level[0] == '1', mode == MODE_ABORT, &e)) &&
        !before.paused)
        clime_engine_resume(s->engine); /* keep another client's pause */
    if (err)
        clime_http_reply_err(rq, &e);
    else
        reply_sleeping(rq, s);
}

/* ?tags=weights&tags=kv_cache; none = all. */
static enum clime_err read_tags(struct clime_http_request *rq, unsigned *tags, struct clime_error *e) {
    struct clime_str query = clime_http_query_string(rq);
    const char *at = query.ptr, *end = query.ptr + query.len;
    *tags = 0;
    while (at < end) {
        const char *next = memchr(at, '&', (size_t)(end - at));
        struct clime_str one = {at, (size_t)((next ? next : end) - at)};
        if (clime_str_is(one, "tags=weights"))
            *tags |= CLIME_MEMORY_WEIGHTS;
        else if (clime_str_is(one, "tags=kv_cache"))
            *tags |= CLIME_MEMORY_KV;
        else if (one.len >= 5 && !memcmp(one.ptr, "tags=", 5))
            return clime_fail(e, CLIME_ERR_INPUT, "tags are weights and kv_cache");
        at = next ? next + 1 : end;
    }
    if (!*tags) *tags = CLIME_MEMORY_KV | CLIME_MEMORY_WEIGHTS;
    return CLIME_OK;
}

void clime_handle_wake_up(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e;
    struct clime_memory_change c;
    unsigned tags;
    enum clime_err err = read_tags(rq, &tags, &e);
    if (!err) err = clime_update_take_back(s, rq, tags, &c, &e);
    if (!err && !clime_engine_lent(s->engine)) err = clime_update_resume(s, rq, &e);
    if (err)
        clime_http_reply_err(rq, &e);
    else
        reply_sleeping(rq, s);
}

void clime_handle_is_sleeping(struct clime_http_request *rq, void *context) {
    reply_sleeping(rq, context);
}

/* ---- requests, cache, version -------------------------------------------------------------------------------- */

struct abort_ask {
    struct clime_str *ids; /* [n] */
    int n;
    bool named;
};

/* null or absent = all, an empty list = none. Ids match whole, as in vLLM: "1" does not match "10". */
static bool read_ids(struct clime_json *j, void *object) {
    struct abort_ask *ask = object;
    int size = 0;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    ask->named = true;
    ask->n = 0;
    for (clime_json_array(j); clime_json_item(j); ask->n++) {
        if (ask->n == size) {
            size = size ? 2 * size : 64;
            struct clime_str *more = clime_arena_alloc(j->arena, (size_t)size * sizeof *more);
            if (!more) return clime_json_bad(j, "too many ids");
            if (ask->n > 0) memcpy(more, ask->ids, (size_t)ask->n * sizeof *more);
            ask->ids = more;
        }
        if (!clime_json_string(j, &ask->ids[ask->n])) return false;
    }
    return !j->failed;
}

/* Returns how many outputs matched. */
static int mark_requests(struct clime_server *s, const struct abort_ask *ask) {
    int n = 0;
    if (!ask->named) return clime_job_table_mark(&s->jobs, NULL);
    for (int i = 0; i < ask->n; i++)
        if (ask->ids[i].len > 0) n += clime_job_table_mark_request(&s->jobs, ask->ids[i]);
    return n;
}

void clime_handle_abort_requests(struct clime_http_request *rq, void *context) {
    static const struct clime_member rows[] = {{"request_ids", CLIME_MEMBER_CALL, .read = read_ids}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_fields fields = {.where = "/abort_requests", .rows = {none}, .read = {&members}};
    struct clime_server *s = context;
    struct abort_ask ask = {0};
    struct clime_arena a;
    struct clime_error e = {0};
    struct clime_buf body;
    clime_arena_init(&a, ARENA_BYTES);
    if (clime_fields_read(&fields, s->field_watch, clime_http_body(rq), &a, &ask, &e)) {
        clime_http_reply_err(rq, &e);
    } else {
        int n = mark_requests(s, &ask);
        if (n > 0) clime_engine_sweep_wait(s->engine);
        clime_buf_init(&body, 256);
        clime_buf_printf(&body, "{\"status\":\"aborted\",\"aborted\":%d}", n);
        clime_reply_buf(rq, 200, &body);
    }
    clime_arena_free(&a);
}

/* ?reset_running_requests=true: running sequences drop their KV and recompute it. */
void clime_handle_reset_prefix_cache(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    bool running = false;
    if (clime_http_query_bool(rq, "reset_running_requests", &running, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    reply_text(rq, !clime_engine_flush(s->engine, running, &e) ? "{\"success\":true}" : "{\"success\":false}");
}

void clime_handle_world_size(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_buf body;
    clime_buf_init(&body, 256);
    clime_buf_printf(&body, "{\"world_size\":%d}", (int)s->opts.tp_size);
    clime_reply_buf(rq, 200, &body);
}

struct version_ask {
    struct clime_str version;
    bool abort_all;
};

static enum clime_err read_new_version(struct clime_server *s, struct clime_http_request *rq, struct clime_arena *a,
                                       struct version_ask *ask, struct clime_error *e) {
    static const struct clime_member rows[] = {
        {"new_version", CLIME_MEMBER_STRING, offsetof(struct version_ask, version)},
        {"abort_all_requests", CLIME_MEMBER_BOOL, offsetof(struct version_ask, abort_all)}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_fields fields = {.where = "/update_weight_version", .rows = {none}, .read = {&members}};
    enum clime_err err = clime_fields_read(&fields, s->field_watch, clime_http_body(rq), a, ask, e);
    return err ? err : clime_update_label(ask->version, e);
}

/* SGLang's and vLLM's. SGLang aborts running requests by default; here only if requested. */
void clime_handle_update_version(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct version_ask ask = {.version = {"", 0}};
    struct clime_error e = {0};
    struct clime_arena a;
    clime_arena_init(&a, ARENA_BYTES);
    enum clime_err err = read_new_version(s, rq, &a, &ask, &e);
    if (!err) err = clime_update_lock(s->update, rq, &e);
    if (err) {
        clime_http_reply_err(rq, &e);
    } else {
        char label[CLIME_MAX_LABEL + 1];
        struct clime_buf body;
        struct clime_jw w;
        snprintf(label, sizeof label, CLIME_STR_FMT, CLIME_STR_ARG(ask.version));
        if (ask.abort_all && clime_job_table_mark(&s->jobs, NULL) > 0) clime_engine_sweep_wait(s->engine);
        clime_engine_relabel(s->engine, label);
        clime_update_unlock(s->update);
        clime_buf_init(&body, 8192);
        clime_jw_init(&w, &body);
        clime_jw_object(&w);
        clime_jw_put_bool(&w, "success", true);
        clime_jw_put_strz(&w, "message", "The weights are as they were, and called otherwise.");
        clime_jw_put_strz(&w, "new_version", label);
        clime_jw_close(&w);
        clime_reply_buf(rq, 200, &body);
    }
    clime_arena_free(&a);
}
