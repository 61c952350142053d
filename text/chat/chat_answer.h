/* An answer as a message of OpenAI's chat completions, whole and in deltas. Writers; no state. */
#ifndef CLIME_TEXT_CHAT_CHAT_ANSWER_H
#define CLIME_TEXT_CHAT_CHAT_ANSWER_H

#include "text/chat/answer.h"

/* {"role": "assistant", "content", "reasoning_content"?, "reasoning"?, "tool_calls"?}. Content is null where there are
 * calls and nothing else. */
void clime_chat_answer_write(struct clime_jw *w, const struct clime_answer *a);

/* A stream's deltas, one at a time: text of content or of reasoning; a call's id and name (first), then more of its
 * arguments. A custom tool's call comes whole, when it has ended, since its text stands quoted in the arguments. */
struct clime_chat_cursor { /* zero = the beginning */
    struct clime_parse_cursor at;
    struct clime_piece call; /* that was announced */
    bool more;               /* its text is yet to be said */
    bool is_custom;          /* the newest call is a custom tool's */
    int n;                   /* calls that were announced */
    int custom;              /* the segment of a custom tool's call that was not said yet, counted from 1; 0 = none */
};
struct clime_chat_delta {
    struct clime_piece piece;
    bool first, custom;
    int index; /* of the call, among those that the stream announces */
};
/* What the stream has not said yet; false: nothing, for now. */
bool clime_chat_answer_next(const struct clime_answer *a, struct clime_chat_cursor *c, struct clime_chat_delta *d);
/* Members of the delta. */
void clime_chat_answer_delta(struct clime_jw *w, const struct clime_answer *a, const struct clime_chat_delta *d);

/* finish_reason; NULL = not yet. A stop behind a call is tool_calls. */
const char *clime_chat_answer_finish(const struct clime_answer *a);

/* "usage", in tokens. */
void clime_chat_answer_usage(struct clime_jw *w, int64_t prompt, int64_t out, int64_t cached, int64_t reasoning);

/* Members of a token in a choice's "logprobs", beside its text: "bytes" (it may be a part of a character, which a text
 * cannot show) and "logprob". */
void clime_chat_answer_logprob(struct clime_jw *w, struct clime_str bytes, float logp);

#endif
