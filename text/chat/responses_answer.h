/* An answer in the form of OpenAI's Responses: an object with items (reasoning, message, function_call,
 * custom_tool_call), and the events of its stream. Writers; no state but a stream's own.
 */
#ifndef CLIME_TEXT_CHAT_RESPONSES_ANSWER_H
#define CLIME_TEXT_CHAT_RESPONSES_ANSWER_H

#include "text/chat/answer.h"

/* What the request said and the response says again. Borrowed; raw JSON, empty = absent; instructions are text. */
struct clime_responses_asked {
    struct clime_str instructions, tools, reasoning, tool_choice, text;
    int64_t max_output_tokens; /* 0 or less: no limit */
    int top_logprobs;
    bool parallel_calls;
    bool drops; /* truncation: auto */
    double temperature, top_p;
};

/* The response: `output` as far as it is known where done, empty otherwise. */
void clime_responses_write(struct clime_jw *w, const struct clime_answer *a, const struct clime_responses_asked *q,
                           bool done);
/* What /v1/responses/input_tokens says. */
void clime_responses_write_count(struct clime_jw *w, int64_t n);
/* An item of the output; begins: as it is added in a stream, without its text. */
void clime_responses_write_item(struct clime_jw *w, const struct clime_answer *a, int segment, bool begins);
/* Whether the segment is a call of a custom tool (custom_tools.h). */
bool clime_responses_is_custom(const struct clime_answer *a, int segment);
/* A part of a message's or a reasoning's content: the segment, or (begins) nothing of it yet. */
void clime_responses_write_part(struct clime_jw *w, const struct clime_answer *a, int segment, bool begins);
/* "logprobs" of a text that is a piece of a message's segment. A token belongs to where its text begins; one that began
 * before the segment, to the segment's first piece. */
void clime_responses_write_logprobs(struct clime_jw *w, const struct clime_answer *a, int segment,
                                    struct clime_str text);
void clime_responses_item_id(const struct clime_answer *a, int segment, char id[CLIME_ANSWER_ID]);

/* At a message's end its numbers come again, as those of its text, of its part, of its item, and of the response. */
#define CLIME_RESPONSES_REPEATS 3

/* How far a stream is; zero = the beginning. */
struct clime_responses_stream {
    struct clime_parse_cursor at;
    int64_t n_events;
    bool open;   /* an item is */
    bool custom; /* the open item is a custom tool's call */
    int segment; /* of the open item */
    int index;   /* of the open item, or the next */
};
void clime_responses_begin(struct clime_responses_stream *s, const struct clime_answer *a,
                           const struct clime_responses_asked *q, const struct clime_answer_events *to);
/* What is new of the answer, and its end where it has one. */
void clime_responses_news(struct clime_responses_stream *s, const struct clime_answer *a,
                          const struct clime_responses_asked *q, const struct clime_answer_events *to);

#endif
