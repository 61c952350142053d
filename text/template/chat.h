/* Messages of an OpenAI request, made ready for a chat template.
 *
 * Clients send tool-call arguments as a JSON text in a string, contents as a list of parts, and null members; many
 * templates want an object, a string, and no such members. SGLang and vLLM settle this before rendering, and so does
 * this. Any thread with a stack of 1 MiB; no state.
 */
#ifndef CLIME_TEXT_TEMPLATE_CHAT_H
#define CLIME_TEXT_TEMPLATE_CHAT_H

#include "common/buf.h"
#include "common/err.h"
#include "text/template/template.h"

/* What a template renders by itself. Found out by rendering messages made for it: once per template, on a text thread.
 */
enum clime_chat_takes {
    CLIME_CHAT_PARTS = 1,     /* a content that is a list of text parts */
    CLIME_CHAT_TEXT_ARGS = 2, /* arguments of a call as the text that the model wrote */
    CLIME_CHAT_OBJECT_ARGS = 4
};
unsigned clime_chat_takes(const struct clime_template *t);

/* Appends the array of messages to out (as JSON) with these changes, all else as it was:
 *   - tool_calls[].function.arguments: must be a JSON object or a string that holds one. A string stays one where the
 *     template takes texts, so that what a model wrote comes back byte for byte; an object stays one where it takes
 *     objects; otherwise the one becomes the other; absent, null and an empty text are an object without members;
 *   - a call of a custom tool is one of a function (custom_tools.h);
 *   - content: a list of parts becomes its texts joined by newlines, unless the template takes parts; null or absent
 *     becomes "";
 *   - other members that are null, and an empty tool_calls, are left out.
 * CLIME_ERR_INPUT names the message and member: no array, no objects, a role that is no string, a part that is not
 * text, arguments that are no object. CLIME_ERR_LIMIT past out's cap. On error out holds a part of the answer. */
enum clime_err clime_chat_messages(struct clime_str messages, unsigned takes, struct clime_buf *out,
                                   struct clime_error *e);

#endif
