/* An answer in the form of OpenAI's Responses: an object with items (reasoning, message, function_call,
 * custom_tool_call), and the events of its stream. Writers; the only state is a stream's.
 */
#ifndef CLIME_TEXT_CHAT_RESPONSES_ANSWER_H
#define CLIME_TEXT_CHAT_RESPONSES_ANSWER_H

#include "text/chat/answer.h"

/* Request fields that the response repeats. Borrowed; raw JSON, empty = absent; instructions are text. */
struct clime_responses_asked {
    struct clime_str instructions, tools, reasoning, tool_choice, text;
    int64_t max_output_tokens; /* <= 0: no limit */
    int top_logprobs;
    bool parallel_calls;
    bool drops; /* truncation: auto */
    double temperature, top_p;
};

/* Writes the response: with `output` if done, else empty. */
void clime_responses_write(struct clime_jw *w, const struct clime_answer *a, const struct clime_responses_asked *q,
                           bool done);
/* The reply of /v1/responses/input_tokens. */
void clime_responses_write_count(struct clime_jw *w, int64_t n);
/* An output item; begins: without its text, as added in a stream. */
void clime_responses_write_item(struct clime_jw *w, const struct clime_answer *a, int segment, bool begins);
/* True if the segment is a call of a custom tool (custom_tools.h). */
bool clime_responses_is_custom(const struct clime_answer *a, int segment);
/* A content part of a message or reasoning item: the segment, or (begins) without text. */
void clime_responses_write_part(struct clime_jw *w, const struct clime_answer *a, int segment, bool begins);
/* "logprobs" of a piece of a message's segment. A token belongs to the piece where its text begins; one that began
 * before the segment, to its first piece. */
void clime_responses_write_logprobs(struct clime_jw *w, const struct clime_answer *a, int segment,
                                    struct clime_str text);
void clime_responses_item_id(const struct clime_answer *a, int segment, char id[CLIME_ANSWER_ID]);

/* At a message's end its log-probabilities are repeated for its text, part, item and the response. */
#define CLIME_RESPONSES_REPEATS 3

/* A stream's progress; zero = the beginning. */
struct clime_responses_stream {
    struct clime_parse_cursor at;
    int64_t n_events;
    bool open;   /* an item is open */
    bool custom; /* the open item is a custom tool's call */
    int segment; /* of the open item */
    int index;   /* of the open item, or the next */
};
void clime_responses_begin(struct clime_responses_stream *s, const struct clime_answer *a,
                           const struct clime_responses_asked *q, const struct clime_answer_events *to);
/* Writes what is new of the answer, and its end if reached. */
void clime_responses_news(struct clime_responses_stream *s, const struct clime_answer *a,
                          const struct clime_responses_asked *q, const struct clime_answer_events *to);

#endif
