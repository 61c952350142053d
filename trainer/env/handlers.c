/* The trainer's HTTP interface for environments. HTTP workers; no state of its own. Shapes: openapi/trainer.yaml. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "trainer/env/env_int.h"

#define MAX_WAIT_S 60.0

static void key_raw(struct clime_jw *w, const char *key, const char *json) {
    clime_jw_key(w, key);
    if (json)
        clime_jw_raw(w, clime_str_of(json));
    else
        clime_jw_null(w);
}

static void write_task(const struct clime_environments *v, const struct clime_task *t, struct clime_buf *out) {
    const struct clime_request *r = t->r;
    struct clime_jw w;
    char path[64];
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_key(&w, "task");
    clime_jw_strz(&w, t->id);
    clime_jw_key(&w, "rid");
    clime_jw_strz(&w, r->rid);
    snprintf(path, sizeof path, "/sessions/%s", t->id);
    clime_jw_key(&w, "session");
    clime_jw_strz(&w, path);
    key_raw(&w, "input", r->input);
    clime_jw_key(&w, "prompt");
    clime_jw_strz(&w, r->prompt);
    clime_jw_key(&w, "input_ids");
    clime_jw_array(&w);
    for (int i = 0; i < r->sample->n_prompt; i++) clime_jw_int(&w, r->sample->ids[i]);
    clime_jw_close(&w);
    key_raw(&w, "label", r->sample->label);
    key_raw(&w, "metadata", r->sample->metadata);
    clime_jw_key(&w, "seed");
    clime_jw_uint(&w, r->sample->seed);
    clime_jw_key(&w, "max_new_tokens");
    clime_jw_int(&w, r->sampling->max_response_len);
    clime_jw_key(&w, "max_turns");
    clime_jw_int(&w, v->o.max_turns);
    clime_jw_key(&w, "lease_s");
    clime_jw_double(&w, (double)v->o.lease_us / 1e6);
    clime_jw_key(&w, "deadline_s");
    clime_jw_double(&w, (double)(r->deadline_us - clime_now_us()) / 1e6);
    clime_jw_close(&w);
}

/* POST /tasks/lease: {"wait_s"?} -> a task, or 204. */
static void handle_lease(struct clime_http_request *rq, void *context) {
    struct clime_environments *v = context;
    struct clime_str body = clime_http_body(rq), key;
    struct clime_error e = {0};
    struct clime_json j;
    double wait_s = 0;
    if (body.len) {
        clime_json_init(&j, body.ptr, body.len, NULL, &e);
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (clime_str_is(key, "wait_s"))
                clime_json_double(&j, &wait_s);
            else
                clime_json_skip(&j, NULL);
        }
        if (!clime_json_end(&j) || wait_s < 0 || wait_s > MAX_WAIT_S) {
            if (!e.code) clime_fail(&e, CLIME_ERR_INPUT, "wait_s: must be 0 to %.0f", MAX_WAIT_S);
            clime_http_reply_err(rq, &e);
            return;
        }
    }
    struct clime_buf out;
    clime_buf_init(&out, (size_t)256 << 20);
    if (clime_env_lease(v, clime_now_us() + (int64_t)(wait_s * 1e6), rq, write_task, &out))
        clime_http_reply_json(rq, 200, clime_buf_str(&out));
    else if (clime_http_stopping(rq))
        clime_http_reply_error(rq, 503, "the trainer is stopping");
    else
        clime_http_reply(rq, 204, NULL, NULL, (struct clime_str){0});
    clime_buf_free(&out);
}

/* A reward: a number, an object for --reward-key, or null: the run's own reward judges. */
static void read_reward(struct clime_json *j, struct clime_env_part *p) {
    struct clime_str s;
    enum clime_json_kind kind = clime_json_peek(j);
    if (kind == CLIME_JSON_NULL) {
        clime_json_null(j);
    } else if (kind == CLIME_JSON_OBJECT) {
        if (!clime_json_skip(j, &s) || p->reward.object) return;
        p->reward = (struct clime_reward){.value = NAN, .object = xstrndup(s.ptr, s.len)};
        p->has_reward = true;
    } else if (clime_json_double(j, &p->reward.value)) {
        p->has_reward = true;
    }
}

/* The members that a result and each of its "samples" have; false: key is another one. */
static bool read_part(struct clime_json *j, struct clime_str key, struct clime_env_part *p) {
    struct clime_str s;
    if (clime_str_is(key, "reward")) {
        read_reward(j, p);
    } else if (clime_str_is(key, "metadata")) {
        if (clime_json_peek(j) == CLIME_JSON_NULL)
            clime_json_null(j);
        else if (clime_json_peek(j) != CLIME_JSON_OBJECT)
            clime_json_bad(j, "metadata: must be an object");
        else if (clime_json_skip(j, &s) && !p->metadata)
            p->metadata = xstrndup(s.ptr, s.len);
    } else if (clime_str_is(key, "truncated")) {
        clime_json_bool(j, &p->truncated);
    } else {
        return false;
    }
    return true;
}

