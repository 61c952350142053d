/* POST /v1/messages and /v1/messages/count_tokens. HTTP workers. */
#include "server/api/messages.h"

void clime_handle_messages(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_messages_request m = {.r = {.server = context}};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    gen.job->framer = &clime_messages_framer;
    enum clime_err err = clime_messages_parse(&gen, false, &m, &e);
    if (!err) err = clime_generation_run(&gen, &e);
    clime_openai_finish_call(&gen, err, &e, clime_messages_write_reply);
}

static void write_count(struct clime_generation *gen, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_key(&w, "input_tokens");
    clime_jw_int(&w, (int64_t)gen->prompts[0].ids.len);
    clime_jw_close(&w);
}

/* How many tokens the prompt of such a request has; nothing is generated. */
void clime_handle_count_tokens(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_messages_request m = {.r = {.server = context}};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    enum clime_err err = clime_messages_parse(&gen, true, &m, &e);
    if (!err) err = clime_generation_encode(&gen, &e);
    if (err) {
        clime_http_reply_err(rq, &e);
    } else {
        struct clime_buf body;
        clime_buf_init(&body, 4096);
        write_count(&gen, &body);
        clime_reply_buf(rq, 200, &body);
    }
    clime_generation_end(&gen);
    clime_buf_free(&m.r.event);
}
