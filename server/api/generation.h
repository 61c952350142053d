/* The way of a generating request, common to all endpoints that generate.
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
    bool add_special; /* text or chat: with what the tokenizer's post-processor adds */
    bool cut;         /* ids are less than the text has */
    int64_t truncate; /* truncate_prompt_tokens: keep the last so many; -1 = as many as fit; 0 = all */
    struct clime_str text;
    const struct clime_chat_prompt *chat; /* not NULL: a conversation to render */
    struct clime_ids ids;                 /* data is malloc'd when it came from text or chat, else in the job's arena */
    struct clime_str rid;                 /* empty = made up */
    struct clime_sampling_params *params;
    struct clime_logp_options *logp;
    struct clime_str salt;
};

struct clime_generation {
    struct clime_server *server;
    struct clime_http_request *rq;
    struct clime_str body; /* of the request: what the endpoint parses */
    struct clime_job *job;
    const char *model;            /* the served name that was asked for */
    const char *rid_prefix;       /* of ids that are made up */
    struct clime_prompt *prompts; /* [n_prompts] in the job's arena */
    int n_prompts;
    struct clime_str resume; /* replies to go on from, as JSON (resume.h); empty = none */
    bool shared_params;      /* all prompts have one params object, so seeds differ by item */
    bool registered;
    int n_reserved;
};

/* Makes the job with its arena; prompts are filled in by the endpoint (clime_generation_prompts allocates them). */
void clime_generation_begin(struct clime_generation *gen, struct clime_server *s, struct clime_http_request *rq,
                            struct clime_str body);
enum clime_err clime_generation_prompts(struct clime_generation *gen, int n, struct clime_error *e);

/* Takes the name of the model that the client asks for. CLIME_ERR_NOT_FOUND unless it is a served one; empty asks for
 * none in particular. */
enum clime_err clime_generation_model(struct clime_generation *gen, struct clime_str name, struct clime_error *e);

/* A request id that nobody has, in the job's arena. */
struct clime_str clime_generation_make_rid(struct clime_generation *gen);

/* The prompts' ids from their texts and conversations, cut where the client wants that; a part of clime_generation_run.
 */
enum clime_err clime_generation_encode(struct clime_generation *gen, struct clime_error *e);
/* Whether they can be generated from: not empty, short enough, ids and parameters of this vocabulary. */
enum clime_err clime_generation_check(const struct clime_generation *gen, struct clime_error *e);
/* The end of a request that asked for no more than how many there are: writes them, or replies with the error. */
void clime_generation_answer_count(struct clime_generation *gen, enum clime_err err, const struct clime_error *e,
                                   void (*write)(const struct clime_generation *gen, struct clime_buf *out));

/* CLIME_OK: the job ran and is closed (and, when job->stream, the stream is written and ended). Otherwise nothing was
 * sent: the endpoint replies with the error. */
enum clime_err clime_generation_run(struct clime_generation *gen, struct clime_error *e);

/* An output that failed (it has a status of its own, 422 or 5xx), or NULL: a reply that is not a stream becomes that
 * error. */
const struct clime_output *clime_generation_failed(const struct clime_generation *gen);

void clime_generation_end(struct clime_generation *gen); /* after the reply */

#endif
