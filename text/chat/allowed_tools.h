/* tool_choice of type allowed_tools, OpenAI's: this request may call a part of its tools only. The others are not shown
 * to the model, and a call of one of them that it writes all the same is text (clime_output_format.only_known). Any
 * thread; no state.
 */
#ifndef CLIME_TEXT_CHAT_ALLOWED_TOOLS_H
#define CLIME_TEXT_CHAT_ALLOWED_TOOLS_H

#include "common/json/scan.h"
#include "common/json/write.h"

/* Borrowed from the request; all zero: there is no such choice. */
struct clime_allowed_tools {
    struct clime_str list; /* raw JSON */
    bool must;             /* mode: required */
};

/* Whether the value that comes is such a choice; consumes nothing. */
bool clime_allowed_tools_are(const struct clime_json *j);
/* Reads it, as chat completions or as Responses have it. */
bool clime_allowed_tools_read(struct clime_json *j, struct clime_allowed_tools *out);

/* *tools: raw JSON of functions; replaced by those that are allowed, a copy in the arena. CLIME_ERR_INPUT: one is
 * allowed that is not there. Allowed tools that OpenAI's servers would run are passed over, as the tools themselves
 * are. */
enum clime_err clime_allowed_tools_keep(const struct clime_allowed_tools *allowed, struct clime_arena *a,
                                        struct clime_str *tools, struct clime_error *e);

#endif
