/* The replies of a session's turns: an answer in the form that it was asked for in, whole or as events.
 *
 * Called by the handlers, on HTTP workers; no state. A turn is answered when it is whole, so a stream's events come
 * together: their shapes and order are those of a stream that grows (text/chat). Shapes: openapi/trainer.yaml. */
#include <inttypes.h>

#include "common/http/sse.h"
#include "common/json/write.h"
#include "text/chat/chat_answer.h"
#include "text/chat/messages_answer.h"
#include "trainer/env/environments_int.h"

#define MAX_EVENT ((size_t)256 << 20)

/* ---- chat completions ---- */

static void open_chat(struct clime_jw *w, const struct clime_answer *a, const struct clime_env_call *c,
                      const char *object, struct clime_buf *to) {
    clime_buf_clear(to);
    clime_jw_init(w, to);
    clime_jw_object(w);
    clime_jw_key(w, "id");
    clime_jw_str(w, a->id);
    clime_jw_key(w, "object");
    clime_jw_strz(w, object);
    clime_jw_key(w, "created");
    clime_jw_int(w, a->created);
    clime_jw_key(w, "model");
    clime_jw_strz(w, a->model);
    clime_jw_key(w, "turn");
    clime_jw_int(w, c->turn);
    clime_jw_key(w, "choices");
    clime_jw_array(w);
}

static void open_choice(struct clime_jw *w) {
    clime_jw_object(w);
    clime_jw_key(w, "index");
    clime_jw_int(w, 0);
}

/* Of all tokens of the answer. */
static void write_logprobs(struct clime_jw *w, const struct clime_env_call *c) {
    const struct clime_sample *s = c->answer;
    clime_jw_object(w);
    clime_jw_key(w, "content");
    clime_jw_array(w);
    for (int i = 0; i < s->n_response; i++) {
        struct clime_str bytes = clime_tokenizer_bytes(c->tok, s->ids[s->n_prompt + i]);
        clime_jw_object(w);
        clime_jw_key(w, "token");
        clime_jw_str(w, bytes);
        clime_chat_answer_logprob(w, bytes, s->logp[i]);
        clime_jw_key(w, "top_logprobs");
        clime_jw_array(w);
        clime_jw_close(w);
        clime_jw_close(w);
    }
    clime_jw_close(w);
    clime_jw_key(w, "refusal");
    clime_jw_null(w);
    clime_jw_close(w);
}

/* call: whose log-probabilities are wanted; NULL = none. */
static void close_choice(struct clime_jw *w, const char *finish, const struct clime_env_call *call) {
    clime_jw_key(w, "logprobs");
    if (call)
        write_logprobs(w, call);
    else
        clime_jw_null(w);
    clime_jw_key(w, "finish_reason");
    clime_jw_strz(w, finish);
    clime_jw_close(w);
}

static void write_usage(struct clime_jw *w, const struct clime_answer *a) {
    clime_chat_answer_usage(w, a->n_prompt, a->n_out, a->n_cached, a->n_reasoning);
}

static void reply_chat(const struct clime_answer *a, const struct clime_env_call *c, bool logprobs,
                       struct clime_buf *out) {
    struct clime_jw w;
    open_chat(&w, a, c, "chat.completion", out);
    open_choice(&w);
    clime_jw_key(&w, "message");
    clime_chat_answer_write(&w, a);
    close_choice(&w, clime_chat_answer_finish(a), logprobs ? c : NULL);
    clime_jw_close(&w);
    write_usage(&w, a);
    clime_answer_close(&w, a->weight_version);
}

struct chat_stream {
    const struct clime_answer *a;
    const struct clime_env_call *c;
    struct clime_answer_events to;
    struct clime_jw w; /* of the chunk that is open */
};

static struct clime_jw *open_delta(struct chat_stream *s) {
    open_chat(&s->w, s->a, s->c, "chat.completion.chunk", s->to.scratch);
    open_choice(&s->w);
    clime_jw_key(&s->w, "delta");
    clime_jw_object(&s->w);
    return &s->w;
}

