/* POST /v1/chat/completions. The handler runs on an HTTP worker, the framer on the job's emitter.
 *
 * Stream order: per choice a chunk with the role; deltas of reasoning, content and calls (a call's id and name, then
 * its arguments as they arrive); per choice a chunk with finish_reason; then usage if requested, then [DONE].
 */

#include "common/http/sse.h"
#include "server/api/openai.h"

static void write_choice(struct clime_jw *w, const struct clime_output *o) {
    const struct clime_answer a = clime_openai_answer(o);
    clime_jw_object(w);
    clime_jw_put_int(w, "index", o->index);
    clime_jw_key(w, "message");
    clime_chat_answer_write(w, &a);
    clime_openai_write_content_logprobs(w, o, 0, o->out.len);
    clime_openai_write_finish(w, o);
    clime_openai_write_extras(w, o->job->endpoint, o, 0, o->out.len, false, true);
    clime_jw_close(w);
}

static void write_reply(struct clime_job *j, struct clime_buf *out) {
    const struct clime_openai_request *r = j->endpoint;
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_openai_open(&w, j, "chat.completion");
    clime_jw_key(&w, "choices");
    clime_jw_array(&w);
    for (int i = 0; i < j->n_outs; i++) write_choice(&w, &j->outs[i]);
    clime_jw_close(&w);
    clime_openai_write_usage(&w, j);
    if (r->return_token_ids || r->return_prompt_ids)
        clime_openai_write_ids(&w, "prompt_token_ids", j->outs[0].ids, (size_t)j->outs[0].n_prompt);
    clime_openai_write_prompt_logprobs(&w, &j->outs[0]);
    clime_openai_close_reply(&w, j);
}

/* ---- stream ------------------------------------------------------------------------------------------------ */

struct cursor {
    struct clime_chat_cursor at;
    size_t ids;
};

static struct clime_jw open_chunk(struct clime_output *o) {
    struct clime_jw w;
    clime_openai_open_chunk(&w, o, "chat.completion.chunk");
    clime_jw_key(&w, "delta");
    clime_jw_object(&w);
    return w;
}

static void send_unfinished(struct clime_jw *w, struct clime_job *j, struct clime_buf *sse) {
    clime_jw_key(w, "finish_reason");
    clime_jw_null(w);
    clime_openai_send_chunk(w, j, sse);
}

static void stream_begin(struct clime_job *j, struct clime_buf *sse) {
    const struct clime_openai_request *r = j->endpoint;
    for (int i = 0; i < j->n_outs; i++) {
        struct clime_output *o = &j->outs[i];
        struct clime_jw w = open_chunk(o);
        clime_jw_put_strz(&w, "role", "assistant");
        clime_jw_put_str(&w, "content", clime_str_of(""));
        clime_jw_close(&w);
        if (r->return_token_ids || r->return_prompt_ids)
            clime_openai_write_ids(&w, "prompt_token_ids", o->ids, (size_t)o->n_prompt);
        send_unfinished(&w, j, sse);
    }
}

/* Tokens that a delta with text may carry. A stop token that the text leaves out comes in a delta of its own: clients
 * that build their text from the tokens (guidance) would show it. */
static size_t n_text_tokens(const struct clime_output *o) {
    const struct cursor *c = o->cursor;
    bool left_out = o->finish.type == CLIME_FINISH_STOP && o->finish.matched_id >= 0 && !o->params->no_stop_trim;
    return left_out && c->ids < o->out.len ? o->out.len - 1 : o->out.len;
}

/* The caller opens the delta. The first delta of an update carries its new tokens, up to token `to`. */
static void send_delta(struct clime_jw *w, struct clime_output *o, size_t to, struct clime_buf *sse) {
    struct cursor *c = o->cursor;
    clime_jw_close(w);
    clime_openai_write_content_logprobs(w, o, c->ids, to);
    clime_openai_write_extras(w, o->job->endpoint, o, c->ids, to, false, false);
    c->ids = to;
    send_unfinished(w, o->job, sse);
}

static void send_piece(struct clime_output *o, const struct clime_answer *a, const struct clime_chat_delta *d,
                       size_t to, struct clime_buf *sse) {
    struct clime_jw w = open_chunk(o);
    clime_chat_answer_delta(&w, a, d);
    send_delta(&w, o, to, sse);
}

/* stream_reasoning false: reasoning is sent as one delta at its end. */
static bool must_wait(const struct clime_openai_request *r, const struct clime_output *o) {
    const struct clime_segments *s = &o->parse.segments;
    const struct cursor *c = o->cursor;
    return !r->stream_reasoning && !o->text.done && c->at.at.segment + 1 == s->n &&
           s->at[c->at.at.segment].kind == CLIME_SEGMENT_REASONING;
}

static void stream_news(struct clime_job *j, struct clime_output *o, struct clime_buf *sse) {
    struct clime_openai_request *r = j->endpoint;
    struct cursor *c = o->cursor;
    struct clime_chat_delta d;
    if (clime_openai_stream_failed(r, o, sse)) return;
    const struct clime_answer a = clime_openai_answer(o);
    while (!must_wait(r, o) && clime_chat_answer_next(&a, &c->at, &d)) send_piece(o, &a, &d, n_text_tokens(o), sse);
    if (c->ids < o->out.len && (r->logprobs || r->return_token_ids))
        send_piece(o, &a, &(struct clime_chat_delta){.piece = {.kind = CLIME_SEGMENT_CONTENT, .text = {"", 0}}},
                   o->out.len, sse);
    if (o->finish.type == CLIME_FINISH_NONE) return;
    struct clime_jw w = open_chunk(o);
    clime_jw_close(&w);
    clime_openai_write_finish(&w, o);
    clime_openai_write_extras(&w, r, o, o->out.len, o->out.len, false, true);
    clime_openai_send_chunk(&w, j, sse);
}

static void stream_end(struct clime_job *j, struct clime_buf *sse) {
    clime_openai_stream_end(j, sse, "chat.completion.chunk");
}

static const struct clime_framer framer = {.cursor_bytes = sizeof(struct cursor),
                                           .heartbeat = CLIME_SSE_HEARTBEAT,
                                           .begin = stream_begin,
                                           .news = stream_news,
                                           .end = stream_end};

void clime_handle_chat(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_openai_request r = {.server = context};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    gen.job->framer = &framer;
    enum clime_err err = clime_openai_parse(&gen, true, &r, &e);
    if (!err) err = clime_generation_run(&gen, &e);
    clime_openai_finish_call(&gen, err, &e, write_reply);
}
