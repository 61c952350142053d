/* Streaming replies: a turn's answer as events while it grows, for chat completions, Responses and Messages.
 *
 * Two threads: the task's owner reports tokens as the servers sample them; the client's handler turns them into text
 * and events and sends those, so a slow client delays only itself. Reported tokens are final: a failed try is repeated
 * with the same seed and gives the same tokens; if it does not (new weights), the turn fails. The stream begins with
 * the first tokens: an earlier failure is a status. Formats and order: text/chat, openapi/trainer.yaml. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/sse.h"
#include "text/chat/chat_answer.h"
#include "text/chat/messages_answer.h"
#include "trainer/env/environments_int.h"

#define MAX_EVENT ((size_t)256 << 20)
#define MAX_NEWS CLIME_HTTP_MAX_WRITE /* bytes of events sent at once */

struct tokens {
    struct clime_ids ids;
    float *logp; /* [ids.size] */
};

struct clime_env_stream {
    const struct clime_env_body *b;
    struct clime_env_call *c;
    pthread_mutex_t lock; /* guards the fields up to ended */
    pthread_cond_t changed;
    struct tokens told;
    int64_t told_cached;
    bool ended;
    /* the handler's */
    struct tokens have;
    int64_t n_cached; /* of the prompt */
    struct clime_env_reading said;
    bool begun;              /* events were written */
    size_t n_numbers;        /* tokens whose log-probabilities a chat's client has */
    struct clime_ids prompt; /* if requested */
    bool prompt_told;
    struct clime_chat_cursor chat;
    struct clime_responses_asked asked;
    struct clime_responses_stream responses;
    struct clime_messages_stream messages;
    struct clime_buf event; /* the current event */
    struct clime_http_stream *http;
    int64_t sent_us; /* last time anything was sent, or the call's start */
    atomic_bool dead;
};

static void append(struct tokens *t, const int32_t *ids, const float *logp, size_t n) {
    size_t len = t->ids.len;
    clime_ids_append(&t->ids, ids, n);
    t->logp = xrealloc(t->logp, t->ids.size * sizeof *t->logp + 1);
    memcpy(t->logp + len, logp, n * sizeof *logp);
}

static void free_tokens(struct tokens *t) {
    clime_ids_free(&t->ids);
    free(t->logp);
}

struct clime_env_stream *clime_env_stream_new(const struct clime_env_body *b, struct clime_env_call *c) {
    struct clime_env_stream *s = xcalloc(1, sizeof *s);
    s->b = b;
    s->c = c;
    s->sent_us = clime_now_us();
    pthread_mutex_init(&s->lock, NULL);
    clime_cond_init(&s->changed);
    clime_buf_init(&s->event, MAX_EVENT);
    return s;
}

