/* OpenAI tools that are converted for the model, and whose calls are converted back for the client. Any thread; no
 * state.
 *
 *   custom     a tool whose calls are texts: shown as a function with one text argument.
 *   namespace  a named list of tools: a member is shown as "NAMESPACE.NAME". The namespace `functions` means none and
 *              adds nothing.
 */
#ifndef CLIME_TEXT_TEMPLATE_CUSTOM_TOOLS_H
#define CLIME_TEXT_TEMPLATE_CUSTOM_TOOLS_H

#include "common/json/scan.h"
#include "common/json/write.h"

/* The function's "parameters". definition: of its text's grammar; empty = none. */
void clime_custom_tool_parameters(struct clime_jw *w, struct clime_str definition);
/* Appends the JSON arguments for an earlier call with this text. */
void clime_custom_tool_arguments(struct clime_str input, struct clime_buf *out);

/* True if the request's tools (raw JSON of chat or Responses, may be empty) have a custom tool shown under name. */
bool clime_custom_tool_is(struct clime_str tools, struct clime_str name);
/* True if they have a custom tool or a namespace. */
bool clime_custom_tool_any(struct clime_str tools);
/* Appends the shown name of a namespace's member (space empty: no namespace). */
void clime_namespace_name(struct clime_str space, struct clime_str name, struct clime_buf *out);
/* The same as a copy in the arena; empty if the arena is full. */
struct clime_str clime_namespace_shown(struct clime_str space, struct clime_str name, struct clime_arena *a);
/* The length of the namespace in a shown name; 0: none. The member's own name follows the dot after it. */
size_t clime_namespace_length(struct clime_str tools, struct clime_str name);
/* Writes a call's text as a JSON string; arguments in another form are the text themselves. */
void clime_custom_tool_write_input(struct clime_jw *w, struct clime_str arguments);

#endif
