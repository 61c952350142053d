/* Converts conversations and tools of Responses and Messages to those of chat completions, as chat templates expect.
 * Any thread; no state. Results are JSON copies in the arena. Errors name the place: CLIME_ERR_INPUT for malformed or
 * non-text input; CLIME_ERR_LIMIT.
 */
#ifndef CLIME_TEXT_CHAT_CONVERSATION_H
#define CLIME_TEXT_CHAT_CONVERSATION_H

#include "common/json/scan.h"
#include "common/json/write.h"

/* Responses: input is raw JSON (a text or a list of items), instructions a text (empty = none). */
enum clime_err clime_responses_conversation(struct clime_str input, struct clime_str instructions,
                                            struct clime_arena *a, struct clime_str *messages, struct clime_error *e);
/* Responses: reads "include" at j; sets *logprobs if it names them. Fails j for unknown values. */
bool clime_responses_read_include(struct clime_json *j, bool *logprobs);
/* Messages: both raw JSON; system may be empty. *begun: the last message is the assistant's, and the reply continues
 * it. */
enum clime_err clime_messages_conversation(struct clime_str system, struct clime_str list, struct clime_arena *a,
                                           struct clime_str *messages, bool *begun, struct clime_error *e);

/* Tools to functions. raw: JSON, may be empty; *tools is set unless there are none. Tools of chat completions stay byte
 * for byte, except custom ones (custom_tools.h). */
enum clime_err clime_chat_functions(struct clime_str raw, struct clime_arena *a, struct clime_str *tools,
                                    struct clime_error *e);
enum clime_err clime_responses_functions(struct clime_str raw, struct clime_arena *a, struct clime_str *tools,
                                         struct clime_error *e);
enum clime_err clime_messages_functions(struct clime_str raw, struct clime_arena *a, struct clime_str *tools,
                                        struct clime_error *e);
/* Used by those above: reads a list of tools; read writes one, or nothing. */
enum clime_err clime_functions_read(struct clime_str raw, void (*read)(struct clime_json *j, struct clime_jw *w),
                                    struct clime_arena *a, struct clime_str *tools, struct clime_error *e);
/* The namespace that a tool is in (custom_tools.h); description: precedes the tool's own. */
struct clime_function_space {
    struct clime_str name, description;
};
/* {"type": "function", "function": {...}} from the object's members except "type": name, description, parameters, then
 * the others, in any input order. custom: the parameter is a text, which "format" may describe. in: NULL = no
 * namespace. */
void clime_function_write(struct clime_json *object, bool custom, const struct clime_function_space *in,
                          struct clime_jw *w);

#endif
