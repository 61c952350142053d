/* Replies of /generate in SGLang's form: one object, a list, or a stream of them. */
#ifndef CLIME_SERVER_API_GENERATE_REPLY_H
#define CLIME_SERVER_API_GENERATE_REPLY_H

#include "server/api/generate_parse.h"

struct clime_generate_reply; /* options and the stream's finished fragments; job->endpoint points here */

struct clime_generate_reply *clime_generate_reply_new(const struct clime_generate_options *o);
void clime_generate_reply_free(struct clime_generate_reply *r);

void clime_generate_write(struct clime_generate_reply *r, struct clime_job *j, struct clime_buf *out); /* closed job */

extern const struct clime_framer clime_generate_framer;

/* The meta_info object of an output; also for the OpenAI endpoints' return_meta_info. */
void clime_meta_info_write(struct clime_jw *w, const struct clime_output *o);

/* "seed", and "seed_text" as a string */
void clime_seed_write(struct clime_jw *w, const struct clime_output *o);

#endif
