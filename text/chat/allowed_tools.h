/* OpenAI's tool_choice of type allowed_tools: the request may call only some of its tools. The others are hidden from
 * the model; if it calls one anyway, the call is text (clime_output_format.only_known). Any thread; no state.
 */
#ifndef CLIME_TEXT_CHAT_ALLOWED_TOOLS_H
#define CLIME_TEXT_CHAT_ALLOWED_TOOLS_H

#include "common/json/scan.h"
#include "common/json/write.h"

/* Borrowed from the request; all zero = none. */
struct clime_allowed_tools {
    struct clime_str list; /* raw JSON */
    bool must;             /* mode: required */
};

/* True if the next value is such a choice; consumes nothing. */
bool clime_allowed_tools_are(const struct clime_json *j);
/* Reads it in the form of chat completions or Responses. */
bool clime_allowed_tools_read(struct clime_json *j, struct clime_allowed_tools *out);

/* *tools: raw JSON of functions; replaced by the allowed ones, a copy in the arena. CLIME_ERR_INPUT: an allowed tool
 * does not exist. Skips allowed tools that OpenAI's servers would run, as the tool lists do. */
enum clime_err clime_allowed_tools_keep(const struct clime_allowed_tools *allowed, struct clime_arena *a,
                                        struct clime_str *tools, struct clime_error *e);

#endif
