/* The bodies of a session's two endpoints: an HTTP request to what a turn is asked for, its answer to a reply.
 *
 * Called by the handlers, on HTTP workers; no state. Owns nothing but what a struct clime_env_body holds. Shapes:
 * openapi/trainer.yaml. Invariant: a body that was not read whole asks for nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/sse.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "trainer/env/environments_int.h"

/* ---- the request ---- */

static void read_stop(struct clime_env_body *b, struct clime_json *j) {
    const char *s;
    bool list = clime_json_peek(j) == CLIME_JSON_ARRAY;
    if (clime_json_peek(j) == CLIME_JSON_NULL) {
        clime_json_null(j);
        return;
    }
    if (list) clime_json_array(j);
    while (!list || clime_json_item(j)) {
        if (!clime_json_string_z(j, &s)) return;
        if (!s[0] || b->ask.n_stop == CLIME_ENV_MAX_STOP) {
            clime_json_bad(j, "stop: at most %d strings that are not empty", CLIME_ENV_MAX_STOP);
            return;
        }
        b->ask.stop[b->ask.n_stop++] = s;
        if (!list) return;
    }
}

static void read_limit(struct clime_env_body *b, struct clime_json *j) {
    if (clime_json_peek(j) == CLIME_JSON_NULL)
        clime_json_null(j);
    else
        clime_json_int(j, 1, INT32_MAX, &b->ask.max_new);
}

static void read_sampling(struct clime_env_body *b, struct clime_json *j) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "max_new_tokens"))
            read_limit(b, j);
        else if (clime_str_is(key, "stop"))
            read_stop(b, j);
        else
            clime_json_skip(j, NULL);
    }
}

enum clime_err clime_env_body_read(struct clime_str body, bool chat, struct clime_env_body *b, struct clime_error *e) {
    struct clime_env_ask *a = &b->ask;
    struct clime_json j;
    struct clime_str key;
    int64_t v;
    *b = (struct clime_env_body){.ask = {.chat = chat, .max_new = -1}};
    clime_arena_init(&b->arena, CLIME_RENDER_MAX);
    clime_json_init(&j, body.ptr, body.len, &b->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (chat && clime_str_is(key, "messages")) {
            clime_json_skip(&j, &a->messages);
        } else if (chat && clime_str_is(key, "tools")) {
            clime_json_skip(&j, &a->tools);
            if (clime_str_is(a->tools, "null") || clime_str_is(a->tools, "[]")) a->tools.ptr = NULL;
        } else if (chat && (clime_str_is(key, "max_tokens") || clime_str_is(key, "max_completion_tokens"))) {
            read_limit(b, &j);
        } else if (chat && clime_str_is(key, "stop")) {
            read_stop(b, &j);
        } else if (chat && clime_str_is(key, "n")) {
            if (clime_json_int(&j, 1, 128, &v) && v != 1) clime_json_bad(&j, "n: a session has one answer a turn");
        } else if (clime_str_is(key, "stream")) {
            clime_json_bool(&j, &b->stream);
        } else if (!chat && clime_str_is(key, "text")) {
            clime_json_string(&j, &a->text);
        } else if (!chat && clime_str_is(key, "input_ids")) {
            a->has_ids = true;
            for (clime_json_array(&j); clime_json_item(&j);)
                if (clime_json_int(&j, 0, INT32_MAX, &v)) clime_ids_push(&b->ids, (int32_t)v);
        } else if (!chat && clime_str_is(key, "sampling_params")) {
            read_sampling(b, &j);
        } else {
            clime_json_skip(&j, NULL);
        }
    }
    if (!clime_json_end(&j)) return e->code;
    a->ids = b->ids.data;
    a->n_ids = b->ids.len;
    if (chat && !a->messages.ptr) return clime_fail(e, CLIME_ERR_INPUT, "messages: missing");
    if (!chat && b->stream) return clime_fail(e, CLIME_ERR_INPUT, "stream: a session's /generate answers whole");
    if (!chat && a->has_ids && a->text.ptr)
        return clime_fail(e, CLIME_ERR_INPUT, "give one of input_ids (the whole context) and text (what is new)");
    return CLIME_OK;
}

/* ---- the reply ---- */

static const char *finish_of(const struct clime_sample *s) {
    return s->status == CLIME_SAMPLE_COMPLETED ? "stop" : "length";
}

