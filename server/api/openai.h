/* What the OpenAI endpoints, and Anthropic's, share: the request's fields, and the pieces of their replies.
 *
 * Field names and tolerance follow the OpenAI API with SGLang's and vLLM's extensions (docs/protocol.md).
 */
#ifndef CLIME_SERVER_API_OPENAI_H
#define CLIME_SERVER_API_OPENAI_H

#include "server/api/generation.h"
#include "text/chat/allowed_tools.h"
#include "text/chat/chat_answer.h"

struct clime_openai_request {
    const struct clime_server *server;
    const struct clime_prompt *prompts; /* the generation's */
    bool chat;
    struct clime_chat_prompt prompt; /* chat */
    struct clime_tools tools;        /* prompt.tools, read */
    struct clime_str text_prompt;    /* completions: raw JSON of `prompt` */
    const char *prompt_name;         /* what the request calls it, for messages */
    struct clime_str input_ids;      /* chat: raw JSON; goes instead of the template */
    struct clime_str rid, salt;
    struct clime_str model; /* as asked for */
    const char *model_name; /* the served name, for replies */
    int64_t best_of, max_tokens, truncate;
    bool stream, echo, no_tools, parallel_calls, add_special;
    bool must_call;                     /* tool_choice: required, or a function by name */
    struct clime_str must_name;         /* which; empty = any */
    struct clime_allowed_tools allowed; /* tool_choice: allowed_tools */
    struct clime_str custom_tools;      /* the tools as the client gave them, raw JSON, where some are custom */
    bool usage_in_stream, usage_always; /* stream_options */
    bool logprobs;
    bool separate_reasoning, stream_reasoning;
    bool return_token_ids, return_prompt_ids, return_meta_info,
        ids_as_text;         /* "token_id:5" instead of the token's text */
    int top;                 /* alternatives that are shown; logp.top may be more */
    int64_t prompt_logprobs; /* alternatives at each position of the prompt, beside its own token; -1: none wanted */
    struct clime_sampling_params params;
    struct clime_logp_options logp;
    int64_t created; /* seconds since 1970 */
    struct clime_buf event;
};

/* Reads the body; defaults are those of the model's generation_config.json, then OpenAI's. job->endpoint = r. */
enum clime_err clime_openai_parse(struct clime_generation *gen, bool chat, struct clime_openai_request *r,
                                  struct clime_error *e);

/* The parts of it, for the endpoints that have a conversation in another form (Responses, Messages): the defaults, and,
 * when the fields are read, model, prompt, tools and how the reply is to be told apart. */
void clime_openai_begin(struct clime_generation *gen, bool chat, const char *rid_prefix,
                        struct clime_openai_request *r);
enum clime_err clime_openai_settle(struct clime_generation *gen, struct clime_openai_request *r, struct clime_error *e);
/* Members that need more than a table's row; object: the request. */
bool clime_openai_read_tool_choice(struct clime_json *j, void *object);
bool clime_openai_read_stream_options(struct clime_json *j, void *object);
bool clime_openai_read_model(struct clime_json *j, void *object);
bool clime_openai_read_top(struct clime_json *j, void *object);
bool clime_openai_read_chosen(struct clime_json *j, void *object); /* logprob_token_ids */

/* "id", "object", "created", "model": opens the object, the caller closes it. */
void clime_openai_open(struct clime_jw *w, const struct clime_job *j, const char *object);

/* finish_reason, matched_stop. A stop behind a call is tool_calls. */
void clime_openai_write_finish(struct clime_jw *w, const struct clime_output *o);
void clime_openai_write_usage(struct clime_jw *w, const struct clime_job *j);
void clime_openai_write_ids(struct clime_jw *w, const char *key, const int32_t *ids, size_t n);
/* token_ids, seed, meta_info of a choice, as far as asked for; from: the first token of a delta */
void clime_openai_write_extras(struct clime_jw *w, const struct clime_openai_request *r, const struct clime_output *o,
                               size_t from, bool prompt_ids, bool last);
/* vLLM's "prompt_logprobs", where it was asked for: by position null or {id: {logprob, rank, decoded_token}}. */
void clime_openai_write_prompt_logprobs(struct clime_jw *w, const struct clime_output *o);
/* "logprobs" as chat has them, {"content": [...]}, from the token `from` on; null where they were not asked for. */
void clime_openai_write_content_logprobs(struct clime_jw *w, const struct clime_output *o, size_t from);
/* The numbers of its tokens, for answers that show them by the text they belong to; none where they were not asked for.
 */
struct clime_answer_tokens clime_openai_tokens(const struct clime_output *o);

/* A closed job's reply, or an error reply; common tail of both handlers. */
void clime_openai_finish_call(struct clime_generation *gen, enum clime_err err, const struct clime_error *e,
                              void (*write)(struct clime_job *j, struct clime_buf *out));

/* The output as the writers of its message see it (text/chat). */
struct clime_answer clime_openai_answer(const struct clime_output *o);

/* The end of a reply's object: "metadata". */
void clime_openai_close_reply(struct clime_jw *w, const struct clime_job *j);

/* Streams. A chunk is written to the request's event: opened up to "index" of its one choice, then closed with the
 * usage as it was asked for and framed. */
void clime_openai_open_chunk(struct clime_jw *w, const struct clime_output *o, const char *object);
void clime_openai_send_chunk(struct clime_jw *w, struct clime_job *j, struct clime_buf *sse);
/* The error event of a failed output, and the common end (usage chunk, [DONE]). */
bool clime_openai_stream_failed(struct clime_openai_request *r, const struct clime_output *o, struct clime_buf *sse);
void clime_openai_stream_end(struct clime_job *j, struct clime_buf *sse, const char *object);

#endif
