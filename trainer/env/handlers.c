/* HTTP handlers of the trainer's interface for environments. HTTP workers; stateless. Formats: openapi/trainer.yaml. */
#include "common/clock.h"
#include "common/http/openapi.h"
#include "common/log.h"
#include "text/chat/messages_answer.h"
#include "trainer/env/environments_int.h"

/* POST /tasks/lease: {"wait_s"?} -> a task, or 204. */
static void handle_lease(struct clime_http_request *rq, void *context) {
    struct clime_environments *v = context;
    struct clime_error e = {0};
    struct clime_buf out;
    double wait_s;
    if (clime_env_lease_read(clime_http_body(rq), &wait_s, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    clime_buf_init(&out, (size_t)256 << 20);
    clime_http_waits(rq);
    enum clime_lease_answer given =
        clime_env_lease(v, clime_now_us() + (int64_t)(wait_s * 1e6), rq, clime_env_task_write, &out);
    if (given == CLIME_LEASE_GIVEN)
        clime_http_reply_json(rq, 200, clime_buf_str(&out));
    else if (given == CLIME_LEASE_BUSY)
        clime_http_reply_error(rq, 429, "too many environments wait for a task already");
    else if (clime_http_stopping(rq))
        clime_http_reply_error(rq, 503, "the trainer is stopping");
    else
        clime_http_reply(rq, 204, NULL, NULL, (struct clime_str){0});
    clime_buf_free(&out);
}

/* POST /tasks/{id}: the result, or a longer lease. */
static void handle_result(struct clime_http_request *rq, void *context) {
    struct clime_environments *v = context;
    struct clime_env_result r = {0};
    struct clime_error e = {0};
    bool renew = false;
    struct clime_str id = clime_http_param(rq);
    if (!clime_env_result_read(clime_http_body(rq), &r, &renew, &e)) {
        if (renew)
            clime_env_renew(v, id, &e);
        else
            clime_env_result(v, id, &r, &e);
    }
    if (e.code == CLIME_ERR_INPUT) clime_env_refuse(v, id, &e);
    clime_env_result_free(&r);
    if (e.code)
        clime_http_reply_err(rq, &e);
    else
        clime_http_reply_json(rq, 200, clime_str_of("{\"success\":true}"));
}

static void reply_threaded(struct clime_http_request *rq) {
    struct clime_buf reply;
    clime_buf_init(&reply, 4096);
    clime_messages_refuse_thread(&reply);
    clime_http_reply_json(rq, 400, clime_buf_str(&reply));
    clime_buf_free(&reply);
}

static void reply_whole(struct clime_http_request *rq, const struct clime_env_body *body,
                        const struct clime_env_call *call) {
    struct clime_error e = {0};
    struct clime_buf reply;
    clime_buf_init(&reply, (size_t)256 << 20);
    clime_env_reply(body, call, &reply);
    if (reply.full) clime_fail(&e, CLIME_ERR_LIMIT, "the reply is too long");
    if (e.code)
        clime_http_reply_err(rq, &e);
    else
        clime_http_reply_json(rq, 200, clime_buf_str(&reply));
    clime_buf_free(&reply);
}

/* Warns once that no call is forced: training uses what the policy samples freely. */
static void say_forced(struct clime_environments *v) {
    if (!atomic_exchange(&v->said_forced, true))
        LOG_WARN(
            "sessions: a tool_choice that forces a call is taken as auto, since the policy is trained on what it says "
            "by itself (told once)");
}

static void take_turn(struct clime_http_request *rq, struct clime_environments *v, enum clime_env_api api) {
    struct clime_env_body body;
    struct clime_env_call call = {.ask = &body.ask, .rq = rq};
    struct clime_error e = {0};
    bool sound = !clime_env_body_read(clime_http_body(rq), api, &body, &e);
    if (sound && body.forced) say_forced(v);
    clime_http_waits(rq);
    if (body.stream) call.stream = clime_env_stream_new(&body, &call);
    if (sound) clime_env_call(v, clime_http_param(rq), &call, &e);
    bool streamed = sound && call.stream && clime_env_stream_close(call.stream, &e);
    if (body.threaded)
        reply_threaded(rq);
    else if (!streamed && e.code)
        clime_http_reply_err(rq, &e);
    else if (!streamed)
        reply_whole(rq, &body, &call);
    clime_env_stream_free(call.stream);
    clime_env_call_free(&call);
    clime_env_body_free(&body);
}

static void handle_generate(struct clime_http_request *rq, void *context) {
    take_turn(rq, context, CLIME_ENV_GENERATE);
}

static void handle_chat(struct clime_http_request *rq, void *context) {
    take_turn(rq, context, CLIME_ENV_CHAT);
}

static void handle_responses(struct clime_http_request *rq, void *context) {
    take_turn(rq, context, CLIME_ENV_RESPONSES);
}

static void handle_messages(struct clime_http_request *rq, void *context) {
    take_turn(rq, context, CLIME_ENV_MESSAGES);
}

static void handle_count(struct clime_http_request *rq, void *context) {
    take_turn(rq, context, CLIME_ENV_COUNT);
}

static void handle_input_tokens(struct clime_http_request *rq, void *context) {
    take_turn(rq, context, CLIME_ENV_INPUT_TOKENS);
}

static void handle_tokenize(struct clime_http_request *rq, void *context) {
    take_turn(rq, context, CLIME_ENV_TOKENIZE);
}

/* The list of models, which clients request first: the one model, for the session's lifetime. */
static void handle_models(struct clime_http_request *rq, void *context) {
    struct clime_error e = {0};
    if (clime_env_renew(context, clime_http_param(rq), &e))
        clime_http_reply_err(rq, &e);
    else
        clime_http_reply_json(rq, 200,
                              clime_str_of("{\"object\":\"list\",\"data\":[{\"id\":\"" CLIME_ENV_MODEL
                                           "\",\"object\":\"model\",\"created\":0,\"owned_by\":\"clime\"}]}"));
}

static void handle_openapi(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_openapi_trainer);
}

static void handle_health(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_str_of("{\"status\":\"ok\"}"));
}

const struct clime_http_route clime_environment_routes[] = {
    {"POST", "/tasks/lease", CLIME_HTTP_USER, handle_lease, .slot = true},
    {"POST", "/tasks/{id}", CLIME_HTTP_USER, handle_result},
    {"POST", "/sessions/{id}/v1/chat/completions", CLIME_HTTP_USER, handle_chat, .slot = true},
    {"POST", "/sessions/{id}/v1/responses", CLIME_HTTP_USER, handle_responses, .slot = true},
    {"POST", "/sessions/{id}/v1/responses/input_tokens", CLIME_HTTP_USER, handle_input_tokens, .slot = true},
    {"POST", "/sessions/{id}/v1/messages", CLIME_HTTP_USER, handle_messages, .slot = true},
    {"POST", "/sessions/{id}/v1/messages/count_tokens", CLIME_HTTP_USER, handle_count, .slot = true},
    {"POST", "/sessions/{id}/tokenize", CLIME_HTTP_USER, handle_tokenize, .slot = true},
    {"GET", "/sessions/{id}/v1/models", CLIME_HTTP_USER, handle_models},
    {"POST", "/sessions/{id}/generate", CLIME_HTTP_USER, handle_generate, .slot = true},
    {"GET", "/openapi.json", CLIME_HTTP_OPEN, handle_openapi},
    {"GET", "/health", CLIME_HTTP_OPEN, handle_health},
    {0},
};
