/* Messages of an OpenAI request, made ready for a chat template.
 *
 * Clients send tool-call arguments as a JSON text in a string, contents as a list of parts, and null members; most
 * templates want an object, a string, and no such members. SGLang and vLLM settle this before rendering, and so does
 * this. Any thread with a stack of 1 MiB; no state.
 */
#ifndef CLIME_TEXT_TEMPLATE_CHAT_H
#define CLIME_TEXT_TEMPLATE_CHAT_H

#include "common/buf.h"
#include "common/err.h"
#include "text/template/template.h"

/* True when the template itself renders a content that is a list of text parts. Found out by rendering one such
 * message: once per template, on a text thread. */
bool clime_chat_takes_parts(const struct clime_template *t);

/* Appends the array of messages to out (as JSON) with these changes, all else as it was:
 *   - tool_calls[].function.arguments: a string is parsed and must hold a JSON object (an object passes);
 *   - content: a list of parts becomes its texts joined by newlines, unless keep_parts; null or absent becomes "";
 *   - other members that are null, and an empty tool_calls, are left out.
 * CLIME_ERR_INPUT names the message and member: no array, no objects, a role that is no string, a part that is not
 * text, arguments that are no object. CLIME_ERR_LIMIT past out's cap. On error out holds a part of the answer. */
enum clime_err clime_chat_messages(struct clime_str messages, bool keep_parts, struct clime_buf *out,
                                   struct clime_error *e);

#endif
