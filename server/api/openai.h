/* Shared by the OpenAI and Anthropic endpoints: request fields and reply pieces.
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
    const char *prompt_name;         /* its name in the request, for messages */
    struct clime_str input_ids;      /* chat: raw JSON; replaces the template */
    struct clime_str rid, salt;
    struct clime_str model; /* as requested */
    const char *model_name; /* the served name, for replies */
    int64_t best_of, max_tokens, truncate;
    bool stream, echo, no_tools, parallel_calls, add_special;
    bool must_call;                     /* tool_choice: required, or a function by name */
    struct clime_str must_name;         /* that function; empty = any */
    struct clime_allowed_tools allowed; /* tool_choice: allowed_tools */
    struct clime_str custom_tools;      /* the client's tools, raw JSON, if some are custom */
    bool usage_in_stream, usage_always; /* stream_options */
    bool logprobs;
    bool separate_reasoning, stream_reasoning;
    bool return_token_ids, return_prompt_ids, return_meta_info,
        ids_as_text;         /* "token_id:5" instead of the token's text */
    int top;                 /* alternatives shown; logp.top may be more */
    int64_t prompt_logprobs; /* alternatives at each prompt position, besides its own token; -1: not requested */
    struct clime_sampling_params params;
    struct clime_logp_options logp;
    int64_t created; /* seconds since 1970 */
    struct clime_buf event;
};

/* Parses the body; defaults from the model's generation_config.json, then OpenAI's. Sets job->endpoint = r. */
enum clime_err clime_openai_parse(struct clime_generation *gen, bool chat, struct clime_openai_request *r,
                                  struct clime_error *e);

/* Its parts, for endpoints with another conversation form (Responses, Messages): begin sets defaults; settle, after the
 * fields are read, sets model, prompt, tools and output format. */
void clime_openai_begin(struct clime_generation *gen, bool chat, const char *rid_prefix,
                        struct clime_openai_request *r);
enum clime_err clime_openai_settle(struct clime_generation *gen, struct clime_openai_request *r, struct clime_error *e);
/* Readers of members that need code; object: the request. */
bool clime_openai_read_tool_choice(struct clime_json *j, void *object);
bool clime_openai_read_stream_options(struct clime_json *j, void *object);
bool clime_openai_read_model(struct clime_json *j, void *object);
bool clime_openai_read_top(struct clime_json *j, void *object);
bool clime_openai_read_chosen(struct clime_json *j, void *object); /* logprob_token_ids */

/* Opens the object with "id", "object", "created", "model"; the caller closes it. */
void clime_openai_open(struct clime_jw *w, const struct clime_job *j, const char *object);

/* finish_reason, matched_stop. A stop after a call is tool_calls. */
void clime_openai_write_finish(struct clime_jw *w, const struct clime_output *o);
void clime_openai_write_usage(struct clime_jw *w, const struct clime_job *j);
void clime_openai_write_ids(struct clime_jw *w, const char *key, const int32_t *ids, size_t n);
/* token_ids [from, to), seed, meta_info of a choice, if requested. */
void clime_openai_write_extras(struct clime_jw *w, const struct clime_openai_request *r, const struct clime_output *o,
                               size_t from, size_t to, bool prompt_ids, bool last);
/* vLLM's "prompt_logprobs", if requested: null or {id: {logprob, rank, decoded_token}} per position. */
void clime_openai_write_prompt_logprobs(struct clime_jw *w, const struct clime_output *o);
/* Chat's "logprobs", {"content": [...]}, of tokens [from, to); null if not requested. */
void clime_openai_write_content_logprobs(struct clime_jw *w, const struct clime_output *o, size_t from, size_t to);
/* The tokens' log-probabilities, for answers that attach them to text; none if not requested. */
struct clime_answer_tokens clime_openai_tokens(const struct clime_output *o);

/* Sends a closed job's reply or an error; common tail of the handlers. */
void clime_openai_finish_call(struct clime_generation *gen, enum clime_err err, const struct clime_error *e,
                              void (*write)(struct clime_job *j, struct clime_buf *out));

/* The output as a view for the message writers (text/chat). */
struct clime_answer clime_openai_answer(const struct clime_output *o);

/* The end of a reply's object: "metadata". */
void clime_openai_close_reply(struct clime_jw *w, const struct clime_job *j);

/* Streams. A chunk is built in the request's event: opened up to "index" of its one choice, then closed, with usage if
 * requested, and framed. */
void clime_openai_open_chunk(struct clime_jw *w, const struct clime_output *o, const char *object);
void clime_openai_send_chunk(struct clime_jw *w, struct clime_job *j, struct clime_buf *sse);
/* The error event of a failed output, and the common end (usage chunk, [DONE]). */
bool clime_openai_stream_failed(struct clime_openai_request *r, const struct clime_output *o, struct clime_buf *sse);
void clime_openai_stream_end(struct clime_job *j, struct clime_buf *sse, const char *object);

#endif
