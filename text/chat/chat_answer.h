/* An answer as a message of OpenAI's chat completions, whole and in deltas. Writers; no state. */
#ifndef CLIME_TEXT_CHAT_CHAT_ANSWER_H
#define CLIME_TEXT_CHAT_CHAT_ANSWER_H

#include "text/chat/answer.h"

/* {"role": "assistant", "content", "reasoning_content"?, "reasoning"?, "tool_calls"?}. Content is null where there are
 * calls and nothing else. */
void clime_chat_answer_write(struct clime_jw *w, const struct clime_answer *a);

/* Members of a delta: text of content or of reasoning; a call's id and name (first), or more of its arguments. */
void clime_chat_answer_text(struct clime_jw *w, enum clime_segment_kind kind, struct clime_str text);
void clime_chat_answer_call(struct clime_jw *w, const struct clime_answer *a, const struct clime_piece *p, bool first);

/* finish_reason; NULL = not yet. A stop behind a call is tool_calls. */
const char *clime_chat_answer_finish(const struct clime_answer *a);

/* "usage", in tokens. */
void clime_chat_answer_usage(struct clime_jw *w, int64_t prompt, int64_t out, int64_t cached, int64_t reasoning);

/* Members of a token in a choice's "logprobs", beside its text: "bytes" (it may be a part of a character, which a text
 * cannot show) and "logprob". */
void clime_chat_answer_logprob(struct clime_jw *w, struct clime_str bytes, float logp);

#endif
