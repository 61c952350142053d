/* Deferred tools: Anthropic's defer_loading. A request may have hundreds of tools, of which the model sees a few plus
 * one to search for others. A search result refers to found tools, {"type": "tool_reference", "tool_name"}, which are
 * shown from then on. Any thread; no state. */
#ifndef CLIME_TEXT_CHAT_DEFERRED_TOOLS_H
#define CLIME_TEXT_CHAT_DEFERRED_TOOLS_H

#include "common/json/scan.h"

/* Both lists are raw JSON, of Messages. If a tool is deferred and no message refers to it, *tools becomes a list
 * without it, in the arena; else it is unchanged, also where Anthropic's servers would search (tool_search_tool_...),
 * which is not done here. Malformed lists are left to their own reader. CLIME_ERR_LIMIT: the arena is full. */
enum clime_err clime_deferred_tools_hide(struct clime_str *tools, struct clime_str messages, struct clime_arena *a,
                                         struct clime_error *e);

#endif
