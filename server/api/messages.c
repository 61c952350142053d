/* POST /v1/messages and /v1/messages/count_tokens: the handlers, on HTTP workers, and the stream's framer, on the job's
 * emitter. */
#include "server/api/messages.h"

#include "common/http/sse.h"
#include "text/chat/messages_answer.h"

static void stream_begin(struct clime_job *j, struct clime_buf *sse) {
    struct clime_openai_request *r = j->endpoint;
    const struct clime_answer a = clime_openai_answer(&j->outs[0]);
    clime_messages_begin(&a, &(struct clime_answer_events){&r->event, sse});
}

static void stream_news(struct clime_job *j, struct clime_output *o, struct clime_buf *sse) {
    struct clime_openai_request *r = j->endpoint;
    const struct clime_answer a = clime_openai_answer(o);
    clime_messages_news(o->cursor, &a, &(struct clime_answer_events){&r->event, sse});
}

static void stream_end(struct clime_job *j, struct clime_buf *sse) {
    (void)j;
    (void)sse; /* message_stop was the last event */
}

static const struct clime_framer framer = {.cursor_bytes = sizeof(struct clime_messages_stream),
                                           .heartbeat = CLIME_SSE_HEARTBEAT,
                                           .begin = stream_begin,
                                           .news = stream_news,
                                           .end = stream_end};

static void write_reply(struct clime_job *j, struct clime_buf *out) {
    const struct clime_answer a = clime_openai_answer(&j->outs[0]);
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_messages_write(&w, &a);
}

void clime_handle_messages(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_messages_request m = {.r = {.server = context}};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    gen.job->framer = &framer;
    enum clime_err err = clime_messages_parse(&gen, false, &m, &e);
    if (!err) err = clime_generation_run(&gen, &e);
    if (m.threaded) {
        struct clime_buf body;
        clime_buf_init(&body, 4096);
        clime_messages_refuse_thread(&body);
        clime_reply_buf(rq, 400, &body);
        clime_generation_end(&gen);
    } else {
        clime_openai_finish_call(&gen, err, &e, write_reply);
    }
}

static void write_count(const struct clime_generation *gen, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "input_tokens", (int64_t)gen->prompts[0].ids.len);
    clime_jw_close(&w);
}

/* Counts the prompt tokens of such a request; generates nothing. */
void clime_handle_count_tokens(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_messages_request m = {.r = {.server = context}};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    enum clime_err err = clime_messages_parse(&gen, true, &m, &e);
    if (!err) err = clime_generation_encode(&gen, &e);
    clime_generation_answer_count(&gen, err, &e, write_count);
    clime_buf_free(&m.r.event);
}
