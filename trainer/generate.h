/* One /generate call: the body of a request, and the sample in the reply. Pure functions over text, any thread. */
#ifndef CLIME_TRAINER_GENERATE_H
#define CLIME_TRAINER_GENERATE_H

#include "trainer/rollout_client.h"

/* Tokens the sample may still take: the response limit, cut by the context limit. 0 = the prompt fills the context. */
int64_t clime_generate_room(const struct clime_sampling_options *s, int32_t n_prompt);

/* Appends the JSON body of r's next try. */
void clime_generate_body(const struct clime_request *r, struct clime_buf *out);

enum clime_generate_outcome {
    CLIME_GENERATE_DONE,    /* the sample is filled: COMPLETED or TRUNCATED */
    CLIME_GENERATE_ABORTED, /* the server stopped it; try again */
    CLIME_GENERATE_STALE,   /* sampled by another version; try again */
    CLIME_GENERATE_BROKEN,  /* the reply is not what it must be: e says why */
};

/* Reads the reply of a try into r->sample (ids, log-probabilities, mask, versions, status, finish). Only DONE changes
 * the sample. */
enum clime_generate_outcome clime_generate_read(struct clime_request *r, struct clime_str reply, struct clime_error *e);

#endif
