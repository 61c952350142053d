/* POST /v1/messages and /v1/messages/count_tokens, Anthropic's form of a chat: the request, and what its parts share.
 *
 * The request becomes a chat prompt (text/chat/conversation.h); the reply is written from the output's segments as
 * content blocks: thinking, text, tool_use (text/chat/messages_answer.h).
 */
#ifndef CLIME_SERVER_API_MESSAGES_H
#define CLIME_SERVER_API_MESSAGES_H

#include "server/api/openai.h"

struct clime_messages_request {
    struct clime_openai_request r; /* the first: the job's endpoint points to it */
    struct clime_str system, messages, tools;
    bool one_call, counts; /* count_tokens needs no max_tokens */
    bool threaded;         /* refused, in words that the client's package goes on by */
};

enum clime_err clime_messages_parse(struct clime_generation *gen, bool counts, struct clime_messages_request *m,
                                    struct clime_error *e);

#endif
