/* Replies of a session's turns: a whole answer in the requested API's format. Streams: stream.c.
 *
 * Called by the handlers, on HTTP workers; no state. Formats: openapi/trainer.yaml. */
#include <inttypes.h>
#include <stdio.h>

#include "common/json/write.h"
#include "text/chat/chat_answer.h"
#include "text/chat/messages_answer.h"
#include "trainer/env/environments_int.h"

void clime_env_put_ids(struct clime_jw *w, const char *key, const int32_t *ids, size_t n) {
    clime_jw_key(w, key);
    clime_jw_array(w);
    for (size_t i = 0; i < n; i++) clime_jw_int(w, ids[i]);
    clime_jw_close(w);
}

/* ---- chat completions ---- */

void clime_env_open_chat(struct clime_jw *w, const struct clime_answer *a, int turn, const char *object,
                         struct clime_buf *to) {
    clime_buf_clear(to);
    clime_jw_init(w, to);
    clime_jw_object(w);
    clime_jw_put_str(w, "id", a->id);
    clime_jw_put_strz(w, "object", object);
    clime_jw_put_int(w, "created", a->created);
    clime_jw_put_strz(w, "model", a->model);
    clime_jw_put_int(w, "turn", turn);
    clime_jw_key(w, "choices");
    clime_jw_array(w);
}

static void write_number(struct clime_jw *w, const void *of, size_t i) {
    const struct clime_env_numbers *n = of;
    struct clime_str bytes = clime_tokenizer_bytes(n->tok, n->ids[i]);
    char name[32];
    snprintf(name, sizeof name, "token_id:%d", (int)n->ids[i]);
    clime_jw_put_str(w, "token", n->as_ids ? clime_str_of(name) : bytes);
    clime_chat_answer_logprob(w, bytes, n->logp[i]);
    clime_jw_key(w, "top_logprobs");
    clime_jw_array(w);
    clime_jw_close(w);
}

static size_t token_begins(const void *of, size_t i) {
    return ((const struct clime_env_numbers *)of)->begins[i];
}

struct clime_answer_tokens clime_env_tokens(const struct clime_env_numbers *n) {
    return (struct clime_answer_tokens){.n = (size_t)n->n, .begins = token_begins, .write = write_number, .of = n};
}

static void write_logprobs(struct clime_jw *w, const struct clime_env_numbers *n) {
    clime_jw_object(w);
    clime_jw_key(w, "content");
    clime_jw_array(w);
    for (int i = 0; i < n->n; i++) {
        clime_jw_object(w);
        write_number(w, n, (size_t)i);
        clime_jw_close(w);
    }
    clime_jw_close(w);
    clime_jw_key(w, "refusal");
    clime_jw_null(w);
    clime_jw_close(w);
}

void clime_env_close_choice(struct clime_jw *w, const char *finish, const struct clime_env_numbers *numbers) {
    clime_jw_key(w, "logprobs");
    if (numbers)
        write_logprobs(w, numbers);
    else
        clime_jw_null(w);
    clime_jw_put_strz(w, "finish_reason", finish);
    clime_jw_close(w);
}

void clime_env_chat_usage(struct clime_jw *w, const struct clime_answer *a) {
    clime_chat_answer_usage(w, a->n_prompt, a->n_out, a->n_cached, a->n_reasoning);
}

static void reply_chat(const struct clime_answer *a, const struct clime_env_call *c, const struct clime_env_body *b,
                       struct clime_buf *out) {
    const struct clime_sample *s = c->answer;
    const struct clime_env_numbers numbers = {
        .tok = c->tok, .ids = s->ids + s->n_prompt, .logp = s->logp, .n = s->n_response, .as_ids = b->ids_as_text};
    struct clime_jw w;
    clime_env_open_chat(&w, a, c->turn, "chat.completion", out);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "index", 0);
    clime_jw_key(&w, "message");
    clime_chat_answer_write(&w, a);
    if (b->token_ids) clime_env_put_ids(&w, "token_ids", numbers.ids, (size_t)numbers.n);
    clime_env_close_choice(&w, clime_chat_answer_finish(a), b->logprobs ? &numbers : NULL);
    clime_jw_close(&w);
    if (b->token_ids) clime_env_put_ids(&w, "prompt_token_ids", s->ids, (size_t)s->n_prompt);
    clime_env_chat_usage(&w, a);
    clime_answer_close(&w, a->weight_version);
}

/* ---- tokens ---- */

static void reply_generate(const struct clime_env_call *c, struct clime_buf *out) {
    const struct clime_sample *s = c->answer;
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_str(&w, "text", clime_buf_str(&c->said.text));
    clime_env_put_ids(&w, "output_ids", s->ids + s->n_prompt, (size_t)s->n_response);
    clime_jw_key(&w, "meta_info");
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "id", c->rid);
    clime_jw_put_raw(&w, "finish_reason", clime_str_of(s->finish ? s->finish : "null"));
    clime_jw_put_int(&w, "turn", c->turn);
    clime_jw_put_int(&w, "prompt_tokens", s->n_prompt);
    clime_jw_put_int(&w, "completion_tokens", s->n_response);
    clime_jw_put_strz(&w, "weight_version", c->version_name);
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

static void reply_count(const struct clime_env_call *c, enum clime_env_api api, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    if (api == CLIME_ENV_TOKENIZE) {
        clime_jw_object(&w);
        clime_jw_put_int(&w, "count", c->n_prompt);
        clime_env_put_ids(&w, "tokens", c->context.data, c->context.len);
        clime_jw_put_strz(&w, "token_strs", NULL);
        clime_jw_close(&w);
        return;
    }
    if (api == CLIME_ENV_INPUT_TOKENS) {
        clime_responses_write_count(&w, c->n_prompt);
        return;
    }
    clime_jw_object(&w);
    clime_jw_put_int(&w, "input_tokens", c->n_prompt);
    clime_jw_close(&w);
}

/* ---- all APIs ---- */

void clime_env_reply(const struct clime_env_body *b, const struct clime_env_call *c, struct clime_buf *out) {
    struct clime_jw w;
    if (b->ask.count) return reply_count(c, b->api, out);
    if (b->api == CLIME_ENV_GENERATE) return reply_generate(c, out);
    struct clime_answer a = clime_env_answer(c, &c->said, c->answer);
    const struct clime_sample *s = c->answer;
    const struct clime_env_numbers numbers = {
        .tok = c->tok, .ids = s->ids + s->n_prompt, .logp = s->logp, .begins = c->said.begins, .n = c->said.n};
    if (b->logprobs) a.tokens = clime_env_tokens(&numbers);
    struct clime_responses_asked asked = b->asked;
    asked.temperature = c->temperature;
    asked.top_p = c->top_p;
    clime_jw_init(&w, out);
    if (b->api == CLIME_ENV_CHAT)
        reply_chat(&a, c, b, out);
    else if (b->api == CLIME_ENV_RESPONSES)
        clime_responses_write(&w, &a, &asked, true);
    else
        clime_messages_write(&w, &a);
}
