/* Messages made ready for a chat template: the one preparation of all that is rendered, whether a client sent it or a
 * row of data has it.
 *
 * People write arguments of calls as a JSON text in a string, contents as a list of parts, reasoning under several
 * names, and null members; a template wants an object or a text, a string, one name, and no such members. SGLang, vLLM
 * and the trainers settle this before rendering, and so does this. Any thread with a stack of 1 MiB; no state.
 */
#ifndef CLIME_TEXT_CHAT_PREPARE_H
#define CLIME_TEXT_CHAT_PREPARE_H

#include "common/buf.h"
#include "common/err.h"
#include "text/chat/form.h"

/* What a conversation has and the template does not show. */
enum { CLIME_CHAT_LOSSES = 4 }; /* kinds */
enum clime_chat_lost {
    CLIME_LOST_SYSTEM = 1, /* a system message where it stands */
    CLIME_LOST_TOOLS = 2,
    CLIME_LOST_CALLS = 4,
    CLIME_LOST_REASONING = 8
};

/* Appends the array of messages to out (as JSON) with these changes, all else as it was:
 *   - role: developer becomes system unless the template names it;
 *   - tool_calls[].function.arguments, or tool_calls[].arguments of the older form: must be a JSON object or a string
 * that holds one. A string stays one where the template takes texts, so that what a model wrote comes back byte for
 * byte; an object stays one where it takes objects; otherwise the one becomes the other; absent, null and an empty text
 * are an object without members;
 *   - a call of a custom tool is one of a function (custom_tools.h);
 *   - content: a list of parts becomes its texts joined by newlines, unless the template takes parts of that role; null
 *     or absent becomes "", or the text of OpenAI's "refusal", which is left out;
 *   - reasoning of an assistant, under any of clime_chat_thoughts: under the name that the template reads; of two, the
 *     first that has a text;
 *   - other members that are null, and an empty tool_calls, are left out.
 * What was made so stays as it is when it is prepared again. *lost (may be NULL): enum clime_chat_lost.
 * CLIME_ERR_INPUT names the message and member: no array, no objects, a role that is no string, or one that the
 * template drops, a part that is not text, arguments that are no object, a function_call. CLIME_ERR_LIMIT past out's
 * cap. On error out holds a part of the answer. */
enum clime_err clime_chat_prepare(const struct clime_chat_form *f, struct clime_str messages, struct clime_buf *out,
                                  unsigned *lost, struct clime_error *e);

#endif
