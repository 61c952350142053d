/* A policy's answer: the input of the writers for the chat APIs: chat completions (chat_answer.h), Responses
 * (responses_answer.h), Messages (messages_answer.h).
 *
 * An answer is a view of an output that may still grow; it owns nothing. Streams and whole answers use the same view; a
 * stream's cursor records what was written. One thread at a time.
 */
#ifndef CLIME_TEXT_CHAT_ANSWER_H
#define CLIME_TEXT_CHAT_ANSWER_H

#include "common/json/write.h"
#include "text/output/parse.h"

enum clime_answer_end { CLIME_ANSWER_OPEN, CLIME_ANSWER_STOP, CLIME_ANSWER_LENGTH, CLIME_ANSWER_ABORT };

/* Log-probabilities of an answer's tokens, through callbacks of their owner. */
struct clime_answer_tokens {
    size_t n;
    size_t (*begins)(const void *of, size_t i); /* bytes of the text before it */
    /* members of an object: "token", "bytes", "logprob", "top_logprobs" */
    void (*write)(struct clime_jw *w, const void *of, size_t i);
    const void *of;
};

struct clime_answer {
    struct clime_str id;
    const char *model;
    int64_t created; /* seconds since 1970 */
    int index;       /* of the choice */
    const struct clime_parse *parse;
    struct clime_str text; /* the final part; segments are ranges of it */
    enum clime_answer_end end;
    struct clime_str matched;                       /* STOP by a string: that string; else empty */
    int status;                                     /* ABORT: HTTP status, 0 = on request */
    const char *message;                            /* ABORT */
    int64_t n_prompt, n_cached, n_out, n_reasoning; /* tokens */
    const char *weight_version;                     /* at the end */
    struct clime_str custom;                        /* the request's tools, raw JSON, if some are custom or in a
                                                     * namespace */
    struct clime_answer_tokens tokens;              /* Responses: n 0 = not requested */
};

#define CLIME_ANSWER_ID 300
/* A call's id: the model's own if its format has one, else derived from the answer's. */
void clime_answer_call_id(const struct clime_answer *a, int call, char id[CLIME_ANSWER_ID]);
/* PREFIX_ and digits derived from the answer's id and n. */
void clime_answer_item_id(const struct clime_answer *a, int n, const char *prefix, char id[CLIME_ANSWER_ID]);

/* True for a call of a custom tool (custom_tools.h). */
bool clime_answer_is_custom(const struct clime_answer *a, int call);
/* "name" of the call, and "namespace" if the tool is in one. */
void clime_answer_put_name(struct clime_jw *w, const struct clime_answer *a, int call);

/* The text of a non-call segment; the text of all segments of a kind, as a JSON string. */
struct clime_str clime_answer_segment(const struct clime_answer *a, int segment);
void clime_answer_write_kind(struct clime_jw *w, const struct clime_answer *a, enum clime_segment_kind kind);

/* "metadata": the end of an answer's object. */
void clime_answer_close(struct clime_jw *w, const char *weight_version);

/* Target of a stream's named events: {"type": NAME, ... is opened in scratch, then closed and framed into sse. */
struct clime_answer_events {
    struct clime_buf *scratch, *sse;
};
struct clime_jw clime_answer_open_event(const struct clime_answer_events *to, const char *name);
void clime_answer_send_event(struct clime_jw *w, const struct clime_answer_events *to, const char *name);

#endif
