/* Builds the messages of a chat prompt from a conversation in another form (Responses' items, Messages' blocks).
 *
 * Consecutive assistant text, reasoning and calls form one message; each tool result is its own message; leading system
 * texts are one. Owner: the request's parser.
 */
#ifndef CLIME_TEXT_CHAT_CHAT_BUILD_H
#define CLIME_TEXT_CHAT_CHAT_BUILD_H

#include "common/json/scan.h"
#include "common/json/write.h"

struct clime_chat_build {
    struct clime_buf out; /* the array */
    struct clime_jw w;
    bool begun;    /* a message other than system's was added */
    bool speaking; /* an assistant message is open: */
    struct clime_buf system, content, reasoning, calls;
};

void clime_chat_build_begin(struct clime_chat_build *b);
void clime_chat_build_free(struct clime_chat_build *b);

void clime_chat_build_system(struct clime_chat_build *b, struct clime_str text);
void clime_chat_build_user(struct clime_chat_build *b, struct clime_str text);
void clime_chat_build_tool(struct clime_chat_build *b, struct clime_str call_id, struct clime_str text);
/* Of the assistant. arguments: the JSON value of `arguments`, a string or an object. */
void clime_chat_build_said(struct clime_chat_build *b, struct clime_str text);
void clime_chat_build_thought(struct clime_chat_build *b, struct clime_str text);
void clime_chat_build_called(struct clime_chat_build *b, struct clime_str id, struct clime_str name,
                             struct clime_str arguments);

/* True if the newest message is assistant text without a call. */
bool clime_chat_build_speaks(const struct clime_chat_build *b);

/* Ends the array; *messages is a copy in the arena. CLIME_ERR_LIMIT. */
enum clime_err clime_chat_build_end(struct clime_chat_build *b, struct clime_arena *a, struct clime_str *messages,
                                    struct clime_error *e);

/* Appends the text of a content: a string, null, or a list of parts that have one, joined by newlines. Any other part
 * is an error that names its type. */
bool clime_chat_build_text(struct clime_json *j, struct clime_buf *out);

#endif
