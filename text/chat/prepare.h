/* Normalizes messages for a chat template: used for everything that is rendered, from clients and data rows.
 *
 * Input has call arguments as JSON in a string, content as a list of parts, reasoning under several names, and null
 * members; a template expects an object or a text, a string, one name, and no nulls. SGLang, vLLM and trainers convert
 * this before rendering, and so does this. Any thread with a stack of 1 MiB; no state.
 */
#ifndef CLIME_TEXT_CHAT_PREPARE_H
#define CLIME_TEXT_CHAT_PREPARE_H

#include "common/buf.h"
#include "common/err.h"
#include "text/chat/form.h"

/* Parts of a conversation that the template does not show. */
enum { CLIME_CHAT_LOSSES = 4 }; /* kinds */
enum clime_chat_lost {
    CLIME_LOST_SYSTEM = 1, /* a system message in its place */
    CLIME_LOST_TOOLS = 2,
    CLIME_LOST_CALLS = 4,
    CLIME_LOST_REASONING = 8
};

/* Appends the array of messages to out (as JSON) with these changes, all else as it was:
 *   - role: developer becomes system unless the template mentions it;
 *   - tool_calls[].function.arguments, or tool_calls[].arguments of the older form: must be a JSON object or a string
 *     that contains one. A string is kept if the template takes texts, so that the model's text returns byte for byte;
 *     an object is kept if it takes objects; otherwise it is converted; absent, null and an empty text become {};
 *   - a call of a custom tool becomes a function call (custom_tools.h);
 *   - content: a list of parts becomes its texts joined by newlines, unless the template takes parts for that role;
 *     null or absent becomes "", or the text of OpenAI's "refusal", which is dropped;
 *   - reasoning of an assistant, under any of clime_chat_thoughts: moved to the name that the template reads; of two,
 *     the first with text;
 *   - other null members, and an empty tool_calls, are dropped.
 * Idempotent. *lost (may be NULL): enum clime_chat_lost.
 * CLIME_ERR_INPUT names the message and member: not an array of objects, a role that is not a string or that the
 * template drops, a part that is not text, arguments that are not an object, a function_call. CLIME_ERR_LIMIT past
 * out's cap. On error out has a partial result. */
enum clime_err clime_chat_prepare(const struct clime_chat_form *f, struct clime_str messages, struct clime_buf *out,
                                  unsigned *lost, struct clime_error *e);

#endif
