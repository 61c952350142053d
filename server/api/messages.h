/* POST /v1/messages and /v1/messages/count_tokens, Anthropic's chat API: the request and its parser.
 *
 * The request becomes a chat prompt (text/chat/conversation.h); the reply is written from the output's segments as
 * content blocks: thinking, text, tool_use (text/chat/messages_answer.h).
 */
#ifndef CLIME_SERVER_API_MESSAGES_H
#define CLIME_SERVER_API_MESSAGES_H

#include "server/api/openai.h"

struct clime_messages_request {
    struct clime_openai_request r; /* must be first: job->endpoint points to it */
    struct clime_str system, messages, tools;
    bool one_call, counts; /* count_tokens needs no max_tokens */
    bool threaded;         /* rejected, with an error code that Anthropic's client handles */
};

enum clime_err clime_messages_parse(struct clime_generation *gen, bool counts, struct clime_messages_request *m,
                                    struct clime_error *e);

#endif
