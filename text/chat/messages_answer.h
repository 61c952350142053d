/* An answer in the form of Anthropic's Messages: content blocks (thinking, text, tool_use), and the events of its
 * stream. Writers; no state but a stream's own.
 */
#ifndef CLIME_TEXT_CHAT_MESSAGES_ANSWER_H
#define CLIME_TEXT_CHAT_MESSAGES_ANSWER_H

#include "text/chat/answer.h"

void clime_messages_write(struct clime_jw *w, const struct clime_answer *a);

/* How far a stream is; zero = the beginning. */
struct clime_messages_stream {
    struct clime_parse_cursor at;
    bool open;   /* a block is */
    int segment; /* of the open block */
    int index;   /* of the open block, or the next */
};
void clime_messages_begin(const struct clime_answer *a, const struct clime_answer_events *to);
/* What is new of the answer, and its end where it has one. */
void clime_messages_news(struct clime_messages_stream *s, const struct clime_answer *a,
                         const struct clime_answer_events *to);

/* The answer, a 400, to a request with a thread, a conversation that the server would keep: none is kept, and one that
 * goes on does not hold its beginning. By the error code Anthropic's own loops leave the thread out and send the whole
 * conversation from then on. */
void clime_messages_refuse_thread(struct clime_buf *out);

#endif
