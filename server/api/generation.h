/* A generating request, from parsed prompts to a closed job: shared by all endpoints that generate.
 *
 * The endpoint parses its body into prompts; clime_generation_run tokenises them, checks everything, submits, and
 * sleeps until the job is closed. Then the endpoint writes its reply from the outputs (a stream is already written by
 * the emitter through the endpoint's framer) and calls clime_generation_end. Thread: one HTTP worker from begin to end.
 */
#ifndef CLIME_SERVER_API_GENERATION_H
#define CLIME_SERVER_API_GENERATION_H

#include "server/server.h"

struct clime_prompt {
    bool is_text;
    bool add_special; /* text or chat: add the post-processor's tokens */
    bool cut;         /* ids are truncated */
    int64_t truncate; /* truncate_prompt_tokens: keep the last N; -1 = as many as fit; 0 = all */
    struct clime_str text;
    const struct clime_chat_prompt *chat; /* not NULL: a conversation to render */
    struct clime_ids ids;                 /* malloc'd for text or chat, else in the job's arena */
    struct clime_str rid;                 /* empty = generate one */
    struct clime_sampling_params *params;
    struct clime_logp_options *logp;
    struct clime_str salt;
};

struct clime_generation {
    struct clime_server *server;
    struct clime_http_request *rq;
    struct clime_str body; /* the request body, parsed by the endpoint */
    struct clime_job *job;
    const char *model;            /* the requested served name */
    const char *rid_prefix;       /* prefix of generated ids */
    struct clime_prompt *prompts; /* [n_prompts] in the job's arena */
    int n_prompts;
    struct clime_str resume; /* replies to resume from, JSON (resume.h); empty = none */
    bool shared_params;      /* all prompts share one params object, so seeds differ by item */
    bool registered;
    int n_reserved;
};

/* Makes the job with its arena; the endpoint fills the prompts (clime_generation_prompts allocates them). */
void clime_generation_begin(struct clime_generation *gen, struct clime_server *s, struct clime_http_request *rq,
                            struct clime_str body);
enum clime_err clime_generation_prompts(struct clime_generation *gen, int n, struct clime_error *e);

/* Sets the requested model name. CLIME_ERR_NOT_FOUND unless it is served; empty = any. */
enum clime_err clime_generation_model(struct clime_generation *gen, struct clime_str name, struct clime_error *e);

/* A unique request id, in the job's arena. */
struct clime_str clime_generation_make_rid(struct clime_generation *gen);

/* Encodes the prompts' texts and conversations to ids, truncated if requested; a part of clime_generation_run. */
enum clime_err clime_generation_encode(struct clime_generation *gen, struct clime_error *e);
/* Checks the prompts: not empty, short enough, ids and parameters in the vocabulary. */
enum clime_err clime_generation_check(const struct clime_generation *gen, struct clime_error *e);
/* Ends a request for token counts only: writes the counts, or replies with the error. */
void clime_generation_answer_count(struct clime_generation *gen, enum clime_err err, const struct clime_error *e,
                                   void (*write)(const struct clime_generation *gen, struct clime_buf *out));

/* CLIME_OK: the job ran and is closed (and, when job->stream, the stream is written and ended). Otherwise nothing was
 * sent: the endpoint replies with the error. */
enum clime_err clime_generation_run(struct clime_generation *gen, struct clime_error *e);

/* An output that failed (with its own status, 422 or 5xx), or NULL. A non-streaming reply becomes that error. */
const struct clime_output *clime_generation_failed(const struct clime_generation *gen);

void clime_generation_end(struct clime_generation *gen); /* after the reply */

#endif