static void chat_begin(struct clime_jw *w, const struct clime_env_call *c, const char *object) {
    clime_jw_object(w);
    clime_jw_key(w, "id");
    clime_jw_strz(w, c->rid);
    clime_jw_key(w, "object");
    clime_jw_strz(w, object);
    clime_jw_key(w, "created");
    clime_jw_int(w, clime_wall_us() / 1000000);
    clime_jw_key(w, "model");
    clime_jw_strz(w, "policy");
    clime_jw_key(w, "turn");
    clime_jw_int(w, c->turn);
    clime_jw_key(w, "choices");
    clime_jw_array(w);
    clime_jw_object(w);
    clime_jw_key(w, "index");
    clime_jw_int(w, 0);
}

static void write_message(struct clime_jw *w, const char *key, const char *role, const struct clime_buf *text) {
    clime_jw_key(w, key);
    clime_jw_object(w);
    if (role) {
        clime_jw_key(w, "role");
        clime_jw_strz(w, role);
    }
    if (text) {
        clime_jw_key(w, "content");
        clime_jw_str(w, clime_buf_str(text));
    }
    clime_jw_close(w);
}

static void chat_end(struct clime_jw *w, const struct clime_env_call *c, const char *finish) {
    const struct clime_sample *s = c->answer;
    clime_jw_key(w, "logprobs");
    clime_jw_null(w);
    clime_jw_key(w, "finish_reason");
    clime_jw_strz(w, finish);
    clime_jw_close(w);
    clime_jw_close(w);
    if (finish) {
        clime_jw_key(w, "usage");
        clime_jw_object(w);
        clime_jw_key(w, "prompt_tokens");
        clime_jw_int(w, s->n_prompt);
        clime_jw_key(w, "completion_tokens");
        clime_jw_int(w, s->n_response);
        clime_jw_key(w, "total_tokens");
        clime_jw_int(w, s->n_prompt + s->n_response);
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

/* A whole answer, or its two chunks as events. */
static void reply_chat(const struct clime_env_call *c, bool stream, struct clime_buf *out) {
    struct clime_jw w;
    if (!stream) {
        clime_jw_init(&w, out);
        chat_begin(&w, c, "chat.completion");
        write_message(&w, "message", "assistant", &c->text);
        chat_end(&w, c, finish_of(c->answer));
        return;
    }
    struct clime_buf event;
    clime_buf_init(&event, CLIME_RENDER_MAX);
    for (int last = 0; last < 2; last++) {
        clime_buf_clear(&event);
        clime_jw_init(&w, &event);
        chat_begin(&w, c, "chat.completion.chunk");
        write_message(&w, "delta", last ? NULL : "assistant", last ? NULL : &c->text);
        chat_end(&w, c, last ? finish_of(c->answer) : NULL);
        clime_sse_frame(out, clime_buf_str(&event));
    }
    clime_sse_frame(out, clime_str_of("[DONE]"));
    clime_buf_free(&event);
}

static void reply_generate(const struct clime_env_call *c, struct clime_buf *out) {
    const struct clime_sample *s = c->answer;
    struct clime_jw w;
    char version[24];
    snprintf(version, sizeof version, "%" PRId64, c->version);
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_key(&w, "text");
    clime_jw_str(&w, clime_buf_str(&c->text));
    clime_jw_key(&w, "output_ids");
    clime_jw_array(&w);
    for (int i = 0; i < s->n_response; i++) clime_jw_int(&w, s->ids[s->n_prompt + i]);
    clime_jw_close(&w);
    clime_jw_key(&w, "meta_info");
    clime_jw_object(&w);
    clime_jw_key(&w, "id");
    clime_jw_strz(&w, c->rid);
    clime_jw_key(&w, "finish_reason");
    clime_jw_raw(&w, clime_str_of(s->finish ? s->finish : "null"));
    clime_jw_key(&w, "turn");
    clime_jw_int(&w, c->turn);
    clime_jw_key(&w, "prompt_tokens");
    clime_jw_int(&w, s->n_prompt);
    clime_jw_key(&w, "completion_tokens");
    clime_jw_int(&w, s->n_response);
    clime_jw_key(&w, "weight_version");
    clime_jw_strz(&w, version);
    clime_jw_key(&w, "output_token_logprobs");
    clime_jw_array(&w);
    for (int i = 0; i < s->n_response; i++) {
        clime_jw_array(&w);
        clime_jw_float(&w, s->logp[i]);
        clime_jw_int(&w, s->ids[s->n_prompt + i]);
        clime_jw_null(&w);
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_jw_close(&w);
}

void clime_env_body_reply(const struct clime_env_body *b, const struct clime_env_call *c, struct clime_buf *out) {
    if (b->ask.chat)
        reply_chat(c, b->stream, out);
    else
        reply_generate(c, out);
}

void clime_env_body_free(struct clime_env_body *b) {
    clime_ids_free(&b->ids);
    clime_arena_free(&b->arena);
}
