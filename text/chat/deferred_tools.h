/* Tools that are not shown from the beginning: Anthropic's defer_loading. A request may hold hundreds of tools of which
 * the model is shown a few, with one to search for the others; what a search has found stands in its result as a
 * reference, {"type": "tool_reference", "tool_name"}, and such a tool is shown from then on. Any thread; no state. */
#ifndef CLIME_TEXT_CHAT_DEFERRED_TOOLS_H
#define CLIME_TEXT_CHAT_DEFERRED_TOOLS_H

#include "common/json/scan.h"

/* Both lists are raw JSON, of Messages. Where a tool is deferred and no message refers to it, *tools becomes a list
 * without it, in the arena; else it stays as it is, and so it does where Anthropic's servers would search
 * (tool_search_tool_...), since nobody does here. What is no list of objects is left for its own reader to refuse.
 * CLIME_ERR_LIMIT: the arena is full. */
enum clime_err clime_deferred_tools_hide(struct clime_str *tools, struct clime_str messages, struct clime_arena *a,
                                         struct clime_error *e);

#endif
