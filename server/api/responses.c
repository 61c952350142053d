/* POST /v1/responses: the handler, on an HTTP worker, and the stream's framer, on the job's emitter. */
#include "server/api/responses.h"

#include "common/http/sse.h"

static void stream_begin(struct clime_job *j, struct clime_buf *sse) {
    struct clime_responses_request *q = j->endpoint;
    const struct clime_answer a = clime_openai_answer(&j->outs[0]);
    clime_responses_begin(j->outs[0].cursor, &a, &q->asked, &(struct clime_answer_events){&q->r.event, sse});
}

static void stream_news(struct clime_job *j, struct clime_output *o, struct clime_buf *sse) {
    struct clime_responses_request *q = j->endpoint;
    const struct clime_answer a = clime_openai_answer(o);
    clime_responses_news(o->cursor, &a, &q->asked, &(struct clime_answer_events){&q->r.event, sse});
}

static void stream_end(struct clime_job *j, struct clime_buf *sse) {
    (void)j;
    (void)sse; /* the response was the last event */
}

static const struct clime_framer framer = {.cursor_bytes = sizeof(struct clime_responses_stream),
                                           .heartbeat = CLIME_SSE_HEARTBEAT,
                                           .begin = stream_begin,
                                           .news = stream_news,
                                           .end = stream_end};

static void write_reply(struct clime_job *j, struct clime_buf *out) {
    const struct clime_responses_request *q = j->endpoint;
    const struct clime_answer a = clime_openai_answer(&j->outs[0]);
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_responses_write(&w, &a, &q->asked, true);
}

void clime_handle_responses(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_responses_request q = {.r = {.server = context}};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    gen.job->framer = &framer;
    enum clime_err err = clime_responses_parse(&gen, &q, &e);
    if (!err) err = clime_generation_run(&gen, &e);
    clime_openai_finish_call(&gen, err, &e, write_reply);
}

static void write_count(const struct clime_generation *gen, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_responses_write_count(&w, (int64_t)gen->prompts[0].ids.len);
}

/* Counts the prompt tokens of such a request; generates nothing. */
void clime_handle_input_tokens(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_responses_request q = {.r = {.server = context}};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    enum clime_err err = clime_responses_parse(&gen, &q, &e);
    if (!err) err = clime_generation_encode(&gen, &e);
    clime_generation_answer_count(&gen, err, &e, write_count);
    clime_buf_free(&q.r.event);
}
