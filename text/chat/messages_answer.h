/* An answer in the form of Anthropic's Messages: content blocks (thinking, text, tool_use), and the events of its
 * stream. Writers; the only state is a stream's.
 */
#ifndef CLIME_TEXT_CHAT_MESSAGES_ANSWER_H
#define CLIME_TEXT_CHAT_MESSAGES_ANSWER_H

#include "text/chat/answer.h"

void clime_messages_write(struct clime_jw *w, const struct clime_answer *a);

/* A stream's progress; zero = the beginning. */
struct clime_messages_stream {
    struct clime_parse_cursor at;
    bool open;   /* a block is open */
    int segment; /* of the open block */
    int index;   /* of the open block, or the next */
};
void clime_messages_begin(const struct clime_answer *a, const struct clime_answer_events *to);
/* Writes what is new of the answer, and its end if reached. */
void clime_messages_news(struct clime_messages_stream *s, const struct clime_answer *a,
                         const struct clime_answer_events *to);

/* The 400 reply to a request with a thread (a conversation stored by the server; none is stored here). On its error
 * code Anthropic's clients drop the thread and send the whole conversation. */
void clime_messages_refuse_thread(struct clime_buf *out);

#endif
