/* POST /generate. Runs on an HTTP worker from the request to the reply (server/api/generation.h). */
#include "server/api/generate_reply.h"

void clime_handle_generate(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_generate_options opts = {0};
    struct clime_generate_reply *reply = NULL;
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    enum clime_err err = clime_generate_parse(&gen, &opts, &e);
    if (err) goto done;
    gen.job->endpoint = reply = clime_generate_reply_new(&opts);
    gen.job->framer = &clime_generate_framer;
    err = clime_generation_run(&gen, &e);
    if (err || gen.job->stream) goto done;
    const struct clime_output *failed = clime_generation_failed(&gen);
    if (failed) {
        clime_http_reply_error(rq, failed->finish.status, failed->finish.message);
        goto done;
    }
    struct clime_buf body;
    clime_buf_init(&body, CLIME_MAX_REPLY);
    clime_generate_write(reply, gen.job, &body);
    clime_reply_buf(rq, 200, &body);
done:
    if (err) clime_http_reply_err(rq, &e);
    clime_generation_end(&gen);
    if (reply) clime_generate_reply_free(reply);
}
