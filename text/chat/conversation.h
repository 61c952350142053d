/* Conversations in the forms of Responses and Messages, as the messages and tools of chat completions that chat
 * templates take. Any thread; no state. What comes out is a copy in the arena, JSON. Errors name the place:
 * CLIME_ERR_INPUT for what is no conversation, or holds what is no text; CLIME_ERR_LIMIT.
 */
#ifndef CLIME_TEXT_CHAT_CONVERSATION_H
#define CLIME_TEXT_CHAT_CONVERSATION_H

#include "common/json/scan.h"
#include "common/json/write.h"

/* Responses: input is raw JSON (a text or a list of items), instructions a text (empty = none). */
enum clime_err clime_responses_conversation(struct clime_str input, struct clime_str instructions,
                                            struct clime_arena *a, struct clime_str *messages, struct clime_error *e);
/* Responses: "include", what a response is to hold beside its text, at j; *logprobs is set where it names them. Fails j
 * for what is not known. */
bool clime_responses_read_include(struct clime_json *j, bool *logprobs);
/* Messages: both raw JSON; system may be empty. *begun: the last message is the assistant's, and the reply goes on with
 * it. */
enum clime_err clime_messages_conversation(struct clime_str system, struct clime_str list, struct clime_arena *a,
                                           struct clime_str *messages, bool *begun, struct clime_error *e);

/* Tools to functions. raw: JSON, may be empty; *tools is set unless it asks for nothing. Those of chat completions stay
 * as they came, byte for byte, but for custom ones (custom_tools.h). */
enum clime_err clime_chat_functions(struct clime_str raw, struct clime_arena *a, struct clime_str *tools,
                                    struct clime_error *e);
enum clime_err clime_responses_functions(struct clime_str raw, struct clime_arena *a, struct clime_str *tools,
                                         struct clime_error *e);
enum clime_err clime_messages_functions(struct clime_str raw, struct clime_arena *a, struct clime_str *tools,
                                        struct clime_error *e);
/* For those above: a list of tools, of which read writes one, or nothing. */
enum clime_err clime_functions_read(struct clime_str raw, void (*read)(struct clime_json *j, struct clime_jw *w),
                                    struct clime_arena *a, struct clime_str *tools, struct clime_error *e);
/* The namespace that a tool is in (custom_tools.h); description: what is to be said before the tool's own. */
struct clime_function_space {
    struct clime_str name, description;
};
/* {"type": "function", "function": {...}} of the members that an object has beside "type": name, description,
 * parameters, then the others, in whichever order it has them. custom: with a text for its parameters, which "format"
 * may describe. in: NULL = it is in no namespace. */
void clime_function_write(struct clime_json *object, bool custom, const struct clime_function_space *in,
                          struct clime_jw *w);

#endif
