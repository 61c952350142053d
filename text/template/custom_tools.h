/* Tools of OpenAI's that the model is shown in another form than its client gave them, and whose calls go back in the
 * client's. Any thread; no state.
 *
 *   custom     a tool whose calls are texts: shown as a function with the text as its one argument.
 *   namespace  a list of tools under a name: a member is shown as "NAMESPACE.NAME". The namespace `functions` is that
 * of the tools that are in none, and adds nothing.
 */
#ifndef CLIME_TEXT_TEMPLATE_CUSTOM_TOOLS_H
#define CLIME_TEXT_TEMPLATE_CUSTOM_TOOLS_H

#include "common/json/scan.h"
#include "common/json/write.h"

/* The function's "parameters". definition: of the grammar that its text should have; empty = none. */
void clime_custom_tool_parameters(struct clime_jw *w, struct clime_str definition);
/* The arguments of its call, JSON, for an earlier call that comes back. Appended. */
void clime_custom_tool_arguments(struct clime_str input, struct clime_buf *out);

/* Whether the request's tools (raw JSON of chat or Responses, may be empty) have a custom one that is shown under that
 * name. */
bool clime_custom_tool_is(struct clime_str tools, struct clime_str name);
/* Whether they have any whose calls go back in another form: a custom one, or a namespace. */
bool clime_custom_tool_any(struct clime_str tools);
/* The name under which a member of a namespace is shown (space empty: a tool of none). Appended. */
void clime_namespace_name(struct clime_str space, struct clime_str name, struct clime_buf *out);
/* The same as a copy in the arena; empty where it is full. */
struct clime_str clime_namespace_shown(struct clime_str space, struct clime_str name, struct clime_arena *a);
/* The length of the namespace in a name that is shown; 0: there is none. What is behind it and the dot is the member's
 * own. */
size_t clime_namespace_length(struct clime_str tools, struct clime_str name);
/* The text of a call, as a JSON string; arguments of another form than was shown are the text themselves. */
void clime_custom_tool_write_input(struct clime_jw *w, struct clime_str arguments);

#endif