static void send_delta(struct chat_stream *s, const char *finish, bool logprobs) {
    clime_jw_close(&s->w);
    close_choice(&s->w, finish, logprobs ? s->c : NULL);
    clime_jw_close(&s->w);
    clime_jw_close(&s->w);
    clime_sse_frame(s->to.sse, clime_buf_str(s->to.scratch));
}

static void stream_chat(struct chat_stream *s, bool usage, bool logprobs) {
    struct clime_parse_cursor at = {0};
    struct clime_piece p;
    struct clime_jw *w = open_delta(s);
    clime_jw_key(w, "role");
    clime_jw_strz(w, "assistant");
    clime_jw_key(w, "content");
    clime_jw_str(w, clime_str_of(""));
    send_delta(s, NULL, false);
    while (clime_parse_next(s->a->parse, s->a->text, &at, &p)) {
        if (p.kind != CLIME_SEGMENT_CALL) {
            clime_chat_answer_text(open_delta(s), p.kind, p.text);
            send_delta(s, NULL, false);
            continue;
        }
        for (int first = p.begins; first >= 0 && (first || p.text.len > 0); first--) {
            clime_chat_answer_call(open_delta(s), s->a, &p, first);
            send_delta(s, NULL, false);
        }
    }
    open_delta(s);
    send_delta(s, clime_chat_answer_finish(s->a), logprobs); /* the last one has the numbers of all */
    if (usage) {
        open_chat(&s->w, s->a, s->c, "chat.completion.chunk", s->to.scratch);
        clime_jw_close(&s->w);
        write_usage(&s->w, s->a);
        clime_jw_close(&s->w);
        clime_sse_frame(s->to.sse, clime_buf_str(s->to.scratch));
    }
    clime_sse_frame(s->to.sse, clime_str_of("[DONE]"));
}

/* ---- tokens ---- */

static void reply_generate(const struct clime_env_call *c, struct clime_buf *out) {
    const struct clime_sample *s = c->answer;
    struct clime_jw w;
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
    clime_jw_strz(&w, c->version_name);
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

static void reply_count(const struct clime_env_call *c, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_key(&w, "input_tokens");
    clime_jw_int(&w, c->n_prompt);
    clime_jw_close(&w);
}

/* ---- all of them ---- */

static void stream(const struct clime_env_body *b, const struct clime_answer *a,
                   const struct clime_responses_asked *asked, const struct clime_env_call *c, struct clime_buf *out) {
    struct clime_buf event;
    struct clime_answer_events to = {&event, out};
    struct chat_stream chat = {.a = a, .c = c, .to = to};
    struct clime_responses_stream responses = {0};
    struct clime_messages_stream messages = {0};
    clime_buf_init(&event, MAX_EVENT);
    if (b->api == CLIME_ENV_CHAT) {
        stream_chat(&chat, b->usage, b->logprobs);
    } else if (b->api == CLIME_ENV_RESPONSES) {
        clime_responses_begin(&responses, a, asked, &to);
        clime_responses_news(&responses, a, asked, &to);
    } else {
        clime_messages_begin(a, &to);
        clime_messages_news(&messages, a, &to);
    }
    out->full = out->full || event.full;
    clime_buf_free(&event);
}

void clime_env_reply(const struct clime_env_body *b, const struct clime_env_call *c, struct clime_buf *out) {
    struct clime_jw w;
    if (b->api == CLIME_ENV_GENERATE || b->api == CLIME_ENV_COUNT) {
        (b->api == CLIME_ENV_COUNT ? reply_count : reply_generate)(c, out);
        return;
    }
    const struct clime_answer a = clime_env_answer(c);
    struct clime_responses_asked asked = b->asked;
    asked.temperature = c->temperature;
    asked.top_p = c->top_p;
    if (b->stream) {
        stream(b, &a, &asked, c, out);
        return;
    }
    clime_jw_init(&w, out);
    if (b->api == CLIME_ENV_CHAT)
        reply_chat(&a, c, b->logprobs, out);
    else if (b->api == CLIME_ENV_RESPONSES)
        clime_responses_write(&w, &a, &asked, true);
    else
        clime_messages_write(&w, &a);
}