static void read_samples(struct clime_json *j, struct clime_env_result *r) {
    struct clime_str key;
    int64_t turn;
    for (clime_json_array(j); clime_json_item(j);) {
        struct clime_env_part *p = clime_env_result_add(r, -1);
        for (clime_json_object(j); clime_json_key(j, &key);) {
            if (clime_str_is(key, "turn")) {
                if (clime_json_int(j, 0, INT32_MAX, &turn)) p->turn = (int)turn;
            } else if (!read_part(j, key, p)) {
                clime_json_skip(j, NULL);
            }
        }
        if (p->turn < 0) clime_json_bad(j, "samples: each needs its turn");
    }
}

/* The body of a result: one of "reward", "samples" (a reward for each of several turns) and "error". */
static enum clime_err read_result(struct clime_str body, struct clime_env_result *r, bool *renew,
                                  struct clime_error *e) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_str key, s;
    struct clime_env_result one = {0};
    struct clime_env_part *p = clime_env_result_add(&one, -1);
    clime_arena_init(&a, (size_t)1 << 20);
    clime_json_init(&j, body.ptr, body.len, &a, e);
    bool has_reward = false, has_samples = false, has_more = false;
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "samples") && !has_samples) {
            has_samples = true;
            read_samples(&j, r);
        } else if (clime_str_is(key, "error")) {
            if (clime_json_string(&j, &s)) {
                free(r->error);
                r->error = xstrndup(s.ptr, s.len < 400 ? s.len : 400);
            }
        } else if (clime_str_is(key, "renew")) {
            clime_json_bool(&j, renew);
        } else if (read_part(&j, key, p)) {
            if (clime_str_is(key, "reward"))
                has_reward = true;
            else
                has_more = true;
        } else {
            clime_json_skip(&j, NULL);
        }
    }
    if (clime_json_end(&j) && has_reward + has_samples + (r->error != NULL) + *renew != 1)
        clime_fail(e, CLIME_ERR_INPUT, "give one of \"reward\", \"samples\", \"error\" and \"renew\": true");
    else if (!e->code && has_more && !has_reward)
        clime_fail(e, CLIME_ERR_INPUT, "\"metadata\" and \"truncated\" are of a sample with its \"reward\"");
    else if (!e->code && has_samples && r->n_parts == 0)
        clime_fail(e, CLIME_ERR_INPUT, "samples: there must be one");
    if (has_reward && !e->code) {
        *r = one;
        one = (struct clime_env_result){0};
    }
    clime_env_result_free(&one);
    clime_arena_free(&a);
    return e->code;
}

/* POST /tasks/{id}: the result, or a longer lease. */
static void handle_result(struct clime_http_request *rq, void *context) {
    struct clime_environments *v = context;
    struct clime_env_result r = {0};
    struct clime_error e = {0};
    bool renew = false;
    struct clime_str id = clime_http_param(rq);
    if (!read_result(clime_http_body(rq), &r, &renew, &e)) {
        if (renew)
            clime_env_renew(v, id, &e);
        else
            clime_env_result(v, id, &r, &e);
    }
    clime_env_result_free(&r);
    if (e.code)
        clime_http_reply_err(rq, &e);
    else
        clime_http_reply_json(rq, 200, clime_str_of("{\"success\":true}"));
}

static void take_turn(struct clime_http_request *rq, struct clime_environments *v, bool chat) {
    struct clime_env_body body;
    struct clime_env_call call = {.ask = &body.ask};
    struct clime_error e = {0};
    struct clime_buf reply;
    clime_buf_init(&reply, (size_t)256 << 20);
    if (!clime_env_body_read(clime_http_body(rq), chat, &body, &e) &&
        !clime_env_call(v, clime_http_param(rq), &call, &e)) {
        clime_env_body_reply(&body, &call, &reply);
        if (reply.full) clime_fail(&e, CLIME_ERR_LIMIT, "the reply is too long");
    }
    if (e.code)
        clime_http_reply_err(rq, &e);
    else if (body.stream)
        clime_http_reply(rq, 200, "text/event-stream", NULL, clime_buf_str(&reply));
    else
        clime_http_reply_json(rq, 200, clime_buf_str(&reply));
    clime_env_call_free(&call);
    clime_env_body_free(&body);
    clime_buf_free(&reply);
}

static void handle_chat(struct clime_http_request *rq, void *context) {
    take_turn(rq, context, true);
}

static void handle_generate(struct clime_http_request *rq, void *context) {
    take_turn(rq, context, false);
}

static void handle_health(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_str_of("{\"status\":\"ok\"}"));
}

const struct clime_http_route clime_environment_routes[] = {
    {"POST", "/tasks/lease", CLIME_HTTP_USER, handle_lease},
    {"POST", "/tasks/{id}", CLIME_HTTP_USER, handle_result},
    {"POST", "/sessions/{id}/v1/chat/completions", CLIME_HTTP_USER, handle_chat},
    {"POST", "/sessions/{id}/generate", CLIME_HTTP_USER, handle_generate},
    {"GET", "/health", CLIME_HTTP_OPEN, handle_health},
    {0},
};
