/* POST /v1/responses, OpenAI's newer form of a chat, without memory: every request brings its whole conversation.
 *
 * Items become a chat prompt (chat_build.h); the reply's items are the output's segments: reasoning, message,
 * function_call.
 */
#ifndef CLIME_SERVER_API_RESPONSES_H
#define CLIME_SERVER_API_RESPONSES_H

#include "server/api/openai.h"

struct clime_responses_request {
    struct clime_openai_request r; /* the first: the job's endpoint points to it */
    struct clime_str input, instructions, tools, reasoning, tool_choice, text;
};

enum clime_err clime_responses_parse(struct clime_generation *gen, struct clime_responses_request *q,
                                     struct clime_error *e);

/* The response as an object: `output` as far as it is known where done, empty otherwise. */
void clime_responses_write(struct clime_jw *w, const struct clime_output *o, bool done);
/* An item of the output; begins: as it is added in a stream, without its text. */
void clime_responses_write_item(struct clime_jw *w, const struct clime_output *o, int segment, bool begins);
/* A part of a message's or a reasoning's content. */
void clime_responses_write_part(struct clime_jw *w, enum clime_segment_kind kind, struct clime_str text);
struct clime_str clime_responses_text(const struct clime_output *o, int segment); /* of a segment that is no call */
void clime_responses_item_id(const struct clime_output *o, int segment, char id[CLIME_CALL_ID]);

extern const struct clime_framer clime_responses_framer;

#endif
