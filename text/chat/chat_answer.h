/* An answer as a message of OpenAI's chat completions, whole and in deltas. Stateless writers. */
#ifndef CLIME_TEXT_CHAT_CHAT_ANSWER_H
#define CLIME_TEXT_CHAT_CHAT_ANSWER_H

#include "text/chat/answer.h"

/* {"role": "assistant", "content", "reasoning_content"?, "reasoning"?, "tool_calls"?}. Content is null if there are
 * only calls. */
void clime_chat_answer_write(struct clime_jw *w, const struct clime_answer *a);

/* A stream's deltas, one at a time: content or reasoning text; a call's id and name first, then its arguments. A custom
 * tool's call is sent whole at its end, since its text is quoted inside the arguments. */
struct clime_chat_cursor { /* zero = the beginning */
    struct clime_parse_cursor at;
    struct clime_piece call; /* the last announced call */
    bool more;               /* its text is still to send */
    bool is_custom;          /* the newest call is a custom tool's */
    int n;                   /* announced calls */
    int custom;              /* segment of an unsent custom tool call, from 1; 0 = none */
};
struct clime_chat_delta {
    struct clime_piece piece;
    bool first, custom;
    int index; /* index among the stream's calls */
};
/* The next unsent delta; false: none for now. */
bool clime_chat_answer_next(const struct clime_answer *a, struct clime_chat_cursor *c, struct clime_chat_delta *d);
/* Members of the delta. */
void clime_chat_answer_delta(struct clime_jw *w, const struct clime_answer *a, const struct clime_chat_delta *d);

/* finish_reason; NULL = not yet. A stop after a call is tool_calls. */
const char *clime_chat_answer_finish(const struct clime_answer *a);

/* "usage", in tokens. */
void clime_chat_answer_usage(struct clime_jw *w, int64_t prompt, int64_t out, int64_t cached, int64_t reasoning);

/* Members of a token in a choice's "logprobs", besides its text: "bytes" (for partial characters) and "logprob". */
void clime_chat_answer_logprob(struct clime_jw *w, struct clime_str bytes, float logp);

#endif
