/* POST /v1/responses, OpenAI's newer chat API, stateless: every request carries its whole conversation.
 *
 * Items become a chat prompt (text/chat/conversation.h); the reply's items are the output's segments: reasoning,
 * message, function_call (text/chat/responses_answer.h).
 */
#ifndef CLIME_SERVER_API_RESPONSES_H
#define CLIME_SERVER_API_RESPONSES_H

#include "server/api/openai.h"
#include "text/chat/responses_answer.h"

struct clime_responses_request {
    struct clime_openai_request r; /* must be first: job->endpoint points to it */
    struct clime_str input;
    struct clime_responses_asked asked;
};

enum clime_err clime_responses_parse(struct clime_generation *gen, struct clime_responses_request *q,
                                     struct clime_error *e);

#endif