void clime_env_stream_free(struct clime_env_stream *s) {
    if (!s) return;
    free_tokens(&s->told);
    free_tokens(&s->have);
    clime_ids_free(&s->prompt);
    clime_env_reading_free(&s->said);
    clime_buf_free(&s->event);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- the owner's side ---- */

void clime_env_stream_begin(struct clime_env_stream *s, const struct clime_environments *v, bool skip_special,
                            const int32_t *prompt, int n_prompt) {
    clime_env_reading_begin(&s->said, v, s->c->ask, skip_special, prompt, n_prompt);
    if (s->b->token_ids) clime_ids_append(&s->prompt, prompt, (size_t)n_prompt);
}

/* True when one list is a prefix of the other. */
static bool agree(const struct tokens *t, const int32_t *ids, int n) {
    size_t both = t->ids.len < (size_t)n ? t->ids.len : (size_t)n;
    return both == 0 || !memcmp(t->ids.data, ids, both * sizeof *ids);
}

bool clime_env_stream_tell(struct clime_env_stream *s, const struct clime_partial *p) {
    pthread_mutex_lock(&s->lock);
    size_t n = s->told.ids.len;
    bool same = agree(&s->told, p->ids, p->n);
    if (same && (size_t)p->n > n) {
        append(&s->told, p->ids + n, p->logp + n, (size_t)p->n - n);
        s->told_cached = p->cached_tokens;
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return same;
}

bool clime_env_stream_agrees(struct clime_env_stream *s, const struct clime_sample *whole) {
    pthread_mutex_lock(&s->lock);
    bool same = s->told.ids.len <= (size_t)whole->n_response &&
                agree(&s->told, whole->ids + whole->n_prompt, whole->n_response);
    pthread_mutex_unlock(&s->lock);
    return same;
}

void clime_env_stream_end(struct clime_env_stream *s) {
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

bool clime_env_stream_dead(const struct clime_env_stream *s) {
    return atomic_load(&s->dead);
}

/* ---- chat completions ---- */

/* Opens a delta or, with finish, the final chunk; with the log-probabilities of tokens since the last one. */
static struct clime_jw open_delta(struct clime_env_stream *s, const struct clime_answer *a) {
    struct clime_jw w;
    clime_env_open_chat(&w, a, s->c->turn, "chat.completion.chunk", &s->event);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "index", 0);
    clime_jw_key(&w, "delta");
    clime_jw_object(&w);
    return w;
}

static void send_event(struct clime_env_stream *s, struct clime_buf *out) {
    if (s->event.full)
        out->full = true;
    else
        clime_sse_frame(out, clime_buf_str(&s->event));
}

static void send_delta(struct clime_env_stream *s, struct clime_jw *w, const char *finish, struct clime_buf *out) {
    size_t n = s->have.ids.len, from = s->n_numbers;
    struct clime_env_numbers numbers = {.tok = s->c->tok,
                                        .ids = s->have.ids.data + from,
                                        .logp = s->have.logp + from,
                                        .n = (int)(n - from),
                                        .as_ids = s->b->ids_as_text};
    bool wanted = s->b->logprobs && n > from;
    clime_jw_close(w);
    if (s->b->token_ids) clime_env_put_ids(w, "token_ids", numbers.ids, n - from);
    clime_env_close_choice(w, finish, wanted ? &numbers : NULL);
    clime_jw_close(w);
    if (s->b->token_ids && !s->prompt_told) clime_env_put_ids(w, "prompt_token_ids", s->prompt.data, s->prompt.len);
    s->prompt_told = true;
    clime_jw_close(w);
    s->n_numbers = n;
    send_event(s, out);
}

static void chat_begin(struct clime_env_stream *s, const struct clime_answer *a, struct clime_buf *out) {
    struct clime_jw w = open_delta(s, a);
    size_t n = s->have.ids.len;
    clime_jw_put_strz(&w, "role", "assistant");
    clime_jw_put_str(&w, "content", clime_str_of(""));
    s->n_numbers = n; /* they are sent with the text */
    send_delta(s, &w, NULL, out);
    s->n_numbers = 0;
}

static void chat_news(struct clime_env_stream *s, const struct clime_answer *a, struct clime_buf *out) {
    struct clime_chat_delta d;
    while (clime_chat_answer_next(a, &s->chat, &d)) {
        struct clime_jw w = open_delta(s, a);
        clime_chat_answer_delta(&w, a, &d);
        send_delta(s, &w, NULL, out);
    }
}

static void chat_last(struct clime_env_stream *s, const struct clime_answer *a, struct clime_buf *out) {
    struct clime_jw w;
    if (a->end == CLIME_ANSWER_ABORT) {
        clime_buf_clear(&s->event);
        clime_jw_init(&w, &s->event);
        clime_jw_object(&w);
        clime_http_error_member(&w, a->status, a->message);
        clime_jw_close(&w);
        send_event(s, out);
    } else {
        w = open_delta(s, a);
        send_delta(s, &w, clime_chat_answer_finish(a), out);
        if (s->b->usage) {
            clime_env_open_chat(&w, a, s->c->turn, "chat.completion.chunk", &s->event);
            clime_jw_close(&w);
            clime_env_chat_usage(&w, a);
            clime_jw_close(&w);
            send_event(s, out);
        }
    }
    clime_sse_frame(out, clime_str_of("[DONE]"));
}

/* ---- all APIs ---- */

static void write_begin(struct clime_env_stream *s, const struct clime_answer *a, struct clime_buf *out) {
    const struct clime_answer_events to = {&s->event, out};
    if (s->begun) return;
    s->begun = true;
    s->asked = s->b->asked;
    s->asked.temperature = s->c->temperature;
    s->asked.top_p = s->c->top_p;
    if (s->b->api == CLIME_ENV_CHAT)
        chat_begin(s, a, out);
    else if (s->b->api == CLIME_ENV_RESPONSES)
        clime_responses_begin(&s->responses, a, &s->asked, &to);
    else
        clime_messages_begin(a, &to);
}

static void write_responses(struct clime_env_stream *s, struct clime_answer a, const struct clime_answer_events *to) {
    const struct clime_env_numbers numbers = {
        .tok = s->c->tok, .ids = s->have.ids.data, .logp = s->have.logp, .begins = s->said.begins, .n = s->said.n};
    if (s->b->logprobs) a.tokens = clime_env_tokens(&numbers);
    clime_responses_news(&s->responses, &a, &s->asked, to);
}

static void write_news(struct clime_env_stream *s, const struct clime_answer *a, struct clime_buf *out) {
    const struct clime_answer_events to = {&s->event, out};
    if (s->b->api == CLIME_ENV_RESPONSES)
        write_responses(s, *a, &to);
    else if (s->b->api == CLIME_ENV_MESSAGES)
        clime_messages_news(&s->messages, a, &to);
    else
        chat_news(s, a, out);
}

/* Reads newly reported tokens. False: none; before the first token the call still belongs to its owner. */
static bool take_news(struct clime_env_stream *s) {
    pthread_mutex_lock(&s->lock);
    size_t n = s->have.ids.len, more = s->told.ids.len - n;
    s->n_cached = s->told_cached;
    if (more) append(&s->have, s->told.ids.data + n, s->told.logp + n, more);
    pthread_mutex_unlock(&s->lock);
    if (more) clime_env_reading_feed(&s->said, s->have.ids.data, (int)s->have.ids.len, false, false);
    return more > 0;
}

/* The answer so far, for its writers. */
static struct clime_answer so_far(const struct clime_env_stream *s) {
    struct clime_answer a = clime_env_answer(s->c, &s->said, NULL);
    a.n_cached = s->n_cached;
    a.n_out = (int64_t)s->have.ids.len;
    return a;
}

void clime_env_stream_news(struct clime_env_stream *s, struct clime_buf *out) {
    if (!take_news(s)) return;
    const struct clime_answer a = so_far(s);
    write_begin(s, &a, out);
    write_news(s, &a, out);
}

void clime_env_stream_last(struct clime_env_stream *s, const struct clime_error *e, struct clime_buf *out) {
    take_news(s);
    struct clime_answer a;
    const struct clime_sample *whole = s->c->answer;
    if (e->code) {
        int status = clime_http_status_of(e->code);
        clime_env_reading_break(&s->said);
        a = so_far(s);
        a.end = CLIME_ANSWER_ABORT;
        a.status = status < 500 ? 500 : status; /* reported in events, as a server error */
        a.message = e->msg;
    } else {
        size_t n = s->have.ids.len;
        append(&s->have, whole->ids + whole->n_prompt + n, whole->logp + n, (size_t)whole->n_response - n);
        clime_env_reading_feed(&s->said, s->have.ids.data, whole->n_response, true,
                               whole->status == CLIME_SAMPLE_COMPLETED);
        a = clime_env_answer(s->c, &s->said, whole);
    }
    write_begin(s, &a, out);
    write_news(s, &a, out);
    if (s->b->api == CLIME_ENV_CHAT) chat_last(s, &a, out);
}

/* ---- over HTTP ---- */

static void send_all(struct clime_env_stream *s, struct clime_buf *out) {
    if (!out->len || atomic_load(&s->dead)) return;
    s->sent_us = clime_now_us();
    if (!s->http) s->http = clime_http_stream_begin(s->c->rq, 200, "text/event-stream", "Cache-Control: no-cache\r\n");
    if (out->full || !clime_http_stream_write(s->http, out->data, out->len)) atomic_store(&s->dead, true);
}

void clime_env_stream_serve(struct clime_env_stream *s, int64_t wait_us, int64_t heartbeat_us) {
    int64_t until = clime_now_us() + wait_us;
    struct clime_buf out;
    pthread_mutex_lock(&s->lock);
    while (!s->ended && s->told.ids.len == s->have.ids.len && clime_now_us() < until)
        clime_cond_wait_until(&s->changed, &s->lock, until);
    pthread_mutex_unlock(&s->lock);
    clime_buf_init(&out, MAX_NEWS);
    clime_env_stream_news(s, &out);
    bool silent = heartbeat_us > 0 && clime_now_us() - s->sent_us >= heartbeat_us;
    if (!out.len && silent) clime_buf_adds(&out, CLIME_SSE_HEARTBEAT);
    send_all(s, &out);
    clime_buf_free(&out);
}

bool clime_env_stream_close(struct clime_env_stream *s, const struct clime_error *e) {
    struct clime_buf out;
    if (e->code && !s->http) return false;
    clime_buf_init(&out, MAX_NEWS);
    clime_env_stream_last(s, e, &out);
    send_all(s, &out);
    clime_http_stream_end(s->http, !atomic_load(&s->dead));
    clime_buf_free(&out);
    return true;
}
