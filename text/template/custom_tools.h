/* OpenAI's custom tools: their calls are texts. The model is shown a function with the text as its one argument, and
 * its call is read back as the text. Any thread; no state.
 */
#ifndef CLIME_TEXT_TEMPLATE_CUSTOM_TOOLS_H
#define CLIME_TEXT_TEMPLATE_CUSTOM_TOOLS_H

#include "common/json/scan.h"
#include "common/json/write.h"

/* The function's "parameters". definition: of the grammar that its text should have; empty = none. */
void clime_custom_tool_parameters(struct clime_jw *w, struct clime_str definition);
/* The arguments of its call, JSON, for an earlier call that comes back. Appended. */
void clime_custom_tool_arguments(struct clime_str input, struct clime_buf *out);

/* Whether the request's tools (raw JSON of chat or Responses, may be empty) have a custom one: of that name; any. */
bool clime_custom_tool_is(struct clime_str tools, struct clime_str name);
bool clime_custom_tool_any(struct clime_str tools);
/* The text of a call, as a JSON string; arguments of another form than was shown are the text themselves. */
void clime_custom_tool_write_input(struct clime_jw *w, struct clime_str arguments);

#endif
